"""Values with units in place of numbers: the error names the unit and the number to write."""

from __future__ import annotations

from pathlib import Path

import pytest

from flafka.agent.config import load
from flafka.plugins import Components
from flafka.plugins.units import not_in_unit

CONFIGURATION = {
    "sources": "s1",
    "channels": "c1",
    "sinks": "k1",
    "sources.s1.type": "taildir",
    "sources.s1.channels": "c1",
    "sources.s1.filegroups": "g",
    "sources.s1.filegroups.g": "/logs/.*",
    "sources.s1.idleTimeout": "2m",
    "channels.c1.type": "memory",
    "channels.c1.capacity": "10k",
    "channels.c1.byteCapacity": "128MB",
    "sinks.k1.type": "hdfs",
    "sinks.k1.channel": "c1",
    "sinks.k1.hdfs.path": "file:///out",
    "sinks.k1.hdfs.rollInterval": "5m",
}


def test_errors_name_the_number_to_write(tmp_path: Path) -> None:
    file = tmp_path / "agent.conf"
    file.write_text("".join(f"a1.{name} = {value}\n" for name, value in CONFIGURATION.items()))
    _, diagnostics = load(file, components=Components())
    errors = {
        diagnostic.message
        for diagnostic in diagnostics
        if diagnostic.severity == "error" and "unknown" not in diagnostic.message
    }
    assert errors == {
        "idleTimeout must be a whole number of milliseconds, not '2m': write 120000",
        "capacity must be a whole number of events, not '10k': write 10000",
        "byteCapacity must be a whole number of bytes, not '128MB': write 134217728",
        "hdfs.rollInterval must be a whole number of seconds, not '5m': write 300",
    }


@pytest.mark.parametrize(
    ("text", "unit", "message"),
    [
        ("1.5 h", "s", " of seconds, not '1.5 h': write 5400"),
        ("7d", "h", " of hours, not '7d': write 168"),
        ("64 KiB", "bytes", " of bytes, not '64 KiB': write 65536"),
        ("500ms", "s", " of seconds, not '500ms'"),
        ("128MB", "ms", " of milliseconds, not '128MB'"),
        ("5x", "ms", ", not '5x'"),
        ("many", "events", ", not 'many'"),
        ("10k", "", ", not '10k': write 10000"),
        ("1e3", "", ", not '1e3'"),
    ],
)
def test_the_number_is_named_if_there_is_one(text: str, unit: str, message: str) -> None:
    assert not_in_unit(text, unit) == message
