"""Sample of real files that real Flume 1.11 can run as well: the same input arrives alike. All: `./dev soak`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.conformance import real_files
from tests.interop.arrivals import differences_of_both, in_both
from tests.system.arrivals import Shared, shared

__all__ = ["shared"]

DRAWN = 1


@pytest.mark.skipif(not real_files.files(), reason="no collection of real files (set FLUME_CASES)")
@pytest.mark.timeout(1200)
def test_real_flume_delivers_the_same(shared: Shared, seed: int, tmp_path: Path) -> None:
    drawn = random.Random(seed).sample(in_both(), DRAWN)
    differences = differences_of_both(drawn, tmp_path, shared, at_once=DRAWN)
    assert not {name: lines for name, lines in differences.items() if lines}
