"""The Kafka source."""

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
from flafka.plugins.kafka.admin import NO_BROKERS, missing, probed
from flafka.plugins.kafka.consumer import Fenced
from flafka.plugins.kafka.metrics import COMMIT_TIMER, GET_TIMER
from flafka.plugins.kafka.properties import client_properties
from flafka.plugins.shared import flumeevent
from flafka.sources.kafka.config import KafkaSourceConfig
from flafka.sources.kafka.consumer import ConsumerPosition, Place, TopicConsumer
from flafka.sources.pace import STOP_CHECK_SECONDS

MAX_BYTES = 1 << 20
"""Bytes of records gathered for one batch, so that it still fits into one record of the channel."""
STATUS = "kafka.status"
"""Header `Invalid` of a record that is not the Flume event it should be."""


class KafkaSource(Source[KafkaSourceConfig]):
    """Reads topics at least once: offsets are committed only after every required channel has stored the events.

    Offsets are committed every half second: after a crash, what was stored since the last commit is read again.
    """

    type_name = "kafka"
    aliases = ("org.apache.flume.source.kafka.KafkaSource",)
    compatibility_notes = (
        CompatibilityNote(
            flume="the brokers may come from ZooKeeper, which `zookeeperConnect` names",
            here="they are looked for on ZooKeeper's hosts at port 9092, with a warning; "
            "`kafka.bootstrap.servers` names them",
            option="zookeeperConnect",
        ),
        CompatibilityNote(
            flume="a record that is no Flume event stops the source for ever",
            here="it is kept, with the header `kafka.status = Invalid`",
            option="useFlumeEventFormat",
        ),
    )
    in_flight = 4
    declared_metrics = (
        GET_TIMER,
        COMMIT_TIMER,
        Metric("KafkaEmptyCount", "counter", "attempts", "Attempts to read that found no records."),
        Metric(
            *("KafkaOffsetLostCount", "counter", "partitions"),
            "Times that a partition was read from its earliest record because the committed offset was gone.",
            "known",
        ),
    )

    def __init__(self, config: KafkaSourceConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._consumer: TopicConsumer | None = None
        self._yielded: deque[dict[Place, ConsumerPosition]] = deque()
        self._fenced = 0
        """Number of times that another agent has joined the group under this one's name."""

    def open(self) -> None:
        """Join the group. Raises Retry while brokers are away."""
        config = self.config
        if not config.bootstrap_servers:
            raise FlafkaError(f"source {self.name}: {NO_BROKERS}")
        for trouble in missing(self._client, config, self._names()):
            raise Retry(trouble)
        self._yielded.clear()
        member = f"{socket.gethostname()}.{self.member}.{config.topics_regex or '.'.join(config.names)}"[:230]
        member += f".{self._fenced}" if self._fenced else ""
        properties = {
            "topic.metadata.refresh.interval.ms": 30_000,  # partitions that are added later are found by then
            **self._client(),
            "group.id": config.group_id,
            "group.instance.id": re.sub(r"[^\w.-]", "_", member, flags=re.ASCII)[:240],
        }
        matches = config.reads if config.topics_regex else None
        self._consumer = TopicConsumer(properties, self._names(), config.begins, self.metrics, self.log, matches)

    def close(self) -> None:
        """Commit what is stored, and stop."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def check_connectivity(self) -> Iterator[str]:
        """Whether brokers answer, and the topics are there."""
        yield from probed(self._client, self.config, self._names())

    def _names(self) -> list[str]:
        return [] if self.config.topics_regex else self.config.names

    def batches(self) -> Iterator[Batch]:
        """What the topics hold, and what comes into them."""
        consumer, config = self._consumer, self.config
        assert consumer is not None
        while not self.stopping.is_set():
            try:
                messages, positions = consumer.take(
                    config.batch_size, MAX_BYTES, config.batch_duration / 1000, STOP_CHECK_SECONDS
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
        """Let the positions behind it be committed."""
        positions = self._yielded.popleft()
        if self._consumer is not None:
            self._consumer.stored(positions)

    def _batch(self, messages: list[Message]) -> Batch:
        """Headers as Flume's source sets them; those of the event itself win, but for the key and those asked for."""
        config = self.config
        values = [message.value() or b"" for message in messages]
        batch = (
            self._events(values)
            if config.use_flume_event_format
            else Batch.of_columns(pa.array(values, pa.binary()), {})
        )
        batch = batch.with_header("timestamp", str(int(time.time() * 1000)), keep=True)
        if config.set_topic_header:
            batch = batch.with_header(config.topic_header, [message.topic() for message in messages], keep=True)
        batch = batch.with_header("partition", [str(message.partition()) for message in messages], keep=True)
        batch = batch.with_header("offset", [str(message.offset()) for message in messages], keep=True)
        keys = [message.key() for message in messages]
        if any(key is not None for key in keys):
            batch = _overlaid(batch, "key", [None if key is None else _text(key) for key in keys])
        if config.timestamp_header:
            times = [str(message.timestamp()[1]) for message in messages]
            batch = batch.with_header(config.timestamp_header, times)
        if config.headers:
            named: list[dict[str, Any]] = [dict(cast("Any", message.headers() or ())) for message in messages]
            for name, record_header in config.headers.items():
                found = [_text(value) if (value := one.get(record_header)) is not None else None for one in named]
                batch = _overlaid(batch, name, found)
        return batch

    def _events(self, values: list[bytes]) -> Batch:
        batch = flumeevent.decode(values)
        if batch is not None:
            return batch
        events, invalid = [], 0
        for value in values:
            try:
                events.append(flumeevent.decode_event(value))
            except ValueError as e:
                invalid += 1
                events.append(Event(value, {STATUS: "Invalid"}))
                problem = str(e)
        if invalid:
            self.metrics.add("EventReadFail", invalid)
            self.log.warning(
                "%d records are not Flume events and are marked %s = Invalid: %s", invalid, STATUS, problem
            )
        return Batch.of(events)

    def _client(self) -> dict[str, Any]:
        return {**self.config.client(self.name), **client_properties(self.config.consumer)}


def _overlaid(batch: Batch, name: str, values: list[str | None]) -> Batch:
    """With these values, where they are not None."""
    if None not in values:
        return batch.with_header(name, values)
    before = batch.header(name).dictionary_decode()
    return batch.with_header(name, pc.coalesce(pa.array(values, pa.string()), before))


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode(errors="replace")
