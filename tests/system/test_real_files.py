"""Some of the configurations that people really have, drawn by the run's seed, run here: what is sent arrives."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.conformance import real_files
from tests.system.arrivals import Shared, agents, shared, told_of

__all__ = ["shared"]

DRAWN = 30
"""All of them are run by `./dev soak`."""
AT_ONCE = 5
"""Most of a run is waiting: for a pause of the sinks, for brokers, for files to be closed."""

pytestmark = [
    pytest.mark.skipif(not real_files.files(), reason="no collection of real files (set FLUME_CASES)"),
    pytest.mark.xdist_group("stores"),  # some of the files write to HBase
    pytest.mark.timeout(1800),
]


def test_what_is_sent_to_the_sources_of_drawn_files_arrives(shared: Shared, seed: int, tmp_path: Path) -> None:
    every = agents()
    drawn = random.Random(seed).sample(every, min(DRAWN, len(every)))
    assert not told_of(drawn, shared, tmp_path, at_once=AT_ONCE)
