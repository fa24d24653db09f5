"""One consumer of the Kafka channel."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from channels.kafka.positions import Log, TopicIds, claims_of
from plugins import FlafkaError, Metrics, PartitionClaim, Reader, RebalanceListener, Record, Retry, Taken
from plugins.shared.kafkaclient import CONSUMER, committed
from plugins.shared.offsets import OffsetMetadata, begins_late, made_again, names_topic, out_of_range, truncated
from plugins.shared.polling import Poller, weight

COMMITTED_SECONDS = 10.0
ONE_RECORD = {"isolation.level": "read_uncommitted", "fetch.message.max.bytes": 4096, "fetch.wait.max.ms": 10}
"""For a look at single records: the brokers send at least one, whatever its size."""
POLL_SECONDS = 0.02
CONFIRM_SECONDS = 0.01
"""The brokers are asked for the topic's id at most once in so long,"""
LOOK_SECONDS = 5.0
"""and at least once, should nothing come: in a topic made again there may be records before the position."""
ASK_SECONDS = 60.0
LAG_SECONDS = 5.0
"""The owner does nothing else meanwhile."""
ALONE_SECONDS = 3600.0
"""Once it has seen no member of version 0.1 for so long, a reader commits what these do not understand."""
OLDER_SECONDS = 10.0
"""How long what cannot be mixed with members of version 0.1 waits until it looks whether they are gone."""
OWNER_SECONDS = 240.0
"""How long a rebalance waits for the sink to finish; below max.poll.interval.ms."""


class KafkaReader(Poller, Reader):
    """Reads for one sink. Partitions come and go on the polling thread; `take` carries the news to the owner, on the
    owner's thread.

    What was fetched is handed out once the brokers, asked after the fetch, still name the topic by the id that the
    claims have: a topic that was deleted and created again under its name would go on at offsets of the old one,
    which the client does not notice where the new one has as many records.
    """

    def __init__(
        self,
        properties: Mapping[str, Any],
        claim: PartitionClaim,
        owner: RebalanceListener,
        metrics: Metrics,
        decode: Callable[[Iterator[Record], PartitionClaim], Taken | None],
        topic_ids: TopicIds,
        log: logging.Logger,
        join_anew: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(properties, f"{claim.group}-consumer", POLL_SECONDS, metrics, log)
        self._claim, self._owner, self._decode = claim, owner, decode
        self._topic_ids, self._join_anew = topic_ids, join_anew
        self._unread = frozenset[int]()
        """Partitions that nobody had when that was last looked at."""
        self._unread_due = time.monotonic() + _unread_seconds()
        self._older_at = time.monotonic()
        """When a member of version 0.1 was seen last, or may have been."""
        self._claims: dict[int, PartitionClaim] = {}
        """Of the partitions that are ours."""
        self._ends: dict[int, int] = {}
        """Where each partition ended, when that was last asked."""
        self._fetched: list[Message] = []
        """Received, and not yet asked about."""
        self._asked: list[Message] = []
        """Received before the topic's id was asked for, which is not answered yet."""
        self._asked_at = float("-inf")
        self._asking = False
        self._news: deque[Callable[[], None]] = deque()
        self._requests: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._queues: dict[int, deque[Message]] = {}
        self._seeks: dict[int, int] = {}
        self._next: dict[int, int] = {}
        """The offset to be received next of each partition."""
        self._leaders: dict[int, list[tuple[int, int]]] = {}
        """By partition: from which offset on what was received had which leader epoch, in order."""
        self._until: Mapping[int, int] | None = None
        """By partition: nothing from there on is handed out, and nothing of the others."""
        self._fresh = set[int]()
        """Partitions that became ours since the last turn."""
        self._assigning = False
        self._member: str | None = None
        """The group's name for this member when it got partitions last."""
        self._properties = {n: value for n, value in properties.items() if n != "group.instance.id"}
        self.start()

    # --- the owner's thread

    def take(self, timeout: float) -> Taken | None:
        """The next records of one partition, small ones joined."""
        with self.changed:
            self.changed.wait_for(lambda: self._news or any(self._queues.values()) or self.error, timeout)
            news = list(self._news)
            self._news.clear()
            error = self.error
        if error is not None:
            raise error
        for tell in news:
            tell()
        with self.changed:
            partition = next((p for p, queue in self._queues.items() if queue), None)
            if partition is None:
                return None
            # Round robin: the partition served goes to the end.
            queue = self._queues.pop(partition)
            self._queues[partition] = queue
        taken = self._decode(self._records(queue), self._claims[partition])
        if taken is not None:
            self.busy()  # its commit is made between two polls, also once all is fetched
            self._metrics.add("EventTakeSuccessCount", len(taken.batch))
        return taken

    def _records(self, queue: deque[Message]) -> Iterator[Record]:
        """Take records out of a queue, one by one, which the polling thread may empty meanwhile."""
        size = 0
        try:
            while queue:
                message = queue.popleft()
                size += weight(message)
                yield Record(
                    cast("int", message.offset()),
                    message.timestamp()[1],
                    message.key(),
                    message.value(),
                    cast("list[tuple[str, bytes | None]]", message.headers() or ()),
                )
        except IndexError:
            return
        finally:
            with self.changed:
                self.queued -= size

    def commit(self, positions: Mapping[PartitionClaim, int]) -> None:
        """Commit to the group, with what the claims say, what is owned now. Raises Retry."""
        owned = {claim: end for claim, end in positions.items() if claim.partition in self._queues}
        if not owned:
            return
        try:
            with self._metrics.timed("KafkaCommitTimer"):
                self._ask(lambda: self._commit(owned))
        except KafkaException as e:
            raise Retry(f"group {self._claim.group}: committing offsets failed: {e.args[0].str()}") from e

    def _commit(self, positions: Mapping[PartitionClaim, int]) -> None:
        if time.monotonic() - self._older_at > ALONE_SECONDS:
            positions = {claim._replace(shared_epoch=0): end for claim, end in positions.items()}
        if any(not names_topic(claim) for claim in positions) and self._topic_ids.get() != self._claim.topic_id:
            raise self._made_again()  # nobody could tell by the metadata whose position that is
        offsets = [
            TopicPartition(
                claim.topic,
                claim.partition,
                end,
                metadata=OffsetMetadata.of(claim).text(),
                leader_epoch=self._leader_epoch(claim.partition, end),
            )
            for claim, end in positions.items()
        ]
        for at in self.consumer.commit(offsets=offsets, asynchronous=False):
            if at.error is not None:
                raise KafkaException(at.error)

    def _leader_epoch(self, partition: int, end: int) -> int:
        """That of the latest record before `end`; negative where it is not known."""
        with self.changed:
            return max((epoch for first, epoch in self._leaders.get(partition, ()) if first < end), default=-1)

    def rewind(self, positions: Mapping[int, int]) -> None:
        """Seek, on the polling thread, and drop what was fetched past it."""
        self._metrics.add("RollbackCount")
        with self.changed:
            for partition in positions:
                self._forget(partition)
            seeks = {p: offset for p, offset in positions.items() if p in self._queues}
            self._seeks.update(seeks)
            self._next.update(seeks)

    def stop_at(self, ends: Mapping[int, int]) -> None:
        """Partitions that have come there are paused, and all that have no end."""
        self._until = dict(ends)

    def lag(self) -> int | None:
        """Records of the owned partitions that were not taken; None where that cannot be told now."""
        try:
            return int(self._ask(self._untaken, LAG_SECONDS))
        except (KafkaException, Retry):
            return None

    def _untaken(self) -> int:
        """Counted by the thread that receives: what is received meanwhile would count twice."""
        if self._assigning:
            raise Retry("partitions are being assigned")
        total = 0
        for partition, position in self._next.items():
            at = TopicPartition(self._claim.topic, partition)
            _, high = self.consumer.get_watermark_offsets(at, cached=True)
            if high < 0:  # nothing fetched yet
                _, high = self.consumer.get_watermark_offsets(at, timeout=COMMITTED_SECONDS)
            self._ends[partition] = high
            total += max(0, high - position)
        with self.changed:
            return total + len(self._fetched) + len(self._asked) + sum(map(len, self._queues.values()))

    def membership(self) -> Any:
        """For a transaction: the brokers refuse its offsets once this is no member any more. Raises Retry then."""
        return self._ask(self._membership)

    def _membership(self) -> Any:
        found = self.consumer.consumer_group_metadata()
        # What the client says of itself once it knows that it was put out is taken for that of an administrator.
        if self.consumer.memberid() != self._member:
            raise Retry(f"group {self._claim.group}: this is no member any more")
        return found

    def _ask(self, work: Callable[[], Any], seconds: float = ASK_SECONDS) -> Any:
        """The result of a call made on the polling thread. Raises Retry where there is none in time."""
        answer: Future[Any] = Future()
        with self.changed:
            if self.closing:
                raise Retry(f"group {self._claim.group}: the consumer is closed")
            self._requests.append((work, answer))
        try:
            return answer.result(seconds)
        except TimeoutError:
            raise Retry(f"group {self._claim.group}: no answer from Kafka for {seconds:.0f} s") from None

    # --- the polling thread

    def begin(self) -> None:
        """Read the channel's topic."""
        self.subscribe([self._claim.topic])

    def turn(self) -> None:
        """Do what the owner's thread asks for, and ask the brokers what is to be asked."""
        self._confirm()
        self._look_for_unread()
        self._serve()
        self._apply_seeks()

    def ended(self) -> None:
        """Answer what was asked for meanwhile."""
        self._serve()

    def _serve(self) -> None:
        while True:
            with self.changed:
                if not self._requests:
                    return
                work, answer = self._requests.popleft()
            try:
                answer.set_result(work())
            except Exception as e:  # noqa: BLE001  # belongs to who asked
                answer.set_exception(e)

    def received(self, messages: Sequence[Message]) -> None:
        """Keep records until the topic's id is confirmed."""
        failed: list[tuple[Message, KafkaError]] = []
        past = set[int]()
        with self.changed:
            for message in messages:
                error = message.error()
                at_end = error is not None and error.code() == KafkaError._PARTITION_EOF
                if error is not None and not at_end:
                    failed.append((message, error))
                    continue
                partition, offset = message.partition(), message.offset()
                assert partition is not None
                assert offset is not None
                # What was fetched before a pending seek lies past it: handing it out would skip events.
                if partition not in self._queues or partition in self._seeks:
                    continue
                if self._until is not None and offset >= self._until.get(partition, 0):
                    past.add(partition)
                    continue
                if at_end:
                    self._next[partition] = offset  # behind the last record, where that is the end of a transaction
                    continue
                self._next[partition] = offset + 1
                leader_epoch, known = message.leader_epoch(), self._leaders.setdefault(partition, [])
                if leader_epoch is not None and (not known or known[-1][1] < leader_epoch):
                    known.append((offset, leader_epoch))
                self._fetched.append(message)
                self.queued += weight(message)
        if past:  # whatever resumes them has them paused again
            self.consumer.pause([TopicPartition(self._claim.topic, partition) for partition in past])
        for message, error in failed:  # without the lock: the client's thread that answers may be waiting for it
            self._on_error(message, error)

    def _confirm(self) -> None:
        """Ask for the topic's id, once for all that was fetched meanwhile."""
        wait = CONFIRM_SECONDS if self._fetched else LOOK_SECONDS
        if self._asking or not self._claim.topic_id or time.monotonic() - self._asked_at < wait:
            return
        with self.changed:
            self._asked, self._fetched = self._fetched, []
        self._asking, self._asked_at = True, time.monotonic()
        self._topic_ids.ask(self._confirmed)

    def _confirmed(self, topic_id: str | None) -> None:
        """On a thread of the client's. None: there is no answer; what waits goes on waiting for the next one."""
        with self.changed:
            if topic_id == self._claim.topic_id:
                for message in self._asked:
                    self._queues[cast("int", message.partition())].append(message)
                self._asked = []
                self.changed.notify_all()
            elif topic_id is None:
                self._asked, self._fetched = [], self._asked + self._fetched
        if topic_id == "":
            self.fail(Retry(f"topic {self._claim.topic}, which group {self._claim.group} reads, was deleted"))
        elif topic_id not in (None, self._claim.topic_id):
            self.fail(self._made_again())
        self._asking = False

    def _look_for_unread(self) -> None:
        """A static member that ends amid a rebalance comes back to its old share, without what it gave up or was to
        get: nobody has that until the next rebalance, which a member of another name brings about.
        """
        if self._claim.topic_id and time.monotonic() >= self._unread_due:
            self._unread_due = time.monotonic() + _unread_seconds()
            members = self._topic_ids.members(self._claim.group)
            if members.older:
                self._older_at = time.monotonic()
            again, self._unread = self._unread & members.unread, members.unread
            if again:
                self._join_anew()
                group, topic = self._claim.group, self._claim.topic
                raise Retry(
                    f"group {group}: no member reads partitions {sorted(again)} of {topic}: joining the group again"
                )

    def _made_again(self) -> Retry:
        """What to say where another topic has the claim's name now; and it is counted."""
        claim, left, unknown = self._claim, 0, 0
        for partition in self._queues:
            first = self._first_waiting(partition)
            if first >= 0 and partition in self._ends:
                left += max(0, self._ends[partition] - first)
            else:
                unknown += 1
        self._metrics.add("TopicRecreatedCount")
        self._metrics.add("RecordLostCount", left)
        return Retry(made_again(claim, left, unknown))

    def _first_waiting(self, partition: int) -> int:
        """The first record of a partition that was not handed out; negative where that is not known."""
        waiting = [*self._queues[partition], *self._asked, *self._fetched]
        offsets = [cast("int", m.offset()) for m in waiting if m.partition() == partition]
        return min(offsets, default=self._next.get(partition, -1))

    def _on_error(self, message: Message, error: KafkaError) -> None:
        claim = self._claim
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            if self._topic_ids.get() != claim.topic_id:
                raise self._made_again()
            partition, offset = cast("int", message.partition()), cast("int", message.offset())
            at = TopicPartition(claim.topic, partition)
            marks = self.consumer.get_watermark_offsets(at, timeout=COMMITTED_SECONDS)
            claim = self._claims.get(partition, claim._replace(partition=partition))
            self._refuse_truncated({claim: (offset, self._leader_epoch(partition, offset))})
            raise self._of_this_topic(out_of_range(claim, offset, *marks) or Retry(error.str()))
        self.refuse_fenced(error)
        self._log.warning("group %s: %s", claim.group, error.str())

    def _of_this_topic(self, error: FlafkaError) -> FlafkaError:
        """That error, if the brokers still name the topic that the claims have: what seems to be lost may be missing
        in one made again, of which no record is to be given up.
        """
        return error if self._topic_ids.get() == self._claim.topic_id else self._made_again()

    def _apply_seeks(self) -> None:
        with self.changed:
            seeks, self._seeks = self._seeks, {}
        for partition, offset in seeks.items():
            self.consumer.seek(TopicPartition(self._claim.topic, partition, offset))
        again, self._fresh = {*seeks, *self._fresh} & (self._until or {}).keys(), set()
        if again and not self._paused:
            self.consumer.resume([TopicPartition(self._claim.topic, partition) for partition in again])

    def _forget(self, partition: int) -> None:
        queue = self._queues.get(partition)
        if queue:
            self.queued -= sum(map(weight, queue))
            queue.clear()
        for waiting in (self._asked, self._fetched):
            dropped = [message for message in waiting if message.partition() == partition]
            if dropped:
                self.queued -= sum(map(weight, dropped))
                waiting[:] = [message for message in waiting if message.partition() != partition]

    # --- partitions come and go

    def assigned(self, partitions: list[TopicPartition]) -> Sequence[TopicPartition]:
        """Have the owner take them over; begin where it says."""
        self._assigning = True
        try:
            return self._assigned(partitions)
        finally:
            self._assigning = False

    def _assigned(self, partitions: list[TopicPartition]) -> Sequence[TopicPartition]:
        # Not by this consumer's `list_topics`: in a callback that has the next callback of the same `poll` abort the
        # process, for the Python binding takes the polling thread for one that is not polling.
        topic_id, count = self._topic_ids.look()
        if self._queues and topic_id != self._claim.topic_id:
            raise self._made_again()
        self._claim = self._claim._replace(topic_id=topic_id)
        self._member = self.consumer.memberid()
        numbers = {tp.partition for tp in partitions}
        self._unread, older = self._topic_ids.members(self._claim.group)
        self._unread_due = time.monotonic() + _unread_seconds()
        if older:
            self._older_at = time.monotonic()
        everything = [TopicPartition(self._claim.topic, partition) for partition in range(count)]
        at = committed(self.consumer, everything, COMMITTED_SECONDS)
        found = claims_of(self._claim, at, self._log, mixed=bool(older))
        claims = {claim: offset for claim, offset in found.items() if claim.partition in numbers}
        starts: dict[PartitionClaim, int | None] = {}
        if not self._tell_and_wait(lambda: starts.update(self._owner.assigned(claims))):
            raise Retry(f"group {self._claim.group}: its sink was busy for {OWNER_SECONDS:.0f} s without a pause", 1)
        starts = starts or claims  # closing
        if older and any(claim.ids != 1 and not claim.record for claim in (*starts, *self._claims.values())):
            self._tell_and_wait(lambda: self._owner.revoked(numbers | self._queues.keys()))
            raise Retry(
                f"group {self._claim.group} names events as version 0.2 does, and is read by {', '.join(older)} of "
                "version 0.1, which would deliver some again under other ids: upgrade or stop it",
                OLDER_SECONDS,
            )
        epochs = {(tp.partition, tp.offset): tp.leader_epoch for tp in at if tp.leader_epoch is not None}
        read = {
            c: (end, epochs[c.partition, end]) for c, end in starts.items() if end and (c.partition, end) in epochs
        }
        self._refuse_truncated(read)
        begun = {claim: self._oldest(claim) if at is None else at for claim, at in starts.items()}
        positions = {claim.partition: at for claim, at in begun.items()}
        with self.changed:
            self._claims.update({claim.partition: claim for claim in starts})
            self._queues.update({partition: deque() for partition in positions})
            self._next.update(positions)
            self._fresh |= positions.keys()
            self._leaders.update({claim.partition: [(end - 1, epoch)] for claim, (end, epoch) in read.items()})
        if fresh := {claim: at for claim, at in begun.items() if claims.get(claim) != at}:
            self._commit(fresh)  # where each begins, and under which claim, before anything is taken
        return [TopicPartition(self._claim.topic, *at) for at in positions.items()]

    def _refuse_truncated(self, read: Mapping[PartitionClaim, tuple[int, int]]) -> None:
        """Raise FlafkaError, with the way out, where the brokers have lost what was read before a position.

        Given that position and the leader epoch of the record before it, negative where that is not known.
        """
        read = {claim: at for claim, at in read.items() if at[1] >= 0}
        if not read:
            return
        onlooker = Consumer({**CONSUMER, **self._properties, **ONE_RECORD})
        try:
            for claim, (end, epoch) in read.items():
                start, high = Log(onlooker, claim).truncated(end, epoch)
                if start is not None:
                    raise self._of_this_topic(truncated(claim, end, start, high))
        finally:
            onlooker.close()

    def _oldest(self, claim: PartitionClaim) -> int:
        """The first record of a partition in which the group has no position. From there on, and not from whatever is
        the first one later, it is read, so that what retention removes meanwhile is missed.
        """
        start, _ = self.consumer.get_watermark_offsets(
            TopicPartition(claim.topic, claim.partition), timeout=COMMITTED_SECONDS
        )
        if start:
            self._log.warning("%s", begins_late(claim, start))
        return start

    def revoked(self, partitions: list[TopicPartition]) -> None:
        """Have the owner deliver what it took of them."""
        numbers = {tp.partition for tp in partitions}
        self._tell_and_wait(lambda: self._owner.revoked(numbers))
        self._drop(numbers)

    def lost(self, partitions: list[TopicPartition]) -> None:
        """Drop what was fetched of them, and have the owner do so."""
        numbers = {tp.partition for tp in partitions}
        self._drop(numbers)
        self._tell_and_wait(lambda: self._owner.lost(numbers))

    def _drop(self, partitions: set[int]) -> None:
        with self.changed:
            for partition in partitions:
                self._forget(partition)
                self._queues.pop(partition, None)
                self._seeks.pop(partition, None)
                self._next.pop(partition, None)
                self._leaders.pop(partition, None)
                self._claims.pop(partition, None)

    def _tell_and_wait(self, tell: Callable[[], None]) -> bool:
        """Have the owner's thread do that. Whether it has; it may do so later otherwise. Raises what it raises."""
        done = threading.Event()
        failure: list[Exception] = []

        def run() -> None:
            try:
                tell()
            except Exception as e:
                failure.append(e)
                raise
            finally:
                done.set()

        with self.changed:
            if self.closing:
                return True
            self._news.append(run)
            self.changed.notify_all()
        deadline = time.monotonic() + OWNER_SECONDS
        while not done.wait(0.005) and not self.closing and time.monotonic() < deadline:
            self._serve()
        if failure:
            raise failure[0]
        return done.is_set() or self.closing


def _unread_seconds() -> float:
    """Not the same for all members: one that joins anew is enough. With the session of the member that it was before,
    it has what nobody read within the minute after which a drain is given up."""
    return random.uniform(15, 30)
