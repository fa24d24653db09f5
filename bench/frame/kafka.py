"""Topics that contestants fill: where they end, what is new in them, and whether it is what was sent."""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
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
    """A new topic, of three replicas of which two have to have a record unless told otherwise."""

    prefix = ""
    """Before the names of all topics: for runs that share a cluster."""

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
        until(self._led, f"leaders of {self.name}")

    def _led(self) -> bool:
        """Whether every partition has a leader, as it has soon after the topic was made."""
        try:
            return bool(self.ends())
        except KafkaException:
            return False

    def ends(self) -> dict[int, int]:
        """Where each partition ends for a consumer: up to there all in-sync replicas have it."""
        asked = {TopicPartition(self.name, p): LATEST for p in self._seen}
        return {at.partition: found.result(30).offset for at, found in self._admin.list_offsets(asked).items()}

    @contextlib.contextmanager
    def following(self, group: str) -> Iterator[Callable[[], bool]]:
        """Asks whether that group has committed up to where each partition ends now."""
        ends, settings = self.ends(), {"bootstrap.servers": self.servers, "group.id": group}
        consumer, places = Consumer(settings), [TopicPartition(self.name, partition) for partition in ends]

        def committed() -> bool:
            try:
                return all(at.offset >= ends[at.partition] for at in consumer.committed(places, 30))
            except KafkaException:  # a new cluster makes the topic of groups now
                return False

        try:
            yield committed
        finally:
            consumer.close()

    def records(self) -> int:
        """How many there are that were not read."""
        return sum(self.ends().values()) - sum(self._seen.values())

    def records_ever(self) -> int:
        """How many there are."""
        return sum(self.ends().values())

    def read(self) -> Iterator[Message]:
        """Every record that was not read, partition by partition."""
        settings = {"bootstrap.servers": self.servers, "group.id": "bench", "enable.auto.commit": False}
        consumer = Consumer({**settings, "fetch.message.max.bytes": 1 << 22, "queued.max.messages.kbytes": 1 << 17})
        try:
            for partition, end in self.ends().items():
                start = self._seen[partition]
                self._seen[partition] = end
                consumer.assign([TopicPartition(self.name, partition, start or OFFSET_BEGINNING)])
                while start < end:
                    messages = consumer.consume(min(10_000, end - start), 10)  # waits for as many
                    assert messages, f"{self.name}: partition {partition} was not read to its end"
                    for message in messages:
                        assert message.error() is None, message.error()
                        start = (message.offset() or 0) + 1
                        yield message
        finally:
            consumer.close()

    def decoded(self, messages: Sequence[Message]) -> pa.Array:
        """The bodies that these records hold, of whatever format."""
        return pa.concat_arrays([batch.bodies for batch in self._batches(iter(messages))])

    def values(self) -> pa.Array:
        """Those of `read`."""
        return pa.array([message.value() for message in self.read()], pa.binary())

    def batches(self) -> Iterator[Batch]:
        """What `read` holds of the events of a Kafka channel, ours or Flume's."""
        return self._batches(self.read())

    def _batches(self, all: Iterator[Message]) -> Iterator[Batch]:
        for partition, messages in itertools.groupby(all, lambda message: message.partition() or 0):
            assignment = Assignment(partitions.TopicPartition("", self.name, "", partition), "", Generation())
            records = (_record(message) for message in messages)
            while (taken := self._decode(records, assignment)) is not None:
                assert not taken.undecodable, taken.undecodable
                yield taken.batch

    def bodies(self, headers: Callable[[Batch], None] = lambda batch: None) -> pa.Array:
        """Of `batches`; each batch is given to `headers`, which checks."""
        chunks = []
        for batch in self.batches():
            headers(batch)
            chunks.append(batch.bodies)
        return pa.concat_arrays(chunks) if chunks else pa.array([], pa.binary())


def _record(message: Message) -> Record:
    headers: Any = message.headers() or []
    return Record(message.offset() or 0, 0, None, message.value(), headers)


def same(found: pa.Array, expected: pa.Array, what: str) -> None:
    """Both hold the same texts, whose last nine digits are their numbers; `expected` is in their order."""
    assert len(found) == len(expected), f"{what}: {len(found):,} events of {len(expected):,}"
    numbers = pc.binary_slice(found, -9).cast(pa.string()).cast(pa.int64())
    assert found.take(pc.sort_indices(numbers)).equals(expected.cast(found.type)), f"{what}: contents differ"


def numbered(pattern: bytes, events: int) -> list[bytes]:
    """Texts with the numbers from 0 on."""
    return [pattern % number for number in range(events)]


def bare_producer(topic: Topic, lines: Path, expected: pa.Array, *settings: str) -> Callable[[], Figures]:
    """A loop of confluent-kafka with the channel's guarantees, a record each line, in a process of its own."""
    return partial(_produce, topic, lines, expected, settings)


def _produce(topic: Topic, lines: Path, expected: pa.Array, settings: Sequence[str]) -> Figures:
    events = len(expected)
    command = [sys.executable, "-m", "bench.frame.producer", topic.servers, topic.name, str(lines), str(events)]
    answer = json.loads(subprocess.run([*command, *settings], check=True, capture_output=True).stdout)
    assert answer["acknowledged"] == events, answer
    same(topic.values(), expected, topic.name)
    return {RATE: events / answer["seconds"], CPU: answer["cpu"] / events * 1e6}
