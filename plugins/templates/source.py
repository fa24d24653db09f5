"""A source in Python that replaces the Java class com.example.Mine.

Save it as my_source.py, beside a pyproject.toml with the lines below, and run `pip install .`.
Then a configuration may use either of its names; `agent check` reports an error if the plugin is not found.

    [project]
    name = "my-source"
    version = "1.0"
    [project.entry-points.flafka]
    my_source = "my_source"
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path

from flafka import Batch, Component, Config, Event, Retry, Source, hookimpl, option


class MySourceConfig(Config):
    """Options of the Java class, by the same names."""

    path: str = option(name="path", description="File whose lines become events.")
    position_file: str | None = option(
        None,
        name="positionFile",
        description="File with the offset up to which lines are stored. If unset, `path` with `.position` appended.",
    )
    interval: int = option(1000, name="interval", unit="ms", gt=0, description="Time between two polls of the file.")


class MySource(Source[MySourceConfig]):
    """Turns each line of a file into an event; at least once: it continues after the last stored line."""

    type_name = "my_source"
    aliases = ("com.example.Mine",)

    def open(self) -> None:
        """Load the saved offset. Raises Retry for a transient failure."""
        for error in self.check_connectivity():
            raise Retry(error)
        self._saved = Path(self.config.position_file or f"{self.config.path}.position")
        self._next, self._ends = int(self._saved.read_text()) if self._saved.exists() else 0, deque[int]()

    def check_connectivity(self) -> Iterator[str]:
        """Yield each reason why `open` would fail, for `agent check --connect`."""
        if not Path(self.config.path).exists():
            yield f"there is no {self.config.path}"

    def batches(self) -> Iterator[Batch]:
        """Yield batches of events until the agent stops."""
        while not self.stopping.is_set():
            if lines := self._fetch():
                self._ends.append(self._next)
                yield Batch.of([Event(line, {"path": self.config.path}) for line in lines])
            else:
                self.stopping.wait(self.config.interval / 1000)

    def stored(self, batch: Batch) -> None:
        """Save the offset, as every required channel has this batch. A save before the yield would lose events."""
        new = self._saved.with_name(f"{self._saved.name}.new")
        new.write_text(str(self._ends.popleft()))
        new.replace(self._saved)  # a crash leaves the old offset or the new one

    def _fetch(self) -> list[bytes]:
        """Return new lines. Replace this method."""
        with Path(self.config.path).open("rb") as file:
            file.seek(self._next)
            text = file.read(1 << 20)
        lines = text[: text.rfind(b"\n") + 1]
        self._next += len(lines)
        return lines.split(b"\n")[:-1]


@hookimpl
def components() -> list[type[Component]]:
    """Return the components of this module."""
    return [MySource]
