"""What a channel is that lies in Kafka: Spark reads it, and drains and replays go by its offsets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from flafka.plugins.channel import Channel, PolledBatch, Record
from flafka.plugins.component import C
from flafka.plugins.errors import FlafkaError
from flafka.plugins.event import Event, EventId
from flafka.plugins.options import Config, option
from flafka.plugins.partitions import Assignment, OffsetRange


@dataclass(frozen=True)
class KafkaStream:
    """How another engine (Spark) reads a channel that lies in Kafka."""

    bootstrap_servers: str
    topic: str
    group: str
    client: Mapping[str, str] = field(default_factory=dict)
    """Java client properties: security and the like."""


class Broker(NamedTuple):
    """One broker of a cluster."""

    id: int
    address: str
    up: bool
    """Whether it accepts connections now."""
    leads: int
    """How many partitions of the channel's topic it leads."""


class ClusterLook(NamedTuple):
    """A cluster and a channel's topic as they are now."""

    id: str
    topic: str
    brokers: tuple[Broker, ...]
    """Those that were seen since the first look, whether they are up or not."""
    partitions: int
    under_replicated: int
    """Partitions of which not all replicas are in sync."""
    leaderless: int
    """Partitions that nobody can read or write."""


class Backlog(NamedTuple):
    """What a consumer group has not committed yet."""

    records: int
    oldest: int | None
    """When the oldest of them came into the channel, in milliseconds since the epoch; None where there is none."""
    retention: float | None
    """Seconds until the brokers delete it; None where they keep it, or there is none."""


class Onlooker(ABC):
    """Looks at a channel and its brokers now and then, and changes nothing. Used by one thread.

    All of it raises Retry where the brokers do not answer.
    """

    @abstractmethod
    def cluster(self) -> ClusterLook:
        """The brokers and the topic; within few seconds, also of brokers that are away."""

    @abstractmethod
    def backlog(self, group: str | None) -> Backlog:
        """What is left for that consumer group; None is the channel's own."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the connections."""


class OverflowConfig(Config):
    """Options of a channel whose events another channel of the agent may hold while its brokers are away."""

    section = "While brokers are away"
    overflow: str | None = option(
        None,
        name="overflow",
        description="Name of a channel `file` of this agent that nothing else uses. While brokers are away, events "
        "wait there, on one disk of this host; once the brokers are back, they go into this channel in their order. "
        "If unset, sources wait for the brokers.",
    )
    overflow_timeout: int = option(
        5,
        name="overflowTimeout",
        unit="s",
        gt=0,
        description="With `overflow`: time that a put may wait for brokers before the overflow begins, and time for "
        "which brokers must have acknowledged everything before it ends.",
    )


class KafkaBackedChannel(Channel[C]):
    """A channel whose events are records of a Kafka topic.

    What is here needs no `open`, and joins no group. All of it raises Retry where the brokers do not answer.
    """

    durable: ClassVar[bool] = True

    @property
    def refusal(self) -> str:
        """Why brokers that answer do not serve this client, such as one with a wrong password; empty while they do,
        and while they are away."""
        return ""

    def onlooker(self) -> Onlooker | None:
        """What the agent's monitoring looks through; None where a channel has nothing of the kind."""
        return None

    @property
    @abstractmethod
    def replication(self) -> int:
        """How many copies of each record the topics beside it have, too."""

    @property
    @abstractmethod
    def holds_batches(self) -> bool:
        """Whether a record has a whole batch of events, rather than one of them."""

    @abstractmethod
    def stream(self, group: str | None) -> KafkaStream:
        """How another engine reads it, in that consumer group; None is the channel's own."""

    @abstractmethod
    def committed(self, group: str | None) -> Sequence[Assignment]:
        """Committed offsets of a consumer group, one of every partition; None is the channel's own group."""

    @abstractmethod
    def starts(self) -> Mapping[int, int]:
        """By partition, the offset of its oldest record, or where the next one comes."""

    @abstractmethod
    def ends(self) -> Mapping[int, int]:
        """By partition, the offset behind its newest record: up to where a drain has to come."""

    @abstractmethod
    def vacant(self, partition: int, start: int | None, end: int) -> bool:
        """Whether no reader is ever given anything of that partition from `start` (None: the earliest record) up to,
        not including, `end`.

        So it is in an empty partition, and where there are the ends of transactions and what these took back alone.
        """

    @abstractmethod
    def members(self, group: str | None) -> Mapping[str, Collection[int]]:
        """Return, by member of that group in words, the partitions that it reads at present."""

    def refusals(self, group: str | None, starts: Collection[Assignment] | None = None) -> Sequence[FlafkaError]:
        """Return, for each partition that the group cannot go on with before a person decides, the error with the
        command that resolves it: records that brokers have lost, or that retention removed unread.

        `starts` are those of a sink's own commit log; if unset, the group's committed offsets count. What was kept
        with the group's offsets, by `refuse` or a reader, is returned in any case.
        """
        return ()

    def refuse(self, error: FlafkaError) -> None:
        """Keep that error with the offset of a group that no reader is a member of, if a person has to decide.

        It is one of `refusals` from then on, until the group is reset, whatever comes into the channel. Raises as
        `commit_offsets` does.
        """

    @abstractmethod
    def confirm(self, assignment: Assignment) -> None:
        """Return when records read before this call are known to be of the assignment's topic.

        Raises Retry where the topic was deleted and created again: what was read may be of the other one.
        """

    @abstractmethod
    def commit_offsets(self, assignments: Collection[Assignment]) -> None:
        """Commit the next offsets of a group that no reader is a member of.

        The next owner checks that brokers still have the last record of each, as far as it is known.

        Raises Retry, also while the group has a member; Conflict where the group was reset since, or another sink's
        commit log has replaced that of this owner.
        """

    @abstractmethod
    def restore(self, assignments: Collection[Assignment]) -> None:
        """Commit those offsets that an earlier owner has undone, and say so: its commit reached the brokers late.

        What other programs have committed stays, and so does it that there is no offset. Raises as `commit_offsets`
        does.
        """

    @abstractmethod
    def decode(self, records: Iterator[Record], assignment: Assignment) -> PolledBatch | None:
        """The next records of one partition, decoded; None when there are no more.

        Small records are joined. What is undecodable comes back as such.
        """

    @abstractmethod
    def redelivery(self, lost: Event | Record, id: EventId, arrival: int, group: str) -> Record:
        """A record that offers an event, or a record as it is, once more to one group and no other.

        Read in the partition that `id` names, the event has that id again, and `arrival` (milliseconds since the
        epoch) as the time at which the channel took it.
        """

    def at(self, time: int) -> Mapping[int, int]:
        """By partition, the offset of the first record that came at that time (ms since the epoch) or later; where
        there is none, the offset of the next one to come."""
        raise FlafkaError(f"a channel of type {self.type_name} does not tell what came when")

    def read(self, assignment: Assignment, offsets: OffsetRange) -> Iterator[PolledBatch]:
        """Records of the assignment's partition, for a look: no group moves."""
        raise FlafkaError(f"a channel of type {self.type_name} cannot be looked into")
