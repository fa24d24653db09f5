"""`confluent_kafka.Consumer` over the simulated brokers: the classic group protocol, with cooperative-sticky shares.

What librdkafka does on threads of its own (heartbeats, joining, fetching) is done by timers here, which stand still
while the process sleeps and stop when it is killed. Rebalance callbacks run within `poll`, `consume` and `close`, on
the thread that calls them. Records are read from the log when they are polled; what would have been fetched before a
topic is deleted or its records are removed is put aside at that moment, as much of it as chance has.

Not modelled: automatic commits, stored offsets, eager protocols, patterns in `subscribe`, limits of what is fetched.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from tests.simulator.kafka.admin import metadata_of
from tests.simulator.kafka.brokers import ASKING, CHANGING, Brokers, brokers, in_background
from tests.simulator.kafka.groups import Group
from tests.simulator.kafka.messages import ByTheClient, Entry, Message, Uncatchable, answer, exception, to_commit
from tests.simulator.kafka.topics import Partition
from tests.simulator.world import Signal, World

POLL_CHECK_SECONDS = 0.5
"""So late it is seen that the application has not polled for too long."""
FIND_COORDINATOR_SECONDS = 0.05
LOOK_AGAIN_SECONDS = 0.6
"""A topic that was deleted and is there again is read within so long."""
Place = tuple[str, int]
Callback = Callable[[Any, list[TopicPartition]], Any]


class Fetch:
    """What a consumer reads of one partition."""

    __slots__ = (
        "consumer",
        "eof",
        "eof_due",
        "given",
        "number",
        "partition",
        "paused",
        "position",
        "prefetched",
        "queued",
        "reached",
        "stuck",
        "topic",
        "turn",
        "used",
    )

    def __init__(self, consumer: Consumer, topic: str, number: int, offset: int) -> None:
        self.consumer, self.topic, self.number, self.given = consumer, topic, number, offset
        self.position = offset
        """What is read next; below 0: where librdkafka's word for it says."""
        self.used = OFFSET_INVALID
        """What `Consumer.position` tells: behind the last message handed out."""
        self.partition: Partition | None = None
        self.paused = self.stuck = self.queued = self.eof_due = False
        self.eof = -1
        """Where the end was told."""
        self.reached = -1
        self.turn = 0
        """Of seeks: a timer of an earlier one is void."""
        self.prefetched: deque[Entry] = deque()
        self.attach()

    def attach(self) -> None:
        """Find the partition, or wait for the topic."""
        cluster = self.consumer.cluster
        found = cluster.partition(self.topic, self.number)
        if found is None:
            cluster.waiting.setdefault(self.topic, []).append(self)
            return
        self.partition = found
        found.watchers.append(self)
        self.arrived()

    def detach(self) -> None:
        """It is nobody's business any more."""
        self.turn += 1
        self.stuck = True
        if self.partition is not None and self in self.partition.watchers:
            self.partition.watchers.remove(self)
        waiting = self.consumer.cluster.waiting.get(self.topic)
        if waiting and self in waiting:
            waiting.remove(self)

    def arrived(self) -> None:
        """There may be something to read."""
        if not self.queued and not self.stuck and not self.paused:
            self.queued = True
            self.consumer.ready.append(self)
        if self.queued:
            self.consumer.signal.fire()

    def prefetch(self) -> None:
        """What lies in the log may go: put aside what was fetched, be it all or nothing of what there is."""
        if self.partition is None or self.stuck or self.paused or self.position < 0:
            return
        if self.partition.low <= self.position <= self.partition.high:
            entries = list(self.partition.visible(self.position, read_committed=self.consumer.read_committed))
            entries = entries[: self.consumer.world.random.randint(0, len(entries))]
            if entries:
                self.prefetched.extend(entries)
                self.position = entries[-1].offset + 1
                self.arrived()

    def orphaned(self) -> None:
        """The topic is deleted."""
        self.prefetch()
        self.partition = None
        self.consumer.cluster.waiting.setdefault(self.topic, []).append(self)

    def found_again(self) -> None:
        """There is a topic of this name again: it is taken for the same."""
        turn = self.turn

        def look() -> None:
            if self.turn == turn and self.partition is None:
                self.attach()

        delay = 0.05 + LOOK_AGAIN_SECONDS * self.consumer.world.random.random()
        in_background(self.consumer.process, delay, look)

    def seek(self, offset: int) -> None:
        self.turn += 1
        self.prefetched.clear()
        self.position, self.eof, self.eof_due, self.reached = offset, -1, False, -1
        self.arrived()

    def pause(self, *, paused: bool) -> None:
        self.paused = paused
        if paused:
            if self.prefetched:
                self.position = self.prefetched[0].offset
                self.prefetched.clear()
        else:
            self.arrived()

    def next(self) -> Message | None:
        """What the consumer is handed next of this partition."""
        if self.prefetched:
            return self._record(self.prefetched.popleft())
        partition = self.partition
        cluster = self.consumer.cluster
        if partition is None or self.stuck or self.paused or cluster.away_until > cluster.world.now:
            return None
        if self.position < 0 and (message := self._begin(partition)) is not None:
            return message
        position = self.position
        entries = partition.entries
        if not partition.low <= position <= len(entries):
            text = "fetch failed due to requested offset not available on the broker: Broker: Offset out of range"
            message = self._reset(text)
            return message if message is not None else self.next()
        if self.consumer.read_committed:
            end = partition.stable
            while position < end:
                entry = entries[position]
                position += 1
                if entry is None or entry.control:
                    continue
                if entry.transaction is not None and entry.transaction.state == "aborted":
                    continue
                self.position = position
                return self._record(entry)
        else:
            end = len(entries)
            while position < end:
                entry = entries[position]
                position += 1
                if entry is not None and not entry.control:
                    self.position = position
                    return self._record(entry)
        self.position = max(position, self.position)
        return self._at_end()

    def _record(self, entry: Entry) -> Message:
        self.used = entry.offset + 1
        self.eof, self.eof_due, self.reached = -1, False, -1
        return Message(self.topic, self.number, entry.offset, entry)

    def _at_end(self) -> Message | None:
        consumer = self.consumer
        if not consumer.tells_end or self.eof == self.position:
            return None
        if self.eof_due and self.reached == self.position:
            self.eof, self.eof_due = self.position, False
            self.used = self.position
            text = f"Fetch from broker 1 reached end of partition at offset {self.position}"
            return Message(self.topic, self.number, self.position, None, KafkaError(KafkaError._PARTITION_EOF, text))
        if self.reached != self.position:
            self.reached, self.eof_due = self.position, False
            turn, position = self.turn, self.position

            def due() -> None:
                if self.turn == turn and self.position == position and not self.stuck:
                    self.eof_due = True
                    self.arrived()

            consumer.world.later(consumer.fetch_wait, due)
        return None

    def _begin(self, partition: Partition) -> Message | None:
        """From a word for an offset to an offset."""
        at = self.position
        if at in (OFFSET_STORED, OFFSET_INVALID):
            consumer = self.consumer
            group = consumer.cluster.groups.get(consumer.group_name)
            known = group.offsets.get((self.topic, self.number)) if group is not None else None
            if known is None:
                return self._reset("no previously committed offset available: Local: No offset stored", None)
            self.position = known.offset
        elif at == OFFSET_BEGINNING:
            self.position = partition.low
        else:
            self.position = self._end(partition)
        return None

    def _end(self, partition: Partition) -> int:
        return partition.stable if self.consumer.read_committed else partition.high

    def _reset(self, why: str, offset: int | None = -1) -> Message | None:
        """The position is not in the log: what `auto.offset.reset` says."""
        partition = self.partition
        assert partition is not None
        policy = self.consumer.reset
        if policy in ("earliest", "smallest", "beginning"):
            self.seek(partition.low)
            return None
        if policy in ("latest", "largest", "end"):
            self.seek(self._end(partition))
            return None
        self.stuck = True
        error = KafkaError(KafkaError._AUTO_OFFSET_RESET, why)
        return Message(self.topic, self.number, self.position if offset == -1 else None, None, error)


class Consumer:
    """`confluent_kafka.Consumer`."""

    def __init__(self, config: dict[str, Any] | None = None, **more: Any) -> None:
        given = {**(config or {}), **more}
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
        self.read_committed = given.get("isolation.level", "read_committed") == "read_committed"
        self.tells_end = _true(given.get("enable.partition.eof", False))
        self.reset = given.get("auto.offset.reset", "latest")
        self.fetch_wait = float(given.get("fetch.wait.max.ms", 500)) / 1000
        """The end of a partition is told when nothing has come for so long."""
        self.signal = Signal(self.world)
        self.ready: deque[Fetch] = deque()
        self._fetches: dict[Place, Fetch] = {}
        self._errors: deque[Message] = deque()
        self._operations: deque[tuple[str, list[Place], Callable[[], None]]] = deque()
        self._closed = self._closing = False
        self._fatal: KafkaError | None = None
        self._idle = 0.0
        # As a member of the group:
        self.member_id, self.generation = "", -1
        self.topics: tuple[str, ...] = ()
        self._owned: dict[Place, None] = {}
        self._state = "out"
        """joining: has asked, and waits; called: callbacks are due; steady."""
        self._lost = False
        self._due = ""
        """The callback that is due, or at work, in the state called."""
        self._turn = 0
        """Of memberships: an answer to an earlier one is void."""
        self._beat_turn = 0
        self._on: dict[str, Callback | None] = {}
        self._acted = False
        self._polling = self._called_back = False
        self._polled = self.world.now
        self._began = self.world.now

    # --- membership, by the client's own threads

    @property
    def group(self) -> Group:
        return self.cluster.group(self.group_name)

    def owned_now(self) -> tuple[Place, ...]:
        """What it says that it has when it joins."""
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
        revoked = [place for place in self._owned if place not in shares]
        added = [place for place in assignment if place not in self._owned]
        if revoked:
            self._call("revoke", revoked, lambda: self._call("assign", added, self._join))
        else:
            self._call("assign", added, self._steady)

    def _steady(self) -> None:
        self._state = "steady"

    def _call(self, what: str, places: list[Place], then: Callable[[], None]) -> None:
        self._state, self._due = "called", what
        self._operations.append((what, places, then))
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
        """Its session timed out while it waited for an answer of the group's."""
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
        """What it has is another's, maybe."""
        if self._state == "called":
            self._lost = self._due != "lost"  # told when the callback is over
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
        """It has heard of all topics there are now."""
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
        """Of the group, as of its latest generation."""
        return sum(
            1 for member in self.group.members.values() for place in member.assignment if place[0] in self.topics
        )

    def _partitions_there(self) -> int:
        return sum(self.cluster.count(topic) for topic in self.topics)

    # --- subscribe, assign

    def subscribe(
        self,
        topics: Iterable[str],
        on_assign: Callback | None = None,
        on_revoke: Callback | None = None,
        on_lost: Callback | None = None,
        **_: Any,
    ) -> None:
        self._check_open()
        self._on = {"assign": on_assign, "revoke": on_revoke, "lost": on_lost or on_revoke}
        first = not self.topics
        self.topics = tuple(topics)
        if self not in self.cluster.clients:
            self.cluster.clients.append(self)
        self._polled = self.world.now
        if first:
            self._join(FIND_COORDINATOR_SECONDS * (1 + self.world.random.random()))
        elif self._state in ("steady", "out"):
            self._join()

    def unsubscribe(self) -> None:
        self._check_open()
        self._leave()
        self.topics = ()
        self.unassign()

    def assign(self, partitions: list[TopicPartition]) -> None:
        self._check_open()
        self._acted = True
        self._drop(list(self._fetches))
        self._add(partitions)

    def unassign(self) -> None:
        self._check_open()
        self._acted = True
        self._drop(list(self._fetches))

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        self._check_open()
        self._acted = True
        for tp in partitions:
            if (tp.topic, tp.partition) in self._fetches:
                raise exception(
                    KafkaError._CONFLICT,
                    f"{tp.topic} [{tp.partition}] is already part of the current assignment",
                )
        self._add(partitions)

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        self._check_open()
        self._acted = True
        for tp in partitions:
            if (tp.topic, tp.partition) not in self._fetches:
                raise exception(
                    KafkaError._INVALID_ARG,
                    f"{tp.topic} [{tp.partition}] can't be removed from assignment as it is not assigned",
                )
        self._drop([(tp.topic, tp.partition) for tp in partitions])

    def _add(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            self._fetches[tp.topic, tp.partition] = Fetch(self, tp.topic, tp.partition, tp.offset)

    def _drop(self, places: Iterable[Place]) -> None:
        for place in places:
            fetch = self._fetches.pop(place, None)
            if fetch is not None:
                fetch.detach()
        self.ready = deque(fetch for fetch in self.ready if not fetch.stuck)

    def assignment(self) -> list[TopicPartition]:
        self._check_open()
        return [answer(*place, fetch.given) for place, fetch in self._fetches.items()]

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        self._check_open()
        self._pause(partitions, paused=True)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._check_open()
        self._pause(partitions, paused=False)

    def seek(self, partition: TopicPartition) -> None:
        self._check_open()
        fetch = self._fetches.get((partition.topic, partition.partition))
        if fetch is None or fetch.stuck:
            text = f"Failed to seek to offset {partition.offset}: Local: Erroneous state"
            raise exception(KafkaError._STATE, text)
        fetch.seek(partition.offset)

    def position(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        self._check_open()
        found = []
        for tp in partitions:
            fetch = self._fetches.get((tp.topic, tp.partition))
            found.append(answer(tp.topic, tp.partition, fetch.used if fetch is not None else OFFSET_INVALID))
        return found

    def _pause(self, partitions: Iterable[TopicPartition], *, paused: bool) -> None:
        for tp in partitions:
            fetch = self._fetches.get((tp.topic, tp.partition))
            if fetch is not None:
                fetch.pause(paused=paused)

    # --- poll

    def poll(self, timeout: float | None = None) -> Message | None:
        self._check_open()
        found = self._serve(1, timeout)
        return found[0] if found else None

    def consume(self, num_messages: int = 1, timeout: float | None = None) -> list[Message]:
        self._check_open()
        return self._serve(num_messages, timeout)

    def _serve(self, most: int, timeout: float | None) -> list[Message]:
        here = self.world
        self._polling = True
        try:
            begun = here.now
            patience = math.inf if timeout is None or timeout < 0 else timeout
            found: list[Message] = []
            while True:
                while self._operations:
                    self._idle = 0.0
                    self._run_operation()
                while len(found) < most and (message := self._next()) is not None:
                    found.append(message)
                if found:
                    self._idle = 0.0
                    if patience:
                        here.answered(here.call("kafka.poll"))
                    return found
                if not patience:
                    return found
                left = begun + patience - here.now
                if left <= 0:
                    self._idle = min(self.cluster.most_idle, 2 * max(self._idle, patience))
                    return found
                if left == math.inf:
                    self.signal.wait()
                else:
                    self.signal.idle(left, begun + self._idle - here.now)
                if self._closed:
                    return found
        finally:
            self._polling = False
            self._polled = here.now

    def _next(self) -> Message | None:
        if self._errors:
            return self._errors.popleft()
        ready = self.ready
        while ready:
            fetch = ready[0]
            message = fetch.next()
            if message is not None:
                return message
            ready.popleft()
            fetch.queued = False
        return None

    def _run_operation(self) -> None:
        what, places, then = self._operations.popleft()
        partitions = [answer(*place, OFFSET_INVALID) for place in places]
        callback = self._on.get(what)
        self._acted = False
        self._called_back = True
        try:
            if callback is not None:
                callback(self, partitions)
        except ByTheClient as e:
            raise Uncatchable(e.args[0]) from e
        finally:
            self._called_back = False
            if not self._closed:
                self._settle(what, places, partitions, then)

    def _settle(
        self, what: str, places: list[Place], partitions: list[TopicPartition], then: Callable[[], None]
    ) -> None:
        """After the callback; the client does itself what that has left out."""
        if what == "assign":
            self._owned.update(dict.fromkeys(places))
            if not self._acted and partitions:
                self._add([answer(*place, OFFSET_STORED) for place in places])
        else:
            for place in places:
                self._owned.pop(place, None)
            if not self._acted:
                self._drop(places)
        if self._fatal is not None or self._closing:
            return
        if self._lost:
            self._state = "steady"
            self._lose()
        else:
            then()

    # --- offsets

    def commit(
        self,
        message: Message | None = None,
        offsets: list[TopicPartition] | None = None,
        asynchronous: bool = True,
    ) -> list[TopicPartition]:
        self._check_open()
        if message is not None:
            offsets = [TopicPartition(message.topic() or "", message.partition(), (message.offset() or 0) + 1)]
        if offsets is None:
            offsets = [answer(*place, fetch.used) for place, fetch in self._fetches.items()]
        if self._fatal is not None:
            raise exception(KafkaError._FATAL, "Commit failed: Local: Fatal error")
        asked = to_commit(offsets)
        member, generation, instance = self.member_id, self.generation, self.instance
        if not self.topics:
            member, generation, instance = "", -1, None
        errors = self.cluster.ask(
            "kafka.commit",
            lambda: self.group.commit(asked, member, generation, instance),
            math.inf,
            *CHANGING,
        )
        error = next((code for code in errors.values() if code is not None), None)
        if error not in (None, KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.REBALANCE_IN_PROGRESS) and member:
            self._refused(error)
        if error is not None:
            raise exception(error, f"Commit failed: {KafkaError(error).str()}")
        return [answer(tp.topic, tp.partition, tp.offset) for tp in offsets]

    def committed(self, partitions: list[TopicPartition], timeout: float | None = None) -> list[TopicPartition]:
        self._check_open()
        here = self.world
        patience = math.inf if timeout is None else timeout
        deadline = here.now + patience

        def unstable() -> bool:
            group = self.cluster.groups.get(self.group_name)
            return group is not None and any(group.unstable(tp.topic, tp.partition) for tp in partitions)

        try:
            if self._closing:  # the coordinator is let go already
                here.sleep(min(patience, 60.0))
                raise exception(KafkaError._TIMED_OUT)
            self.cluster.ask("kafka.committed", lambda: None, patience, *ASKING)
            while self.read_committed and unstable():
                left = deadline - here.now
                if left <= 0:
                    raise exception(KafkaError._TIMED_OUT)
                self.group.changed.wait(left)
        except KafkaException as e:
            raise exception(e.args[0].code(), f"Failed to get committed offsets: {e.args[0].str()}") from e
        group = self.cluster.groups.get(self.group_name)
        known = group.offsets if group is not None else {}
        found = []
        for tp in partitions:
            at = known.get((tp.topic, tp.partition))
            if at is None:
                found.append(answer(tp.topic, tp.partition, OFFSET_INVALID))
            else:
                found.append(answer(tp.topic, tp.partition, at.offset, at.metadata))
        return found

    def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float | None = None, cached: bool = False
    ) -> tuple[int, int]:
        self._check_open()
        if cached:
            fetch = self._fetches.get((partition.topic, partition.partition))
            at = fetch.partition if fetch is not None else None
            if fetch is None or at is None or fetch.position < 0:
                return (OFFSET_INVALID, OFFSET_INVALID)
            return (at.low, at.high)
        patience = math.inf if timeout is None else timeout

        def ask() -> tuple[int, int]:
            found = self.cluster.partition(partition.topic, partition.partition)
            if found is None:
                raise exception(
                    KafkaError._UNKNOWN_PARTITION, "Failed to get watermark offsets: Local: Unknown partition"
                )
            return (found.low, found.stable if self.read_committed else found.high)

        answered: tuple[int, int] = self.cluster.ask("kafka.watermarks", ask, patience, *ASKING)
        return answered

    def offsets_for_times(
        self, partitions: list[TopicPartition], timeout: float | None = None
    ) -> list[TopicPartition]:
        self._check_open()

        def ask() -> list[TopicPartition]:
            found = []
            for tp in partitions:
                at = self.cluster.partition(tp.topic, tp.partition)
                if at is None:
                    text = "Failed to get offsets: Local: Unknown partition"
                    raise exception(KafkaError._UNKNOWN_PARTITION, text)
                offset = next(
                    (e.offset for e in at.visible(0, read_committed=False) if e.timestamp >= tp.offset), OFFSET_END
                )
                found.append(answer(tp.topic, tp.partition, offset))
            return found

        patience = math.inf if timeout is None else timeout
        answered: list[TopicPartition] = self.cluster.ask("kafka.offsets_for_times", ask, patience, *ASKING)
        return answered

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        self._check_open()
        if self._called_back:
            # Unlike other calls it has the binding forget that the thread polls: the next callback ends the process.
            raise Uncatchable("list_topics within a rebalance callback of the same consumer")
        found = metadata_of(self.cluster, topic, timeout)
        if topic is None and self._state == "steady":
            self._look()
        return found

    # --- the rest

    def memberid(self) -> str | None:
        self._check_open()
        return self.member_id or None

    def consumer_group_metadata(self) -> Any:
        self._check_open()
        return SimpleNamespace(
            group=self.group_name, generation=self.generation, member=self.member_id, instance=self.instance
        )

    def close(self) -> None:
        """Callbacks that are due are made first, then that for all partitions that are left. What one raises comes
        when all is closed."""
        if self._closed or self._closing:
            return
        self._closing = self._polling = True
        self._turn += 1
        failures: list[BaseException] = []
        while self._operations or (self._owned and self._fatal is None):
            if not self._operations:
                self._operations.append(("lost" if self._lost else "revoke", list(self._owned), _nothing))
            try:
                self._run_operation()
            except (Exception, Uncatchable) as e:  # carried to the end
                failures.append(e)
        self._leave()
        self._drop(list(self._fetches))
        self._closed = True
        if self in self.cluster.clients:
            self.cluster.clients.remove(self)
        self.signal.fire()
        if failures:
            raise failures[0]

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

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _nothing() -> None:
    """What follows a callback in a consumer that is being closed."""


def _true(value: Any) -> bool:
    return value is True or str(value).lower() == "true"
