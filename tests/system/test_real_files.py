"""Sample of users' real configurations, drawn by the run's seed and run here: sent events arrive."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from flafka.agent.config.migration import migrate
from flafka.plugins import Components
from tests.conformance import real_files
from tests.conformance.arrival import LINES
from tests.conformance.outputs import compared
from tests.system.arrivals import Real, Shared, agents, shared, undelivered
from tests.system.running import ROOT

__all__ = ["shared"]

DRAWN, REAL_DATA, MIGRATED = 15, 6, 2
"""Number of files; of files whose events are lines of real logs; of files that `agent migrate` rewrites."""
AT_ONCE = 5
"""Number of concurrent agents. A run mostly waits: for sinks, for brokers, for files to be closed."""
LOGS = ROOT.parent / "shared" / "data" / "loghub"
LONGEST_BYTES = 400
"""Longest such line in bytes: `netcat` cuts longer ones, as Flume does."""

pytestmark = [
    pytest.mark.skipif(not real_files.files(), reason="no collection of real files (set FLUME_CASES)"),
    pytest.mark.xdist_group("stores"),  # some of the files write to HBase
    pytest.mark.timeout(1800),
]


@pytest.fixture(scope="module")
def every() -> list[Real]:
    return agents()


def real_lines(chance: random.Random) -> Sequence[bytes]:
    """Return lines of real logs, if present."""
    lines = {line.rstrip() for log in sorted(LOGS.glob("*.log")) for line in log.read_bytes().splitlines()}
    usable = sorted(line for line in lines if 0 < len(line) <= LONGEST_BYTES)
    return chance.sample(usable, 1000) if usable else []


def test_events_for_drawn_files_arrive(every: list[Real], shared: Shared, seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    lines = real_lines(chance)
    left, runs = REAL_DATA if lines else 0, []
    for real in chance.sample(every, min(DRAWN, len(every))):
        take_any = left > 0 and real.id not in LINES
        left -= take_any
        runs.append(real.run(tmp_path, shared, lines=lines if take_any else ()))
    assert not undelivered(runs, at_once=AT_ONCE)


def test_migrated_files_deliver_the_same_events(every: list[Real], shared: Shared, seed: int, tmp_path: Path) -> None:
    components = Components()
    rewritten = []
    for real in every:
        old, new = (tmp_path / f"{real.id}-{which}.conf" for which in ("old", "new"))
        old.write_text(real.text, "utf-8", newline="")
        variables, system = real_files.environment(real.id), real_files.system(real.id)
        found = migrate(old, real.spec.name, components=components, environment=variables, system=system)
        assert found.is_complete
        assert found.content is not None
        if found.content == old.read_bytes():
            continue
        new.write_bytes(found.content)
        spec, told = real_files.loaded(real.id, new, real.spec.name, components)
        assert spec is not None, told
        rewritten.append((real, Real(real.id, new.read_text("utf-8"), spec)))
    drawn = random.Random(seed).sample(rewritten, min(MIGRATED, len(rewritten)))
    pairs = [(a.run(tmp_path, shared, mark="-old"), b.run(tmp_path, shared, mark="-new")) for a, b in drawn]
    assert not undelivered([run for pair in pairs for run in pair], at_once=AT_ONCE)
    assert not [told for a, b in pairs for told in compared(a, b, ("the file", "what migrate writes"))]
