"""Each real file that real Flume 1.11 can run with these servers, run by both: the same input arrives alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.arrivals import differences_of_both, in_both
from tests.system.arrivals import Shared, shared

__all__ = ["shared"]

AT_ONCE = 3
PARTS = 10
"""Number of parts of the files, each of which can be run alone, as a file takes long on a busy machine."""


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("piece", range(PARTS))
def test_real_flume_delivers_the_same(
    servers: None, shared: Shared, piece: int, tmp_path: Path, figures: list[str]
) -> None:
    told = differences_of_both(in_both()[piece::PARTS], tmp_path, shared, at_once=AT_ONCE)
    figures += [f"{name}: {difference[:600]}" for name, each in told.items() for difference in each[:4]]
    figures.append(f"{len(told)} agents of real files beside Flume; {sum(not each for each in told.values())} alike")
    assert not {name: each for name, each in told.items() if each}
