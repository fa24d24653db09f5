"""What an agent shows of itself while it runs."""
