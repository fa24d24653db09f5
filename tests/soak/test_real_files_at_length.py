"""Configurations of the collection that can run here, on real servers: `./dev soak`."""

from pathlib import Path

import pytest

from tests.system.arrivals import Shared, agents, shared, undelivered

__all__ = ["shared"]


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_events_for_each_file_arrive(servers: None, shared: Shared, tmp_path: Path) -> None:
    assert not undelivered(real.run(tmp_path, shared) for real in agents())
