"""Producer of the channel, which stores batches as records and replaces clients that fail or stall."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer

from flafka.channels.kafka.config import CHANNEL, KafkaChannelConfig
from flafka.channels.kafka.partitions import Partitions
from flafka.channels.kafka.records import FORMAT, KEY, KafkaHeaders, encode_batch, header_values, raw_headers
from flafka.plugins import Batch, Component, EventId, Rejected, Retry, Unreachable
from flafka.plugins.kafka.admin import CONNECTIVITY_SECONDS
from flafka.plugins.kafka.clients import new_producer
from flafka.plugins.kafka.consumer import CLIENT_CLOSE_SECONDS
from flafka.plugins.kafka.errors import (
    FATAL_EXCEPTIONS,
    RECORD_REFUSALS,
    ReportedErrors,
    connection_error,
    describe_login_error,
    explain_error,
    is_fatal,
    to_retry,
)
from flafka.plugins.kafka.producer import DeliveryReports, ReportPoller, StallDetector
from flafka.plugins.kafka.properties import parse_number
from flafka.plugins.kafka.renewal import CERTIFICATE_CHECK_SECONDS, ClientRenewal
from flafka.plugins.threads import start_thread
from flafka.plugins.wire import flumeevent

MAX_RECORD_BYTES = 8 << 20
BATCH_BYTES = 1 << 20
"""Size of a request batch, unless it is configured or the topic's limit is lower."""
STALL_SECONDS = 5.0
"""Time without an acknowledgement after which a put reports an outage."""
PURGE_SECONDS = 10.0
"""Time in which a replaced client reports its records as purged."""
RETIRED_SECONDS = 300.0
"""Longest time for which the records of a replaced client are purged."""
REFUSED_SECONDS = 40.0
"""Time for which a refusal counts. The client reports it again every 30 seconds."""
NO_LINGER: Mapping[str, Any] = {
    "linger.ms": 0,
    "sticky.partitioning.linger.ms": 10,  # with 0, the default then, each event without a key changes the partition
}
"""Properties to send each put at once, as a source has batched its events already. Records that are put while five
requests are in flight to a broker share a request."""
LINGER_PROPERTIES = frozenset({"linger.ms", "queue.buffering.max.ms"})
"""Properties that disable `NO_LINGER` when they are configured."""
_DELAYS = {
    **dict.fromkeys(LINGER_PROPERTIES, 0),
    "socket.timeout.ms": 60_000,
    "reconnect.backoff.max.ms": 10_000,
    "socket.connection.setup.timeout.ms": 30_000,
    "request.timeout.ms": 30_000,
    "retry.backoff.max.ms": 1_000,
}
"""Properties that delay a request, in milliseconds, with librdkafka's defaults."""
_TOO_LARGE = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE)
IDLE_POLL_SECONDS = 1.0
"""Interval at which a producer is polled for errors while no put waits."""
REDUCED_SIZE_SECONDS = 60.0
"""Time after the latest record that was too large, until records have up to `batchBytes` again."""
UNLIMITED = 2**63
LIMITS_SECONDS = 1.0
"""Shortest time between two requests for the topic's limits."""
REFUSED_RETRY_SECONDS = 2.0
"""Pause before records are retried that brokers have refused for a reason outside the record."""
_COMPRESSION = ("compression.type", "compression.codec")

COMPACTED = (
    "topic {} is compacted: it refuses events without a key, and would drop others; set cleanup.policy=delete on it"
)
DELETED = (
    "topic {0} was deleted, and puts wait: recreate it with a restart of the agent, or with agent topic create {0} "
    "--bootstrap-server {1}"
)
_NO_CONNECTION = KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN))
_NO_TOPIC = frozenset({KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC, KafkaError.UNKNOWN_TOPIC_OR_PART})
_WRONG_CLOCK = (
    ". The clock of this host is further from the brokers' than the topic allows: set it right, or set "
    "message.timestamp.type=LogAppendTime on the topic"
)


class Limits(NamedTuple):
    """Settings of the topic by which brokers refuse a record."""

    record_bytes: int
    """Size of the largest record that the topic accepts, at most `MAX_RECORD_BYTES`."""
    compacted: bool = False
    """True if the topic is compacted: brokers refuse records without a key, and later drop records of equal keys."""


class ChannelProducer:
    """Producer of the channel's topic. Thread-safe, for several concurrent puts; connected until `close`.

    `limits` are the topic's present limits. `request_limits` requests them from the brokers, and raises
    KafkaException or TimeoutError. `is_writable` returns True if the brokers could take a record in each partition
    now. `topic_exists` returns True if they know the topic. These functions use other clients. `renewal` replaces the
    client once its certificates have changed.

    A put never repeats a record that brokers have acknowledged. It retries a refused record with a
    client that sends each record in a request of its own. If the record is refused again, its events are rejected.
    """

    def __init__(
        self,
        channel: Component[KafkaChannelConfig],
        properties: Mapping[str, Any],
        partitions: int,
        limits: Limits,
        is_writable: Callable[[], bool],
        request_limits: Callable[[], Limits],
        topic_exists: Callable[[], bool],
        renewal: ClientRenewal | None = None,
    ) -> None:
        self.name, self._config, self.log = channel.name, channel.config, channel.log
        self.metrics, self.stopping = channel.metrics, channel.stopping
        self._partitions = Partitions(self.name, self._config, partitions, self._count_partitions)
        self._properties = self._complete(properties)
        self._compression = next((properties[name].lower() for name in _COMPRESSION if name in properties), None)
        self._refusal, self._refused_at = "", -REFUSED_SECONDS
        self._limits, self._request_limits, self._limits_read_at = limits, request_limits, time.monotonic()
        self._topic_exists = topic_exists
        self._batch_limit, self._batch_limit_set_at = UNLIMITED, 0.0
        """Maximum size in memory of the batch of a record, in bytes, and the time (`time.monotonic`) of its last
        change.
        """
        self._lock = threading.Lock()
        self._limits_lock = threading.Lock()
        self._waiting_puts, self._outage_since = 0, 0.0
        """Number of puts that wait longer than `STALL_SECONDS`, and the start of the outage; 0.0 without an
        outage."""
        delays = ((parse_number(properties.get(name, default)) or 0) - default for name, default in _DELAYS.items())
        client_seconds = sum(max(0.0, delay) / 1000 for delay in delays)
        self._stall_detector = StallDetector(is_writable, client_seconds, self.stopping)
        self._is_writable, self._renewal = is_writable, renewal
        self._outdated: Producer | None = None
        """Latest producer that was replaced for its former certificates."""
        self._outdated_checks, self._next_outdated_check = 0, 0.0
        """Number of checks, since the outdated producer last made progress, at which brokers could take records."""
        self._closed = threading.Event()
        self._produce_rows = self._produce_batches if self._config.format == "arrow" else self._produce_events
        """Function that produces a batch with these row numbers of the put, and returns rejected rows with
        reasons."""
        self._reports = ReportPoller()
        self._producer = self._new_producer()
        self._other_producers: tuple[tuple[Producer, float], ...] = ()
        """Other producers in use, each with the time (`time.monotonic`) from which it is dropped once idle."""
        self._polling_thread = threading.Thread(
            target=self._poll_producers, name=f"{self.name}-producer", daemon=True
        )
        self._polling_thread.start()

    @property
    def refusal(self) -> str:
        """Reason why brokers have refused this client within `REFUSED_SECONDS`; empty otherwise."""
        return self._refusal if time.monotonic() - self._refused_at < REFUSED_SECONDS else ""

    def _complete(self, properties: Mapping[str, Any]) -> dict[str, Any]:
        """Return all properties of a producer, for the configured ones."""
        return {
            **self._config.producer_properties(properties),
            **({} if properties.keys() & LINGER_PROPERTIES else NO_LINGER),
            "error_cb": self._on_error,
        }

    def _on_error(self, error: KafkaError) -> None:
        """Record a refusal of this client: its password may change while it is connected."""
        reported = ReportedErrors()
        reported(error)
        if refusal := reported.refusal():
            self._refusal, self._refused_at = describe_login_error(refusal, self._properties), time.monotonic()

    def close(self) -> None:
        """Stop the polling thread, and purge unacknowledged records, whose puts raise Retry."""
        self._closed.set()
        self._polling_thread.join(CLIENT_CLOSE_SECONDS)
        for producer in (self._producer, *(other for other, _ in self._other_producers)):
            producer.purge()
            with contextlib.suppress(*FATAL_EXCEPTIONS):
                producer.flush(1)

    def put(self, batch: Batch, enqueued: Callable[[], None]) -> None:
        """Return once every in-sync replica has the batch.

        `enqueued` is called once the records of later puts are certain to follow this batch. Raises Retry, and
        Rejected for rows that no record can hold, once all others are stored.
        """
        self.metrics.add("EventPutAttemptCount", len(batch))
        delivery = DeliveryReports(self._producer, len(batch))
        rejected = self._produce_rows(batch, range(len(batch)), delivery)
        enqueued()
        with self.metrics.timed("KafkaEventSendTimer"):
            self._wait_for_reports(delivery)
            if delivery.failed:
                rejected |= self._retry_failed_records(batch, delivery)
        if delivery.reported:
            self._record_success()
        self.metrics.add("EventPutSuccessCount", len(batch) - len(rejected))
        if rejected:
            raise Rejected({EventId("", -1, -1, row): reason for row, reason in sorted(rejected.items())})

    def _retry_failed_records(self, batch: Batch, delivery: DeliveryReports) -> dict[int, str]:
        """Retry failed records until each is stored, or refused on its own; return the rejected rows with reasons.

        Raises Retry if no record is stored and the cause is outside the records: the source may repeat the whole put
        then without duplicates.
        """
        rejected: dict[int, str] = {}
        has_stored, is_waiting = delivery.has_stored, False
        try:
            while delivery.failed:
                transient = [error for _, error in delivery.failed if error.code() not in RECORD_REFUSALS]
                if transient and not has_stored:
                    self._replace(delivery.producer)
                    raise self._error_of(transient[0], delivery)
                if any(map(is_fatal, transient)):
                    self._replace(delivery.producer)
                limits = self._refresh_limits()
                if limits.compacted:
                    transient.append(KafkaError(KafkaError.INVALID_RECORD, COMPACTED.format(self._config.topic)))
                    if not has_stored:
                        raise self._error_of(transient[-1], delivery)
                if transient:
                    if not is_waiting:
                        is_waiting = True
                        self._change_waiting_puts(
                            +1, f"channel {self.name}: puts wait: {self._explain(transient[0])}"
                        )
                    if self._closed.is_set() or self.stopping.wait(REFUSED_RETRY_SECONDS):
                        raise self._error_of(transient[0], delivery)
                delivery = self._send_separately(batch, delivery, rejected)
                has_stored = has_stored or delivery.has_stored
        finally:
            if is_waiting:
                self._change_waiting_puts(-1)
        return rejected

    def _send_separately(self, batch: Batch, failed: DeliveryReports, rejected: dict[int, str]) -> DeliveryReports:
        """Produce the failed records, one in each request, and return their delivery.

        Its `failed` are the records to be sent once more. Rows that are refused finally are added to `rejected`.
        """
        rows = sorted(row for rows_of_record, _ in failed.failed for row in rows_of_record)
        mask = np.zeros(len(batch), bool)
        mask[rows] = True
        producer = self._new_producer({"batch.num.messages": 1})
        with self._lock:
            self._other_producers += ((producer, float("inf")),)
        delivery = DeliveryReports(producer, failed.events)
        delivery.record_events = failed.record_events
        try:
            rejected |= self._produce_rows(batch.where(pa.array(mask)), rows, delivery)
            self._wait_for_reports(delivery)
        finally:
            self._drop_producer(producer, 0.0)
        remaining = []
        for rows_of_record, error in delivery.failed:
            if error.code() in RECORD_REFUSALS and not self._limits.compacted:
                first, count = rows_of_record[0], len(rows_of_record)
                if count == 1:
                    rejected[first] = self._rejection_reason(batch, first, error)
                    continue
                if error.code() in _TOO_LARGE:
                    self._limit_batches(min(self._batch_limit, batch.slice(first, count).nbytes // 2))
                else:
                    delivery.record_events = min(delivery.record_events, count // 2)
            remaining.append((rows_of_record, error))
        delivery.failed = remaining
        return delivery

    def _rejection_reason(self, batch: Batch, row: int, error: KafkaError) -> str:
        """Return the sentence about an event that brokers refuse in a record of its own."""
        size = len(batch.bodies[row].as_py())
        if error.code() in _TOO_LARGE:
            return f"with its headers, {self._too_large_reason(size)}"
        return f"topic {self._config.topic} accepts no such record: {error.str()}"

    def _error_of(self, error: KafkaError, delivery: DeliveryReports) -> Retry:
        """Return the exception for a failed record of this put, also if its client was replaced."""
        if error.code() in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
            return self._abandoned_error(delivery)
        return self._retry_of(error)

    def _retry_of(self, error: KafkaError) -> Retry:
        """Return the exception for an error of the client. If the topic was deleted, this also reports the outage."""
        if error.code() in _NO_TOPIC and not self._topic_exists():
            text = DELETED.format(self._config.topic, self._config.bootstrap_servers)
            with self._lock:
                self._outage_since = self._outage_since or time.monotonic()
                self.metrics.set_error(text)
            return Retry(f"channel {self.name}: {text}")
        hint = _WRONG_CLOCK if error.code() == KafkaError.INVALID_TIMESTAMP else ""
        return to_retry(error, f"channel {self.name}: {self._explain(error)}{hint}")

    def _explain(self, error: object) -> str:
        return explain_error(error, topic=self._config.topic, right="Write", client=self._properties)

    def _refresh_limits(self) -> Limits:
        """Return the topic's limits, at most `LIMITS_SECONDS` old. Raises Retry.

        If the record size has changed, later puts use a new producer, whose requests are no larger than the limit.
        """
        with self._limits_lock:
            if time.monotonic() - self._limits_read_at < LIMITS_SECONDS:
                return self._limits
            try:
                limits = self._request_limits()
            except (KafkaException, TimeoutError) as e:
                raise to_retry(e, f"channel {self.name}: {self._explain(e)}") from e
            self._limits_read_at = time.monotonic()
            former, self._limits = self._limits, limits
        if former.record_bytes != limits.record_bytes:
            self.log.info(
                "topic %s accepts records of up to %d bytes now, instead of %d",
                *(self._config.topic, limits.record_bytes, former.record_bytes),
            )
            self._batch_limit = UNLIMITED
            with self._lock:
                if not self._closed.is_set():
                    # Other puts may be using the old producer: it is dropped once it is idle.
                    self._supersede(self._new_producer())
        return limits

    def _supersede(self, producer: Producer) -> None:
        """Use this producer for later puts. Call it with the lock."""
        self._other_producers += ((self._producer, time.monotonic() + PURGE_SECONDS),)
        self._producer = producer

    def _renew_producer(self) -> None:
        """Use a new producer for later puts if the certificates have changed. Pending puts end with the old one."""

        def make(configured: dict[str, Any]) -> tuple[dict[str, Any], Producer]:
            properties = self._complete(configured)
            return properties, self._new_producer(properties=properties)

        if self._renewal is not None and (made := self._renewal.renew(make)) is not None:
            with self._lock:
                self._outdated, self._outdated_checks = self._producer, 0
                self._properties = made[0]
                self._supersede(made[1])

    def _replace_if_refused(self, delivery: DeliveryReports) -> None:
        """Replace an outdated producer without progress if brokers accept a client with the present certificates.

        Records that were stored without an acknowledgement are duplicated then. Blocks while the brokers are checked,
        every `CERTIFICATE_CHECK_SECONDS`. Two checks leave a client with valid certificates the time to connect.
        """
        if (now := time.monotonic()) < self._next_outdated_check:
            return
        self._next_outdated_check = now + CERTIFICATE_CHECK_SECONDS
        self._outdated_checks = self._outdated_checks + 1 if self._is_writable() else 0
        if self._outdated_checks > 1:
            self.log.warning("brokers refuse the former certificates: sending the pending records anew")
            self._replace(delivery.producer)

    def _new_producer(
        self, overrides: Mapping[str, Any] = MappingProxyType({}), properties: Mapping[str, Any] | None = None
    ) -> Producer:
        """Return a producer whose requests are no larger than the topic's largest record: brokers refuse larger ones.

        `overrides` win over the configured properties, or over `properties` instead. Raises Retry if the client
        cannot be made, such as for lack of threads.
        """
        properties = properties or self._properties
        configured = int(parse_number(properties.get("batch.size")) or BATCH_BYTES)
        size = min(configured, self._limits.record_bytes)
        try:
            return new_producer(CHANNEL, {**properties, "batch.size": size, **overrides})
        except KafkaException as e:
            raise Retry(f"channel {self.name}: {self._explain(e)}") from e

    def _produce_batches(self, batch: Batch, rows: Sequence[int], delivery: DeliveryReports) -> dict[int, str]:
        """Produce the batch as records of many events each, in the format `arrow`; return rejected rows with reasons.

        `rows` has, for each row of `batch`, its row number in the put; the returned keys are such numbers. A row is
        rejected if a record of its event alone is larger than the topic accepts. Raises Retry.
        """
        rejected: dict[int, str] = {}
        config = self._config
        if time.monotonic() - self._batch_limit_set_at > REDUCED_SIZE_SECONDS:
            self._batch_limit = UNLIMITED
        max_events = min(config.batch_events, delivery.record_events)
        parts = list(batch.split(max_events, min(config.batch_bytes, self._batch_limit)))
        parts.reverse()
        start = 0
        while parts:
            part = parts.pop()
            (format, value), count = encode_batch(part, self._compression), len(part)
            limit = self._record_bytes
            if len(value) > limit and self._refresh_limits() and len(value) > (limit := self._record_bytes):
                if count > 1:  # incompressible data in a topic with a low limit
                    self._limit_batches(int(0.9 * part.nbytes * limit / len(value)))
                    parts += reversed(list(part.split((count + 1) // 2, self._batch_limit)))
                    continue
                rejected[rows[start]] = self._too_large_reason(len(value))
            else:
                headers: KafkaHeaders = [(FORMAT, format)]
                rows_of_record = rows[start : start + count]
                self._produce(value, None, self._partitions.default, headers, rows_of_record, delivery)
            start += count
        return rejected

    def _limit_batches(self, size: int) -> None:
        """Limit the batch of a record to `size` bytes, for `REDUCED_SIZE_SECONDS`."""
        self._batch_limit, self._batch_limit_set_at = size, time.monotonic()

    def _produce_events(self, batch: Batch, rows: Sequence[int], delivery: DeliveryReports) -> dict[int, str]:
        """Produce records of one event each; return rejected rows with reasons.

        Parameters as of `_produce_batches`.
        """
        config = self._config
        values: list[bytes] = (flumeevent.encode(batch) if config.format == "flume" else batch.bodies).to_pylist()
        keys = header_values(batch, KEY)
        headers = raw_headers(batch) if config.format == "raw" else None
        by_partition, rejected = self._partitions.assign(batch)
        if max(map(len, values), default=0) > self._record_bytes and self._refresh_limits():
            limit = self._record_bytes
            sizes = enumerate(map(len, values))
            rejected |= {index: self._too_large_reason(size) for index, size in sizes if size > limit}
        for partition, indexes in by_partition.items():
            if rejected:
                indexes = [index for index in indexes if index not in rejected]
            if headers is not None:
                for index in indexes:
                    key = keys[index] if keys else None
                    self._produce(values[index], key, partition, headers[index], (rows[index],), delivery)
                continue
            messages = [
                {"value": values[index], "callback": delivery.callback((rows[index],)), "row": rows[index]}
                for index in indexes
            ]
            if keys:
                for message, index in zip(messages, indexes, strict=True):
                    message["key"] = keys[index]
            self._produce_messages(messages, partition, delivery)
        return {rows[index]: reason for index, reason in rejected.items()}

    def _count_partitions(self) -> int:
        """Return the number of partitions by the brokers. Raises KafkaException."""
        topic = self._config.topic
        return len(self._producer.list_topics(topic, timeout=CONNECTIVITY_SECONDS).topics[topic].partitions)

    def _too_large_reason(self, size: int) -> str:
        limit = self._limits.record_bytes
        return f"an event of {size:,} bytes is larger than a record of the channel may be ({limit:,})"

    def _wait_for_reports(self, delivery: DeliveryReports) -> None:
        """Return once all records are reported, stored or not. Replaces a stalled client.

        Raises Retry if the agent stops, or if the client was closed or replaced and does not report.
        """
        started, reported, is_waiting = time.monotonic(), 0, False
        replaced = 0.0
        try:
            while not self._reports.wait(delivery, 0.2):
                if self.stopping.is_set():
                    raise Retry(
                        f"channel {self.name} did not store {delivery.events} events before the agent stopped"
                    )
                now = time.monotonic()
                if not is_waiting and now - started > STALL_SECONDS:
                    is_waiting = True
                    self._change_waiting_puts(+1, self._deletion_error())
                if (
                    not self._is_in_use(delivery.producer) or self._closed.is_set()
                ):  # reports of purged records follow
                    replaced = replaced or now
                    if now - replaced > PURGE_SECONDS:
                        raise self._abandoned_error(delivery)
                elif delivery.reported > reported:
                    reported = delivery.reported
                    self._stall_detector.record_progress()
                    self._outdated_checks = 0
                elif delivery.producer is self._outdated:
                    self._replace_if_refused(delivery)
                else:
                    self._replace_if_stalled(delivery, started)
        finally:
            if is_waiting:
                self._change_waiting_puts(-1)

    def _abandoned_error(self, delivery: DeliveryReports) -> Retry:
        """Return the exception of a put whose client was closed or replaced."""
        action = "closed" if self._closed.is_set() else "replaced"
        return Retry(f"channel {self.name}: its client was {action} while {delivery.events} events waited")

    def _deletion_error(self) -> str:
        """Return a sentence if puts wait for a deleted topic, or for brokers that refuse this client; else "".

        Connects to the brokers once in each outage.
        """
        if self._outage_since:
            return ""
        error = connection_error(self._properties, _NO_CONNECTION, ReportedErrors())
        if not isinstance(error, Unreachable):
            return self._outage_text(STALL_SECONDS, str(error))
        if self._topic_exists():
            return ""
        return DELETED.format(self._config.topic, self._config.bootstrap_servers)

    def _change_waiting_puts(self, change: int, text: str = "") -> None:
        """Add `change` to the number of waiting puts; report the first one of an outage.

        `text` is the report; if empty, it names the latest refusal or the lack of brokers.
        """
        with self._lock:
            self._waiting_puts += change
            if change > 0 and not self._outage_since:
                self._outage_since = time.monotonic() - STALL_SECONDS
                text = text or self._outage_text(STALL_SECONDS, self.refusal or "too few brokers are up or in sync")
                self.log.warning("%s", text)
                self.metrics.set_error(text)

    def _outage_text(self, seconds: float, reason: str) -> str:
        return (
            f"no acknowledgement from Kafka at {self._config.bootstrap_servers} for {seconds:.0f} s: {reason}; puts "
            "wait, nothing is lost"
        )

    def _record_success(self) -> None:
        """Record the acknowledgement of a put; report the end of an outage once no put waits."""
        self._refusal = ""
        self._stall_detector.record_progress()
        if self._outage_since:
            with self._lock:
                if self._outage_since and not self._waiting_puts:
                    self.log.info("Kafka acknowledges again after %.0f s", time.monotonic() - self._outage_since)
                    self.metrics.set_error("")
                    self._outage_since = 0.0

    def _produce(
        self,
        value: bytes,
        key: str | None,
        partition: int,
        headers: KafkaHeaders,
        rows: Sequence[int],
        delivery: DeliveryReports,
    ) -> None:
        """Produce one record, with these rows of the put. Blocks while the client's queue is full.

        A record that the client refuses counts as failed. Raises Retry if the client was replaced or the agent stops.
        """
        delivery.expect(1)
        topic, report, waiting_since = self._config.topic, delivery.callback(rows), 0.0
        while True:
            self._raise_if_replaced(delivery)
            try:
                delivery.producer.produce(topic, value, key, partition, headers=headers, on_delivery=report)
                if waiting_since:
                    self._stall_detector.record_progress()
                return
            except BufferError:
                waiting_since = waiting_since or time.monotonic()
                self._wait_for_space(delivery, waiting_since)
            except KafkaException as e:
                if e.args[0].code() in RECORD_REFUSALS:
                    delivery.expect(-1)
                    delivery.record_refusal(rows, e.args[0])
                    return
                self._replace_if_fatal(delivery.producer, e)
                raise self._retry_of(e.args[0]) from e

    def _produce_messages(self, messages: list[dict[str, Any]], partition: int, delivery: DeliveryReports) -> None:
        """Produce several records in one call, which supports no record headers. Blocks while the queue is full.

        Failures are as of `_produce`.
        """
        waiting_since = 0.0
        while messages:
            self._raise_if_replaced(delivery)
            delivery.expect(len(messages))
            try:
                delivery.producer.produce_batch(self._config.topic, messages, partition)
            except KafkaException as e:
                self._replace_if_fatal(delivery.producer, e)
                raise self._retry_of(e.args[0]) from e
            failed = [message for message in messages if "_error" in message]
            delivery.expect(-len(failed))
            waiting = []
            for message in failed:
                error = message.pop("_error")
                if error.code() in RECORD_REFUSALS:
                    delivery.record_refusal((message["row"],), error)
                elif error.code() != KafkaError._QUEUE_FULL:
                    raise Retry(f"channel {self.name}: {error.str()}")
                else:
                    waiting.append(message)
            if waiting_since and len(failed) < len(messages):
                self._stall_detector.record_progress()
            messages = waiting
            if messages:
                waiting_since = waiting_since or time.monotonic()
                self._wait_for_space(delivery, waiting_since)

    def _raise_if_replaced(self, delivery: DeliveryReports) -> None:
        """Raise Retry if the put's producer was replaced.

        The source repeats a failed put as a whole. With a second client, the end of the put would be stored twice.
        """
        if not self._is_in_use(delivery.producer):
            raise self._abandoned_error(delivery)

    def _is_in_use(self, producer: Producer) -> bool:
        """Return True if the producer was not replaced."""
        return producer is self._producer or any(producer is other for other, _ in self._other_producers)

    def _wait_for_space(self, delivery: DeliveryReports, waiting_since: float) -> None:
        """Wait a moment while the client's queue is full, and replace a stalled client.

        Raises Retry if the agent stops.
        """
        if self.stopping.is_set():
            raise Retry(f"channel {self.name} is full and the agent is stopping")
        with contextlib.suppress(*FATAL_EXCEPTIONS):  # reports make space
            delivery.producer.poll(0.005)
        self._replace_if_stalled(delivery, waiting_since)

    def _poll_producers(self) -> None:
        """Poll all producers for errors until `close`, and drop replaced ones that are idle.

        Puts poll their own producer for delivery reports, one of them for all of the same producer.
        """
        while not self._closed.wait(0.02 if self._other_producers else IDLE_POLL_SECONDS):
            self._renew_producer()
            with contextlib.suppress(*FATAL_EXCEPTIONS):  # delivery reports fail, and the put replaces the producer
                self._producer.poll(0)
            for producer, until in self._other_producers:
                with contextlib.suppress(*FATAL_EXCEPTIONS):
                    producer.poll(0)
                if not len(producer) and time.monotonic() > until:
                    self._drop_producer(producer, None)

    def _drop_producer(self, producer: Producer, until: float | None) -> None:
        """Drop a producer other than the current one.

        It is dropped once it is idle, from the time `until` (`time.monotonic`) on; None drops it at once.
        """
        with self._lock:
            self._other_producers = tuple(
                (other, until if other is producer and until is not None else former)
                for other, former in self._other_producers
                if other is not producer or until is not None
            )

    def _replace_if_fatal(self, used: Producer, error: KafkaException) -> None:
        """Replace a producer that can no longer be used after this error."""
        if is_fatal(error):
            self._replace(used)

    def _replace_if_stalled(self, delivery: DeliveryReports, waiting_since: float) -> None:
        """Replace a client that has stalled, by `StallDetector.stalled_seconds`, unless reports have come meanwhile.

        Records that were stored without an acknowledgement are duplicated then.
        """
        reported = delivery.reported
        if (seconds := self._stall_detector.stalled_seconds(waiting_since)) and delivery.reported == reported:
            self.log.warning(
                "Kafka's client has stalled: no acknowledgement for %.0f s, although the brokers accept records; "
                "replacing the client and retrying pending records",
                seconds,
            )
            with self._lock:
                self._outage_since = self._outage_since or time.monotonic() - seconds
                self.metrics.set_error(self._outage_text(seconds, "its client sent nothing, and has been replaced"))
            self._replace(delivery.producer)

    def _replace(self, old: Producer) -> None:
        """Replace a producer by a new one, unless it was replaced already or the channel is closed. Raises Retry."""
        # After a fatal error an idempotent producer refuses all work for ever, and all its puts fail. One of them
        # makes the new producer, which others may already use.
        with self._lock:
            if not self._is_in_use(old) or self._closed.is_set():
                return
            if old is self._producer:
                self._producer = self._new_producer()
            self._other_producers = tuple(other for other in self._other_producers if other[0] is not old)
        # On another thread, as the purge takes a while: puts use the new producer meanwhile.
        thread = threading.Thread(
            target=self._retire, args=(old, RETIRED_SECONDS), name=f"{self.name}-retired", daemon=True
        )
        try:
            start_thread(thread)
        except RuntimeError:  # the system lacks threads
            self._retire(old, PURGE_SECONDS)

    @staticmethod
    def _retire(old: Producer, timeout: float) -> None:
        """Purge the records of a replaced producer for at most `timeout` seconds, so that puts do not wait for them.

        Concurrent puts may still add records to the producer for `PURGE_SECONDS`.
        """
        started = time.monotonic()
        while (seconds := time.monotonic() - started) < timeout and (len(old) or seconds < PURGE_SECONDS):
            old.purge()
            with contextlib.suppress(*FATAL_EXCEPTIONS):
                old.flush(0.2)
            time.sleep(0.05)

    @property
    def _record_bytes(self) -> int:
        """Largest size of a record's value, in bytes. The rest of the limit is for key, headers and framing."""
        return self._limits.record_bytes - 4096
