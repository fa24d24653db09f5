"""The brokers of the simulation: one object for the whole cluster, as its clients can observe it.

Modelled are topics with their ids, partitions as logs with their watermarks, transactions and the markers that end
them, consumer groups of the classic protocol with static members, committed offsets with their metadata, and what
becomes of all these when topics and groups are deleted and made again.

Not modelled are single brokers, replication, leader epochs, quotas, authorization, the order in which brokers learn
of what changed, and sizes other than a record's. A compacted topic keeps all records until `compact` is called.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Uuid

from tests.simulator.kafka.messages import Entry, Headers, Transaction, exception
from tests.simulator.world import Kind, Process, Signal, World, world

if TYPE_CHECKING:
    from tests.simulator.kafka.consumer import Consumer, Fetch

REQUEST_SECONDS = 0.002
"""What a request takes."""
LOST_SECONDS = 5.0
"""A client gives an answer up that has not come for so long, or as long as its caller waits."""
REMOVED_SECONDS = 0.05
"""The offsets of a deleted topic are gone from the groups so much later."""
TRANSACTION_CHECK_SECONDS = 10.0
"""So often the coordinator looks for transactions that are too old."""
MARKER_SECONDS = 0.004
"""From the decision about a transaction to its markers."""
TOPIC_DEFAULTS = {
    "cleanup.policy": "delete",
    "max.message.bytes": "8388608",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.type": "CreateTime",
    "min.insync.replicas": "2",
    "retention.ms": "604800000",
}
CHANGING = (Kind.LOST, Kind.UNANSWERED, Kind.LATE, Kind.DOUBLED)
"""What may become of a request that changes something."""
ASKING = (Kind.LOST,)
"""What may become of a request that changes nothing."""


def brokers() -> Brokers:
    """Those of the simulation that runs."""
    found: Brokers = world().models["kafka"]
    return found


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


class Partition:
    """One log. The entry at place n has offset n."""

    __slots__ = ("entries", "low", "number", "open", "topic", "watchers")

    def __init__(self, topic: Topic, number: int) -> None:
        self.topic, self.number = topic, number
        self.entries: list[Entry | None] = []
        """None where compaction removed one."""
        self.low = 0
        self.open: dict[Transaction, int] = {}
        """Transactions without their markers, with the offset of the first record."""
        self.watchers: list[Fetch] = []

    @property
    def high(self) -> int:
        """The offset of the next entry."""
        return len(self.entries)

    @property
    def stable(self) -> int:
        """The end for readers of what is committed."""
        return min(self.open.values()) if self.open else len(self.entries)

    def append(
        self,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
        transaction: Transaction | None = None,
        *,
        control: bool = False,
    ) -> int:
        offset = len(self.entries)
        self.entries.append(Entry(offset, timestamp, key, value, headers, transaction, control))
        if transaction is not None and not control and transaction not in self.open:
            self.open[transaction] = offset
            transaction.parts[self] = None
        for fetch in self.watchers:
            fetch.arrived()
        return offset

    def visible(self, start: int, *, read_committed: bool) -> Iterator[Entry]:
        """The records from that offset on."""
        end = self.stable if read_committed else self.high
        for entry in self.entries[max(start, self.low) : end]:
            if entry is None or entry.control:
                continue
            if read_committed and entry.transaction is not None and entry.transaction.state == "aborted":
                continue
            yield entry


class Topic:
    """A topic, from its creation to its end."""

    __slots__ = ("configs", "id", "internal", "name", "partitions", "replicas")

    def __init__(self, name: str, id: Uuid, replicas: int, configs: dict[str, str]) -> None:
        self.name, self.id, self.replicas, self.configs = name, id, replicas, configs
        self.internal = name.startswith("__")
        self.partitions: list[Partition] = []


class Committed(NamedTuple):
    """A group's position."""

    offset: int
    metadata: str | None
    order: int
    """Greater than that of each one that was written before."""


class Member:
    """A member of a group, as its coordinator knows it."""

    __slots__ = (
        "assignment",
        "client",
        "deadline",
        "id",
        "instance",
        "joined",
        "owned",
        "rebalance",
        "session",
        "topics",
        "waits",
    )

    def __init__(self, id: str, client: Consumer) -> None:
        self.id, self.client, self.instance = id, client, client.instance
        self.session, self.rebalance = client.session, client.max_poll
        self.topics: tuple[str, ...] = ()
        self.owned: tuple[tuple[str, int], ...] = ()
        self.assignment: tuple[tuple[str, int], ...] = ()
        self.joined = self.waits = False
        """Whether it waits for the others to join, or for the leader to share partitions out."""
        self.deadline = 0.0


class Group:
    """A consumer group at its coordinator."""

    def __init__(self, cluster: Brokers, name: str) -> None:
        self.cluster, self.name, self.world = cluster, name, cluster.world
        self.set_back: list[str] = []
        """Where a member has committed less than what was committed before, under the same metadata."""
        self.offsets: dict[tuple[str, int], Committed] = {}
        self.pending: dict[Transaction, dict[tuple[str, int], Committed]] = {}
        self.members: dict[str, Member] = {}
        self.static: dict[str, str] = {}
        self.generation = 0
        self.state = "Empty"
        self.leader = ""
        self._turn = 0
        self._orders = itertools.count()
        self.changed = Signal(self.world)
        """Fired when offsets become stable."""

    # --- membership

    def join(self, client: Consumer) -> int | None:
        """A JoinGroup request; the answers come through `client.joined` and `client.synced`. An error's code."""
        instance = client.instance
        if client.member_id and (error := self.validate(client.member_id, instance)) is not None:
            return error
        new = not client.member_id
        replaces = self.static.get(instance) if instance is not None else None
        if new:
            member = Member(self.cluster.member_id(client), client)
            if instance is not None:
                self.static[instance] = member.id
            if replaces is not None:
                old = self.members.pop(replaces)
                member.assignment, member.joined = old.assignment, False
                member.topics = client.topics
                if self.leader == old.id:
                    self.leader = member.id
            self.members[member.id] = member
            self._watch(member)
            client.member_id = member.id
            if replaces is not None and self.state == "Stable":
                self._share(member)  # the same instance: nobody else need know
                return None
        else:
            member = self.members[client.member_id]
        same = not new and member.topics == client.topics and member.owned == client.owned_now()
        member.topics, member.owned, member.joined = client.topics, client.owned_now(), True
        if self.state == "Preparing":
            self._complete_if_all()
        elif same and member.id != self.leader and self.state == "Stable":
            member.joined = False
            self._share(member)
        else:
            self._prepare()
        return None

    def validate(self, member: str, instance: str | None) -> int | None:
        """The code of the error where it is no member, or another one goes by its instance's name now."""
        if instance is not None:
            known = self.static.get(instance)
            if known is None:
                return int(KafkaError.UNKNOWN_MEMBER_ID)
            return None if known == member else int(KafkaError.FENCED_INSTANCE_ID)
        return None if member in self.members else int(KafkaError.UNKNOWN_MEMBER_ID)

    def heartbeat(self, client: Consumer) -> int | None:
        """An error's code."""
        if (error := self.validate(client.member_id, client.instance)) is not None:
            return error
        if client.generation != self.generation:
            return int(KafkaError.ILLEGAL_GENERATION)
        member = self.members[client.member_id]
        member.deadline = self.world.now + member.session
        return int(KafkaError.REBALANCE_IN_PROGRESS) if self.state == "Preparing" else None

    def leave(self, member: str) -> None:
        """It goes, or its session has timed out."""
        left = self.members.pop(member, None)
        if left is None:
            return
        if left.instance is not None and self.static.get(left.instance) == member:
            del self.static[left.instance]
        if left.waits:  # for a leader that is gone
            left.client.answered(left.client.forgotten)
        if self.state in ("Stable", "Completing"):
            self._prepare()
        elif self.state == "Preparing":
            self._complete_if_all()

    def _watch(self, member: Member) -> None:
        """End its session when no heartbeat has come for so long."""
        member.deadline = self.world.now + member.session

        def look() -> None:
            if self.members.get(member.id) is not member:
                return
            left = max(member.deadline, self.cluster.away_until + member.session) - self.world.now
            if member.joined and member.client.process.alive:  # waits for an answer of ours
                left = max(left, member.session)
            if left > 0:
                self.world.later(left, look)
            else:
                self.world.told(f"group {self.name}: session of {member.instance or member.id} has timed out")
                self.leave(member.id)

        self.world.later(member.session, look)

    def _prepare(self) -> None:
        self.state = "Preparing"
        for member in self.members.values():
            if member.waits:
                member.waits = False
                member.client.answered(member.client.rejoin)
        self._turn += 1
        turn = self._turn
        if not self._complete_if_all():
            patience = max(member.rebalance for member in self.members.values())

            def expire() -> None:
                if self._turn != turn or self.state != "Preparing":
                    return
                if (left := self.cluster.away_until + patience - self.world.now) > 0:
                    self.world.later(left, expire)
                    return
                for member in [m for m in self.members.values() if not m.joined and m.instance is None]:
                    del self.members[member.id]
                if not any(m.joined for m in self.members.values()) and self.members:
                    self.world.later(patience, expire)
                else:
                    self._complete()

            self.world.later(patience, expire)

    def _complete_if_all(self) -> bool:
        if all(member.joined for member in self.members.values()):
            self._complete()
            return True
        return False

    def _complete(self) -> None:
        self.generation += 1
        self._turn += 1
        if not self.members:
            self.state, self.leader = "Empty", ""
            return
        self.state = "Completing"
        joined = [member for member in self.members.values() if member.joined]
        if self.leader not in self.members or not self.members[self.leader].joined:
            self.leader = joined[0].id
        generation = self.generation
        for member in joined:
            member.joined = False
            member.deadline = self.world.now + member.session
            member.client.answered(lambda client=member.client: client.joined(generation))

    def sync(self, client: Consumer) -> None:
        """A SyncGroup request: that of the leader shares partitions out."""
        member = self.members.get(client.member_id)
        if member is None or client.generation != self.generation or self.state == "Preparing":
            client.answered(client.rejoin)
            return
        if self.state == "Stable":
            self._share(member)
            return
        member.waits = True
        if member.id != self.leader:
            return
        shares = assign(
            {m.id: (m.topics, m.owned) for m in self.members.values()}, lambda topic: self.cluster.count(topic)
        )
        self.state = "Stable"
        for one in self.members.values():
            one.assignment = tuple(shares[one.id])
            if one.waits:
                self._share(one)

    def _share(self, member: Member) -> None:
        member.waits = False
        client, generation, assignment = member.client, self.generation, member.assignment
        client.answered(lambda: client.synced(generation, assignment))

    # --- offsets

    def commit(
        self,
        offsets: Iterable[tuple[str, int, int, str | None]],
        member: str = "",
        generation: int = -1,
        instance: str | None = None,
    ) -> dict[tuple[str, int], int | None]:
        """The code of an error by partition."""
        offsets = list(offsets)
        error = self._refuses(member, generation, instance)
        answers: dict[tuple[str, int], int | None] = {}
        for topic, partition, offset, metadata in offsets:
            if error is None and self.cluster.partition(topic, partition) is None:
                answers[topic, partition] = int(KafkaError.UNKNOWN_TOPIC_OR_PART)
                continue
            answers[topic, partition] = error
            if error is None:
                before = self.offsets.get((topic, partition))
                if member and before is not None and before.metadata == metadata and offset < before.offset:
                    self.set_back.append(f"{topic}-{partition} from {before.offset} to {offset}")
                self.offsets[topic, partition] = self.written(offset, metadata)
        return answers

    def _refuses(self, member: str, generation: int, instance: str | None) -> int | None:
        if generation < 0 and not member and instance is None:
            return None if not self.members else int(KafkaError.UNKNOWN_MEMBER_ID)
        if not self.members and self.name not in self.cluster.groups:
            return int(KafkaError.ILLEGAL_GENERATION)
        if (error := self.validate(member, instance)) is not None:
            return error
        if generation != self.generation:
            return int(KafkaError.ILLEGAL_GENERATION)
        return int(KafkaError.REBALANCE_IN_PROGRESS) if self.state == "Completing" else None

    def written(self, offset: int, metadata: str | None) -> Committed:
        """A position, written after all others."""
        return Committed(offset, metadata, next(self._orders))

    def unstable(self, topic: str, partition: int) -> bool:
        """Whether a transaction that is under way holds an offset of this partition."""
        return any((topic, partition) in offsets for offsets in self.pending.values())

    def end(self, transaction: Transaction, *, committed: bool) -> None:
        """The transaction's marker."""
        offsets = self.pending.pop(transaction, {})
        for place, at in offsets.items() if committed else ():
            before = self.offsets.get(place)
            if before is None or before.order < at.order:
                self.offsets[place] = at
        self.changed.fire()


def assign(
    members: dict[str, tuple[tuple[str, ...], tuple[tuple[str, int], ...]]], count: Callable[[str], int]
) -> dict[str, list[tuple[str, int]]]:
    """Shares as even as may be, each keeping what it has; what another one still has is nobody's for now."""
    topics = sorted({topic for subscribed, _ in members.values() for topic in subscribed})
    partitions = [(topic, number) for topic in topics for number in range(count(topic))]
    there = set(partitions)
    shares: dict[str, list[tuple[str, int]]] = {name: [] for name in members}
    owner: dict[tuple[str, int], str] = {}
    for name, (subscribed, owned) in members.items():
        for place in owned:
            if place in there and place[0] in subscribed and place not in owner:
                owner[place] = name
                shares[name].append(place)
    for place in partitions:
        if place not in owner:
            able = [name for name in members if place[0] in members[name][0]]
            if able:
                shares[min(able, key=lambda name: len(shares[name]))].append(place)
    for _ in partitions:
        most = max(members, key=lambda name: len(shares[name]))
        moved = False
        for place in reversed(shares[most]):
            able = [name for name in members if place[0] in members[name][0]]
            least = min(able, key=lambda name: len(shares[name]))
            if len(shares[most]) - len(shares[least]) > 1:
                shares[most].remove(place)
                shares[least].append(place)
                moved = True
                break
        if not moved:
            break
    return {name: [at for at in share if owner.get(at, name) == name] for name, share in shares.items()}


class Coordinated:
    """A transactional id at its coordinator."""

    __slots__ = ("current", "ending", "epoch", "id", "started", "timeout")

    def __init__(self, id: str) -> None:
        self.id = id
        self.epoch = -1
        self.timeout = 60.0
        self.current: Transaction | None = None
        self.ending = False
        """Whether the outcome is decided and the markers are not written yet."""
        self.started = 0.0


class Brokers:
    """The cluster. Its public methods that no client has are for the stories of the simulation."""

    def __init__(self, world: World, *, cluster_id: str = "simulated-cluster-00000") -> None:
        self.world, self.cluster_id = world, cluster_id
        self.topics: dict[str, Topic] = {}
        self.groups: dict[str, Group] = {}
        self.transactions: dict[str, Coordinated] = {}
        self.nodes = (1, 2, 3)
        self.changed = Signal(world)
        """Fired when topics or partitions come."""
        self.clients: list[Consumer] = []
        """Members of groups, to be told of topics that change."""
        self.waiting: dict[str, list[Fetch]] = {}
        """Readers of topics that are not there, by the topic."""
        self.away_until = -math.inf
        self._members = 0
        self.most_idle = 10.0
        """A poll that finds nothing for long takes up to so many seconds, whatever it was asked for, unless something
        else happens in its process: what polls every few milliseconds would cost thousands of steps that do nothing.
        """

    # --- what clients ask

    def ask(self, what: str, work: Callable[[], Any], patience: float, *kinds: Kind) -> Any:
        """Carry a request out on the present thread. KafkaException, as the client says it, where no answer comes."""
        fault = self.world.call(what, *kinds, seconds=REQUEST_SECONDS)
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
                        self.world.told(f"{what} comes after the end of {process.name}")
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

    def member_id(self, client: Consumer) -> str:
        """A new one."""
        self._members += 1
        return f"{client.instance or client.client_id}-{self._members:08d}"

    def group(self, name: str) -> Group:
        """That of this name, made where there is none."""
        found = self.groups.get(name)
        if found is None:
            found = self.groups[name] = Group(self, name)
        return found

    def count(self, topic: str) -> int:
        """How many partitions it has; 0 where there is no such topic."""
        found = self.topics.get(topic)
        return len(found.partitions) if found is not None else 0

    def partition(self, topic: str, number: int) -> Partition | None:
        """That one, None where it is not there."""
        found = self.topics.get(topic)
        return found.partitions[number] if found is not None and 0 <= number < len(found.partitions) else None

    # --- transactions

    def coordinated(self, id: str) -> Coordinated:
        """The transactional id of this name."""
        found = self.transactions.get(id)
        if found is None:
            found = self.transactions[id] = Coordinated(id)
        return found

    def begin(self, at: Coordinated) -> Transaction:
        """The transaction under way, a new one where there is none."""
        if at.current is None:
            at.current = made = Transaction(at.id)
            at.started = self.world.now
            self._watch_transaction(at, made)
        return at.current

    def _watch_transaction(self, at: Coordinated, transaction: Transaction) -> None:
        def look() -> None:
            if self.away_until > self.world.now:
                self.world.later(self.away_until - self.world.now, look)
            elif at.current is transaction and not at.ending:
                self.world.told(f"the transaction of {at.id} is too old")
                at.epoch += 1
                self.end(at, committed=False)

        due = self.world.now + at.timeout
        turns = int(due / TRANSACTION_CHECK_SECONDS) + 1
        self.world.later(turns * TRANSACTION_CHECK_SECONDS - self.world.now, look)

    def end(self, at: Coordinated, *, committed: bool) -> None:
        """Decide; the markers follow."""
        transaction = at.current
        if transaction is None:
            return
        at.ending = True

        def mark() -> None:
            transaction.state = "committed" if committed else "aborted"
            at.current, at.ending = None, False
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
        """All brokers are unreachable for so long. Sessions of members begin anew when they are back."""
        self.world.told(f"the brokers are away for {seconds:.0f} s")
        for fetch in self._fetches():
            fetch.prefetch()
        self.away_until = max(self.away_until, self.world.now + seconds)
        self.world.later(seconds, self._back)

    def _back(self) -> None:
        for fetch in self._fetches():
            fetch.arrived()
        self.changed.fire()

    def _fetches(self) -> list[Fetch]:
        return [fetch for topic in self.topics.values() for at in topic.partitions for fetch in at.watchers]

    def truncate(self, topic: str, partition: int, offset: int) -> None:
        """A replica becomes leader that lacks what comes at that offset and after it, acknowledged or not."""
        found = self.partition(topic, partition)
        assert found is not None, f"there is no {topic}-{partition}"
        for transaction in [one for one, first in found.open.items() if first >= offset]:
            del found.open[transaction]
            transaction.parts.pop(found, None)
        if offset < found.high:
            for fetch in found.watchers:
                fetch.prefetch()
            del found.entries[max(offset, found.low) :]
            for fetch in found.watchers:
                fetch.arrived()

    def create_topic(
        self, name: str, partitions: int = 1, configs: dict[str, str] | None = None, replicas: int = 3
    ) -> Topic:
        """KafkaException where it is there."""
        if name in self.topics:
            raise exception(KafkaError.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        id = Uuid(*struct.unpack("!qq", self.world.random.randbytes(16)))
        made = self.topics[name] = Topic(name, id, replicas, {**TOPIC_DEFAULTS, **(configs or {})})
        made.partitions = [Partition(made, number) for number in range(partitions)]
        self._grown(name)
        return made

    def add_partitions(self, name: str, total: int) -> None:
        """So that it has so many."""
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
        """Its records are gone at once, and the groups' offsets of it soon. KafkaException where there is none."""
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
            known += [(group, place, at) for place, at in group.offsets.items() if place[0] == name]
            for offsets in group.pending.values():
                for place in [place for place in offsets if place[0] == name]:
                    del offsets[place]

        def remove() -> None:
            for group, place, at in known:
                if group.offsets.get(place) is at:
                    del group.offsets[place]

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
        """The group's offsets, of one topic or of all, are gone as if too old. Those of a group with members stay."""
        found = self.groups.get(group)
        if found is not None and not found.members:
            for place in [place for place in found.offsets if topic in (None, place[0])]:
                del found.offsets[place]
            if not found.offsets:
                del self.groups[group]

    def advance_low_watermark(self, topic: str, partition: int, offset: int) -> None:
        """Retention removes what lies before that offset."""
        found = self.partition(topic, partition)
        assert found is not None, f"there is no {topic}-{partition}"
        offset = min(offset, found.high)
        if offset > found.low:
            for fetch in found.watchers:
                fetch.prefetch()
            found.low = offset
            for fetch in found.watchers:
                fetch.arrived()

    def compact(self, topic: str, partition: int) -> None:
        """Keep the last of each key only, of what is committed."""
        found = self.partition(topic, partition)
        assert found is not None, f"there is no {topic}-{partition}"
        last: dict[bytes | None, int] = {}
        for entry in found.visible(found.low, read_committed=True):
            last[entry.key] = entry.offset
        kept = set(last.values())
        for place in range(found.low, found.stable):
            entry = found.entries[place]
            if entry is not None and not entry.control and place not in kept:
                found.entries[place] = None

    def commit_as_foreigner(
        self, group: str, topic: str, partition: int, offset: int, metadata: str | None = None
    ) -> None:
        """Another client commits, which the group takes for one of its own."""
        found = self.group(group)
        found.offsets[topic, partition] = found.written(offset, metadata)

    def committed(self, group: str, topic: str, partition: int) -> Committed | None:
        """The group's position; None where there is none."""
        found = self.groups.get(group)
        return found.offsets.get((topic, partition)) if found is not None else None

    def end_offset(self, topic: str, partition: int, *, read_committed: bool = False) -> int:
        """The offset behind the last entry, or behind the last that readers of what is committed may see."""
        found = self.partition(topic, partition)
        assert found is not None, f"there is no {topic}-{partition}"
        return found.stable if read_committed else found.high

    def records(self, topic: str, partition: int, *, read_committed: bool = True) -> list[Entry]:
        """What a reader from the beginning gets."""
        found = self.partition(topic, partition)
        return list(found.visible(found.low, read_committed=read_committed)) if found is not None else []

    def put(self, topic: str, partition: int, value: bytes, key: bytes | None = None) -> int:
        """Append a record at once, by nobody's producer. Its offset."""
        found = self.partition(topic, partition)
        assert found is not None, f"there is no {topic}-{partition}"
        return found.append(int(self.world.wall() * 1000), key, value, None)


def _quietly(work: Callable[[], Any]) -> None:
    """Of an answer that nobody gets."""
    with contextlib.suppress(KafkaException):
        work()
