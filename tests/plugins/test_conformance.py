"""The conformance kit itself: it passes small honest components and says of each broken one what is broken."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from channels.memory import MemoryChannel
from plugins import (
    Batch,
    Channel,
    CommittingSink,
    Config,
    Conflict,
    Event,
    Interceptor,
    PartitionClaim,
    Problem,
    Receipt,
    Resumed,
    Retry,
    Sink,
    Source,
    conformance,
    option,
)


class DirectoryConfig(Config):
    directory: str = option(name="directory", description="where it works")


@pytest.fixture
def impatient(brisk: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("plugins.conformance.sources.STOP_SECONDS", 0.5)
    monkeypatch.setattr("plugins.conformance.sources.PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr("plugins.conformance.channels.PATIENCE_SECONDS", 0.5)
    Deaf.over.clear()
    yield
    Deaf.over.set()


# --- sources


class Lines(Source[DirectoryConfig]):
    """Reads the lines of a file, at least once."""

    type_name = "lines"

    def open(self) -> None:
        directory = Path(self.config.directory)
        if not directory.is_dir():
            raise Retry(f"{directory} is no directory")
        self.file, self.position = directory / "in", directory / "position"

    def probe(self) -> Iterator[str]:
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
    conformance.check_source(cls, properties, send, repeats=True, failing={"directory": "/no such directory"})


def test_an_honest_source_passes(tmp_path: Path) -> None:
    check_lines(Lines, tmp_path)


class Deaf(Lines):
    """Goes on until the test is over; nothing is lost."""

    over: ClassVar = threading.Event()

    def batches(self) -> Iterator[Batch]:
        self.over.wait()
        yield from ()


class Decoding(Lines):
    """At least once, as text."""

    def batch(self, lines: list[bytes]) -> Batch:
        return super().batch([line.decode("utf-8", "replace").encode() for line in lines])


class Forgetful(Lines):
    """At least once, it says."""

    def batches(self) -> Iterator[Batch]:
        for batch in super().batches():
            super().stored(batch)
            yield batch

    def stored(self, batch: Batch) -> None:
        pass


class Chatty(Lines):
    """At least once, and more."""

    def batch(self, lines: list[bytes]) -> Batch:
        return super().batch([*lines, b"greetings"])


class Failing(Lines):
    """At least once, unless there is an event."""

    def batch(self, lines: list[bytes]) -> Batch:
        raise RuntimeError("no idea")


class Raw(Lines):
    """At least once, but for errors of the user."""

    def open(self) -> None:
        self.file, self.position = (Path(self.config.directory) / name for name in ("in", "position"))
        self.position.touch()
        self.position.unlink()


class Blind(Lines):
    """At least once; probes nothing."""

    def probe(self) -> Iterator[str]:
        return iter(())


class Suspicious(Lines):
    """At least once; probes too much."""

    def probe(self) -> Iterator[str]:
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
    ("cls", "says"),
    [
        (Deaf, "Deaf goes on for 0.5 s after stopping is set"),
        (Decoding, r"Decoding lost 1 events, such as b'caf\xe9 \xff\xfe \xc3'"),
        (Forgetful, "Forgetful lost 10 events, such as b'again 0', b'again 1'"),
        (Chatty, "Chatty brought in what nobody sent: 1 events, such as b'greetings'"),
        (Failing, "Failing.batches() failed: RuntimeError('no idea')"),
        (Blind, "Blind.probe() finds nothing where open() fails"),
        (Suspicious, "Suspicious.probe() finds fault where open() works: ['I do not like it here']"),
        (Undocumented, "Undocumented has no docstring"),
        (Vague, "the docstring of Vague does not say what can be lost or repeated"),
        (NoName, "NoName.type_name is ''"),
    ],
)
def test_a_broken_source_is_found(cls: type[Source[Any]], says: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as e:
        check_lines(cls, tmp_path)
    assert says in str(e.value)


@pytest.mark.parametrize(
    ("cls", "error"), [(Raw, FileNotFoundError), (CloseOnce, AttributeError), (CloseOpened, AttributeError)]
)
def test_what_escapes_a_component_escapes_the_check(
    cls: type[Source[Any]], error: type[Exception], tmp_path: Path
) -> None:
    with pytest.raises(error):
        check_lines(cls, tmp_path)


# --- options and construction


class Quiet(Config):
    level: int = option(1, name="level", description=" ")


class Lenient(Config):
    @classmethod
    def parse(cls, properties: Mapping[str, str]) -> tuple[Any, list[Problem]]:
        return cls(), []


class Identity(Interceptor[Config]):
    """Changes nothing; pure."""

    type_name = "identity"

    def intercept(self, batch: Batch) -> Batch:
        return batch


class WithQuiet(Identity, Interceptor[Quiet]):
    """Pure."""


class WithLenient(Identity, Interceptor[Lenient]):
    """Pure."""


class Impatient(Identity):
    """Pure, and does everything at once."""

    what: ClassVar[Any]

    def __init__(self, config: Config, name: str = "") -> None:
        super().__init__(config, name)
        self.made = self.what()


def thread() -> threading.Thread:
    started = threading.Thread(target=time.sleep, args=[1], daemon=True)
    started.start()
    return started


def test_an_honest_interceptor_passes() -> None:
    conformance.check_interceptor(Identity, {})


@pytest.mark.parametrize(
    ("cls", "says"),
    [
        (WithQuiet, "option level has no description"),
        (WithLenient, "WithLenient does not report an unknown option"),
    ],
)
def test_options_are_looked_at(cls: type[Interceptor[Any]], says: str) -> None:
    with pytest.raises(AssertionError) as e:
        conformance.check_interceptor(cls, {})
    assert says in str(e.value)


def test_wrong_properties_are_the_authors_mistake() -> None:
    with pytest.raises(AssertionError, match="the properties given to the check are wrong"):
        conformance.check_interceptor(Identity, {"size": "1"})


@pytest.mark.parametrize(
    ("what", "says"),
    [
        (lambda: socket.create_server(("127.0.0.1", 0)), "__init__ does I/O: socket.bind"),
        (lambda: socket.gethostbyname("localhost"), "__init__ does I/O: socket.gethostbyname"),
        (lambda: Path("/etc/hosts").read_text(), "__init__ does I/O: open ('/etc/hosts',)"),
        (lambda: subprocess.run(["true"], check=True), "__init__ does I/O: subprocess.Popen"),
        (thread, "__init__ starts threads"),
        (os.pipe, "__init__ opens "),
    ],
)
def test_work_in_the_constructor_is_found(what: Any, says: str) -> None:
    Impatient.what = staticmethod(what)
    with pytest.raises(AssertionError) as e:
        conformance.check_interceptor(Impatient, {})
    assert says in str(e.value)


# --- interceptors


class Numbering(Identity):
    """Numbers events; pure, it says."""

    count = 0

    def intercept(self, batch: Batch) -> Batch:
        self.count += 1
        return batch.with_header("n", str(self.count))


class FirstOnly(Identity):
    """Keeps the first event of a batch; pure."""

    def intercept(self, batch: Batch) -> Batch:
        return batch.slice(0, 1)


class WithoutIds(Identity):
    """Makes a batch anew; pure."""

    def intercept(self, batch: Batch) -> Batch:
        return Batch.of(list(batch))


class Reordering(Identity):
    """Turns a batch around; pure."""

    def intercept(self, batch: Batch) -> Batch:
        return Batch.of(list(batch)[::-1], batch.origin)


class NeedsIds(Identity):
    """Puts the offset into a header; pure."""

    def intercept(self, batch: Batch) -> Batch:
        return batch if batch.origin is None else batch.with_header("offset", str(batch.origin.topic))


class NeedsText(Identity):
    """Reads bodies as UTF-8; pure."""

    def intercept(self, batch: Batch) -> Batch:
        return batch.map(lambda event: Event(event.body.decode().upper().encode(), event.headers))


class Aging(Identity):
    """Counts how often it was asked; pure, it says."""

    count = 0

    def intercept(self, batch: Batch) -> Batch:
        self.count += batch.origin is not None and len(batch) > 1
        return batch.with_header("age", "old") if self.count > 1 else batch


class NotPure(Identity):
    """Not pure."""

    pure = False
    age = "young"

    def intercept(self, batch: Batch) -> Batch:
        return batch.with_header("age", self.age)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("cls", "says"),
    [
        (Numbering, "Numbering treats an event otherwise when it is alone in a batch"),
        (FirstOnly, "FirstOnly treats an event otherwise when it is alone in a batch"),
        (Reordering, "Reordering treats an event otherwise when it is alone in a batch"),
        (WithoutIds, "WithoutIds drops the ids of events"),
        (NeedsIds, "NeedsIds needs an origin"),
        (Aging, "Aging says it is pure, but gives another result"),
    ],
)
def test_a_broken_interceptor_is_found(cls: type[Interceptor[Any]], says: str) -> None:
    with pytest.raises(AssertionError) as e:
        conformance.check_interceptor(cls, {})
    assert says in str(e.value)


def test_an_interceptor_must_bear_bytes_that_are_not_utf8() -> None:
    with pytest.raises(UnicodeDecodeError):
        conformance.check_interceptor(NeedsText, {})


def test_an_impure_interceptor_passes_with_its_clock_set() -> None:
    conformance.check_interceptor(NotPure, {}, prepare=lambda interceptor: setattr(interceptor, "age", "set"))


# --- channels


class Leaky(MemoryChannel):
    """Nothing is lost, it says."""

    type_name = "leaky"

    def put(self, batch: Batch) -> None:
        super().put(batch.slice(0, 50))


class Renumbering(MemoryChannel):
    """Nothing is lost; numbers records anew."""

    def reader(self, owner: Any, **which: Any) -> Any:
        reader: Any = super().reader(owner, **which)
        commit = reader.commit

        def forget(positions: Mapping[int, int]) -> None:
            commit(positions)
            reader._offset = 1

        reader.commit = forget
        return reader


class Careless(MemoryChannel):
    """Nothing is lost, but for what is taken."""

    def reader(self, owner: Any, **which: Any) -> Any:
        reader: Any = super().reader(owner, **which)
        reader.close = lambda: None
        return reader


class Boasting(MemoryChannel):
    """Nothing is lost, ever."""

    durable = True


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("cls", "says"),
    [
        (Leaky, "103 events are in the channel, 51 came out"),
        (Renumbering, "Renumbering gives an id twice"),
        (Careless, "10 events are in the channel, 0 came out"),
        (Boasting, "10 events are in the channel, 0 came out"),
    ],
)
def test_a_broken_channel_is_found(cls: type[Channel[Any]], says: str) -> None:
    with pytest.raises(AssertionError) as e:
        conformance.check_channel(cls, {})
    assert says in str(e.value)


# --- sinks


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

    def resume(self, claim: PartitionClaim, committed: int | None) -> Resumed:
        newest = self._newest()
        if newest is None:
            return Resumed(claim, committed)
        notes = [note] if (note := bytes.fromhex(json.loads(newest.read_text())["note"])) else []
        return Resumed(claim, _end(newest), tuple(notes))

    def _newest(self) -> Path | None:
        found = [file for file in self.directory.iterdir() if file.name[0] != "."]
        return max(found, key=_end, default=None)

    def noted(self, claim: PartitionClaim) -> None:
        if (newest := self._newest()) is not None:
            newest.write_text(json.dumps({**json.loads(newest.read_text()), "note": ""}))

    def due(self) -> set[int]:
        return set()

    def stage(self, claim: PartitionClaim, start: int, end: int, note: bytes = b"") -> Receipt:
        self.next += 1
        staged = self.directory / f".{id(self)}-{self.next}"
        staged.write_text(json.dumps({"bodies": [body.hex() for body in self.buffer], "note": note.hex()}))
        receipt = Receipt(claim, start, end, len(self.buffer), str(staged))
        self.buffer = []
        return receipt

    def commit(self, receipt: Receipt) -> None:
        if (self.resume(receipt.claim, None).position or 0) != receipt.start:
            raise Conflict("another was faster")
        Path(receipt.staged).rename(self.directory / f"{receipt.start}-{receipt.end}")

    def reset(self, partition: int | None = None) -> None:
        self.buffer = []


@pytest.mark.parametrize("cls", [Files, Once])
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
    """Exactly once, but for what was dropped."""

    def reset(self, partition: int | None = None) -> None:
        pass


class NoRecord(Once):
    """Exactly once, while it lives."""

    def resume(self, claim: PartitionClaim, committed: int | None) -> Resumed:
        return Resumed(claim, committed)


class NoNotes(Once):
    """Exactly once; but what it rejected before a crash is nowhere."""

    def stage(self, claim: PartitionClaim, start: int, end: int, note: bytes = b"") -> Receipt:
        return super().stage(claim, start, end)


class OldNotes(Once):
    """Exactly once; hands out again what is taken care of."""

    def noted(self, claim: PartitionClaim) -> None:
        pass

    def stage(self, claim: PartitionClaim, start: int, end: int, note: bytes = b"") -> Receipt:
        return super().stage(claim, start, end, b"a note")


class NoGuard(Once):
    """Exactly once, while it is alone."""

    def commit(self, receipt: Receipt) -> None:
        Path(receipt.staged).rename(self.directory / f"{receipt.start}-{receipt.end}")


class Careless2(Once):
    """Exactly once; forgets what it is asked to stage."""

    def stage(self, claim: PartitionClaim, start: int, end: int, note: bytes = b"") -> Receipt:
        receipt = super().stage(claim, start, end, note)
        return Receipt(claim, start, start, receipt.events, receipt.staged)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("cls", "says"),
    [
        (Buffering, "Buffering lost"),
        (Garbling, r"Garbling lost 1 events, such as b'caf\xe9 \xff\xfe \xc3'"),
        (Twice, "Twice.stage gives a receipt of something else"),
        (NoRecord, "NoRecord.resume answers 0 where it should go on at 2"),
        (NoNotes, "NoNotes.resume hands out (), not the note of the newest commit"),
        (OldNotes, "OldNotes.resume hands out (b'a note',) of a commit without a note"),
        (NoGuard, "NoGuard lets two owners commit the same records"),
        (Careless2, "Careless2.stage gives a receipt of something else"),
    ],
)
def test_a_broken_sink_is_found(cls: type[Sink[Any]], says: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as e:
        check_files(cls, tmp_path)
    assert says in str(e.value)


def test_the_samples_have_what_careless_components_stumble_over() -> None:
    events = conformance.sample_events()
    assert any(len(event.headers) > 64 for event in events)
    assert any(not event.headers for event in events)
    assert any("body" in event.headers for event in events)
    with pytest.raises(UnicodeDecodeError):
        [event.body.decode() for event in events]
