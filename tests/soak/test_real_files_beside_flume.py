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
    differences = differences_of_both(in_both()[piece::PARTS], tmp_path, shared, at_once=AT_ONCE)
    figures += [f"{name}: {difference[:600]}" for name, lines in differences.items() for difference in lines[:4]]
    alike = sum(not lines for lines in differences.values())
    figures.append(f"{len(differences)} agents of real files beside Flume; {alike} alike")
    assert not {name: lines for name, lines in differences.items() if lines}
