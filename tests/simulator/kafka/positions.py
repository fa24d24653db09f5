"""Assignments, pauses, positions and offsets of `confluent_kafka.Consumer`.

Automatic commits and stored offsets are not modelled.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import Any

from confluent_kafka import OFFSET_END, OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from tests.simulator.kafka.brokers import ASKING, CHANGING
from tests.simulator.kafka.fetch import Fetch
from tests.simulator.kafka.member import Membership, Place
from tests.simulator.kafka.messages import Message, answer, exception, to_commit


class Positions(Membership):
    """Partitions of a consumer, as it reads and reports them."""

    def __init__(self, given: dict[str, Any]) -> None:
        super().__init__(given)
        self.read_committed = given.get("isolation.level", "read_committed") == "read_committed"
        self.tells_end = _true(given.get("enable.partition.eof", False))
        self.reset = given.get("auto.offset.reset", "latest")
        self.fetch_wait = float(given.get("fetch.wait.max.ms", 500)) / 1000
        """Time without a record after which the end of a partition is reported."""
        self.ready: deque[Fetch] = deque()
        self._fetches: dict[Place, Fetch] = {}
        self._acted = False
        """True if a callback has assigned or unassigned partitions itself."""

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

    def _drop(self, tps: Iterable[Place]) -> None:
        for tp in tps:
            fetch = self._fetches.pop(tp, None)
            if fetch is not None:
                fetch.detach()
        self.ready = deque(fetch for fetch in self.ready if not fetch.stuck)

    def assignment(self) -> list[TopicPartition]:
        self._check_open()
        return [answer(*tp, fetch.given) for tp, fetch in self._fetches.items()]

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
        positions = []
        for tp in partitions:
            fetch = self._fetches.get((tp.topic, tp.partition))
            positions.append(answer(tp.topic, tp.partition, fetch.used if fetch is not None else OFFSET_INVALID))
        return positions

    def _pause(self, partitions: Iterable[TopicPartition], *, paused: bool) -> None:
        for tp in partitions:
            fetch = self._fetches.get((tp.topic, tp.partition))
            if fetch is not None:
                fetch.pause(paused=paused)

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
            offsets = [answer(*tp, fetch.used) for tp, fetch in self._fetches.items()]
        if self._fatal is not None:
            raise exception(KafkaError._FATAL, "Commit failed: Local: Fatal error")
        requested = to_commit(offsets)
        epochs = {(tp.topic, tp.partition): tp.leader_epoch for tp in offsets if tp.leader_epoch is not None}
        member, generation, instance = self.member_id, self.generation, self.instance
        if not self.topics:
            member, generation, instance = "", -1, None
        errors = self.cluster.ask(
            "kafka.commit",
            lambda: self.group.commit(requested, member, generation, instance, epochs),
            math.inf,
            *CHANGING,
            on=" ".join(f"{tp.topic}-{tp.partition}@{tp.offset}." for tp in offsets),
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
                remaining = deadline - here.now
                if remaining <= 0:
                    raise exception(KafkaError._TIMED_OUT)
                self.group.changed.wait(remaining)
        except KafkaException as e:
            raise exception(e.args[0].code(), f"Failed to get committed offsets: {e.args[0].str()}") from e
        group = self.cluster.groups.get(self.group_name)
        known = group.offsets if group is not None else {}
        answers = []
        for tp in partitions:
            committed = known.get((tp.topic, tp.partition))
            if committed is None:
                answers.append(answer(tp.topic, tp.partition, OFFSET_INVALID))
            else:
                answers.append(
                    answer(
                        tp.topic,
                        tp.partition,
                        committed.offset,
                        committed.metadata,
                        leader_epoch=committed.leader_epoch,
                    )
                )
        return answers

    def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float | None = None, cached: bool = False
    ) -> tuple[int, int]:
        self._check_open()
        if cached:
            fetch = self._fetches.get((partition.topic, partition.partition))
            log = fetch.partition if fetch is not None else None
            if fetch is None or log is None or fetch.position < 0:
                return (OFFSET_INVALID, OFFSET_INVALID)
            return (log.low, log.high)
        patience = math.inf if timeout is None else timeout

        def ask() -> tuple[int, int]:
            log = self.cluster.partition(partition.topic, partition.partition)
            if log is None:
                raise exception(
                    KafkaError._UNKNOWN_PARTITION, "Failed to get watermark offsets: Local: Unknown partition"
                )
            return (log.low, log.stable if self.read_committed else log.high)

        answered: tuple[int, int] = self.cluster.ask("kafka.watermarks", ask, patience, *ASKING)
        return answered

    def offsets_for_times(
        self, partitions: list[TopicPartition], timeout: float | None = None
    ) -> list[TopicPartition]:
        self._check_open()

        def ask() -> list[TopicPartition]:
            answers = []
            for tp in partitions:
                log = self.cluster.partition(tp.topic, tp.partition)
                if log is None:
                    text = "Failed to get offsets: Local: Unknown partition"
                    raise exception(KafkaError._UNKNOWN_PARTITION, text)
                offset = next(
                    (e.offset for e in log.visible(0, read_committed=False) if e.timestamp >= tp.offset), OFFSET_END
                )
                answers.append(answer(tp.topic, tp.partition, offset))
            return answers

        patience = math.inf if timeout is None else timeout
        answered: list[TopicPartition] = self.cluster.ask("kafka.offsets_for_times", ask, patience, *ASKING)
        return answered


def _true(value: Any) -> bool:
    return value is True or str(value).lower() == "true"
