"""The producing half of the Kafka channel."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from channels.kafka.config import KafkaChannelConfig
from channels.kafka.delivery import Delivery
from channels.kafka.partitions import Partitions
from channels.kafka.records import ARROW, FORMAT, KEY, KafkaHeaders, encode, raw_headers, texts_of
from channels.kafka.standstill import Standstill
from plugins import Batch, Component, EventId, Rejected, Retry
from plugins.shared import flumeevent
from plugins.shared.kafkaclient import BROKEN, CONNECT_SECONDS, PRODUCER, failure, is_broken, refusing
from plugins.shared.polling import STANDING_SECONDS

MAX_RECORD_BYTES = 8 << 20
STALL_SECONDS = 5.0
PURGED_SECONDS = 10.0
"""How long a client that is replaced may take to give up what it has,"""
RETIRED_SECONDS = 300.0
"""and how long it is asked to."""
REFUSED_SECONDS = 40.0
"""The client says again every 30 seconds that it is refused."""
AT_ONCE: Mapping[str, Any] = {
    "linger.ms": 0,
    "sticky.partitioning.linger.ms": 10,  # else 0 as well: each event without a key would choose a partition anew
}
"""A put is sent at once, as whoever puts has gathered already. What is put while five requests are on their way to a
broker goes together."""
_LINGER = {"linger.ms", "queue.buffering.max.ms"}
"""What somebody sets who wants it otherwise."""
_WAITS = {
    **dict.fromkeys(_LINGER, 0),
    "socket.timeout.ms": 60_000,
    "reconnect.backoff.max.ms": 10_000,
    "socket.connection.setup.timeout.ms": 30_000,
    "request.timeout.ms": 30_000,
    "retry.backoff.max.ms": 1_000,
}
"""What a client may wait for before it sends, in milliseconds, with its defaults."""
_COMPRESSION = ("compression.type", "compression.codec")

_WRONG_CLOCK = (
    ". The clock of this host is further from the brokers' than the topic allows: set it right, or set "
    "message.timestamp.type=LogAppendTime on the topic"
)


class ChannelProducer:
    """Puts batches into the topic, for several threads at once: connected from the beginning to `close`.

    `limit` is the size of the largest record that the topic takes, in bytes; `writable` asks the brokers, by another
    client, whether they could take one now, in each partition.
    """

    def __init__(
        self,
        channel: Component[KafkaChannelConfig],
        properties: Mapping[str, Any],
        partitions: int,
        limit: int,
        writable: Callable[[], bool],
    ) -> None:
        self.name, self._config, self.log = channel.name, channel.config, channel.log
        self.metrics, self.stopping = channel.metrics, channel.stopping
        self._partitions = Partitions(self.name, self._config, partitions, self._count_partitions)
        self._properties: dict[str, Any] = {
            **PRODUCER,
            **({} if properties.keys() & _LINGER else AT_ONCE),
            "message.timeout.ms": 0,  # never give up: a source waits, and its sender with it
            "error_cb": refusing(self._refused),
            **properties,
        }
        self._compression = next((properties[name].lower() for name in _COMPRESSION if name in properties), None)
        self._refusal, self._refused_at = "", -REFUSED_SECONDS
        self._limit = limit
        self._fitting = 2**63
        """Bytes of a batch that become a record which the topic takes, as far as known from those that did not."""
        self._lock = threading.Lock()
        self._stalled, self._trouble = 0, 0.0
        """Puts that wait for long, and since when there are such that nothing was acknowledged after."""
        waits = (_number(properties.get(name, default)) - default for name, default in _WAITS.items())
        self._standstill = Standstill(writable, sum(max(0.0, wait) / 1000 for wait in waits), self.stopping)
        self._closed = threading.Event()
        self._producer = Producer(self._properties)
        self._poller = threading.Thread(target=self._poll, name=f"{self.name}-producer", daemon=True)
        self._poller.start()

    @property
    def refusal(self) -> str:
        """Why brokers refuse this client, where they have done so lately."""
        return self._refusal if time.monotonic() - self._refused_at < REFUSED_SECONDS else ""

    def _refused(self, why: str) -> None:
        self._refusal, self._refused_at = why, time.monotonic()

    def close(self) -> None:
        """Stop; what is still under way is given up."""
        self._closed.set()
        self._poller.join(STANDING_SECONDS)
        self._producer.purge()
        with contextlib.suppress(*BROKEN):
            self._producer.flush(1)

    def put(self, batch: Batch, placed: Callable[[], None]) -> None:
        """Return when every in-sync replica has the batch; `placed` is called as soon as what is put later comes
        behind it. Rejected names rows that no record can hold.
        """
        self.metrics.add("EventPutAttemptCount", len(batch))
        delivery = Delivery(self._producer, len(batch))
        put = self._put_batches if self._config.format == "arrow" else self._put_events
        rejected = put(batch, delivery)
        placed()
        with self.metrics.timed("KafkaEventSendTimer"):
            self._await(delivery)
        if delivery.error is not None:
            self._replace(delivery.producer)
            if delivery.error.code() in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
                raise self._given_up(delivery)
            wrong = _WRONG_CLOCK if delivery.error.code() == KafkaError.INVALID_TIMESTAMP else ""
            raise failure(delivery.error, f"channel {self.name}: {delivery.error.str()}{wrong}")
        if delivery.reported:
            self._stored()
        self.metrics.add("EventPutSuccessCount", len(batch) - len(rejected))
        if rejected:
            raise Rejected({EventId("", -1, -1, row): reason for row, reason in rejected.items()})

    def _put_batches(self, batch: Batch, delivery: Delivery) -> dict[int, str]:
        """Many events a record."""
        rejected: dict[int, str] = {}
        config, most = self._config, self._record_bytes
        pieces = list(batch.split(config.batch_events, min(config.batch_bytes, self._fitting)))
        pieces.reverse()
        start = 0
        while pieces:
            piece = pieces.pop()
            value, rows = encode(piece, self._compression), len(piece)
            if len(value) > most and rows > 1:  # what does not compress, in a topic that takes less
                self._fitting = int(0.9 * piece.nbytes * most / len(value))
                pieces += reversed(list(piece.split((rows + 1) // 2, self._fitting)))
                continue
            if len(value) > most:
                rejected[start] = self._too_large(len(value))
            else:
                self._produce(value, None, self._partitions.default, [(FORMAT, ARROW)], delivery)
            start += rows
        return rejected

    def _put_events(self, batch: Batch, delivery: Delivery) -> dict[int, str]:
        """One event a record."""
        config, most = self._config, self._record_bytes
        values: list[bytes] = (flumeevent.encode(batch) if config.format == "flume" else batch.bodies).to_pylist()
        keys = texts_of(batch, KEY)
        headers = raw_headers(batch) if config.format == "raw" else None
        by_partition, rejected = self._partitions.of(batch)
        rejected |= {row: self._too_large(len(value)) for row, value in enumerate(values) if len(value) > most}
        for partition, rows in by_partition.items():
            if rejected:
                rows = [row for row in rows if row not in rejected]
            if headers is not None:
                for row in rows:
                    self._produce(values[row], keys[row] if keys else None, partition, headers[row], delivery)
            elif keys:
                messages = [{"value": values[row], "key": keys[row]} for row in rows]
                self._produce_batch(messages, partition, delivery)
            else:
                self._produce_batch([{"value": values[row]} for row in rows], partition, delivery)
        return rejected

    def _count_partitions(self) -> int:
        topic = self._config.topic
        return len(self._producer.list_topics(topic, timeout=CONNECT_SECONDS).topics[topic].partitions)

    def _too_large(self, size: int) -> str:
        return f"an event of {size:,} bytes is larger than a record of the channel may be ({self._limit:,})"

    def _await(self, delivery: Delivery) -> None:
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
                    self._stall(+1)
                if delivery.producer is not self._producer or self._closed.is_set():  # it reports what it gives up
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

    def _given_up(self, delivery: Delivery) -> Retry:
        what = "closed" if self._closed.is_set() else "replaced"
        return Retry(f"channel {self.name}: its client was {what} while {delivery.events} events waited")

    def _stall(self, change: int) -> None:
        """Tell when puts begin to wait for long: several are under way at once."""
        with self._lock:
            self._stalled += change
            if change > 0 and not self._trouble:
                self._trouble = time.monotonic() - STALL_SECONDS
                text = self._waits(STALL_SECONDS, self.refusal or "too few brokers are up or in sync")
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
        self, value: bytes, key: str | None, partition: int, headers: KafkaHeaders, delivery: Delivery
    ) -> None:
        delivery.expect(1)
        topic, began = self._config.topic, 0.0
        while True:
            self._refuse_old(delivery)
            try:
                delivery.producer.produce(topic, value, key, partition, headers=headers, on_delivery=delivery.report)
                if began:
                    self._standstill.moved()
                return
            except BufferError:
                began = began or time.monotonic()
                self._wait_for_room(delivery, began)
            except KafkaException as e:
                self._replace_broken(delivery.producer, e)
                raise Retry(f"channel {self.name}: {e.args[0].str()}") from e

    def _produce_batch(self, messages: list[dict[str, Any]], partition: int, delivery: Delivery) -> None:
        """Several records in one call, which knows no record headers."""
        began = 0.0
        while messages:
            self._refuse_old(delivery)
            delivery.expect(len(messages))
            try:
                delivery.producer.produce_batch(self._config.topic, messages, partition, on_delivery=delivery.report)
            except KafkaException as e:
                self._replace_broken(delivery.producer, e)
                raise Retry(f"channel {self.name}: {e.args[0].str()}") from e
            failed = [message for message in messages if "_error" in message]
            delivery.expect(-len(failed))
            for message in failed:
                error = message.pop("_error")
                if error.code() != KafkaError._QUEUE_FULL:
                    raise Retry(f"channel {self.name}: {error.str()}")
            if began and len(failed) < len(messages):
                self._standstill.moved()
            messages = failed
            if messages:
                began = began or time.monotonic()
                self._wait_for_room(delivery, began)

    def _refuse_old(self, delivery: Delivery) -> None:
        """One put uses one client: the rest of it in another one would be in the topic once more than its head."""
        if delivery.producer is not self._producer:
            raise self._given_up(delivery)

    def _wait_for_room(self, delivery: Delivery, began: float) -> None:
        if self.stopping.wait(0.005):
            raise Retry(f"channel {self.name} is full and the agent is stopping")
        self._replace_if_stuck(delivery, began)

    def _poll(self) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(*BROKEN):  # whoever waits is told by a report, and has the producer replaced
                self._producer.poll(0.2)

    def _replace_broken(self, used: Producer, error: KafkaException) -> None:
        if is_broken(error):
            self._replace(used)

    def _replace_if_stuck(self, delivery: Delivery, began: float) -> None:
        """What the brokers had stored of what waits, without an answer that came, is in the topic twice then."""
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
            if self._producer is not old or self._closed.is_set():
                return
            self._producer = Producer(self._properties)
        # On a thread of its own, as that takes a while: whoever puts goes on with the new one.
        threading.Thread(target=self._retire, args=(old,), name=f"{self.name}-retired", daemon=True).start()

    @staticmethod
    def _retire(old: Producer) -> None:
        """Tell those who wait for what it has that it gives that up, and those who were just about to put into it."""
        began = time.monotonic()
        while (seconds := time.monotonic() - began) < RETIRED_SECONDS and (len(old) or seconds < PURGED_SECONDS):
            old.purge()
            with contextlib.suppress(*BROKEN):
                old.flush(0.2)
            time.sleep(0.05)

    @property
    def _record_bytes(self) -> int:
        """What the value of a record may take of `_limit`; the rest is for its key, headers and framing."""
        return self._limit - 4096


def _number(text: object) -> float:
    """As the client reads one of its properties: 0x10 is 16."""
    written = str(text).lower()
    return int(written, 16) if "x" in written else float(written)
