"""Fixtures of the tests of the source `taildir`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sources.taildir_running import open_files


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "logs"
    directory.mkdir()
    yield directory
    assert open_files(tmp_path) == [], "everything is let go of"
