"""A member of a group as librdkafka is one, by threads of its own: heartbeats, joining, and what callbacks are due.

These are timers here, which stand still while the process sleeps and stop when it is killed. The protocol is the
classic one, with cooperative-sticky shares; `groups.py` is its other side. Not modelled: eager protocols, patterns in
`subscribe`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import KafkaError

from tests.simulator.kafka.brokers import Brokers, brokers, in_background
from tests.simulator.kafka.groups import Group
from tests.simulator.kafka.messages import Message, exception
from tests.simulator.processes import Signal
from tests.simulator.world import World

POLL_CHECK_SECONDS = 0.5
"""Delay until the client notices that the application exceeded `max.poll.interval.ms`."""
Place = tuple[str, int]


class Membership:
    """Background work of a consumer in its group: joins, heartbeats, rebalances."""

    def __init__(self, given: dict[str, Any]) -> None:
        if "group.id" not in given:
            raise exception(KafkaError._INVALID_ARG, "Failed to create consumer: group.id must be set")
        self.cluster: Brokers = brokers()
        self.world: World = self.cluster.world
        self.process = self.world.process
        self.group_name = str(given["group.id"])
        self.instance: str | None = given.get("group.instance.id") or None
        self.client_id = str(given.get("client.id", "rdkafka"))
        self.session = float(given.get("session.timeout.ms", 45_000)) / 1000
        self.heartbeat = float(given.get("heartbeat.interval.ms", 3_000)) / 1000
        self.max_poll = float(given.get("max.poll.interval.ms", 300_000)) / 1000
        self.refresh = float(given.get("topic.metadata.refresh.interval.ms", 300_000)) / 1000
        self.signal = Signal(self.world)
        self._errors: deque[Message] = deque()
        """Errors for the next `poll`."""
        self._operations: deque[tuple[str, list[Place], Callable[[], None]]] = deque()
        """Callbacks that are due, and what comes after each."""
        self._closed = self._closing = False
        self._fatal: KafkaError | None = None
        self.member_id, self.generation = "", -1
        self.topics: tuple[str, ...] = ()
        self._owned: dict[Place, None] = {}
        self._state = "out"
        """joining: has asked, and waits; called: callbacks are due; steady."""
        self._lost = False
        self._due = ""
        """The callback that is due, or at work, in the state called."""
        self._turn = 0
        """Number of memberships: an answer to an earlier one is void."""
        self._beat_turn = 0
        self._polling = False
        self._polled = self.world.now
        self._began = self.world.now

    @property
    def group(self) -> Group:
        return self.cluster.group(self.group_name)

    def owned_now(self) -> tuple[Place, ...]:
        """Partitions that the member names when it joins."""
        return tuple(self._owned)

    def answered(self, work: Callable[[], None]) -> None:
        """An answer of the coordinator's is on its way."""
        turn = self._turn

        def hear() -> None:
            if self._turn == turn and not self._closed:
                work()

        in_background(self.process, 0.001 + 0.01 * self.world.random.random(), hear)

    def _join(self, delay: float = 0.0) -> None:
        self._state = "joining"
        self._turn += 1
        turn = self._turn

        def ask() -> None:
            if self._turn != turn or self._closed or self._fatal is not None:
                return
            if not any(self.cluster.count(topic) for topic in self.topics):
                for topic in self.topics:
                    text = f"Subscribed topic not available: {topic}: Broker: Unknown topic or partition"
                    self._tell(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, text), topic)
                self._state = "out"  # until the topics change
                return
            error = self.group.join(self)
            if error is not None:
                self._refused(error)

        in_background(self.process, delay, ask)

    def rejoin(self) -> None:
        """The group begins anew, before it came to shares."""
        self._join()

    def joined(self, generation: int) -> None:
        """The group has a new generation."""
        self.generation = generation
        self._beat()
        self.group.sync(self)

    def synced(self, generation: int, assignment: Sequence[Place]) -> None:
        """The partitions of this generation."""
        if self.generation != generation:
            self.generation = generation
        self._beat()
        shares = set(assignment)
        revoked = [tp for tp in self._owned if tp not in shares]
        added = [tp for tp in assignment if tp not in self._owned]
        if revoked:
            self._call("revoke", revoked, lambda: self._call("assign", added, self._join))
        else:
            self._call("assign", added, self._steady)

    def _steady(self) -> None:
        self._state = "steady"

    def _call(self, what: str, tps: list[Place], then: Callable[[], None]) -> None:
        self._state, self._due = "called", what
        self._operations.append((what, tps, then))
        self.signal.fire()

    def _beat(self) -> None:
        """Send heartbeats from now on."""
        self._beat_turn += 1
        turn = self._beat_turn

        def beat() -> None:
            if self._beat_turn != turn or self._closed or self._fatal is not None or not self.member_id:
                return
            if not self._polling and self.world.now - self._polled > self.max_poll:
                self._too_slow()
                return
            waits = self._state == "joining"
            error = self.group.heartbeat(self) if not waits else None
            if error is not None:
                self._refused(error)
            if self._beat_turn == turn:
                patience = math.inf if self._polling else self._polled + self.max_poll - self.world.now
                in_background(self.process, min(self.heartbeat, patience + POLL_CHECK_SECONDS), beat)

        in_background(self.process, self.heartbeat, beat)

    def forgotten(self) -> None:
        """Handle a session timeout during a request to the group."""
        self._refused(KafkaError.UNKNOWN_MEMBER_ID)

    def _too_slow(self) -> None:
        text = f"Application maximum poll interval ({self.max_poll * 1000:.0f}ms) exceeded by 500ms"
        self._tell(KafkaError(KafkaError._MAX_POLL_EXCEEDED, text))
        if self.instance is None:
            self.group.leave(self.member_id)
        self.member_id = ""
        self._lose()

    def _refused(self, code: int) -> None:
        """The coordinator's answer to a heartbeat, a commit or a join is an error."""
        if code == KafkaError.FENCED_INSTANCE_ID:
            why = "Broker: Static consumer fenced by other consumer with same group.instance.id"
            self._die(KafkaError(KafkaError._FATAL, f"Fatal error: {why}"))
        elif code == KafkaError.REBALANCE_IN_PROGRESS:
            if self._state == "steady":
                self._join()
        elif code == KafkaError.ILLEGAL_GENERATION and self._state == "joining":
            pass  # it is about to get the new one
        elif code in (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION):
            if code == KafkaError.UNKNOWN_MEMBER_ID:
                self.member_id = ""
            else:
                self.generation = -1
            self._beat_turn += 1
            self._lose()

    def _lose(self) -> None:
        """Give up partitions that may have another assignee."""
        if self._state == "called":
            self._lost = self._due != "lost"  # reported when the callback has returned
            return
        self._lost = False
        if self._owned:
            self._call("lost", list(self._owned), self._join)
        else:
            self._join()

    def _die(self, error: KafkaError) -> None:
        if self._fatal is None:
            self._fatal = error
            self._beat_turn += 1
            self._turn += 1
            self._operations.clear()
            self._tell(error)

    def _tell(self, error: KafkaError, topic: str | None = None) -> None:
        self._errors.append(Message(topic, 0, None, None, error))
        self.signal.fire()

    def topic_changed(self) -> None:
        """A topic that it subscribed to was created, deleted or given partitions: it learns of it when it looks."""
        if self._state == "out":  # it looks for topics all the time
            delay = 0.1 + 0.5 * self.world.random.random()
        else:
            delay = self.refresh - math.fmod(self.world.now - self._began, self.refresh)
        in_background(self.process, delay, self._look)

    def _look(self) -> None:
        """Handle new metadata of its topics."""
        if self._closed or self._fatal is not None or not self.topics:
            return
        there = any(self.cluster.count(topic) for topic in self.topics)
        if self._state == "out":
            if there:
                self._join()
        elif self._state != "steady":
            in_background(self.process, 0.5, self._look)
        elif not there:
            for topic in self.topics:
                text = f"Subscribed topic not available: {topic}: Broker: Unknown topic or partition"
                self._tell(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, text), topic)
            self._call("lost", list(self._owned), self._without_topics)
        elif self._partitions_known() != self._partitions_there():
            self._join()

    def _without_topics(self) -> None:
        if self.instance is None and self.member_id:
            self.group.leave(self.member_id)
            self.member_id = ""
        self._state = "out"
        if any(self.cluster.count(topic) for topic in self.topics):
            self._join()

    def _partitions_known(self) -> int:
        """Return the number of partitions of its topics that the latest generation has assigned."""
        return sum(1 for member in self.group.members.values() for tp in member.assignment if tp[0] in self.topics)

    def _partitions_there(self) -> int:
        return sum(self.cluster.count(topic) for topic in self.topics)

    def _leave(self) -> None:
        self._turn += 1
        self._beat_turn += 1
        self._owned.clear()
        if self.instance is None and self.member_id and self._fatal is None:
            self.group.leave(self.member_id)
        self.member_id, self.generation, self._state = "", -1, "out"

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("Consumer closed")
