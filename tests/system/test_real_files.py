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

DRAWN, REAL_DATA, MIGRATED = 10, 4, 2
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
def real_agents() -> list[Real]:
    return agents()


def real_lines(chance: random.Random) -> Sequence[bytes]:
    """Return lines of real logs, if present."""
    lines = {line.rstrip() for log in sorted(LOGS.glob("*.log")) for line in log.read_bytes().splitlines()}
    usable = sorted(line for line in lines if 0 < len(line) <= LONGEST_BYTES)
    return chance.sample(usable, 1000) if usable else []


def test_events_for_drawn_files_arrive(real_agents: list[Real], shared: Shared, seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    lines = real_lines(chance)
    remaining, runs = REAL_DATA if lines else 0, []
    for real in chance.sample(real_agents, min(DRAWN, len(real_agents))):
        take_any = remaining > 0 and real.id not in LINES
        remaining -= take_any
        runs.append(real.run(tmp_path, shared, lines=lines if take_any else ()))
    assert not undelivered(runs, at_once=AT_ONCE)


def test_migrated_files_deliver_the_same_events(
    real_agents: list[Real], shared: Shared, seed: int, tmp_path: Path
) -> None:
    components = Components()
    rewritten = []
    for real in real_agents:
        old, new = (tmp_path / f"{real.id}-{version}.conf" for version in ("old", "new"))
        old.write_text(real.text, "utf-8", newline="")
        variables, system = real_files.environment(real.id), real_files.system(real.id)
        migrated = migrate(old, real.spec.name, components=components, environment=variables, system=system)
        assert migrated.is_complete
        assert migrated.content is not None
        if migrated.content == old.read_bytes():
            continue
        new.write_bytes(migrated.content)
        spec, problems = real_files.loaded(real.id, new, real.spec.name, components)
        assert spec is not None, problems
        rewritten.append((real, Real(real.id, new.read_text("utf-8"), spec)))
    drawn = random.Random(seed).sample(rewritten, min(MIGRATED, len(rewritten)))
    pairs = [(a.run(tmp_path, shared, mark="-old"), b.run(tmp_path, shared, mark="-new")) for a, b in drawn]
    assert not undelivered([run for pair in pairs for run in pair], at_once=AT_ONCE)
    assert not [difference for a, b in pairs for difference in compared(a, b, ("the file", "what migrate writes"))]
