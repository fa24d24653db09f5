"""All configurations of the collection that run here, on real servers: `./dev soak`."""

from pathlib import Path

import pytest

from tests.system.arrivals import Shared, agents, shared, told_of

__all__ = ["shared"]


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_what_is_sent_to_the_sources_of_each_file_arrives(servers: None, shared: Shared, tmp_path: Path) -> None:
    assert not told_of(real.run(tmp_path, shared) for real in agents())
