"""The contract: what a source, an interceptor, a channel and a sink are, and who calls what when."""

from __future__ import annotations

import hashlib
import importlib
import logging
import threading
import time
import typing
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from plugins.batch import Batch
from plugins.errors import MissingExtra
from plugins.event import Event, EventId
from plugins.metrics import Metrics
from plugins.options import Config

CONTRACT = 1
"""Version of this contract; a plugin may check it."""

C = TypeVar("C", bound=Config)


class Caution(str):
    """A sentence from `Component.probe` about what works, though less safely than it should."""


class Component(ABC, Generic[C]):
    """What all components share.

    Life: `__init__` (no I/O) → `open` (connects; may raise Retry) → work → `close`, which always runs, also after a
    failed `open`, and may run twice. After a failure the runner closes the component and opens it again.

    The runner sets `name`, `member`, `metrics` and `stopping`; whatever blocks must wake soon after `stopping` is
    set.
    """

    type_name: ClassVar[str] = ""
    """The name in the configuration: `a1.sources.s1.type = <type_name>`."""
    aliases: ClassVar[tuple[str, ...]] = ()
    """Other names for it, Flume's class names among them. Aliases ignore case."""
    counters: ClassVar[tuple[str, ...]] = ()
    """Names in `metrics` that are shown from the start, besides those that all components of its kind have."""
    config_class: ClassVar[type[Config]] = Config
    """Its options: the type argument of the base class, found by itself."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for base in vars(cls).get("__orig_bases__", ()):
            for argument in typing.get_args(base):
                if isinstance(argument, type) and issubclass(argument, Config):
                    cls.config_class = argument

    def __init__(self, config: C, name: str = "") -> None:
        self.config = config
        self.name = name or self.type_name
        self.member = self.name
        """How a server that remembers its clients knows it again, on this host: set by the runner, agent included."""
        self.metrics = Metrics()
        self.stopping = threading.Event()
        self.log = logging.getLogger(f"{type(self).__module__}.{self.name}")
        self._complained: dict[str, float] = {}

    def open(self) -> None:
        """Acquire what is needed: connections, files, sockets. Raise Retry where trying again may help."""

    def close(self) -> None:
        """Release everything. Not a commit: what was not flushed is lost here and offered again."""

    def probe(self) -> Iterator[str]:
        """For `agent check --connect`: yield a sentence for everything that would keep `open` from working.

        A `Caution` becomes a warning, any other text an error. Looks only; leaves nothing behind.
        """
        return iter(())

    def complain(self, about: str, message: str, *args: object) -> None:
        """Log a warning, one a minute about the same: for what anyone who can connect can cause. Any thread."""
        now = time.monotonic()
        if now - self._complained.get(about, -60.0) >= 60:
            self._complained[about] = now
            self.log.warning(message, *args)


class Source(Component[C]):
    """Brings events in.

    The runner iterates `batches()` on one thread. With `in_flight` 1, being resumed after a yield means that the
    batch is stored in every required channel; with more, up to that many yielded batches are on their way at once
    and `stored` alone tells. Batches on their way together may reach the channel in any order.
    """

    in_flight: int = 1
    """At most so many yielded batches unresolved at a time."""

    @abstractmethod
    def batches(self) -> Iterator[Batch]:
        """Yield batches until `stopping` is set, then return. May raise Retry."""

    def stored(self, batch: Batch) -> None:
        """Called once a batch, in yield order, when every required channel holds it: acknowledge, save positions.

        Gets the very object that was yielded. May be called on another thread than `batches` runs on.
        """


class Interceptor(Component[C]):
    """Changes or drops events on their way."""

    pure: ClassVar[bool] = True
    """Whether the same event always gives the same result. Impure ones are allowed before the channel only, where a
    redelivery does not pass."""

    @abstractmethod
    def intercept(self, batch: Batch) -> Batch:
        """Return the batch changed; use `where` to drop events. Must not raise for any content."""


class Claim(NamedTuple):
    """One partition as one consumer group sees it: what a commit record belongs to."""

    cluster_id: str
    topic: str
    topic_id: str
    group: str
    epoch: int
    """Of the latest deliberate reset of the group; a new epoch starts a new commit record."""
    partition: int
    ids: int = 1
    """How events are named. 1, by the topic's name alone: groups from before version 0.2, until they are reset, so
    that no event is delivered under two names. 2: by `stem`. More: by another `stem`, since brokers have lost records
    and gave their offsets to new ones (`agent group reset --new-ids`)."""
    record: str = ""
    """Where the sink that committed the group's position keeps its own record; empty where it keeps none."""
    shared_epoch: int = 0
    """The epoch, where version 0.1 has committed the position: its members understand no more than that."""

    @property
    def stem(self) -> str:
        """What the ids of its events begin with: another one for each topic, also of the same name."""
        if self.ids == 1:
            return self.topic
        since = f" {self.ids}" if self.ids > 2 else ""
        return f"{self.topic}~{hashlib.sha256(f'{self.cluster_id} {self.topic_id}{since}'.encode()).hexdigest()[:10]}"


class Record(NamedTuple):
    """One Kafka record of a channel's topic."""

    offset: int
    timestamp: int
    """Milliseconds since the epoch."""
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True)
class Undecodable:
    """A record that is not in the channel's format."""

    id: EventId
    record: Record
    reason: str


@dataclass(frozen=True)
class Taken:
    """Records `start` up to, not including, `end` of one partition, decoded."""

    partition: int
    start: int
    end: int
    batch: Batch
    undecodable: tuple[Undecodable, ...] = ()
    replays: Mapping[EventId, int] = field(default_factory=dict)
    """The offset of the record that replays it, of each event in it that is replayed."""

    def fresh(self) -> Batch:
        """Its events without those that are replayed, whose ids say that they lay before it."""
        origin = self.batch.origin
        if origin is None or not len(self.batch) or origin.offsets.min() >= self.start:
            return self.batch
        return self.batch.where(pa.array(origin.offsets >= self.start))


class Owner(Protocol):
    """The runner, as a `Reader` calls it when partitions come and go; always within `Reader.take`."""

    def assigned(self, committed: Mapping[Claim, int | None]) -> Mapping[Claim, int | None]:
        """These partitions are ours now; answer where to start each, and under which claim.

        Given the group's committed position of each (None where it has none, for the earliest record), with the
        epoch and the place of a commit record that were committed with it. The answer has the owner's own; it is
        committed before anything is taken, so that whoever has a partition next knows of that record.
        """

    def revoked(self, partitions: set[int]) -> None:
        """These partitions go to another member now: last chance to flush and commit them."""

    def lost(self, partitions: set[int]) -> None:
        """These partitions are gone already: drop what is not committed, commit nothing."""


class Reader(ABC):
    """One consumer of a channel. Used by one thread."""

    @abstractmethod
    def take(self, timeout: float) -> Taken | None:
        """The next records, or None after `timeout` seconds without any. Calls the owner when partitions change."""

    @abstractmethod
    def commit(self, positions: Mapping[Claim, int]) -> None:
        """Record, by claim, the offset of the next record to deliver; only partitions owned now."""

    @abstractmethod
    def rewind(self, positions: Mapping[int, int]) -> None:
        """Go on taking from these positions."""

    def lag(self) -> int | None:
        """Records not yet taken, over all partitions owned; None where not known."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Leave the group. Commits nothing."""


@dataclass(frozen=True)
class KafkaStream:
    """How another engine (Spark) reads a channel that lies in Kafka."""

    bootstrap_servers: str
    topic: str
    group: str
    client: Mapping[str, str] = field(default_factory=dict)
    """Java client properties: security and the like."""


class Channel(Component[C]):
    """Holds events between sources and sinks."""

    durable: ClassVar[bool] = False
    """Whether what it holds survives the agent. The stop of an agent drains the others."""

    @abstractmethod
    def put(self, batch: Batch) -> None:
        """Return when the whole batch is stored, to the channel's guarantee. Threads may call it at once.

        Blocks while the channel is full or unreachable. Raises Retry when `stopping` is set before it is stored:
        the batch may or may not be in the channel then.
        """

    @abstractmethod
    def reader(self, owner: Owner, *, group: str | None, member: str) -> Reader:
        """A consumer. Readers of one `group` share the events; each group sees all. None is the channel's own group.

        `member` names this consumer across restarts (host, agent and sink).
        """

    def stream(self, group: str | None) -> KafkaStream | None:
        """How Spark reads it; None where it cannot, and only local runners can drain it."""
        return None

    def positions(self, group: str | None) -> Mapping[Claim, int | None]:
        """Every partition of `stream`, with the group's committed position, read without joining the group."""
        raise NotImplementedError(f"{type(self).__name__} cannot be read by Spark")

    def ends(self) -> Mapping[int, int]:
        """By partition of `stream`, the offset behind its newest record: up to where a drain has to come.

        `agent start --drain` needs this, `positions`, `vacant` and `holders` of a durable channel. All raise Retry
        where the brokers do not answer.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot tell where it ends, and so cannot be drained")

    def starts(self) -> Mapping[int, int]:
        """By partition of `stream`, the offset of its oldest record, or where the next one comes. Raises Retry."""
        raise NotImplementedError(f"{type(self).__name__} cannot be read by Spark")

    def vacant(self, partition: int, start: int | None, end: int) -> bool:
        """Whether no reader is ever given anything of that partition from `start` (None: the earliest record) up to,
        not including, `end`.

        So it is in an empty partition, and where there are the ends of transactions and what these took back alone.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot tell where it ends, and so cannot be drained")

    def holders(self, group: str | None) -> Mapping[int, str]:
        """Who reads each partition in that group at present, in words; those that nobody reads are left out."""
        raise NotImplementedError(f"{type(self).__name__} cannot tell where it ends, and so cannot be drained")

    def confirm(self, claim: Claim) -> None:
        """Return when records of `stream` read before this call are known to be of the claim's topic.

        Raises Retry where the topic was deleted and made again: what was read may be of the other one. Needs no
        `open`.
        """

    def record(self, positions: Mapping[Claim, int | None]) -> None:
        """Commit positions (None: the earliest record) for a group that no reader is a member of.

        Raises Retry, also while one is; Conflict where the group was reset since, or another sink's record has taken
        the place of the claims' own.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot be read by Spark")

    def restore(self, positions: Mapping[Claim, int]) -> None:
        """Commit those positions that an earlier owner has undone, and say so: its commit reached the brokers late.

        What other programs have committed stays, and so does it that there is no position. Raises as `record` does.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot be read by Spark")

    def decode(self, records: Iterator[Record], claim: Claim) -> Taken | None:
        """The next records of one partition of `stream`, decoded, on a Spark executor; None when there are no more.

        Small records are joined. Needs no `open`. What is undecodable comes back as such.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot be read by Spark")

    def again(self, lost: Event | Record, id: EventId, arrival: int, group: str) -> Record:
        """A record for `stream` that offers an event, or a record as it is, once more to one group and no other.

        Read in the partition that `id` names, the event has that id again, and `arrival` (milliseconds since the
        epoch) as the time at which the channel took it. Needs no `open`.
        """
        raise NotImplementedError(f"{type(self).__name__} does not lie in Kafka")


class Sink(Component[C]):
    """Takes events out: the simple kind.

    `write` may buffer; when `flush` returns, all that was written is durable, and the runner commits the channel.
    Any exception makes the runner call `reset`, rewind to the last commit and offer the events again.
    """

    batch_size: int = 10_000
    """The runner flushes after at least so many events, if not before."""
    flush_interval: float = 1.0
    """The runner flushes at the latest so many seconds after the first unflushed write."""
    remote: ClassVar[bool] = True
    """Whether it may work on another host than the agent's, as Spark's executors do; not with files of its own."""

    @abstractmethod
    def write(self, batch: Batch) -> None:
        """Take these events (of one partition, in order, never empty)."""

    def flush(self) -> None:
        """Return when everything written is durable."""

    def reset(self) -> None:
        """Drop everything written since the last flush."""

    def take_over(self, claim: Claim) -> None:
        """End what another form of this sink may have left under way of that partition when it was killed.

        Spark calls it of sinks that are not committing, before the first event. Needs no `open`.
        """


@dataclass(frozen=True)
class Receipt:
    """What one partition has staged, ready to be committed. Picklable: it travels from executor to driver."""

    claim: Claim
    start: int
    end: int
    """Records `start` up to, not including, `end` are in it, or were dropped on purpose."""
    events: int
    staged: Any
    """The sink's own: what to make visible."""


@dataclass(frozen=True)
class Resumed:
    """Where a committing sink goes on with one partition."""

    claim: Claim
    """With the epoch and the place of the sink's own record."""
    position: int | None
    """The next record to deliver; None: the earliest."""
    notes: tuple[bytes, ...] = ()
    """What came with the newest commits and was not `noted` yet."""


class CommittingSink(Sink[C]):
    """A sink with its own commit record, which makes it exactly once.

    The runner calls `resume` for each partition it gets, `write` with that partition's events in order, and, when
    `due` names the partition, `stage` and `commit`. It commits the channel only afterwards, so that the sink's
    record is the truth and the channel's a copy. Stages run in the agent or on Spark executors; `resume` and
    `commit` of one partition run in one place only (the agent, or the Spark driver).

    A commit carries a note of the runner's: the dead letters of the events that it covers. The sink keeps it with its
    record until `noted` is called, and `resume` hands it out where a crash came between.
    """

    plain: ClassVar[type[Sink[Any]] | None] = None
    """Its form that only writes and flushes, at least once: what runs in its place on Spark, where `remote` is false,
    and in sink groups."""

    @abstractmethod
    def resume(self, claim: Claim, committed: int | None) -> Resumed:
        """Finish what a crash left of the last commit and answer where to go on by the sink's own record.

        Without a record: `committed`, the group's position (None: from the earliest). Whoever had the partition
        before, in an earlier epoch or with a record in another place, can commit no more once this returns.
        """

    @abstractmethod
    def due(self) -> set[int]:
        """Partitions whose written events should be committed now: by size, count, age or idleness."""

    @abstractmethod
    def stage(self, claim: Claim, start: int, end: int, note: bytes = b"") -> Receipt:
        """Make all that was written of this partition, and the note, durable but invisible.

        May raise Conflict, as `commit`.
        """

    @abstractmethod
    def commit(self, receipt: Receipt) -> None:
        """Make it visible, atomically, exactly once.

        Raises Conflict when another owner has committed past it, or when it cannot be known whether it came about:
        the runner calls `reset` and `resume` then.
        """

    @abstractmethod
    def noted(self, claim: Claim) -> None:
        """The note of the newest commit is needed no longer. May be called without one. May raise Retry."""

    @abstractmethod
    def reset(self, partition: int | None = None) -> None:
        """Drop everything not committed of this partition, or of all."""


class StreamingSink(Sink[C]):
    """A sink that is one or more Spark queries of its own rather than one that takes batches; it runs on Spark only.

    The driver hands it the channel as a streaming DataFrame (`plugins.frames.EVENTS`) and starts what it makes of it.
    The queries' checkpoints are their state and their positions; the group's offsets are a copy.
    """

    @property
    @abstractmethod
    def checkpoint(self) -> str | None:
        """Directory of the checkpoints; None: in the agent's state directory."""

    @property
    @abstractmethod
    def pipeline(self) -> str:
        """What the state belongs to; the checkpoint of another pipeline is refused."""

    @property
    def modules(self) -> str | None:
        """Directory that its modules are imported from besides Python's own path: executors get it, too."""
        return None

    @abstractmethod
    def frames(self, events: Any) -> Mapping[str, Any]:
        """The streaming DataFrames to write, by name. FlafkaError says what is wrong with them."""

    def topics(self) -> set[str]:
        """Those of the channel's brokers that it writes to: `check` looks for loops."""
        return set()

    def files(self, name: str) -> str | None:
        """Directory of an output that Spark writes files to: it counts micro-batches there as well."""
        return None

    @abstractmethod
    def writer(self, name: str, frame: Any, stream: KafkaStream) -> Any:
        """A `DataStreamWriter` for that frame, without checkpoint, name and trigger. `stream` is the channel's."""

    def write(self, batch: Batch) -> None:
        """Never called."""
        raise NotImplementedError(f"{type(self).__name__} runs on Spark only")


_importing = threading.RLock()


def require(module: str, extra: str) -> Any:
    """Import a library that an extra brings; the error names the extra."""
    try:
        # One at a time: sinks open on threads of their own, and libraries that import one another deadlock then.
        with _importing:
            return importlib.import_module(module)
    except ImportError as e:
        raise MissingExtra(f"{module} is not installed: pip install 'flafka[{extra}]'") from e
