"""One open, write, fork or mmap of an agent fails: at 20 points, drawn by the seed. `./dev soak faults` has 500."""

from pathlib import Path

import pytest

from tests.failing.campaign import Campaign
from tests.failing.operations import compiler, library

pytestmark = [
    pytest.mark.usefixtures("servers"),
    pytest.mark.skipif(compiler() is None, reason="no C compiler: failing operations are injected by a C library"),
]


def test_events_are_stored_or_a_component_is_failing(tmp_path: Path, seed: int, figures: list[str]) -> None:
    campaign = Campaign(tmp_path, library(tmp_path), seed)
    campaign.run(starts=4, loads=16, per_agent=8)
    figures.append(campaign.figures())
    assert campaign.wrong() == []
    assert campaign.lost() == {}
    assert campaign.unclean == []
