"""Samples of components without servers; tests/system/test_samples.py has the others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.samples import ON_SERVERS, SAMPLES, run
from tests.sinks.test_http import Server
from tests.sources.calling import Running as AvroSource
from tests.sources.test_thrift import Running as ThriftSource

HERE = sorted(path.stem for path in SAMPLES.glob("*.conf") if path.stem not in ON_SERVERS)


@contextlib.contextmanager
def receiver(name: str) -> Iterator[dict[str, str]]:
    """Start the receiver of the sample's sink; yield the replacements for its text."""
    if name == "sink-http":
        with Server() as server:
            yield {"http://alerts.example.com:8080/events": server.url}
    elif name == "sink-avro":
        with AvroSource(**{"compression-type": "deflate"}) as running:
            yield {"collector.example.com": "127.0.0.1", "4141": str(running.source.port)}
    elif name == "sink-thrift":
        with ThriftSource() as running:
            yield {"collector.example.com": "127.0.0.1", "4353": str(running.source.port)}
    else:
        yield {}


@pytest.mark.usefixtures("short_waits")
@pytest.mark.parametrize("name", HERE)
def test_sample_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flafka.plugins.sink.Sink.flush_interval", 0.02)
    for variable in ("XDG_STATE_HOME", "HOME"):
        monkeypatch.setenv(variable, str(tmp_path / "home"))
    for part in ("var/log/nginx", "var/log/shop", "var/spool/orders"):
        (tmp_path / part).mkdir(parents=True)
    with receiver(name) as replacements:
        run(name, tmp_path, replacements)


def test_samples_with_servers_exist() -> None:
    assert {path.stem for path in SAMPLES.glob("*.conf")} >= ON_SERVERS
