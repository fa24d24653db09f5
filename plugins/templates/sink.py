"""A sink in Python for what the Java class com.example.Mine did.

Save it as my_sink.py, beside a pyproject.toml with the lines below, and run `pip install .`.
Then a configuration may name it by either of its names; `agent check` says whether it is found.

    [project]
    name = "my-sink"
    version = "1.0"
    [project.entry-points.flafka]
    my_sink = "my_sink"
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from flafka import Batch, Component, Config, Event, Retry, Sink, hookimpl, option


class MySinkConfig(Config):
    """Options of the Java class, by the same names."""

    path: str = option(name="path", description="File that gets the events, one a line.")


class MySink(Sink[MySinkConfig]):
    """Appends bodies to a file; at least once: after a failure some may be there twice.

    Where the other side has keys, give each event the key `batch.id(row)`: then what is delivered again replaces
    itself.
    """

    type_name = "my_sink"
    aliases = ("com.example.Mine",)

    def open(self) -> None:
        """Connect; Retry where that may work later. Begin with nothing."""
        self._events: list[Event] = []
        for trouble in self.check_connectivity():
            raise Retry(trouble)

    def check_connectivity(self) -> Iterator[str]:
        """For `agent check --connect`: what would keep it from opening."""
        if not Path(self.config.path).absolute().parent.is_dir():
            yield f"there is no directory for {self.config.path}"

    def write(self, batch: Batch) -> None:
        """Keep the events until the flush; raise Rejected for those that can never be delivered."""
        self._events += batch

    def flush(self) -> None:
        """Return when they are delivered for good: the channel forgets them after this. Retry: they come again."""
        self._deliver(self._events)
        self._events = []

    def reset(self) -> None:
        """Drop what was not flushed: the channel redelivers it."""
        self._events = []

    def _deliver(self, events: list[Event]) -> None:
        """The part to write anew."""
        with Path(self.config.path).open("ab") as file:
            file.writelines(event.body + b"\n" for event in events)
            file.flush()
            os.fsync(file.fileno())


@hookimpl
def components() -> list[type[Component]]:
    """Components of this module."""
    return [MySink]
