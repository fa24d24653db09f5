"""Model of a Kafka cluster, one object for all brokers, as its clients can observe it.

Topics with their ids and logs are in `topics.py`, consumer groups with members and offsets in `groups.py`. Here are
the fates of requests, transactions with their markers, and the deletion and recreation of topics and groups.

Not modelled are single brokers, replication, quotas, authorization, delays of metadata between brokers, and sizes
other than that of a record. A compacted topic keeps all records until `compact` is called.
"""

from __future__ import annotations

import contextlib
import math
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, Uuid

from tests.simulator.faults import Kind
from tests.simulator.kafka.groups import Committed, Group
from tests.simulator.kafka.messages import Entry, Transaction, exception
from tests.simulator.kafka.topics import TOPIC_DEFAULTS, Partition, Topic
from tests.simulator.processes import Process, Signal
from tests.simulator.world import World, world

if TYPE_CHECKING:
    from tests.simulator.kafka.fetch import Fetch
    from tests.simulator.kafka.member import Membership

REQUEST_SECONDS = 0.002
"""Duration of a request."""
LOST_SECONDS = 5.0
"""A client gives an answer up that has not come for so long, or as long as its caller waits."""
REMOVED_SECONDS = 0.05
"""The offsets of a deleted topic are gone from the groups so much later."""
TRANSACTION_CHECK_SECONDS = 10.0
"""Interval at which the coordinator looks for transactions that are too old."""
MARKER_SECONDS = 0.004
"""From the decision about a transaction to its markers."""
CHANGING = (Kind.LOST, Kind.UNANSWERED, Kind.LATE, Kind.DOUBLED)
"""Fates of a request that changes something."""
ASKING = (Kind.LOST,)
"""Fates of a request that changes nothing."""


def brokers() -> Brokers:
    """Brokers of the present simulation."""
    cluster: Brokers = world().models["kafka"]
    return cluster


def in_background(process: Process, seconds: float, work: Callable[[], None]) -> None:
    """Do that later, as a thread of the client's own does: not while the process is paused or the brokers are away,
    nor once the process is gone.
    """

    def run() -> None:
        if not process.alive:
            return
        here = process.world
        until = max(process.paused_until, brokers().away_until)
        if until > here.now:
            in_background(process, until - here.now + 0.001 + 0.05 * here.random.random(), work)
        else:
            work()

    process.world.later(seconds, run)


class Coordinated:
    """A transactional id at its coordinator."""

    __slots__ = ("current", "ending", "epoch", "id", "started", "timeout")

    def __init__(self, id: str) -> None:
        self.id = id
        self.epoch = -1
        self.timeout = 60.0
        self.current: Transaction | None = None
        self.ending = False
        """True if the outcome is decided and the markers are not written yet."""
        self.started = 0.0


class Brokers:
    """The cluster. Its public methods that no client has are for the stories of the simulation."""

    def __init__(self, world: World, *, cluster_id: str = "simulated-cluster-00000") -> None:
        self.world, self.cluster_id = world, cluster_id
        self.topics: dict[str, Topic] = {}
        self.groups: dict[str, Group] = {}
        self.written: set[tuple[str, str | None]] = set()
        """The metadata of all positions that were ever written, by group."""
        self.transactions: dict[str, Coordinated] = {}
        self.nodes = (1, 2, 3)
        self.changed = Signal(world)
        """Fired when topics or partitions come."""
        self.clients: list[Membership] = []
        """Members of groups, which are notified of changes of topics."""
        self.waiting: dict[str, list[Fetch]] = {}
        """Readers of topics that are not there, by the topic."""
        self.away_until = -math.inf
        self._members = 0
        self.most_idle = 10.0
        """A poll that finds nothing for long takes up to so many seconds, whatever it was asked for, unless something
        else happens in its process: what polls every few milliseconds would cost thousands of steps that do nothing.
        """

    # --- what clients ask

    def ask(self, what: str, work: Callable[[], Any], patience: float, *kinds: Kind, on: str = "") -> Any:
        """Carry a request out on the present thread. KafkaException, as the client says it, where no answer comes."""
        fault = self.world.call(what, *kinds, seconds=REQUEST_SECONDS, on=on)
        kind = fault.kind if fault is not None else Kind.WELL
        patience = max(0.0, min(patience, LOST_SECONDS))
        if self.away_until > self.world.now:
            self.world.sleep(min(patience, self.away_until - self.world.now))
            if self.away_until > self.world.now:
                self.world.answered(fault)
                raise exception(KafkaError._TIMED_OUT)
        if kind in (Kind.LOST, Kind.UNANSWERED, Kind.LATE):
            assert fault is not None
            if kind is Kind.UNANSWERED:
                _quietly(work)
            elif kind is Kind.LATE:
                process = self.world.process

                def late() -> None:
                    if not process.alive:
                        self.world.log(f"{what} comes after the end of {process.name}")
                    _quietly(work)

                self.world.late(fault.seconds, late)
            self.world.sleep(patience)
            raise exception(KafkaError._TIMED_OUT)
        if kind is Kind.REFUSED:
            raise exception(KafkaError.COORDINATOR_NOT_AVAILABLE)
        if kind is Kind.DOUBLED:
            _quietly(work)
        try:
            return work()
        finally:
            self.world.answered(fault)

    def member_id(self, client: Membership) -> str:
        """A new one."""
        self._members += 1
        return f"{client.instance or client.client_id}-{self._members:08d}"

    def group(self, name: str) -> Group:
        """Return the group of that name, created where it is missing."""
        group = self.groups.get(name)
        if group is None:
            group = self.groups[name] = Group(self, name)
        return group

    def count(self, topic: str) -> int:
        """Return the number of partitions; 0 for a missing topic."""
        existing = self.topics.get(topic)
        return len(existing.partitions) if existing is not None else 0

    def partition(self, topic: str, number: int) -> Partition | None:
        """Return the partition, or None if it does not exist."""
        existing = self.topics.get(topic)
        return (
            existing.partitions[number] if existing is not None and 0 <= number < len(existing.partitions) else None
        )

    # --- transactions

    def coordinated(self, id: str) -> Coordinated:
        """The transactional id of this name."""
        coordinated = self.transactions.get(id)
        if coordinated is None:
            coordinated = self.transactions[id] = Coordinated(id)
        return coordinated

    def begin(self, coordinated: Coordinated) -> Transaction:
        """The transaction under way, a new one where there is none."""
        if coordinated.current is None:
            coordinated.current = made = Transaction(coordinated.id)
            coordinated.started = self.world.now
            self._watch_transaction(coordinated, made)
        return coordinated.current

    def _watch_transaction(self, coordinated: Coordinated, transaction: Transaction) -> None:
        def look() -> None:
            if self.away_until > self.world.now:
                self.world.later(self.away_until - self.world.now, look)
            elif coordinated.current is transaction and not coordinated.ending:
                self.world.log(f"the transaction of {coordinated.id} is too old")
                coordinated.epoch += 1
                self.end(coordinated, committed=False)

        due = self.world.now + coordinated.timeout
        checks = int(due / TRANSACTION_CHECK_SECONDS) + 1
        self.world.later(checks * TRANSACTION_CHECK_SECONDS - self.world.now, look)

    def end(self, coordinated: Coordinated, *, committed: bool) -> None:
        """Decide; the markers follow."""
        transaction = coordinated.current
        if transaction is None:
            return
        coordinated.ending = True

        def mark() -> None:
            transaction.state = "committed" if committed else "aborted"
            coordinated.current, coordinated.ending = None, False
            now = int(self.world.wall() * 1000)
            for partition in transaction.parts:
                partition.open.pop(transaction, None)
                partition.append(now, None, None, None, transaction, control=True)
            for group in transaction.groups:
                group.end(transaction, committed=committed)
            self.changed.fire()

        self.world.later(MARKER_SECONDS, mark)

    # --- what a story may do

    def away(self, seconds: float) -> None:
        """Make all brokers unreachable for so many seconds. Session timeouts begin anew afterwards."""
        self.world.log(f"the brokers are away for {seconds:.0f} s")
        for fetch in self._fetches():
            fetch.prefetch()
        self.away_until = max(self.away_until, self.world.now + seconds)
        self.world.later(seconds, self._back)

    def _back(self) -> None:
        for fetch in self._fetches():
            fetch.arrived()
        self.changed.fire()

    def _fetches(self) -> list[Fetch]:
        return [
            fetch for topic in self.topics.values() for partition in topic.partitions for fetch in partition.watchers
        ]

    def truncate(self, topic: str, partition: int, offset: int) -> None:
        """A replica becomes leader that lacks what comes at that offset and after it, acknowledged or not."""
        log = self.partition(topic, partition)
        assert log is not None, f"there is no {topic}-{partition}"
        log.leader_epoch += 1
        for transaction in [opened for opened, first in log.open.items() if first >= offset]:
            del log.open[transaction]
            transaction.parts.pop(log, None)
        if offset < log.high:
            for fetch in log.watchers:
                fetch.prefetch()
            del log.entries[max(offset, log.low) :]
            log.kept = min(log.kept, offset)
            for fetch in log.watchers:
                fetch.arrived()

    def snapshot(self, topic: str) -> tuple[list[int], dict[str, dict[tuple[str, int], Committed]]]:
        """The state of the topic and of all groups, for `restore`: the ends of its partitions, and the offsets."""
        ends = [partition.high for partition in self.topics[topic].partitions]
        return ends, {name: dict(group.offsets) for name, group in self.groups.items()}

    def restore(
        self,
        topic: str,
        snapshot: tuple[list[int], dict[str, dict[tuple[str, int], Committed]]],
        *,
        same_epochs: bool = False,
    ) -> None:
        """Restore a backup, as an operator does while no client runs.

        Leaders begin new epochs, or with `same_epochs` repeat the epochs of the lost records.
        """
        ends, groups = snapshot
        for number, end in enumerate(ends):
            partition = self.topics[topic].partitions[number]
            epoch = partition.leader_epoch
            self.truncate(topic, number, end)
            if same_epochs:
                partition.leader_epoch = epoch
        for name, group in self.groups.items():
            group.offsets = dict(groups.get(name, {}))

    def create_topic(
        self, name: str, partitions: int = 1, configs: dict[str, str] | None = None, replicas: int = 3
    ) -> Topic:
        """KafkaException where it is there."""
        if name in self.topics:
            raise exception(KafkaError.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        id = Uuid(*struct.unpack("!qq", self.world.random.randbytes(16)))
        defaults = {**TOPIC_DEFAULTS, "min.insync.replicas": str(min(2, replicas, len(self.nodes)))}
        made = self.topics[name] = Topic(name, id, replicas, {**defaults, **(configs or {})})
        made.partitions = [Partition(made, number) for number in range(partitions)]
        self._grown(name)
        return made

    def add_partitions(self, name: str, total: int) -> None:
        """Add partitions up to that number."""
        topic = self.topics[name]
        topic.partitions += [Partition(topic, number) for number in range(len(topic.partitions), total)]
        self._grown(name)

    def _grown(self, name: str) -> None:
        self.changed.fire()
        for fetch in self.waiting.pop(name, []):
            fetch.found_again()
        for client in self.clients:
            if name in client.topics:
                client.topic_changed()

    def delete_topic(self, name: str) -> None:
        """Delete a topic: its records at once, the groups' offsets soon. Raises KafkaException if it is missing."""
        topic = self.topics.pop(name, None)
        if topic is None:
            raise exception(KafkaError.UNKNOWN_TOPIC_OR_PART)
        for partition in topic.partitions:
            for fetch in list(partition.watchers):
                fetch.orphaned()
            partition.watchers.clear()
            for transaction in partition.open:
                transaction.parts.pop(partition, None)
        for client in self.clients:
            if name in client.topics:
                client.topic_changed()

        known = []
        for group in self.groups.values():
            known += [(group, tp, committed) for tp, committed in group.offsets.items() if tp[0] == name]
            for offsets in group.pending.values():
                for tp in [tp for tp in offsets if tp[0] == name]:
                    del offsets[tp]

        def remove() -> None:
            for group, tp, committed in known:
                if group.offsets.get(tp) is committed:
                    del group.offsets[tp]

        self.world.later(REMOVED_SECONDS, remove)

    def delete_group(self, name: str) -> None:
        """KafkaException where it has members, or is not there."""
        group = self.groups.get(name)
        if group is None:
            raise exception(KafkaError.GROUP_ID_NOT_FOUND)
        if group.members:
            raise exception(KafkaError.NON_EMPTY_GROUP)
        del self.groups[name]

    def expire_offsets(self, group: str, topic: str | None = None) -> None:
        """Expire the group's offsets of one topic or of all, unless it has members."""
        existing = self.groups.get(group)
        if existing is not None and not existing.members:
            for tp in [tp for tp in existing.offsets if topic in (None, tp[0])]:
                del existing.offsets[tp]
            if not existing.offsets:
                del self.groups[group]

    def advance_low_watermark(self, topic: str, partition: int, offset: int) -> None:
        """Retention removes what lies before that offset."""
        log = self.partition(topic, partition)
        assert log is not None, f"there is no {topic}-{partition}"
        offset = min(offset, log.high)
        if offset > log.low:
            for fetch in log.watchers:
                fetch.prefetch()
            log.low = offset
            for fetch in log.watchers:
                fetch.arrived()

    def compact(self, topic: str, partition: int) -> None:
        """Keep the last of each key only, of what is committed."""
        log = self.partition(topic, partition)
        assert log is not None, f"there is no {topic}-{partition}"
        last: dict[bytes | None, int] = {}
        for entry in log.visible(log.low, read_committed=True):
            last[entry.key] = entry.offset
        kept = set(last.values())
        for offset in range(log.low, log.stable):
            entry = log.entries[offset]
            if entry is not None and not entry.control and offset not in kept:
                log.entries[offset] = None

    def commit_as_foreigner(
        self, group: str, topic: str, partition: int, offset: int, metadata: str | None = None
    ) -> None:
        """Commit an offset as another client does, by the group's rules."""
        existing = self.group(group)
        existing.offsets[topic, partition] = existing.written(offset, metadata)

    def committed(self, group: str, topic: str, partition: int) -> Committed | None:
        """The group's position; None where there is none."""
        existing = self.groups.get(group)
        return existing.offsets.get((topic, partition)) if existing is not None else None

    def end_offset(self, topic: str, partition: int, *, read_committed: bool = False) -> int:
        """The offset behind the last entry, or behind the last that readers of what is committed may see."""
        log = self.partition(topic, partition)
        assert log is not None, f"there is no {topic}-{partition}"
        return log.stable if read_committed else log.high

    def records(self, topic: str, partition: int, *, read_committed: bool = True) -> list[Entry]:
        """Return the records that a reader from the beginning gets."""
        log = self.partition(topic, partition)
        return list(log.visible(log.low, read_committed=read_committed)) if log is not None else []

    def put(self, topic: str, partition: int, value: bytes, key: bytes | None = None) -> int:
        """Append a record at once, by nobody's producer. Its offset."""
        log = self.partition(topic, partition)
        assert log is not None, f"there is no {topic}-{partition}"
        return log.append(int(self.world.wall() * 1000), key, value, None)


def _quietly(work: Callable[[], Any]) -> None:
    """Ignore the answer, or the error."""
    with contextlib.suppress(KafkaException):
        work()
