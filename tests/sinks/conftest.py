"""Fixtures of the tests of the HDFS sink."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flafka.sinks.hdfs import HdfsSink
from tests.sinks.fake_webhdfs import FakeWebHdfs
from tests.sinks.hdfs_running import open_sink


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeWebHdfs:
    fake = FakeWebHdfs()
    fake.install(monkeypatch)
    return fake


@pytest.fixture
def sinks(tmp_path: Path) -> Iterator[Any]:
    """Function that makes open sinks, which are closed afterwards."""
    opened: list[HdfsSink] = []

    def make(**options: str) -> HdfsSink:
        opened.append(open_sink(tmp_path, **options))
        return opened[-1]

    yield make
    for sink in opened:
        sink.close()
