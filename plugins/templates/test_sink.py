"""Conformance checks of the sink `my_sink`."""

from __future__ import annotations

from pathlib import Path

from flafka.plugins import conformance
from flafka.plugins.templates.sink import MySink


def test_it_keeps_the_promises_of_a_sink(tmp_path: Path) -> None:
    """Run the kit: flushed events are delivered. `failing` are options with which the sink cannot open."""
    out = tmp_path / "out"

    def delivered() -> list[bytes]:
        return out.read_bytes().splitlines()

    failing = {"path": str(tmp_path / "none" / "out")}
    conformance.check_sink(MySink, {"path": str(out)}, delivered, failing=failing)
