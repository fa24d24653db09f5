"""Each real file that real Flume 1.11 can run with these servers, run by both: the same arrives of the same input."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.interop.arrivals import in_both, told_of_both
from tests.system.arrivals import Shared, shared

__all__ = ["shared"]

AT_ONCE = 3
DRAWN = int(os.environ.get("FLAFKA_SOAK_BESIDE", "1000"))
"""So many at most."""


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_real_flume_writes_the_same(
    servers: None, shared: Shared, seed: int, tmp_path: Path, figures: list[str]
) -> None:
    every = in_both()
    drawn = random.Random(seed).sample(every, min(DRAWN, len(every)))
    told = told_of_both(drawn, tmp_path, shared, at_once=AT_ONCE)
    figures += [f"{name}: {difference[:600]}" for name, each in told.items() for difference in each[:4]]
    figures.append(f"{len(told)} agents of real files beside Flume; {sum(not each for each in told.values())} alike")
    assert not {name: each for name, each in told.items() if each}
