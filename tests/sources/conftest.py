"""Fixtures of the tests of the sources `taildir` and `spooldir`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sources.descriptors import open_files


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[Path]:
    """Directory for taildir; no file below `tmp_path` is left open."""
    yield from _directory(tmp_path, "logs")


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Path]:
    """Directory for spooldir; no file below `tmp_path` is left open."""
    yield from _directory(tmp_path, "spool")


def _directory(parent: Path, name: str) -> Iterator[Path]:
    (parent / name).mkdir()
    yield parent / name
    assert open_files(parent) == [], "everything is let go of"
