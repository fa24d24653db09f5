"""Source `kafka`: reads topics as a member of a consumer group, and commits stored offsets."""

from __future__ import annotations

import re
import socket
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Message

from flafka.plugins import Batch, CompatibilityNote, Event, FlafkaError, Metric, Retry, Source
from flafka.plugins.kafka.admin import NO_BROKERS, connectivity_errors, connectivity_problems
from flafka.plugins.kafka.consumer import Fenced
from flafka.plugins.kafka.metrics import COMMIT_TIMER, GET_TIMER
from flafka.plugins.kafka.properties import client_properties
from flafka.plugins.kafka.renewal import ClientRenewal
from flafka.plugins.wire import flumeevent
from flafka.sources.batching import STOP_CHECK_SECONDS
from flafka.sources.kafka.config import KafkaSourceConfig
from flafka.sources.kafka.consumer import AssignedOffset, PartitionKey, TopicConsumer, UncommittedOffset

MAX_BATCH_BYTES = 1 << 20
"""Maximum size of the records of a batch, in bytes, so that the batch fits into one record of the channel."""
STATUS_HEADER = "kafka.status"
"""Header that marks a record that is not a valid Flume event as `Invalid`."""


class KafkaSource(Source[KafkaSourceConfig]):
    """Read topics at least once: offsets are committed only after every required channel has stored the events.

    Offsets are committed every half second. After a crash, records stored since the last commit are read again.
    """

    type_name = "kafka"
    aliases = ("org.apache.flume.source.kafka.KafkaSource",)
    compatibility_notes = (
        CompatibilityNote(
            flume="the brokers may come from ZooKeeper, which `zookeeperConnect` names",
            here="ZooKeeper's hosts at port 9092 are used as brokers, with a warning; "
            "`kafka.bootstrap.servers` names them",
            option="zookeeperConnect",
        ),
        CompatibilityNote(
            flume="a record that is not a Flume event stops the source for ever",
            here="it becomes an event with the header `kafka.status = Invalid`",
            option="useFlumeEventFormat",
        ),
    )
    in_flight = 4
    declared_metrics = (
        GET_TIMER,
        COMMIT_TIMER,
        Metric("KafkaEmptyCount", "counter", "attempts", "Attempts to read that returned no records."),
        Metric(
            *("KafkaOffsetLostCount", "counter", "partitions"),
            "Times that a partition was read from its earliest record as its committed offset no longer existed.",
            "known",
        ),
    )

    def __init__(self, config: KafkaSourceConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._consumer: TopicConsumer | None = None
        self._yielded: deque[dict[PartitionKey, AssignedOffset]] = deque()
        self._uncommitted: dict[PartitionKey, UncommittedOffset] = {}
        self._fenced = 0
        """Number of times that this member was fenced: another agent joined the group with the same instance id."""

    def open(self) -> None:
        """Join the consumer group. Raises Retry while brokers or topics are unavailable.

        Raises FlafkaError without configured brokers. The assignment of partitions arrives later.
        """
        config = self.config
        if not config.bootstrap_servers:
            raise FlafkaError(f"source {self.name}: {NO_BROKERS}")
        for text in connectivity_errors(self._client, config, self._topic_names(), "Read"):
            raise Retry(text)
        self._yielded.clear()
        member = f"{socket.gethostname()}.{self.member}.{config.topics_regex or '.'.join(config.topic_names)}"[:230]
        member += f".{self._fenced}" if self._fenced else ""

        def properties() -> dict[str, Any]:
            return {
                "enable.partition.eof": False,
                "topic.metadata.refresh.interval.ms": 30_000,  # limits the delay until new partitions are read
                **self._client(),
                "group.id": config.group_id,
                "group.instance.id": re.sub(r"[^\w.-]", "_", member, flags=re.ASCII)[:240],
            }

        matches = config.consumes if config.topics_regex else None
        renewal = ClientRenewal(config.consumer, properties, self.log)
        self._consumer = TopicConsumer(
            *(properties(), self._topic_names(), config.offset_reset, self.metrics, self.log, matches),
            *(self._uncommitted, renewal),
        )

    def close(self) -> None:
        """Commit the offsets of stored records, and close the consumer. Idempotent."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def check_connectivity(self) -> Iterator[str]:
        """Yield every reason why brokers or topics are unavailable."""
        yield from connectivity_problems(self._client, self.config, self._topic_names(), "Read")

    def _topic_names(self) -> list[str]:
        """Return the topics of `kafka.topics`; empty with `kafka.topics.regex`."""
        return [] if self.config.topics_regex else self.config.topic_names

    def batches(self) -> Iterator[Batch]:
        """Yield batches of records, present and new ones, until the agent stops.

        Raises Fenced if another process has the same instance ID; the next `open` joins with a new one. Raises any
        other error that ended the consumer.
        """
        consumer, config = self._consumer, self.config
        assert consumer is not None
        while not self.stopping.is_set():
            try:
                messages, positions = consumer.take(
                    config.batch_size, MAX_BATCH_BYTES, config.batch_duration / 1000, STOP_CHECK_SECONDS
                )
            except Fenced:
                self._fenced += 1
                raise
            if not messages:
                self.metrics.add("KafkaEmptyCount")
            else:
                self._yielded.append(positions)
                yield self._batch(messages)

    def stored(self, batch: Batch) -> None:
        """Commit the offsets behind the earliest unstored batch within half a second. Does not block."""
        positions = self._yielded.popleft()
        if self._consumer is not None:
            self._consumer.stored(positions)

    def _batch(self, messages: list[Message]) -> Batch:
        """Return one event per record, in order, with Flume's headers.

        Headers of the event itself take precedence over `timestamp`, topic, `partition` and `offset`. The record's
        key and the configured headers overwrite them.
        """
        config = self.config
        values = [message.value() or b"" for message in messages]
        batch = (
            self._events(values)
            if config.use_flume_event_format
            else Batch.of_columns(pa.array(values, pa.binary()), {})
        )
        batch = batch.with_header("timestamp", str(int(time.time() * 1000)), preserve_existing=True)
        if config.set_topic_header:
            batch = batch.with_header(
                config.topic_header, [message.topic() for message in messages], preserve_existing=True
            )
        batch = batch.with_header(
            "partition", [str(message.partition()) for message in messages], preserve_existing=True
        )
        batch = batch.with_header("offset", [str(message.offset()) for message in messages], preserve_existing=True)
        keys = [message.key() for message in messages]
        if any(key is not None for key in keys):
            batch = _overlay_header(batch, "key", [None if key is None else _text(key) for key in keys])
        if config.timestamp_header:
            times = [str(message.timestamp()[1]) for message in messages]
            batch = batch.with_header(config.timestamp_header, times)
        if config.headers:
            record_headers: list[dict[str, Any]] = [
                dict(cast("Any", message.headers() or ())) for message in messages
            ]
            for name, record_header in config.headers.items():
                values_of_header = [
                    None if (value := headers.get(record_header)) is None else _text(value)
                    for headers in record_headers
                ]
                batch = _overlay_header(batch, name, values_of_header)
        return batch

    def _events(self, values: list[bytes]) -> Batch:
        """Decode Flume's Avro events; any other value becomes an Invalid event, which is counted and logged."""
        batch = flumeevent.decode(values)
        if batch is not None:
            return batch
        events, invalid = [], 0
        for value in values:
            try:
                events.append(flumeevent.decode_event(value))
            except ValueError as e:
                invalid += 1
                events.append(Event(value, {STATUS_HEADER: "Invalid"}))
                problem = str(e)
        if invalid:
            self.metrics.add("EventReadFail", invalid)
            self.log.warning(
                "%d records are not Flume events and are marked %s = Invalid: %s", invalid, STATUS_HEADER, problem
            )
        return Batch.of(events)

    def _client(self) -> dict[str, Any]:
        """Return the properties of the Kafka client; `kafka.consumer.*` overrides the others."""
        return {**self.config.client(self.name), **client_properties(self.config.consumer)}


def _overlay_header(batch: Batch, name: str, values: list[str | None]) -> Batch:
    """Return the batch with these values of a header; an event with None keeps its present value."""
    if None not in values:
        return batch.with_header(name, values)
    before = batch.header(name).dictionary_decode()
    return batch.with_header(name, pc.coalesce(pa.array(values, pa.string()), before))


def _text(value: bytes | str) -> str:
    """Return a key or header as text, decoded as UTF-8 with replacement of invalid bytes."""
    return value if isinstance(value, str) else value.decode(errors="replace")
