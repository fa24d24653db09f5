"""Drawn inputs through Flume's class and ours; differences are shrunk and grouped by their cause."""

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
"""Answers for each item, or the error that the settings alone cause."""

REPOSITORY = Path(__file__).parents[3]
SHRINKING = 400
"""Attempts to shrink an input."""
REPORTED = 10
"""Error groups that one search shrinks before it stops."""


class Flumes(Application):
    """`java/Differences.java`, a process that runs Flume's own classes repeatedly."""

    name = "Differences"
    jars = "flume"

    def __init__(self, directory: Path) -> None:
        # Flume syncs each spooled file to the disk, which takes longer than everything else.
        self._scratch = TemporaryDirectory(prefix="flafka-", dir=room() or directory)
        settings = {"scratch": Path(self._scratch.name) / "scratch", "log4j2.level": "OFF"}
        settings["org.apache.avro.limits.bytes.maxLength"] = "100000"  # of an invalid length
        super().__init__(directory, **settings)

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._scratch.cleanup()

    def ask(self, op: str, settings: Settings, items: Sequence[Any]) -> Answers:
        """Return the answer of Flume's class for each item."""
        answer: dict[str, Any] = json.loads(self.request(json.dumps({"op": op, **settings, "items": items})))
        return answer.get("results", answer)


class Case(NamedTuple):
    """One input, and the comparable answers of Flume's class and ours."""

    settings: Settings
    item: Any
    theirs: Any
    ours: Any


class Known(NamedTuple):
    """Intended difference."""

    sentence: str
    """Beginning of a documented sentence or clause: see `texts`."""
    holds: Callable[[Case], Any]
    """Return True if this difference explains the case; called only if the answers differ."""


class Operation(ABC):
    """Operation that both Flume and this project have."""

    name: ClassVar[str]
    """Name of the operation in `java/Differences.java`."""
    known: ClassVar[Sequence[Known]] = ()

    @abstractmethod
    def draw(self, draw: random.Random) -> tuple[Settings, list[Any]]:
        """Draw some inputs with the same settings."""

    @abstractmethod
    def ours(self, settings: Settings, items: list[Any]) -> Answers:
        """Return our answer for each item."""

    def comparable(self, settings: Settings, item: Any, answer: Any) -> Any:
        """Return an answer in comparable form; messages of errors are omitted."""
        return "error" if isinstance(answer, dict) and "error" in answer else answer

    def explained(self, case: Case) -> str | None:
        """Return the sentence of the known difference that explains this case."""
        return next((known.sentence for known in self.known if known.holds(case)), None)

    def smaller(self, settings: Settings, item: Any) -> Iterator[tuple[Settings, Any]]:
        """Return inputs a little smaller than this one."""
        for less in shrunk(item):
            yield settings, less


@dataclass
class SearchResult:
    """Result of a search."""

    operation: str
    inputs: int = 0
    known: Counter[str] = field(default_factory=Counter)
    differ: int = 0
    """Number of cases with unknown causes."""
    unknown: dict[str, Case] = field(default_factory=dict)
    """Smallest inputs of some of them."""

    def __str__(self) -> str:
        lines = [f"{self.operation}: {self.inputs} inputs, {self.known.total()} differ as known"]
        lines += [f"  {count:6} {sentence}" for sentence, count in self.known.most_common()]
        lines += [f"  {self.differ:6} for causes that are not known"] if self.differ else []
        for case in self.unknown.values():
            lines += [f"    {name:9}{value!r}" for name, value in case._asdict().items()]
        return "\n".join(lines)


def search(flumes: Flumes, operation: Operation, seed: int, inputs: int) -> SearchResult:
    """Compare this many inputs, or fewer after many differences."""
    draw = random.Random(f"{operation.name} {seed}")
    result = SearchResult(operation.name)
    while result.inputs < inputs and result.differ < 10 * REPORTED:
        settings, items = operation.draw(draw)
        result.inputs += len(items)
        for case in differing(flumes, operation, settings, items):
            if (sentence := operation.explained(case)) is not None:
                result.known[sentence] += 1
                continue
            result.differ += 1
            if result.differ <= REPORTED:
                result.unknown.setdefault(_shape(smallest := _smallest(flumes, operation, case)), smallest)
    return result


def differing(flumes: Flumes, operation: Operation, settings: Settings, items: list[Any]) -> Iterator[Case]:
    """Return the items with different answers."""
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
    """Return our answers; an unexpected exception is an answer as well."""
    try:
        return operation.ours(settings, items)
    except Exception as e:  # any exception is a finding
        if len(items) > 1:
            return [_alone(_ours(operation, settings, [item])) for item in items]
        return {"error": "", "raised": f"{type(e).__name__}: {e}"}


def _alone(answers: Answers) -> Any:
    return answers if isinstance(answers, dict) else answers[0]


def _smallest(flumes: Flumes, operation: Operation, case: Case) -> Case:
    attempts = SHRINKING
    while attempts > 0:
        for settings, item in operation.smaller(case.settings, case.item):
            attempts -= 1
            smaller = next(iter(differing(flumes, operation, settings, [item])), None)
            if smaller is not None and operation.explained(smaller) is None:
                case = smaller
                break
            if attempts <= 0:
                return case
        else:
            return case
    return case


def shrunk(value: Any) -> Iterator[Any]:
    """Yield values a little smaller: without pieces of a text, a list or an object, or of their contents."""
    if isinstance(value, str):
        size = len(value) // 2
        while size:
            for index in range(0, len(value), size):
                yield value[:index] + value[index + size :]
            size //= 2
    elif isinstance(value, list):
        if not _is_event(value):
            for index in range(len(value)):
                yield value[:index] + value[index + 1 :]
        for index, item in enumerate(value):
            for less in shrunk(item):
                yield [*value[:index], less, *value[index + 1 :]]
    elif isinstance(value, dict):
        for name in value:
            yield {key: item for key, item in value.items() if key != name}
        for name, item in value.items():
            for less in shrunk(item):
                yield {**value, name: less}


def _is_event(value: list[Any]) -> bool:
    return len(value) == 2 and isinstance(value[0], dict)


def _shape(case: Case) -> str:
    """Return a key that is much the same for inputs with the same cause."""
    text = json.dumps([case.item, case.theirs == "error", case.ours == "error"])
    return re.sub(r"(.)\1+", r"\1", re.sub("[0-9]", "0", re.sub("[A-Za-z]", "a", text)))[:80]


@cache
def texts() -> str:
    """Return all documented sentences about differences: the sentences of components are in the documentation."""
    files = ("docs/migrating-from-flume.md", "tests/conformance/deviations.toml")
    return "\n".join((REPOSITORY / name).read_text("utf-8") for name in files)
