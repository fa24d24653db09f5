"""A sink in Python that replaces the Java class com.example.Mine.

Save it as my_sink.py, beside a pyproject.toml with the lines below, and run `pip install .`.
Then a configuration may use either of its names; `agent check` reports an error if the plugin is not found.

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

    path: str = option(name="path", description="File to which events are appended, one per line.")


class MySink(Sink[MySinkConfig]):
    """Appends bodies to a file; at least once: after a failure the file may hold duplicates.

    If the destination has keys, use `batch.id(row)` as the key: a redelivered event then overwrites itself.
    """

    type_name = "my_sink"
    aliases = ("com.example.Mine",)

    def open(self) -> None:
        """Connect, with an empty buffer. Raises Retry for a transient failure."""
        self._events: list[Event] = []
        for error in self.check_connectivity():
            raise Retry(error)

    def check_connectivity(self) -> Iterator[str]:
        """Yield each reason why `open` would fail, for `agent check --connect`."""
        if not Path(self.config.path).absolute().parent.is_dir():
            yield f"there is no directory for {self.config.path}"

    def write(self, batch: Batch) -> None:
        """Buffer the events until the flush. Raise Rejected for events that can never be delivered."""
        self._events += batch

    def flush(self) -> None:
        """Return once the events are durable, as the channel deletes them then. After Retry they are redelivered."""
        self._deliver(self._events)
        self._events = []

    def reset(self) -> None:
        """Drop unflushed events, which the channel redelivers."""
        self._events = []

    def _deliver(self, events: list[Event]) -> None:
        """Deliver events. Replace this method."""
        with Path(self.config.path).open("ab") as file:
            file.writelines(event.body + b"\n" for event in events)
            file.flush()
            os.fsync(file.fileno())


@hookimpl
def components() -> list[type[Component]]:
    """Return the components of this module."""
    return [MySink]
