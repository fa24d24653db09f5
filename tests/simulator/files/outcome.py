"""Outcome of a run with files: all readable lines are in the channel in order, or the file is reported missed."""

from __future__ import annotations

import re
from collections import Counter
from itertools import accumulate

from tests.simulator.files.writers import Log, Writers
from tests.simulator.outcomes import Failure

PASSED = re.compile(r"is read from byte (\d+) on, as .* were not read here")
"""Logged for a file with inode and name of another one, while the damaged journal cannot distinguish them."""


class Outcome(Writers):
    """Checks of the outcome of a run."""

    def _check(self) -> None:
        arrived = self._arrived()
        seen = set(arrived)
        if strange := seen - {line for log in self.all for line in log.lines}:
            raise Failure(f"never written: {sorted(strange)[:3]}")
        lost, silent = 0, []
        for log in self.all:
            order = list(dict.fromkeys(line for line in arrived if line in set(log.lines)))
            if order != sorted(order):
                raise Failure(f"lines of one file came in another order: {[line[:6] for line in order]}")
            missing = [line[:6] for line in log.lines[self._passed_over(log) :] if line not in seen]
            if not missing:
                continue
            lost += 1
            if not log.out:
                raise Failure(f"{missing[0]!r} and {len(missing) - 1} others are lost, and their file is there")
            if not log.excused:
                silent.append(missing)
            elif log.there and log.known and not self.harmed:
                raise Failure(f"{missing[0]!r} and {len(missing) - 1} others are lost, and known bytes precede them")
        missed = self._metric("FileMissedCount")
        dropped = self._metric("WatchOverflowCount") + self._metric("WatchRestartCount")
        reported = missed + sum("was not found again" in line for line in self.world.story)
        if len(silent) > reported and not dropped:
            raise Failure(f"{len(silent)} files are lost, of which {reported} were told of: {silent[:3]}")
        if missed > lost and not dropped:
            raise Failure(f"{missed} files were told of as missed, and {lost} are")
        twice = [line for line, count in Counter(arrived).items() if count > 1]
        if twice and not self.harmed and not self.world.faults and not self._interrupted():
            raise Failure(f"{len(twice)} lines came twice, without a reason")

    def _passed_over(self, log: Log) -> int:
        """Return the number of lines at the beginning that the agent reported as not read."""
        offsets = {int(match[1]) for line in self.world.story if self.harmed and (match := PASSED.search(line))}
        ends = accumulate(len(line) + 1 for line in log.lines)
        return max((number for number, end in enumerate(ends, 1) if end in offsets), default=0)

    def _interrupted(self) -> bool:
        return any(step.name in ("kill", "pause", "kill_opener") for step in self.plan.steps)

    def _metric(self, name: str) -> int:
        runs = [agent.agent for agent in self.agents if agent.agent is not None]
        return sum(int(run.sources[0].source.metrics.get(name)) for run in runs)
