"""Conformance kit: it passes an honest source, and names the fault of each broken one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from flafka.plugins import (
    Batch,
    Config,
    Event,
    Retry,
    Source,
    conformance,
    option,
)


class DirectoryConfig(Config):
    directory: str = option(name="directory", description="where it works")


@pytest.fixture
def impatient(impatient: None) -> Iterator[None]:
    Deaf.over.clear()
    yield
    Deaf.over.set()


class Lines(Source[DirectoryConfig]):
    """Reads the lines of a file, at least once."""

    type_name = "lines"

    def open(self) -> None:
        directory = Path(self.config.directory)
        if not directory.is_dir():
            raise Retry(f"{directory} is no directory")
        self.file, self.position = directory / "in", directory / "position"

    def check_connectivity(self) -> Iterator[str]:
        if not Path(self.config.directory).is_dir():
            yield f"{self.config.directory} is no directory"

    def lines(self) -> list[bytes]:
        return self.file.read_bytes().splitlines() if self.file.exists() else []

    def done(self) -> int:
        return int(self.position.read_text()) if self.position.exists() else 0

    def batches(self) -> Iterator[Batch]:
        read = self.done()
        while not self.stopping.is_set():
            if lines := self.lines()[read:]:
                read += len(lines)
                yield self.batch(lines)
            self.stopping.wait(0.01)

    def batch(self, lines: list[bytes]) -> Batch:
        return Batch.of(Event(line, {}) for line in lines)

    def stored(self, batch: Batch) -> None:
        self.position.write_text(str(self.done() + len(batch)))


def check_lines(cls: type[Source[Any]], directory: Path) -> None:
    def send(source: Lines, bodies: list[bytes]) -> None:
        with source.file.open("ab") as file:
            file.writelines(body + b"\n" for body in bodies)

    properties = {"directory": str(directory)}
    conformance.check_source(cls, properties, send, failing={"directory": "/no such directory"})


def test_an_honest_source_passes(tmp_path: Path) -> None:
    check_lines(Lines, tmp_path)


class Deaf(Lines):
    """Ignores the stop until the test is over; nothing is lost."""

    over: ClassVar = threading.Event()

    def batches(self) -> Iterator[Batch]:
        self.over.wait()
        yield from ()


class Decoding(Lines):
    """At least once, as text."""

    def batch(self, lines: list[bytes]) -> Batch:
        return super().batch([line.decode("utf-8", "replace").encode() for line in lines])


class Forgetful(Lines):
    """Loses events, and promises at least once."""

    def batches(self) -> Iterator[Batch]:
        for batch in super().batches():
            super().stored(batch)
            yield batch

    def stored(self, batch: Batch) -> None:
        pass


class Stubborn(Lines):
    """At least once after a restart; after a failure it continues with the lines that it had read."""

    read = 0

    def batches(self) -> Iterator[Batch]:
        self.read = max(self.read, self.done())
        while not self.stopping.is_set():
            if lines := self.lines()[self.read :]:
                self.read += len(lines)
                yield self.batch(lines)
            self.stopping.wait(0.01)


class Chatty(Lines):
    """At least once, and more."""

    def batch(self, lines: list[bytes]) -> Batch:
        return super().batch([*lines, b"greetings"])


class Failing(Lines):
    """At least once, unless there is an event."""

    def batch(self, lines: list[bytes]) -> Batch:
        raise RuntimeError("no idea")


class Raw(Lines):
    """At least once, except for errors of the user."""

    def open(self) -> None:
        self.file, self.position = (Path(self.config.directory) / name for name in ("in", "position"))
        self.position.touch()
        self.position.unlink()


class Blind(Lines):
    """At least once; probes nothing."""

    def check_connectivity(self) -> Iterator[str]:
        return iter(())


class Suspicious(Lines):
    """At least once; probes too much."""

    def check_connectivity(self) -> Iterator[str]:
        yield "I do not like it here"


class CloseOnce(Lines):
    """At least once, closed once."""

    def close(self) -> None:
        del self.config


class CloseOpened(Lines):
    """At least once, closed when open."""

    def close(self) -> None:
        self.file.exists()


class Undocumented(Lines):
    type_name = "undocumented"


class Vague(Lines):
    """Reads lines."""


class NoName(Lines):
    """At least once."""

    type_name = ""


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (Deaf, "Deaf goes on for 0.5 s after stopping is set"),
        (Decoding, r"Decoding lost 1 events, such as b'caf\xe9 \xff\xfe \xc3'"),
        (Forgetful, "Forgetful lost 1 events, such as b'again 0': they were yielded but not stored"),
        (Stubborn, "Stubborn lost 1 events, such as b'again 0': they were yielded but not stored"),
        (Chatty, "Chatty yielded events that nobody sent: 1 events, such as b'greetings'"),
        (Failing, "Failing.batches() failed: RuntimeError('no idea')"),
        (Blind, "Blind.check_connectivity() finds nothing where open() fails"),
        (Suspicious, "Suspicious.check_connectivity() reports errors where open() works: ['I do not like it here']"),
        (Undocumented, "Undocumented has no docstring"),
        (Vague, "the docstring of Vague does not say what can be lost or repeated"),
        (NoName, "NoName.type_name is ''"),
    ],
)
def test_a_broken_source_is_detected(cls: type[Source[Any]], message: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as e:
        check_lines(cls, tmp_path)
    assert message in str(e.value)


def test_events_that_the_sender_repeats_need_not_be_redelivered(tmp_path: Path) -> None:
    def send(source: Forgetful, bodies: list[bytes]) -> None:
        with source.file.open("ab") as file:
            file.writelines(body + b"\n" for body in bodies)

    properties, failing = {"directory": str(tmp_path)}, {"directory": "/no such directory"}
    conformance.check_source(Forgetful, properties, send, redelivers=False, failing=failing)


@pytest.mark.parametrize(
    ("cls", "error"), [(Raw, FileNotFoundError), (CloseOnce, AttributeError), (CloseOpened, AttributeError)]
)
def test_an_exception_of_a_component_leaves_the_check(
    cls: type[Source[Any]], error: type[Exception], tmp_path: Path
) -> None:
    with pytest.raises(error):
        check_lines(cls, tmp_path)
