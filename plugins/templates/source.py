"""A source in Python for what the Java class com.example.Mine did.

Save it as my_source.py, beside a pyproject.toml with these lines, and run `pip install .`:

    [project]
    name = "my-source"
    version = "1.0"
    [project.entry-points.flafka]
    my_source = "my_source"

Then a configuration may name it by either of its names; `agent check` says whether it is found.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path

from plugins import Batch, Component, Config, Event, Retry, Source, hookimpl, option


class MySourceConfig(Config):
    """Its options: those of the Java class, by the same names."""

    path: str = option(name="path", description="File whose lines become events.")
    interval: int = option(1000, name="interval", unit="ms", gt=0, description="Time between two looks.")


class MySource(Source[MySourceConfig]):
    """Makes an event of each line; at least once: after a failure it goes on behind what was stored, after a restart
    of the agent at the beginning.
    """

    type_name = "my_source"
    aliases = ("com.example.Mine",)
    position = 0

    def open(self) -> None:
        """Connect to what is read; Retry where that may work later."""
        for trouble in self.probe():
            raise Retry(trouble)
        self._next, self._ends = self.position, deque[int]()

    def probe(self) -> Iterator[str]:
        """For `agent check --connect`: what would keep it from opening."""
        if not Path(self.config.path).exists():
            yield f"there is no {self.config.path}"

    def batches(self) -> Iterator[Batch]:
        """Batches of events until the agent stops."""
        while not self.stopping.is_set():
            if lines := self._fetch():
                self._ends.append(self._next)
                yield Batch.of([Event(line, {"path": self.config.path}) for line in lines])
            else:
                self.stopping.wait(self.config.interval / 1000)

    def stored(self, batch: Batch) -> None:
        """Every required channel has this batch, and all before it."""
        self.position = self._ends.popleft()

    def _fetch(self) -> list[bytes]:
        """What is new: the part to write anew."""
        with Path(self.config.path).open("rb") as file:
            file.seek(self._next)
            text = file.read(1 << 20)
        lines = text[: text.rfind(b"\n") + 1]
        self._next += len(lines)
        return lines.split(b"\n")[:-1]


@hookimpl
def components() -> list[type[Component]]:
    """What this module brings."""
    return [MySource]
