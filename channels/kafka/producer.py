"""Producer of the channel: puts batches as records and replaces clients that fail or stall."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer

from flafka.channels.kafka.config import CHANNEL, KafkaChannelConfig
from flafka.channels.kafka.records import ARROW, FORMAT, KEY, KafkaHeaders, encode, raw_headers, texts_of
from flafka.plugins import Batch, Component, EventId, Rejected, Retry
from flafka.plugins.kafka.admin import PROBE_SECONDS
from flafka.plugins.kafka.clients import new_producer
from flafka.plugins.kafka.consumer import STANDING_SECONDS
from flafka.plugins.kafka.errors import BROKEN, RECORD_REFUSALS, ReportedErrors, failure, is_broken, login, sentence
from flafka.plugins.kafka.producer import DeliveryReports, Standstill
from flafka.plugins.kafka.properties import number
from flafka.plugins.shared import flumeevent
from flafka.plugins.threads import start_thread

MAX_RECORD_BYTES = 8 << 20
BATCH_BYTES = 1 << 20
"""Size of a request batch, unless it is configured or the topic takes less."""
STALL_SECONDS = 5.0
PURGED_SECONDS = 10.0
"""Time that a replaced client may take to report its records as given up."""
RETIRED_SECONDS = 300.0
"""Time for which a replaced client is asked to give up its records."""
REFUSED_SECONDS = 40.0
"""The client says again every 30 seconds that it is refused."""
AT_ONCE: Mapping[str, Any] = {
    "linger.ms": 0,
    "sticky.partitioning.linger.ms": 10,  # else 0 as well: each event without a key would choose a partition anew
}
"""A put is sent at once, as whoever puts has gathered already. What is put while five requests are on their way to a
broker goes together."""
LINGER = frozenset({"linger.ms", "queue.buffering.max.ms"})
"""Properties that somebody sets who wants it otherwise."""
_WAITS = {
    **dict.fromkeys(LINGER, 0),
    "socket.timeout.ms": 60_000,
    "reconnect.backoff.max.ms": 10_000,
    "socket.connection.setup.timeout.ms": 30_000,
    "request.timeout.ms": 30_000,
    "retry.backoff.max.ms": 1_000,
}
"""Properties that delay a request, in milliseconds, with librdkafka's defaults."""
_TOO_LARGE = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE)
FITTING_SECONDS = 60.0
"""Time after the latest record that was too large until puts make records of `batchBytes` again."""
UNLIMITED = 2**63
LIMITS_SECONDS = 1.0
"""Shortest time between two questions for the topic's limits."""
REFUSED_AGAIN_SECONDS = 2.0
"""Time after which records are produced once more that brokers refuse for a reason outside of the record."""
_COMPRESSION = ("compression.type", "compression.codec")

COMPACTED = (
    "topic {} is compacted: it refuses events without a key, and would drop others; set cleanup.policy=delete on it"
)
DELETED = (
    "topic {0} was deleted, and what is put waits: create it again with a restart of the agent, or with agent topic "
    "create {0} --bootstrap-server {1}"
)
_NO_TOPIC = frozenset({KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART})
_WRONG_CLOCK = (
    ". The clock of this host is further from the brokers' than the topic allows: set it right, or set "
    "message.timestamp.type=LogAppendTime on the topic"
)


class Limits(NamedTuple):
    """Settings of the topic by which brokers refuse a record."""

    record_bytes: int
    """Size of the largest record that the topic takes, at most `MAX_RECORD_BYTES`."""
    compacted: bool = False
    """True if brokers refuse each record that has no key, and later drop records of equal keys."""


class ChannelProducer:
    """Producer of the channel's topic for several putting threads, connected until `close`.

    `limits` are the topic's; `look` asks the brokers for them again and raises KafkaException or TimeoutError.
    `writable` asks by another client whether the brokers could take a record in each partition now, and `exists`
    whether they know the topic.

    A record that brokers have acknowledged is not produced again by the same put: what they refuse is, by a client
    that sends each record alone, and becomes a rejection if it is refused once more.
    """

    def __init__(
        self,
        channel: Component[KafkaChannelConfig],
        properties: Mapping[str, Any],
        partitions: int,
        limits: Limits,
        writable: Callable[[], bool],
        look: Callable[[], Limits],
        exists: Callable[[], bool],
    ) -> None:
        self.name, self._config, self.log = channel.name, channel.config, channel.log
        self.metrics, self.stopping = channel.metrics, channel.stopping
        self._partitions = Partitions(self.name, self._config, partitions, self._count_partitions)
        self._properties: dict[str, Any] = {
            **channel.config.producer_properties(properties),
            **({} if properties.keys() & LINGER else AT_ONCE),
            "error_cb": self._hear,
        }
        self._compression = next((properties[name].lower() for name in _COMPRESSION if name in properties), None)
        self._refusal, self._refused_at = "", -REFUSED_SECONDS
        self._limits, self._look, self._looked_at = limits, look, time.monotonic()
        self._exists = exists
        self._fitting, self._fitted_at = UNLIMITED, 0.0
        """Bytes of a batch that become a record which the topic takes, and the time (`time.monotonic`) of the latest
        record that was too large.
        """
        self._lock = threading.Lock()
        self._looking = threading.Lock()
        self._stalled, self._trouble = 0, 0.0
        """Puts that wait for long, and since when there are such that nothing was acknowledged after."""
        waits = ((number(properties.get(name, default)) or 0) - default for name, default in _WAITS.items())
        self._standstill = Standstill(writable, sum(max(0.0, wait) / 1000 for wait in waits), self.stopping)
        self._closed = threading.Event()
        self._produce_rows = self._produce_pieces if self._config.format == "arrow" else self._produce_events
        """Produce a batch whose events have these row numbers in the put; return rows that no record can hold."""
        self._producer = self._new_producer()
        self._beside: tuple[tuple[Producer, float], ...] = ()
        """Other producers in use, and the time (`time.monotonic`) from which an idle one is dropped."""
        self._poller = threading.Thread(target=self._poll, name=f"{self.name}-producer", daemon=True)
        self._poller.start()

    @property
    def refusal(self) -> str:
        """Reason why brokers have refused this client lately; empty if they have not."""
        return self._refusal if time.monotonic() - self._refused_at < REFUSED_SECONDS else ""

    def _hear(self, error: KafkaError) -> None:
        """Note why brokers refuse this client: its password may be changed while it is connected."""
        heard = ReportedErrors()
        heard(error)
        if why := heard.refusal():
            self._refusal, self._refused_at = login(why, self._properties), time.monotonic()

    def close(self) -> None:
        """Stop, and give up the records that are not acknowledged."""
        self._closed.set()
        self._poller.join(STANDING_SECONDS)
        for producer in (self._producer, *(other for other, _ in self._beside)):
            producer.purge()
            with contextlib.suppress(*BROKEN):
                producer.flush(1)

    def put(self, batch: Batch, enqueued: Callable[[], None]) -> None:
        """Return when every in-sync replica has the batch. Raises Rejected with the rows that no record can hold.

        `enqueued` is called as soon as records of later puts can only come behind this batch.
        """
        self.metrics.add("EventPutAttemptCount", len(batch))
        delivery = DeliveryReports(self._producer, len(batch))
        rejected = self._produce_rows(batch, range(len(batch)), delivery)
        enqueued()
        with self.metrics.timed("KafkaEventSendTimer"):
            self._await(delivery)
            if delivery.failed:
                rejected |= self._put_again(batch, delivery)
        if delivery.reported:
            self._stored()
        self.metrics.add("EventPutSuccessCount", len(batch) - len(rejected))
        if rejected:
            raise Rejected({EventId("", -1, -1, row): reason for row, reason in sorted(rejected.items())})

    def _put_again(self, batch: Batch, delivery: DeliveryReports) -> dict[int, str]:
        """Produce the failed records once more until each is stored or refused alone; return the refused rows.

        Raises Retry where none is stored and the reason is not in a record: the whole put may be repeated then.
        """
        rejected: dict[int, str] = {}
        stored, stalled = delivery.stored, False
        try:
            while delivery.failed:
                passing = [error for _, error in delivery.failed if error.code() not in RECORD_REFUSALS]
                if passing and not stored:
                    self._replace(delivery.producer)
                    raise self._failure(passing[0], delivery)
                if any(error.fatal() for error in passing):
                    self._replace(delivery.producer)
                limits = self._ask_limits()
                if limits.compacted:
                    passing.append(KafkaError(KafkaError.INVALID_RECORD, COMPACTED.format(self._config.topic)))
                    if not stored:
                        raise self._failure(passing[-1], delivery)
                if passing:
                    if not stalled:
                        stalled = True
                        self._stall(+1, f"channel {self.name}: {self._why(passing[0])}; what was put waits")
                    if self._closed.is_set() or self.stopping.wait(REFUSED_AGAIN_SECONDS):
                        raise self._failure(passing[0], delivery)
                delivery = self._put_alone(batch, delivery, rejected)
                stored = stored or delivery.stored
        finally:
            if stalled:
                self._stall(-1)
        return rejected

    def _put_alone(self, batch: Batch, failed: DeliveryReports, rejected: dict[int, str]) -> DeliveryReports:
        """Produce the failed records with one record in each request; add rows refused for good to `rejected`."""
        rows = sorted(row for some, _ in failed.failed for row in some)
        mask = np.zeros(len(batch), bool)
        mask[rows] = True
        producer = self._new_producer({"batch.num.messages": 1})
        with self._lock:
            self._beside += ((producer, float("inf")),)
        delivery = DeliveryReports(producer, failed.events)
        delivery.record_events = failed.record_events
        try:
            rejected |= self._produce_rows(batch.where(pa.array(mask)), rows, delivery)
            self._await(delivery)
        finally:
            self._keep_beside(producer, 0.0)
        left = []
        for some, error in delivery.failed:
            if error.code() in RECORD_REFUSALS and not self._limits.compacted:
                if len(some) == 1:
                    rejected[some[0]] = self._refused_for(batch, some[0], error)
                    continue
                if error.code() in _TOO_LARGE:
                    self._fit(min(self._fitting, batch.slice(some[0], len(some)).nbytes // 2))
                else:
                    delivery.record_events = min(delivery.record_events, len(some) // 2)
            left.append((some, error))
        delivery.failed = left
        return delivery

    def _refused_for(self, batch: Batch, row: int, error: KafkaError) -> str:
        size = len(batch.bodies[row].as_py())
        if error.code() in _TOO_LARGE:
            return f"with its headers, {self._too_large(size)}"
        return f"topic {self._config.topic} takes no such record: {error.str()}"

    def _failure(self, error: KafkaError, delivery: DeliveryReports) -> Retry:
        if error.code() in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
            return self._given_up(delivery)
        return self._retry(error)

    def _retry(self, error: KafkaError) -> Retry:
        if error.code() in _NO_TOPIC and not self._exists():
            text = DELETED.format(self._config.topic, self._config.bootstrap_servers)
            with self._lock:
                self._trouble = self._trouble or time.monotonic()
                self.metrics.error(text)
            return Retry(f"channel {self.name}: {text}")
        wrong = _WRONG_CLOCK if error.code() == KafkaError.INVALID_TIMESTAMP else ""
        return failure(error, f"channel {self.name}: {self._why(error)}{wrong}")

    def _why(self, error: object) -> str:
        return sentence(error, topic=self._config.topic, right="Write", client=self._properties)

    # --- the topic's limits

    def _ask_limits(self) -> Limits:
        """Return the topic's limits as they are now, or were a second ago. Raises Retry.

        Where the record size has changed, later puts use a new producer, whose requests are no larger than that.
        """
        with self._looking:
            if time.monotonic() - self._looked_at < LIMITS_SECONDS:
                return self._limits
            try:
                found = self._look()
            except (KafkaException, TimeoutError) as e:
                raise failure(e, f"channel {self.name}: {sentence(e)}") from e
            self._looked_at = time.monotonic()
            before, self._limits = self._limits, found
        if before.record_bytes != found.record_bytes:
            self.log.info(
                "topic %s takes records of %d bytes now, and took %d", self._config.topic, *(found[0], before[0])
            )
            self._fitting = UNLIMITED
            with self._lock:
                if not self._closed.is_set():
                    # Others may be producing with the old one: it goes on until it is idle.
                    self._beside += ((self._producer, time.monotonic() + PURGED_SECONDS),)
                    self._producer = self._new_producer()
        return found

    def _new_producer(self, more: Mapping[str, Any] = MappingProxyType({})) -> Producer:
        """Return a producer whose requests are no larger than the topic's largest record, or brokers refuse them.

        Raises Retry where the client cannot be made, such as for lack of threads.
        """
        wanted = int(number(self._properties.get("batch.size")) or BATCH_BYTES)
        size = min(wanted, self._limits.record_bytes)
        try:
            return new_producer(CHANNEL, {**self._properties, "batch.size": size, **more})
        except KafkaException as e:
            raise Retry(f"channel {self.name}: {self._why(e)}") from e

    # --- records of a batch

    def _produce_pieces(self, batch: Batch, rows: Sequence[int], delivery: DeliveryReports) -> dict[int, str]:
        """Many events a record."""
        rejected: dict[int, str] = {}
        config = self._config
        if time.monotonic() - self._fitted_at > FITTING_SECONDS:
            self._fitting = UNLIMITED
        most_events = min(config.batch_events, delivery.record_events)
        pieces = list(batch.split(most_events, min(config.batch_bytes, self._fitting)))
        pieces.reverse()
        start = 0
        while pieces:
            piece = pieces.pop()
            value, count = encode(piece, self._compression), len(piece)
            most = self._record_bytes
            if len(value) > most and self._ask_limits() and len(value) > (most := self._record_bytes):
                if count > 1:  # what does not compress, in a topic that takes less
                    self._fit(int(0.9 * piece.nbytes * most / len(value)))
                    pieces += reversed(list(piece.split((count + 1) // 2, self._fitting)))
                    continue
                rejected[rows[start]] = self._too_large(len(value))
            else:
                part = rows[start : start + count]
                self._produce(value, None, self._partitions.default, [(FORMAT, ARROW)], part, delivery)
            start += count
        return rejected

    def _fit(self, size: int) -> None:
        """Make records of batches of at most `size` bytes, for a while."""
        self._fitting, self._fitted_at = size, time.monotonic()

    def _produce_events(self, batch: Batch, rows: Sequence[int], delivery: DeliveryReports) -> dict[int, str]:
        """One event a record."""
        config = self._config
        values: list[bytes] = (flumeevent.encode(batch) if config.format == "flume" else batch.bodies).to_pylist()
        keys = texts_of(batch, KEY)
        headers = raw_headers(batch) if config.format == "raw" else None
        by_partition, rejected = self._partitions.of(batch)
        if max(map(len, values), default=0) > self._record_bytes and self._ask_limits():
            most = self._record_bytes
            rejected |= {at: self._too_large(len(value)) for at, value in enumerate(values) if len(value) > most}
        for partition, wanted in by_partition.items():
            if rejected:
                wanted = [at for at in wanted if at not in rejected]
            if headers is not None:
                for at in wanted:
                    key = keys[at] if keys else None
                    self._produce(values[at], key, partition, headers[at], (rows[at],), delivery)
                continue
            messages = [{"value": values[at], "callback": delivery.of((rows[at],)), "at": rows[at]} for at in wanted]
            if keys:
                for message, at in zip(messages, wanted, strict=True):
                    message["key"] = keys[at]
            self._produce_batch(messages, partition, delivery)
        return {rows[at]: why for at, why in rejected.items()}

    def _count_partitions(self) -> int:
        topic = self._config.topic
        return len(self._producer.list_topics(topic, timeout=PROBE_SECONDS).topics[topic].partitions)

    def _too_large(self, size: int) -> str:
        most = self._limits.record_bytes
        return f"an event of {size:,} bytes is larger than a record of the channel may be ({most:,})"

    def _await(self, delivery: DeliveryReports) -> None:
        started, reported, stalled = time.monotonic(), 0, False
        replaced = 0.0
        try:
            while not delivery.wait(0.2):
                if self.stopping.is_set():
                    raise Retry(
                        f"channel {self.name} did not store {delivery.events} events before the agent stopped"
                    )
                now = time.monotonic()
                if not stalled and now - started > STALL_SECONDS:
                    stalled = True
                    self._stall(+1, self._deleted())
                if not self._is_used(delivery.producer) or self._closed.is_set():  # it reports what it gives up
                    replaced = replaced or now
                    if now - replaced > PURGED_SECONDS:
                        raise self._given_up(delivery)
                elif delivery.reported > reported:
                    reported = delivery.reported
                    self._standstill.moved()
                else:
                    self._replace_if_stuck(delivery, started)
        finally:
            if stalled:
                self._stall(-1)

    def _given_up(self, delivery: DeliveryReports) -> Retry:
        what = "closed" if self._closed.is_set() else "replaced"
        return Retry(f"channel {self.name}: its client was {what} while {delivery.events} events waited")

    def _deleted(self) -> str:
        """Return a sentence if puts wait because the topic was deleted. Asks the brokers once in an outage."""
        if self._trouble or self._exists():
            return ""
        return DELETED.format(self._config.topic, self._config.bootstrap_servers)

    def _stall(self, change: int, text: str = "") -> None:
        """Report that puts begin to wait for long, with `text` if the reason is known. Several may wait at once."""
        with self._lock:
            self._stalled += change
            if change > 0 and not self._trouble:
                self._trouble = time.monotonic() - STALL_SECONDS
                text = text or self._waits(STALL_SECONDS, self.refusal or "too few brokers are up or in sync")
                self.log.warning("%s", text)
                self.metrics.error(text)

    def _waits(self, seconds: float, why: str) -> str:
        return (
            f"no acknowledgement from Kafka at {self._config.bootstrap_servers} for {seconds:.0f} s: {why}; what was "
            "put waits, nothing is lost"
        )

    def _stored(self) -> None:
        """A put was acknowledged: tell when that is so again, and none waits for long any more."""
        self._refusal = ""
        self._standstill.moved()
        if self._trouble:
            with self._lock:
                if self._trouble and not self._stalled:
                    self.log.info("Kafka acknowledges again after %.0f s", time.monotonic() - self._trouble)
                    self.metrics.error("")
                    self._trouble = 0.0

    def _produce(
        self,
        value: bytes,
        key: str | None,
        partition: int,
        headers: KafkaHeaders,
        rows: Sequence[int],
        delivery: DeliveryReports,
    ) -> None:
        """Produce one record, which holds these rows of the put."""
        delivery.expect(1)
        topic, report, began = self._config.topic, delivery.of(rows), 0.0
        while True:
            self._refuse_old(delivery)
            try:
                delivery.producer.produce(topic, value, key, partition, headers=headers, on_delivery=report)
                if began:
                    self._standstill.moved()
                return
            except BufferError:
                began = began or time.monotonic()
                self._wait_for_room(delivery, began)
            except KafkaException as e:
                if e.args[0].code() in RECORD_REFUSALS:
                    delivery.expect(-1)
                    delivery.refuse(rows, e.args[0])
                    return
                self._replace_broken(delivery.producer, e)
                raise self._retry(e.args[0]) from e

    def _produce_batch(self, messages: list[dict[str, Any]], partition: int, delivery: DeliveryReports) -> None:
        """Several records in one call, which knows no record headers."""
        began = 0.0
        while messages:
            self._refuse_old(delivery)
            delivery.expect(len(messages))
            try:
                delivery.producer.produce_batch(self._config.topic, messages, partition)
            except KafkaException as e:
                self._replace_broken(delivery.producer, e)
                raise self._retry(e.args[0]) from e
            failed = [message for message in messages if "_error" in message]
            delivery.expect(-len(failed))
            again = []
            for message in failed:
                error = message.pop("_error")
                if error.code() in RECORD_REFUSALS:
                    delivery.refuse((message["at"],), error)
                elif error.code() != KafkaError._QUEUE_FULL:
                    raise Retry(f"channel {self.name}: {error.str()}")
                else:
                    again.append(message)
            if began and len(failed) < len(messages):
                self._standstill.moved()
            messages = again
            if messages:
                began = began or time.monotonic()
                self._wait_for_room(delivery, began)

    def _refuse_old(self, delivery: DeliveryReports) -> None:
        """One put uses one client: the rest of it in another one would be in the topic once more than its head."""
        if not self._is_used(delivery.producer):
            raise self._given_up(delivery)

    def _is_used(self, producer: Producer) -> bool:
        """Return True if the producer has not been given up."""
        return producer is self._producer or any(producer is one for one, _ in self._beside)

    def _wait_for_room(self, delivery: DeliveryReports, began: float) -> None:
        if self.stopping.wait(0.005):
            raise Retry(f"channel {self.name} is full and the agent is stopping")
        self._replace_if_stuck(delivery, began)

    def _poll(self) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(*BROKEN):  # a report tells whoever waits, and the producer is replaced
                self._producer.poll(0.02 if self._beside else 0.2)
            for producer, until in self._beside:
                with contextlib.suppress(*BROKEN):
                    producer.poll(0)
                if not len(producer) and time.monotonic() > until:
                    self._keep_beside(producer, None)

    def _keep_beside(self, producer: Producer, until: float | None) -> None:
        """Drop a producer that is idle at `until`, or, with None, at once."""
        with self._lock:
            self._beside = tuple(
                (one, until if one is producer and until is not None else due)
                for one, due in self._beside
                if one is not producer or until is not None
            )

    def _replace_broken(self, used: Producer, error: KafkaException) -> None:
        if is_broken(error):
            self._replace(used)

    def _replace_if_stuck(self, delivery: DeliveryReports, began: float) -> None:
        """Replace a stalled client. Records stored without an answer are in the topic twice then."""
        reported = delivery.reported
        if (quiet := self._standstill.stuck(began)) and delivery.reported == reported:
            self.log.warning(
                "Kafka's client has had nothing acknowledged for %.0f s, though the brokers could take it: another "
                "one takes its place, and what waits is put again",
                quiet,
            )
            with self._lock:
                self._trouble = self._trouble or time.monotonic() - quiet
                self.metrics.error(self._waits(quiet, "its client sent nothing, and another one has taken its place"))
            self._replace(delivery.producer)

    def _replace(self, old: Producer) -> None:
        # After a fatal error an idempotent producer refuses all work for ever. Whoever else has put into it fails
        # too: one of them makes the new one, in which others may be under way already.
        with self._lock:
            if not self._is_used(old) or self._closed.is_set():
                return
            if old is self._producer:
                self._producer = self._new_producer()
            self._beside = tuple(one for one in self._beside if one[0] is not old)
        # On a thread of its own, as that takes a while: whoever puts goes on with the new one.
        thread = threading.Thread(
            target=self._retire, args=(old, RETIRED_SECONDS), name=f"{self.name}-retired", daemon=True
        )
        try:
            start_thread(thread)
        except RuntimeError:  # the system has no thread left
            self._retire(old, PURGED_SECONDS)

    @staticmethod
    def _retire(old: Producer, most: float) -> None:
        """Have a replaced producer give up its records for at most `most` seconds, so that puts do not wait for them.

        Puts that were about to use the producer may still add records for `PURGED_SECONDS`.
        """
        began = time.monotonic()
        while (seconds := time.monotonic() - began) < most and (len(old) or seconds < PURGED_SECONDS):
            old.purge()
            with contextlib.suppress(*BROKEN):
                old.flush(0.2)
            time.sleep(0.05)

    @property
    def _record_bytes(self) -> int:
        """Size of the largest value of a record: the rest of the limit is for its key, headers and framing."""
        return self._limits.record_bytes - 4096


MISSING_PARTITION_SECONDS = 10.0
"""A partition that is not there is looked for again after so long."""
ANY_PARTITION = -1
"""The client's word for it: the one of the key, else one after another."""


class Partitions:
    """Partitions of a topic, for several puts at once.

    `count` is their number; `look` asks the brokers for that number, and raises KafkaException. The constructor
    raises Retry if the topic has no partition `defaultPartitionId`.
    """

    def __init__(self, channel: str, config: KafkaChannelConfig, count: int, look: Callable[[], int]) -> None:
        self._channel, self._config, self._look = channel, config, look
        if count <= (number := config.default_partition_id or 0):
            raise Retry(
                f"channel {channel}: defaultPartitionId = {number}, and topic {config.topic} has partitions "
                f"0 to {count - 1}"
            )
        self.count = count
        self.default = ANY_PARTITION if config.default_partition_id is None else config.default_partition_id
        """Partition of an event that asks for none."""
        self._lock = threading.Lock()
        self._look_due = 0.0

    def of(self, batch: Batch) -> tuple[dict[int, Sequence[int]], dict[int, str]]:
        """The rows for each partition, and those that ask for none there is, with the reason.

        Raises Retry where the brokers do not say whether there are more by now.
        """
        config, default = self._config, self.default
        texts = texts_of(batch, config.partition_id_header) if config.partition_id_header else []
        if not texts:
            return {default: range(len(batch))}, {}
        chosen: dict[int, list[int]] = {}
        unknown: dict[int, str] = {}
        for row, text in enumerate(texts):
            if text is None:
                chosen.setdefault(default, []).append(row)
                continue
            number = int(text) if re.fullmatch(r"[+-]?[0-9]{1,9}", text) else -1
            if number >= self.count:
                self._look_for_more()
            if 0 <= number < self.count:
                chosen.setdefault(number, []).append(row)
            else:
                unknown[row] = (
                    f"header {config.partition_id_header!r} is {text[:40]!r}, and topic {config.topic} has "
                    f"partitions 0 to {self.count - 1}"
                )
        return dict(chosen), unknown

    def _look_for_more(self) -> None:
        """Partitions may be added while the channel is at work."""
        with self._lock:
            if time.monotonic() < self._look_due:
                return
            self._look_due = time.monotonic() + MISSING_PARTITION_SECONDS
        try:
            found = self._look()
        except KafkaException as e:
            raise Retry(f"channel {self._channel}: {sentence(e)}") from e
        self.count = max(self.count, found)
