"""Mutants: the project with one of its guards taken away, each of which the simulator has to find.

A schedule that passes says something only as far as it would fail where the code is wrong. Each mutant is an exact
replacement in one file; where the file has changed so that it cannot be made, that is an error: the list follows the
code. `./dev simulate --mutants` makes each of them in a copy of the tree. Then it runs the story that is told for it,
where there is one, or schedules until one fails.
"""

from tests.simulator.mutants.finding import MUTANTS, ROOT, chosen, found
from tests.simulator.mutants.mutant import Mutant

__all__ = ["MUTANTS", "ROOT", "Mutant", "chosen", "found"]
