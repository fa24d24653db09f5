"""Model of the group coordinator: Kafka's classic protocol (JoinGroup, SyncGroup, Heartbeat).

Static members, the shares of the cooperative-sticky assignor, and offsets, committed or pending in a transaction, are
modelled.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import KafkaError

from tests.simulator.kafka.messages import Transaction
from tests.simulator.processes import Signal

if TYPE_CHECKING:
    from tests.simulator.kafka.brokers import Brokers
    from tests.simulator.kafka.member import Membership


class Committed(NamedTuple):
    """A group's position."""

    offset: int
    metadata: str | None
    order: int
    """Greater than that of each one that was written before."""
    leader_epoch: int = -1
    """Leader epoch of the record before the offset; negative if the client sent none."""


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

    def __init__(self, id: str, client: Membership) -> None:
        self.id, self.client, self.instance = id, client, client.instance
        self.session, self.rebalance = client.session, client.max_poll
        self.topics: tuple[str, ...] = ()
        self.owned: tuple[tuple[str, int], ...] = ()
        self.assignment: tuple[tuple[str, int], ...] = ()
        self.joined = self.waits = False
        """True while the group waits for members to join, or for the leader's assignment."""
        self.deadline = 0.0


class Group:
    """A consumer group at its coordinator."""

    def __init__(self, cluster: Brokers, name: str) -> None:
        self.cluster, self.name, self.world = cluster, name, cluster.world
        self.set_back: list[str] = []
        """Commits of a member that are behind an earlier one with the same metadata, but for lost records."""
        self.writers: set[str] = set()
        """The processes that have written positions, but for those whose requests came late."""
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

    def join(self, client: Membership) -> int | None:
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

    def heartbeat(self, client: Membership) -> int | None:
        """An error's code."""
        if (error := self.validate(client.member_id, client.instance)) is not None:
            return error
        if client.generation != self.generation:
            return int(KafkaError.ILLEGAL_GENERATION)
        member = self.members[client.member_id]
        member.deadline = self.world.now + member.session
        return int(KafkaError.REBALANCE_IN_PROGRESS) if self.state == "Preparing" else None

    def leave(self, member: str) -> None:
        """Remove a member that leaves, or whose session has timed out."""
        removed = self.members.pop(member, None)
        if removed is None:
            return
        if removed.instance is not None and self.static.get(removed.instance) == member:
            del self.static[removed.instance]
        if removed.waits:  # for a leader that is gone
            removed.client.answered(removed.client.forgotten)
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
            remaining = max(member.deadline, self.cluster.away_until + member.session) - self.world.now
            if member.joined and member.client.process.alive:  # waits for an answer of ours
                remaining = max(remaining, member.session)
            if remaining > 0:
                self.world.later(remaining, look)
            else:
                self.world.log(f"group {self.name}: session of {member.instance or member.id} has timed out")
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
                if (remaining := self.cluster.away_until + patience - self.world.now) > 0:
                    self.world.later(remaining, expire)
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

    def sync(self, client: Membership) -> None:
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
        for assignee in self.members.values():
            assignee.assignment = tuple(shares[assignee.id])
            if assignee.waits:
                self._share(assignee)

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
        leader_epochs: Mapping[tuple[str, int], int] = MappingProxyType({}),
    ) -> dict[tuple[str, int], int | None]:
        """The code of an error by partition."""
        offsets = list(offsets)
        error = self._refuses(member, generation, instance)
        answers: dict[tuple[str, int], int | None] = {}
        for topic, partition, offset, metadata in offsets:
            log = self.cluster.partition(topic, partition)
            answers[topic, partition] = error or (None if log else int(KafkaError.UNKNOWN_TOPIC_OR_PART))
            if log and error is None:
                before = self.offsets.get((topic, partition))
                if before and before.metadata == metadata and offset < min(before.offset, log.kept) and member:
                    self.set_back.append(f"{topic}-{partition} from {before.offset} to {offset}")
                written = self.written(offset, metadata)
                self.offsets[topic, partition] = written._replace(
                    leader_epoch=leader_epochs.get((topic, partition), -1)
                )
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
        self.writers.add(self.world.process.name)
        self.cluster.written.add((self.name, metadata))
        return Committed(offset, metadata, next(self._orders))

    def unstable(self, topic: str, partition: int) -> bool:
        """Return True if an open transaction has an offset of this partition."""
        return any((topic, partition) in offsets for offsets in self.pending.values())

    def end(self, transaction: Transaction, *, committed: bool) -> None:
        """The transaction's marker."""
        offsets = self.pending.pop(transaction, {})
        for tp, offset in offsets.items() if committed else ():
            before = self.offsets.get(tp)
            if before is None or before.order < offset.order:
                self.offsets[tp] = offset
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
        for tp in owned:
            if tp in there and tp[0] in subscribed and tp not in owner:
                owner[tp] = name
                shares[name].append(tp)
    for tp in partitions:
        if tp not in owner:
            able = [name for name in members if tp[0] in members[name][0]]
            if able:
                shares[min(able, key=lambda name: len(shares[name]))].append(tp)
    for _ in partitions:
        most = max(members, key=lambda name: len(shares[name]))
        moved = False
        for tp in reversed(shares[most]):
            able = [name for name in members if tp[0] in members[name][0]]
            least = min(able, key=lambda name: len(shares[name]))
            if len(shares[most]) - len(shares[least]) > 1:
                shares[most].remove(tp)
                shares[least].append(tp)
                moved = True
                break
        if not moved:
            break
    return {name: [tp for tp in share if owner.get(tp, name) == name] for name, share in shares.items()}
