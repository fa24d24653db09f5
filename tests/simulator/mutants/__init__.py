"""Mutants: copies of the project without one of its guards, which the simulator must find.

A passing schedule proves only as much as it would detect. Each mutant is an exact replacement in one file. A
replacement that does not match any more is an error, so the list follows the code.

`./dev simulate --mutants` makes each of them in a copy of the tree. Then it runs the mutant's story, or schedules
until one fails.
"""

from tests.simulator.mutants.finding import MUTANTS, ROOT, chosen, found
from tests.simulator.mutants.mutant import Mutant

__all__ = ["MUTANTS", "ROOT", "Mutant", "chosen", "found"]
