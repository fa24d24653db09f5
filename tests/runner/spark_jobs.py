"""Pipeline of one sink as Spark's tasks and driver run it, without a broker, and its micro-batches."""

from __future__ import annotations

import pickle
from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from flafka.agent.options import AgentOptions
from flafka.agent.runner.spark.job import Job, PartitionTask, Result, SinkJob
from flafka.agent.runner.spark.query import Query
from flafka.agent.topology import ChannelSpec, ConfigLocation, SinkSpec, Tolerance
from flafka.channels.kafka import KafkaChannel, KafkaChannelConfig
from flafka.plugins import Assignment, Batch, Config, FlafkaError, KafkaStream, Rejected, Sink
from tests.fixtures.partitions import assignment

PLACE = ConfigLocation("test.conf", 1)
ASSIGNMENT = assignment("c", "t", "i", "g", 0, 0)


class Picky(Sink[Config]):
    """Sink that rejects `bad`."""

    type_name = "picky"

    def write(self, batch: Batch) -> None:
        rejected = {batch.id(row): "not wanted" for row, event in enumerate(batch) if event.body == b"bad"}
        if rejected:
            raise Rejected(rejected)


class Recording(KafkaChannel):
    """Channel that keeps the offsets that Kafka would; its topic is that of `ASSIGNMENT`."""

    kafka = property(lambda self: self)
    stored: Mapping[int, int | None]
    """Offsets of the latest commit, by partition."""

    def stream(self, group: str | None) -> KafkaStream:
        return KafkaStream("127.0.0.1:1", "t", group or "flafka")

    def commit_offsets(self, assignments: Collection[Assignment]) -> None:
        for committed in assignments:
            self.confirm_topic_id(committed)
            assert (committed.group, committed.generation) == (ASSIGNMENT.group, ASSIGNMENT.generation)
        self.stored = {assignment.partition: assignment.next_offset for assignment in assignments}

    def confirm_topic_id(self, assignment: Assignment) -> None:
        assert assignment.topic_partition == ASSIGNMENT.topic_partition

    def beginning_offsets(self) -> Mapping[int, int]:
        return {}

    def blocking_errors(self, group: str | None, starts: Any = None) -> Any:
        return []

    def store_error(self, error: FlafkaError) -> None:
        pass

    restore_offsets = commit_offsets


def jobs(tolerance: Tolerance) -> tuple[Job, SinkJob]:
    config, _ = KafkaChannelConfig.parse({"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.topic": "t"})
    assert config is not None
    channel = ChannelSpec("c", "a.channels.c", Recording, config, {}, PLACE)
    sink = SinkSpec("k", "a.sinks.k", Picky, Config(), {}, PLACE, channel="c", tolerance=tolerance)
    job = SinkJob(sink, channel)
    return Job("a", (job,), AgentOptions(), "", ""), job


def records(*bodies: bytes) -> Any:
    rows = [
        {"partition": 0, "offset": offset, "timestamp": 7, "key": None, "value": body, "headers": RAW}
        for offset, body in enumerate(bodies)
    ]
    return pa.RecordBatch.from_pylist(rows)


RAW = [{"key": "flafka.format", "value": b"raw/1"}]


def run(tolerance: Tolerance, *bodies: bytes) -> Result:
    result = PartitionTask(*jobs(tolerance), {0: ASSIGNMENT}, ASSIGNMENT).run(iter([records(*bodies)]))
    assert result is not None
    return result


def one_batch(query: Query, *bodies: bytes) -> None:
    """Have a query with partition 0 commit a micro-batch of these records."""
    result = SimpleNamespace(result=pickle.dumps(run(query.rejections.tolerance, *bodies)))
    query._commit(SimpleNamespace(collect=lambda: [result]), 0)
