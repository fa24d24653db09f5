"""The conformance kit on the source `my_source`: what every source promises."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flafka.plugins import conformance
from flafka.plugins.templates.source import MySource


def test_it_keeps_the_promises_of_a_source(tmp_path: Path) -> None:
    """Run the kit: what is sent becomes events, and what was not stored comes again.

    `failing` are options with which the source cannot open.

    The docstring of the source promises "at least once". The check stops it with a batch that no channel has stored,
    and expects the batch again. Where the sender repeats what was not acknowledged, add `repeats=False`.
    """
    path = tmp_path / "in"
    path.touch()

    def send(_: MySource, bodies: Sequence[bytes]) -> None:
        with path.open("ab") as file:
            file.writelines(body + b"\n" for body in bodies)

    options = {"path": str(path), "interval": "10"}
    conformance.check_source(MySource, options, send, failing={"path": str(tmp_path / "none")})
