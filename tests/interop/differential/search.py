"""Drawn inputs through Flume's class and ours, and what differs: shrunk, and grouped by its cause."""

from __future__ import annotations

import json
import random
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, NamedTuple

from tests.fixtures.memory import room
from tests.interop.jvm import Application

Settings = dict[str, Any]
Answers = dict[str, Any] | list[Any]
"""One for each item, or the error that the settings alone lead to."""

REPOSITORY = Path(__file__).parents[3]
SHRINKING = 400
"""Attempts to make an input smaller."""
REPORTED = 10
"""Causes that one search makes smaller before it stops."""


class Flumes(Application):
    """`java/Differences.java`: Flume's own classes, asked again and again."""

    name = "Differences"
    jars = "flume"

    def __init__(self, directory: Path) -> None:
        # Flume waits for the disk at each file that it spools, which takes longer than all the rest.
        self._scratch = TemporaryDirectory(prefix="flafka-", dir=room() or directory)
        settings = {"scratch": Path(self._scratch.name) / "scratch", "log4j2.level": "OFF"}
        settings["org.apache.avro.limits.bytes.maxLength"] = "100000"  # of a length that is none
        super().__init__(directory, **settings)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._scratch.cleanup()

    def ask(self, op: str, settings: Settings, items: Sequence[Any]) -> Answers:
        """What Flume's class makes of each item."""
        found: dict[str, Any] = json.loads(self.tell(json.dumps({"op": op, **settings, "items": items})))
        return found.get("results", found)


class Case(NamedTuple):
    """One input, and what Flume's class and ours make of it, as they are compared."""

    settings: Settings
    item: Any
    theirs: Any
    ours: Any


class Known(NamedTuple):
    """A difference on purpose."""

    said: str
    """The beginning of a sentence or a clause that users read: see `texts`."""
    holds: Callable[[Case], Any]
    """Whether it explains the case; only asked where the answers differ."""


class Operation(ABC):
    """One thing that both Flume and we do."""

    name: ClassVar[str]
    """As `java/Differences.java` knows it."""
    known: ClassVar[Sequence[Known]] = ()

    @abstractmethod
    def draw(self, draw: random.Random) -> tuple[Settings, list[Any]]:
        """Some inputs with the same settings."""

    @abstractmethod
    def ours(self, settings: Settings, items: list[Any]) -> Answers:
        """What we make of them."""

    def comparable(self, settings: Settings, item: Any, answer: Any) -> Any:
        """An answer as it is compared; errors differ in their words only."""
        return "error" if isinstance(answer, dict) and "error" in answer else answer

    def explained(self, case: Case) -> str | None:
        """The sentence of the known difference that this is one of."""
        return next((known.said for known in self.known if known.holds(case)), None)

    def smaller(self, settings: Settings, item: Any) -> Iterator[tuple[Settings, Any]]:
        """Inputs a little smaller than this one."""
        for less in shrunk(item):
            yield settings, less


@dataclass
class Found:
    """What a search came to."""

    operation: str
    inputs: int = 0
    known: Counter[str] = field(default_factory=Counter)
    differ: int = 0
    """For causes that are not known."""
    unknown: dict[str, Case] = field(default_factory=dict)
    """The smallest of some of them."""

    def __str__(self) -> str:
        lines = [f"{self.operation}: {self.inputs} inputs, {self.known.total()} differ as known"]
        lines += [f"  {count:6} {said}" for said, count in self.known.most_common()]
        lines += [f"  {self.differ:6} for causes that are not known"] if self.differ else []
        for case in self.unknown.values():
            lines += [f"    {what:9}{value!r}" for what, value in case._asdict().items()]
        return "\n".join(lines)


def search(flumes: Flumes, operation: Operation, seed: int, inputs: int) -> Found:
    """Compare so many inputs, or fewer where too much differs."""
    draw = random.Random(f"{operation.name} {seed}")
    found = Found(operation.name)
    while found.inputs < inputs and found.differ < 10 * REPORTED:
        settings, items = operation.draw(draw)
        found.inputs += len(items)
        for case in differing(flumes, operation, settings, items):
            if (said := operation.explained(case)) is not None:
                found.known[said] += 1
                continue
            found.differ += 1
            if found.differ <= REPORTED:
                found.unknown.setdefault(_shape(smallest := _smallest(flumes, operation, case)), smallest)
    return found


def differing(flumes: Flumes, operation: Operation, settings: Settings, items: list[Any]) -> Iterator[Case]:
    """Those of the items of which something else is made."""
    theirs, ours = flumes.ask(operation.name, settings, items), _ours(operation, settings, items)
    for row, item in enumerate(items):
        a, b = (answers if isinstance(answers, dict) else answers[row] for answers in (theirs, ours))
        if isinstance(b, dict) and "raised" in b:
            yield Case(settings, item, a, b)
            continue
        case = Case(settings, item, *(operation.comparable(settings, item, answer) for answer in (a, b)))
        if case.theirs != case.ours:
            yield case


def _ours(operation: Operation, settings: Settings, items: list[Any]) -> Answers:
    """What we make of them; an exception that none should see is an answer too."""
    try:
        return operation.ours(settings, items)
    except Exception as e:  # what it is will be found out
        if len(items) > 1:
            return [_alone(_ours(operation, settings, [item])) for item in items]
        return {"error": "", "raised": f"{type(e).__name__}: {e}"}


def _alone(answers: Answers) -> Any:
    return answers if isinstance(answers, dict) else answers[0]


def _smallest(flumes: Flumes, operation: Operation, case: Case) -> Case:
    left = SHRINKING
    while left > 0:
        for settings, item in operation.smaller(case.settings, case.item):
            left -= 1
            smaller = next(iter(differing(flumes, operation, settings, [item])), None)
            if smaller is not None and operation.explained(smaller) is None:
                case = smaller
                break
            if left <= 0:
                return case
        else:
            return case
    return case


def shrunk(value: Any) -> Iterator[Any]:
    """Values a little smaller: pieces left out, of a text, a list or an object, and of what is in them."""
    if isinstance(value, str):
        size = len(value) // 2
        while size:
            for at in range(0, len(value), size):
                yield value[:at] + value[at + size :]
            size //= 2
    elif isinstance(value, list):
        if not _is_event(value):
            for at in range(len(value)):
                yield value[:at] + value[at + 1 :]
        for at, one in enumerate(value):
            for less in shrunk(one):
                yield [*value[:at], less, *value[at + 1 :]]
    elif isinstance(value, dict):
        for name in value:
            yield {other: one for other, one in value.items() if other != name}
        for name, one in value.items():
            for less in shrunk(one):
                yield {**value, name: less}


def _is_event(value: list[Any]) -> bool:
    return len(value) == 2 and isinstance(value[0], dict)


def _shape(case: Case) -> str:
    """Much the same for inputs that differ for the same cause."""
    text = json.dumps([case.item, case.theirs == "error", case.ours == "error"])
    return re.sub(r"(.)\1+", r"\1", re.sub("[0-9]", "0", re.sub("[A-Za-z]", "a", text)))[:80]


@cache
def texts() -> str:
    """All that users are told about differences: components' own are in the documentation."""
    told = ("docs/migrating-from-flume.md", "tests/conformance/deviations.toml")
    return "\n".join((REPOSITORY / name).read_text("utf-8") for name in told)
