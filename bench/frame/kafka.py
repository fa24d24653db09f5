"""Topics that contestants fill: their end offsets, new records, and verification of contents."""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from bench.frame import CPU, RATE, Figures
from flafka.agent.services.running import until
from flafka.plugins import Assignment, Batch, Components, Generation, Record, partitions
from flafka.plugins.kafka.topic import KafkaBackedChannel

PARTITIONS = 6
LATEST: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # confluent-kafka has no types for it
CHANNEL: type[KafkaBackedChannel] = Components().get("channel", "kafka")  # type: ignore[assignment]  # backed by Kafka


class Topic:
    """New topic, by default with three replicas and min ISR 2."""

    prefix = ""
    """Prefix of the names of all topics, for runs that share a cluster."""

    def __init__(
        self, servers: str, name: str, partitions: int = PARTITIONS, *, replicas: int = 3, in_sync: int = 2
    ) -> None:
        self.servers, self.name = servers, self.prefix + name
        self._admin = AdminClient({"bootstrap.servers": servers})
        settings = {"min.insync.replicas": str(in_sync)}
        self._admin.create_topics([NewTopic(self.name, partitions, replicas, config=settings)])[self.name].result(60)
        self._seen = dict.fromkeys(range(partitions), 0)
        config, _ = CHANNEL.config_class.parse({})
        assert config is not None
        self._decode = CHANNEL(config).decode
        until(self._has_leaders, f"leaders of {self.name}")

    def _has_leaders(self) -> bool:
        """Return True if every partition has a leader, as it has soon after the creation of the topic."""
        try:
            return bool(self.ends())
        except KafkaException:
            return False

    def ends(self) -> dict[int, int]:
        """Return the high watermark of each partition: all in-sync replicas have the records below it."""
        requested = {TopicPartition(self.name, p): LATEST for p in self._seen}
        return {
            partition.partition: future.result(30).offset
            for partition, future in self._admin.list_offsets(requested).items()
        }

    @contextlib.contextmanager
    def group_progress(self, group: str) -> Iterator[Callable[[], bool]]:
        """Yield a function that returns True once a consumer group has committed the current end offsets."""
        ends, settings = self.ends(), {"bootstrap.servers": self.servers, "group.id": group}
        consumer = Consumer(settings)
        partitions_of_topic = [TopicPartition(self.name, partition) for partition in ends]

        def committed() -> bool:
            try:
                return all(
                    partition.offset >= ends[partition.partition]
                    for partition in consumer.committed(partitions_of_topic, 30)
                )
            except KafkaException:  # a new cluster is still creating the offsets topic
                return False

        try:
            yield committed
        finally:
            consumer.close()

    def records(self) -> int:
        """Return the number of records that `read` has not yielded yet."""
        return sum(self.ends().values()) - sum(self._seen.values())

    def total_records(self) -> int:
        """Return the sum of the high watermarks of all partitions: the number of records of a new topic."""
        return sum(self.ends().values())

    def read(self) -> Iterator[Message]:
        """Yield the records that were not read before, up to the present ends, partition by partition, by offset.

        Raises AssertionError if a partition cannot be read to its end within 10 s a call.
        """
        settings = {"bootstrap.servers": self.servers, "group.id": "bench", "enable.auto.commit": False}
        consumer = Consumer({**settings, "fetch.message.max.bytes": 1 << 22, "queued.max.messages.kbytes": 1 << 17})
        try:
            for partition, end in self.ends().items():
                start = self._seen[partition]
                self._seen[partition] = end
                consumer.assign([TopicPartition(self.name, partition, start or OFFSET_BEGINNING)])
                while start < end:
                    messages = consumer.consume(min(10_000, end - start), 10)  # blocks until as many have arrived
                    assert messages, f"{self.name}: partition {partition} was not read to its end"
                    for message in messages:
                        assert message.error() is None, message.error()
                        start = (message.offset() or 0) + 1
                        yield message
        finally:
            consumer.close()

    def decoded(self, messages: Sequence[Message]) -> pa.Array:
        """Return the bodies of the events in these records, in any format of the channel."""
        return pa.concat_arrays([batch.bodies for batch in self._batches(iter(messages))])

    def values(self) -> pa.Array:
        """Return the values of the records that were not read before."""
        return pa.array([message.value() for message in self.read()], pa.binary())

    def batches(self) -> Iterator[Batch]:
        """Yield the batches of the records that were not read before, of Flafka's or Flume's Kafka channel."""
        return self._batches(self.read())

    def _batches(self, all: Iterator[Message]) -> Iterator[Batch]:
        """Yield the batches that the channel decodes from records; raise AssertionError for undecodable records."""
        for partition, messages in itertools.groupby(all, lambda message: message.partition() or 0):
            assignment = Assignment(partitions.TopicPartition("", self.name, "", partition), "", Generation())
            records = (_record(message) for message in messages)
            while (taken := self._decode(records, assignment)) is not None:
                assert not taken.undecodable, taken.undecodable
                yield taken.batch

    def bodies(self) -> pa.Array:
        """Return the bodies of the records that were not read before."""
        chunks = [batch.bodies for batch in self.batches()]
        return pa.concat_arrays(chunks) if chunks else pa.array([], pa.binary())

    def check_events(self, bodies: pa.Array, headers: Mapping[str, pa.Array]) -> None:
        """Assert that the events that were not read before have these bodies, each once, and these headers.

        Bodies end with a number of nine digits, by which all arrays are sorted; the events may come in any order.
        """
        batches = list(self.batches())
        actual = pa.concat_arrays([batch.bodies for batch in batches]) if batches else pa.array([], pa.binary())
        order = assert_equal_bodies(actual, bodies, self.name)
        for name, expected in headers.items():
            values = pa.chunked_array([batch.header(name).dictionary_decode() for batch in batches], pa.string())
            assert values.combine_chunks().take(order).equals(expected), f"{self.name}: headers {name} differ"

    def check_values(self, expected: pa.Array) -> None:
        """Assert that the records that were not read before have these values, each once, in any order."""
        assert_equal_bodies(self.values(), expected, self.name)


def _record(message: Message) -> Record:
    """Return a record as the channel decodes it: with offset, value and headers of the message."""
    headers: Any = message.headers() or []
    return Record(message.offset() or 0, 0, None, message.value(), headers)


def assert_equal_bodies(actual: pa.Array, expected: pa.Array, what: str) -> pa.Array:
    """Assert that both arrays hold the same texts, each as often; `actual` in any order. Return its order by number.

    Each text ends with a number of nine digits, by which `expected` is sorted. `what` begins the error text.
    """
    assert len(actual) == len(expected), f"{what}: {len(actual):,} events of {len(expected):,}"
    numbers = pc.binary_slice(actual, -9).cast(pa.string()).cast(pa.int64())
    order = pc.sort_indices(numbers)
    assert actual.take(order).equals(expected.cast(actual.type)), f"{what}: contents differ"
    return order


def bare_producer(topic: Topic, lines: Path, expected: pa.Array, *settings: str) -> Callable[[], Figures]:
    """Return a function that runs confluent-kafka in its own process and returns rate and CPU time.

    That process sends one record per line of the file `lines`, with the channel's guarantees and these further
    `settings`. The stored values must equal `expected`, in any order.
    """
    return partial(_produce, topic, lines, expected, settings)


def _produce(topic: Topic, lines: Path, expected: pa.Array, settings: Sequence[str]) -> Figures:
    """Run `bare_producer.py` once, verify the stored values, and return events/s and µs of CPU per event."""
    events = len(expected)
    command = [sys.executable, "-m", "bench.frame.bare_producer", topic.servers, topic.name, str(lines), str(events)]
    answer = json.loads(subprocess.run([*command, *settings], check=True, capture_output=True).stdout)
    assert answer["acknowledged"] == events, answer
    assert_equal_bodies(topic.values(), expected, topic.name)
    return {RATE: events / answer["seconds"], CPU: answer["cpu"] / events * 1e6}
