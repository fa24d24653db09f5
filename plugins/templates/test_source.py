"""Conformance checks of the source `my_source`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flafka.plugins import conformance
from flafka.plugins.templates.source import MySource


def test_it_keeps_the_promises_of_a_source(tmp_path: Path) -> None:
    """Run the kit: sent lines become events, and unstored events are yielded again.

    `failing` are options with which the source cannot open.

    The docstring of the source promises "at least once". The check stops it with a batch that no channel has stored,
    and expects the batch again. If the sender repeats unacknowledged events, add `redelivers=False`.
    """
    path = tmp_path / "in"
    path.touch()

    def send(_: MySource, bodies: Sequence[bytes]) -> None:
        with path.open("ab") as file:
            file.writelines(body + b"\n" for body in bodies)

    options = {"path": str(path), "interval": "10"}
    conformance.check_source(MySource, options, send, failing={"path": str(tmp_path / "none")})
