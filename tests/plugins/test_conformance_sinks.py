"""Conformance kit: it passes honest sinks, and names the fault of each broken one."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flafka.plugins import (
    Assignment,
    Batch,
    CommittingSink,
    Config,
    Conflict,
    OffsetRange,
    Receipt,
    Sink,
    conformance,
    option,
)


class DirectoryConfig(Config):
    directory: str = option(name="directory", description="where it works")


class Files(Sink[DirectoryConfig]):
    """Writes each flush to a file, at least once."""

    type_name = "files"

    def open(self) -> None:
        self.buffer: list[bytes] = []

    def write(self, batch: Batch) -> None:
        self.buffer += batch.bodies.to_pylist()

    def flush(self) -> None:
        if self.buffer:
            directory = Path(self.config.directory)
            number = len(list(directory.iterdir()))
            (directory / str(number)).write_text(json.dumps([body.hex() for body in self.buffer]))
            self.buffer = []

    def reset(self) -> None:
        self.buffer = []


def check_files(cls: type[Sink[Any]], directory: Path) -> None:
    def delivered() -> Iterator[bytes]:
        for file in directory.iterdir():
            if not file.name.startswith("."):
                content = json.loads(file.read_text())
                yield from map(bytes.fromhex, content["bodies"] if isinstance(content, dict) else content)

    conformance.check_sink(cls, {"directory": str(directory)}, delivered)


def _end(file: Path) -> int:
    return int(file.name.split("-")[1])


class Once(CommittingSink[DirectoryConfig]):
    """Writes each commit to a file named by its start, exactly once."""

    type_name = "once"

    def open(self) -> None:
        self.directory = Path(self.config.directory)
        self.buffer: list[bytes] = []
        self.next = 0

    def write(self, batch: Batch) -> None:
        self.buffer += batch.bodies.to_pylist()

    def resume(self, committed: Assignment) -> Assignment:
        newest = self._newest()
        return committed if newest is None else committed.with_offset(_end(newest))

    def _newest(self) -> Path | None:
        files = [file for file in self.directory.iterdir() if file.name[0] != "."]
        return max(files, key=_end, default=None)

    def due_partitions(self) -> set[int]:
        return set()

    def stage(self, assignment: Assignment, offsets: OffsetRange) -> Receipt:
        self.next += 1
        staged = self.directory / f".{id(self)}-{self.next}"
        staged.write_text(json.dumps([body.hex() for body in self.buffer]))
        receipt = Receipt(assignment, offsets, len(self.buffer), str(staged))
        self.buffer = []
        return receipt

    def commit(self, receipt: Receipt) -> None:
        if (self.resume(receipt.assignment.with_offset(None)).next_offset or 0) != receipt.offsets.start:
            raise Conflict("another was faster")
        Path(receipt.staged).rename(self.directory / f"{receipt.offsets.start}-{receipt.offsets.end}")

    def reset(self, partition: int | None = None) -> None:
        self.buffer = []


class ById(Files):
    """Writes each event to a file named by its id; at least once, and a redelivery replaces the file."""

    type_name = "by-id"

    def open(self) -> None:
        self.events: dict[str, bytes] = {}

    def write(self, batch: Batch) -> None:
        self.events |= {self.key(batch, row): event.body for row, event in enumerate(batch)}

    def key(self, batch: Batch, row: int) -> str:
        return str(batch.id(row))

    def flush(self) -> None:
        for key, body in self.events.items():
            (Path(self.config.directory) / key).write_text(json.dumps([body.hex()]))
        self.events = {}

    def reset(self) -> None:
        self.events = {}

    def duplicate_risk(self, assignment: Assignment) -> str:
        return ""


class ByItsOwnCount(ById):
    """Numbers events by itself, anew after each start; at least once."""

    count = 0

    def open(self) -> None:
        super().open()
        self.run = uuid.uuid4()

    def key(self, batch: Batch, row: int) -> str:
        self.count += 1
        return f"{self.run}-{self.count}"


@pytest.mark.parametrize("cls", [Files, Once, ById])
def test_an_honest_sink_passes(cls: type[Sink[Any]], tmp_path: Path) -> None:
    check_files(cls, tmp_path)


class Buffering(Files):
    """Flushes later; at least once."""

    def flush(self) -> None:
        if len(self.buffer) > 200:
            super().flush()


class Garbling(Files):
    """Writes text, at least once."""

    def write(self, batch: Batch) -> None:
        self.buffer += [body.decode("latin-1").encode() for body in batch.bodies.to_pylist()]


class Twice(Once):
    """Exactly once, except dropped events."""

    def reset(self, partition: int | None = None) -> None:
        pass


class NoRecord(Once):
    """Exactly once, while it lives."""

    def resume(self, committed: Assignment) -> Assignment:
        return committed


class NoGuard(Once):
    """Exactly once, while it is alone."""

    def commit(self, receipt: Receipt) -> None:
        Path(receipt.staged).rename(self.directory / f"{receipt.offsets.start}-{receipt.offsets.end}")


class Careless2(Once):
    """Exactly once; forgets staged partitions."""

    def stage(self, assignment: Assignment, offsets: OffsetRange) -> Receipt:
        receipt = super().stage(assignment, offsets)
        return replace(receipt, offsets=OffsetRange(offsets.start, offsets.start))


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (Buffering, "Buffering lost"),
        (Garbling, r"Garbling lost 1 events, such as b'caf\xe9 \xff\xfe \xc3'"),
        (Twice, "Twice.stage gives a receipt of something else"),
        (NoRecord, "NoRecord.resume returns offset 0 instead of 2"),
        (NoGuard, "NoGuard lets two owners commit the same records"),
        (Careless2, "Careless2.stage gives a receipt of something else"),
    ],
)
def test_a_broken_sink_is_detected(cls: type[Sink[Any]], message: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as e:
        check_files(cls, tmp_path)
    assert message in str(e.value)


def test_a_sink_that_promises_no_duplicates_is_checked_for_them(tmp_path: Path) -> None:
    message = r"ByItsOwnCount delivered twice, though duplicate_risk\(\) is empty: \d+ events, such as b'"
    with pytest.raises(AssertionError, match=message):
        check_files(ByItsOwnCount, tmp_path)
