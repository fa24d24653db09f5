"""Plans for the source `taildir`: what a seed has happen to files, and to the agent that follows them."""

from __future__ import annotations

import random
from typing import Any

from tests.simulator.files.run import FileRun
from tests.simulator.plans import Plan, Step


class FilePlan(Plan):
    """What a run of the source `taildir` does."""

    def run(self, *, verbose: bool = False) -> Any:
        """Not yet begun."""
        return FileRun(self, verbose=verbose)


def plan_of(seed: int) -> FilePlan:
    """The one of that seed."""
    chance = random.Random(seed)
    steps = [Step(0, "write", (3,)), Step(0, "start"), Step(2, "write", (4,))]
    kinds = {
        "write": 8,
        "rotate": 5,
        "compress": 3,
        "copytruncate": 2,
        "delete": 2,
        "remove": 1,
        "churn": 3,
        "flood": 1,
        "kill": 2,
        "stop": 1,
        "start": 4,
        "pause": 1,
        "kill-opener": 1,
        "damage": 2,
    }
    for _ in range(chance.randint(4, 16)):
        what = chance.choices(list(kinds), list(kinds.values()))[0]
        after = chance.choice([0.0, 0.002, 0.05, 0.5, 3.0, 12.0])
        arguments: tuple[Any, ...] = {
            "write": (chance.randint(1, 12),),
            "rotate": (chance.random() < 0.6,),
            "churn": (chance.randint(2, 12), chance.choice([0.01, 0.03, 0.1])),
            "pause": (chance.choice([0.5, 20.0]),),
            "damage": (chance.choice(["flip", "torn", "short", "empty"]), chance.random()),
        }.get(what, ())
        steps.append(Step(after, what, arguments))
    return FilePlan(seed, "taildir", steps, share=chance.choice([0.0, 0.001, 0.005]))
