"""Conformance kit: it names the fault of each broken component, interceptor and channel."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from flafka.channels.memory import MemoryChannel
from flafka.plugins import (
    Assignment,
    Batch,
    Channel,
    Config,
    Event,
    Interceptor,
    Problem,
    Reader,
    RebalanceListener,
    conformance,
    option,
)
from flafka.plugins.conformance import AssignmentListener
from flafka.plugins.templates.channel import MyChannel

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
    """Pure, and does everything in the constructor."""

    what: ClassVar[Any]

    def __init__(self, config: Config, name: str = "") -> None:
        super().__init__(config, name)
        self.made = self.what()


def thread() -> threading.Thread:
    started = threading.Thread(target=time.sleep, args=[1], daemon=True)
    started.start()
    return started


def test_an_interceptor_may_reject() -> None:
    conformance.check_interceptor(Splitting, {})


def test_an_honest_interceptor_passes() -> None:
    conformance.check_interceptor(Identity, {})


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (WithQuiet, "option level has no description"),
        (WithLenient, "WithLenient does not report an unknown option"),
    ],
)
def test_options_are_checked(cls: type[Interceptor[Any]], message: str) -> None:
    with pytest.raises(AssertionError) as e:
        conformance.check_interceptor(cls, {})
    assert message in str(e.value)


def test_wrong_properties_are_the_authors_mistake() -> None:
    with pytest.raises(AssertionError, match="the properties given to the check are wrong"):
        conformance.check_interceptor(Identity, {"size": "1"})


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (lambda: socket.create_server(("127.0.0.1", 0)), "__init__ does I/O: socket.bind"),
        (lambda: socket.gethostbyname("localhost"), "__init__ does I/O: socket.gethostbyname"),
        (lambda: Path("/etc/hosts").read_text(), "__init__ does I/O: open ('/etc/hosts',)"),
        (lambda: subprocess.run(["true"], check=True), "__init__ does I/O: subprocess.Popen"),
        (thread, "__init__ starts threads"),
        (os.pipe, "__init__ opens "),
    ],
)
def test_work_in_the_constructor_is_detected(work: Any, message: str) -> None:
    Impatient.what = staticmethod(work)
    with pytest.raises(AssertionError) as e:
        conformance.check_interceptor(Impatient, {})
    assert message in str(e.value)


# --- interceptors


class Numbering(Identity):
    """Numbers events; declared pure."""

    count = 0

    def intercept(self, batch: Batch) -> Batch:
        self.count += 1
        return batch.with_header("n", str(self.count))


class FirstOnly(Identity):
    """Keeps the first event of a batch; pure."""

    def intercept(self, batch: Batch) -> Batch:
        return batch.slice(0, 1)


class WithoutIds(Identity):
    """Creates a new batch; pure."""

    def intercept(self, batch: Batch) -> Batch:
        return Batch.of(list(batch))


class Reordering(Identity):
    """Reverses a batch; pure."""

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
    """Counts its calls; declared pure."""

    count = 0

    def intercept(self, batch: Batch) -> Batch:
        self.count += batch.origin is not None and len(batch) > 1
        return batch.with_header("age", "old") if self.count > 1 else batch


class Awaited(Identity):
    """Is never run; pure."""

    async def intercept(self, batch: Batch) -> Batch:  # type: ignore[override]  # as by mistake
        return batch


class Splitting(Identity):
    """Rejects what is odd, each with a reason; pure."""

    def intercept(self, batch: Batch) -> Batch:
        return self.reject(batch, {row: "too long" for row, event in enumerate(batch) if len(event.body) > 100})


class PureByItself(Identity):
    """Pure with some options, which only the instance declares."""

    pure = False

    def __init__(self, config: Config, name: str = "") -> None:
        super().__init__(config, name)
        self.pure = True


class ImpureByItself(Identity):
    """Not pure, although its class is declared pure."""

    def __init__(self, config: Config, name: str = "") -> None:
        super().__init__(config, name)
        self.pure = False


class PureWithNothing(PureByItself):
    """Pure with an option that it does not have."""

    pure_with = "by"


class NotPure(Identity):
    """Not pure."""

    pure = False
    age = "young"

    def intercept(self, batch: Batch) -> Batch:
        return batch.with_header("age", self.age)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (Numbering, "Numbering treats an event otherwise when it is alone in a batch"),
        (FirstOnly, "FirstOnly treats an event otherwise when it is alone in a batch"),
        (Reordering, "Reordering treats an event otherwise when it is alone in a batch"),
        (WithoutIds, "WithoutIds drops the ids of events"),
        (NeedsIds, "NeedsIds needs an origin"),
        (Awaited, "Awaited has an `async def intercept`, which nothing here awaits"),
        (Aging, "Aging says it is pure, but gives another result"),
        (PureByItself, "PureByItself is pure with these properties alone: name the option in pure_with"),
        (ImpureByItself, "ImpureByItself is not pure with these properties: say pure = False of the class"),
        (PureWithNothing, "PureWithNothing.pure_with is no option of it"),
    ],
)
def test_a_broken_interceptor_is_detected(cls: type[Interceptor[Any]], message: str) -> None:
    with pytest.raises(AssertionError) as e:
        conformance.check_interceptor(cls, {})
    assert message in str(e.value)


def test_an_interceptor_must_accept_bytes_that_are_not_utf8() -> None:
    with pytest.raises(UnicodeDecodeError):
        conformance.check_interceptor(NeedsText, {})


def test_an_impure_interceptor_passes_with_its_clock_set() -> None:
    conformance.check_interceptor(NotPure, {}, prepare=lambda interceptor: setattr(interceptor, "age", "set"))


# --- channels


class Leaky(MemoryChannel):
    """Loses events, and promises that nothing is lost."""

    type_name = "leaky"

    def put(self, batch: Batch) -> None:
        super().put(batch.slice(0, 50))


class Renumbering(MemoryChannel):
    """Loses nothing; numbers records anew."""

    def reader(self, owner: Any, **options: Any) -> Any:
        reader: Any = super().reader(owner, **options)
        commit = reader.commit

        def forget(delivered: Collection[Assignment]) -> None:
            commit(delivered)
            reader._offset = 1

        reader.commit = forget
        return reader


class Careless(MemoryChannel):
    """Loses taken events, and promises that nothing is lost."""

    def reader(self, owner: Any, **options: Any) -> Any:
        reader: Any = super().reader(owner, **options)
        reader.close = lambda: None
        return reader


class Boasting(MemoryChannel):
    """Loses events at a restart, and promises that nothing is lost."""

    durable = True


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (Leaky, "103 events are in the channel, 51 came out"),
        (Renumbering, "Renumbering gives an id twice"),
        (Careless, "10 events are in the channel, 0 came out"),
        (Boasting, "10 events are in the channel, 0 came out"),
    ],
)
def test_a_broken_channel_is_detected(cls: type[Channel[Any]], message: str) -> None:
    with pytest.raises(AssertionError) as e:
        conformance.check_channel(cls, {})
    assert message in str(e.value)


class Deaf(AssignmentListener):
    """Starts at the committed offset, wherever the sink's commit log ends."""

    def __init__(self, owner: RebalanceListener) -> None:
        super().__init__()
        self._owner = owner

    def assigned(self, committed: Sequence[Assignment]) -> Sequence[Assignment]:
        self._owner.assigned(committed)
        return committed


class Rigid(MyChannel):
    """Loses nothing, and delivers the events of a commit log twice."""

    def reader(self, owner: RebalanceListener, *, group: str | None, member: str) -> Reader:
        return super().reader(Deaf(owner), group=group, member=member)


@pytest.mark.usefixtures("impatient")
def test_a_channel_that_ignores_a_commit_log_is_detected(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="a reader starts at the offset that `assigned` returns"):
        conformance.check_channel(Rigid, {"path": str(tmp_path / "events.db")})


def test_the_samples_have_the_pitfalls_of_careless_components() -> None:
    events = conformance.sample_events()
    assert any(len(event.headers) > 64 for event in events)
    assert any(not event.headers for event in events)
    assert any("body" in event.headers for event in events)
    with pytest.raises(UnicodeDecodeError):
        [event.body.decode() for event in events]
