"""Importing this imports all that the simulator looks at, for the processes of `tests.fixtures.processes`."""

from tests.simulator.program import installed

with installed():
    pass
