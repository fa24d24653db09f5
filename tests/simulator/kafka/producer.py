"""`confluent_kafka.Producer` over the simulated brokers: idempotent, with transactions or without."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tests.simulator.kafka.brokers import CHANGING, LOST_SECONDS, Coordinated
from tests.simulator.kafka.messages import Transaction, exception, to_commit
from tests.simulator.kafka.records import FENCED, RecordProducer, abortable


class Producer(RecordProducer):
    """`confluent_kafka.Producer`."""

    def init_transactions(self, timeout: float = -1) -> None:
        coordinated = self._coordinated()
        deadline = self.world.now + timeout if timeout >= 0 else math.inf

        def ask() -> int:
            if coordinated.current is not None and not coordinated.ending:
                self.cluster.end(coordinated, committed=False)
            coordinated.epoch += 1
            coordinated.timeout = self._transaction_timeout
            return coordinated.epoch

        self._epoch = self._request("init_transactions", ask, timeout, "Failed to initialize Producer ID")
        while coordinated.current is not None:  # its markers are on their way
            if self.world.now >= deadline:
                raise exception(KafkaError._TIMED_OUT, "Failed to initialize Producer ID", retriable=True)
            self.cluster.changed.wait(None if deadline == math.inf else deadline - self.world.now)
        self._state = "ready"

    def begin_transaction(self) -> None:
        self._coordinated()
        self._raise_fatal()
        if self._state == "abortable":
            assert self._failure is not None
            raise KafkaException(self._failure)
        if self._state != "ready":
            raise exception(KafkaError._STATE, f"Operation not valid in state {self._state}")
        self._state, self._failure, self._transaction = "in", None, None

    def send_offsets_to_transaction(
        self, positions: list[TopicPartition], group_metadata: Any, timeout: float = -1
    ) -> None:
        coordinated = self._coordinated()
        self._raise_fatal()
        self._check_in()
        if not positions:
            return

        def ask() -> None:
            if self._fenced():
                raise _Fenced
            group = self.cluster.group(group_metadata.group)
            member, generation = group_metadata.member, group_metadata.generation
            if (member or group_metadata.instance) and (
                error := group.validate(member, group_metadata.instance)
                or (int(KafkaError.ILLEGAL_GENERATION) if generation != group.generation else None)
            ):
                raise exception(error)
            transaction = self.cluster.begin(coordinated)
            self._transaction = transaction
            transaction.groups[group] = None
            known = group.pending.setdefault(transaction, {})
            epochs = {(tp.topic, tp.partition): tp.leader_epoch for tp in positions if tp.leader_epoch is not None}
            for topic, partition, offset, metadata in to_commit(positions):
                if self.cluster.partition(topic, partition) is None:
                    raise exception(KafkaError.UNKNOWN_TOPIC_OR_PART)
                written, tp = group.written(offset, metadata), (topic, partition)
                known[tp] = written._replace(leader_epoch=epochs.get(tp, -1))

        try:
            self._request("send_offsets_to_transaction", ask, timeout, "Failed to add offsets to transaction")
        except KafkaException as e:
            error = e.args[0]
            if error.fatal() or error.retriable():
                raise
            if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:  # it asks for as long as it may
                self.world.sleep(timeout if timeout >= 0 else 60.0)
            self._state, self._failure = "abortable", abortable(error)
            raise KafkaException(self._failure) from e

    def commit_transaction(self, timeout: float = -1) -> None:
        coordinated = self._coordinated()
        self._raise_fatal()
        if self._state != "committing":
            self._check_in()
            deadline = self.world.now + timeout if timeout >= 0 else math.inf
            while len(self):
                if self._queue:
                    self._send_soon()
                self._serve_quietly()
                if not len(self):
                    break
                if self.world.now >= deadline:
                    raise exception(KafkaError._TIMED_OUT, "Failed to commit transaction: Timed out", retriable=True)
                self._signal.wait(None if deadline == math.inf else deadline - self.world.now)
            self._raise_fatal()
            self._check_in()
            self._state = "committing"
        transaction = self._transaction
        if transaction is not None:

            def ask() -> None:
                if self._fenced():
                    raise _Fenced
                if coordinated.current is transaction and not coordinated.ending:
                    self.cluster.end(coordinated, committed=True)

            self._request("commit_transaction", ask, timeout, "Failed to end transaction")
            self._await_markers(coordinated, transaction)
        self._state, self._transaction = "ready", None

    def abort_transaction(self, timeout: float = -1) -> None:
        coordinated = self._coordinated()
        self._raise_fatal()
        if self._state == "committing":
            raise exception(KafkaError._CONFLICT, "Conflicting commit_transaction API call is already in progress")
        if self._state not in ("in", "abortable", "aborting"):
            raise exception(KafkaError._STATE, f"Operation not valid in state {self._state.title()}")
        self._state = "aborting"
        for sent in self._queue:
            self._reports.append((sent, None, KafkaError(KafkaError._PURGE_QUEUE)))
        self._queue.clear()
        while self._in_flight:
            self._signal.wait(LOST_SECONDS)
        self._serve_quietly()
        transaction = self._transaction
        if transaction is not None:

            def ask() -> None:
                if self._fenced():
                    raise _Fenced
                if coordinated.current is transaction and not coordinated.ending:
                    self.cluster.end(coordinated, committed=False)

            self._request("abort_transaction", ask, timeout, "Failed to end transaction")
            self._await_markers(coordinated, transaction)
        self._state, self._transaction, self._failure = "ready", None, None

    def _await_markers(self, coordinated: Coordinated, transaction: Transaction) -> None:
        """The next transaction cannot begin before them."""
        while coordinated.current is transaction:
            self.cluster.changed.wait()

    def _serve_quietly(self) -> None:
        try:
            self._serve()
        except (KafkaException, SystemError):
            self._fatal_reported = False  # raised again where the caller can catch it
            raise KafkaException(self._fatal) from None

    def _coordinated(self) -> Coordinated:
        if self._transactional is None:
            raise exception(
                KafkaError._NOT_CONFIGURED, "The Transactional API requires transactional.id to be configured"
            )
        return self._transactional

    def _check_in(self) -> None:
        if self._state == "abortable":
            assert self._failure is not None
            raise KafkaException(self._failure)
        if self._state != "in":
            raise exception(KafkaError._STATE, f"Operation not valid in state {self._state.title()}")

    def _request(self, what: str, work: Callable[[], Any], timeout: float, failed: str) -> Any:
        patience = timeout if timeout >= 0 else math.inf
        try:
            return self.cluster.ask(f"kafka.{what}", work, patience, *CHANGING)
        except _Fenced:
            self._die(failed)
            raise KafkaException(self._fatal) from None
        except KafkaException as e:
            if e.args[0].code() == KafkaError._TIMED_OUT:
                raise exception(KafkaError._TIMED_OUT, f"{failed}: Local: Timed out", retriable=True) from e
            raise


class _Fenced(KafkaException):
    """The epoch is another producer's."""

    def __init__(self) -> None:
        super().__init__(KafkaError(KafkaError._FENCED, FENCED, fatal=True))
