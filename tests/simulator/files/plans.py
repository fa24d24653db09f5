"""Plans for the source `taildir`: what a seed has happen to files, and to the agent that follows them."""

from __future__ import annotations

import random
from typing import Any

from tests.simulator import steps
from tests.simulator.files.run import FileRun
from tests.simulator.plans import Plan


class FilePlan(Plan):
    """Plan of a run of the source `taildir`."""

    def run(self, *, verbose: bool = False) -> Any:
        """Not yet begun."""
        return FileRun(self, verbose=verbose)


def plan_of(seed: int) -> FilePlan:
    """The one of that seed."""
    chance = random.Random(seed)
    plan = [steps.write(3), steps.start(), steps.write(4, after=2.0)]
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
        (kind,) = chance.choices(list(kinds), list(kinds.values()))
        after = chance.choice([0.0, 0.002, 0.05, 0.5, 3.0, 12.0])
        drawn = {
            "write": steps.write(chance.randint(1, 12)),
            "rotate": steps.rotate(matching=chance.random() < 0.6),
            "churn": steps.churn(chance.randint(2, 12), life=chance.choice([0.01, 0.03, 0.1])),
            "pause": steps.pause(seconds=chance.choice([0.5, 20.0])),
            "damage": steps.damage(chance.choice(["flip", "torn", "short", "empty"]), where=chance.random()),
            "compress": steps.compress(),
            "copytruncate": steps.copytruncate(),
            "delete": steps.delete(),
            "remove": steps.remove(),
            "flood": steps.flood(),
            "kill": steps.kill(),
            "stop": steps.stop(),
            "start": steps.start(),
            "kill-opener": steps.kill_opener(),
        }
        plan.append(drawn[kind]._replace(after=after))
    return FilePlan(seed, "taildir", plan, share=chance.choice([0.0, 0.001, 0.005]))
