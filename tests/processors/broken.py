"""It cannot be imported."""

x = 1 / 0
