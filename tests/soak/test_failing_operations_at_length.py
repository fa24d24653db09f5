"""Long version of tests/system/test_failing_operations.py: `./dev soak faults`."""

from pathlib import Path

import pytest

from tests.failing.campaign import Campaign
from tests.failing.operations import compiler, library


@pytest.mark.soak
@pytest.mark.timeout(5400)
@pytest.mark.skipif(compiler() is None, reason="no C compiler: failing operations are injected by a C library")
def test_five_hundred_operations_fail(tmp_path: Path, seed: int, figures: list[str]) -> None:
    campaign = Campaign(tmp_path, library(tmp_path), seed)
    campaign.run(starts=100, loads=400, per_agent=8)
    figures.append(campaign.figures())
    for point in campaign.points:
        print(point)
    assert campaign.broken_points() == []
    assert campaign.lost() == {}
    assert campaign.unclean == []
