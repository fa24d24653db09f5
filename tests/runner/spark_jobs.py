"""A pipeline of one sink as Spark's tasks and driver have it, without a broker, and micro-batches of it."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from flafka.agent.options import AgentOptions
from flafka.agent.runner.spark.job import Job, PartitionTask, Result, SinkJob
from flafka.agent.runner.spark.query import Query
from flafka.agent.topology import ChannelSpec, Place, SinkSpec, Tolerance
from flafka.channels.kafka import KafkaChannel, KafkaChannelConfig
from flafka.plugins import Batch, Config, FlafkaError, PartitionClaim, Rejected, Sink

PLACE = Place("test.conf", 1)
CLAIM = PartitionClaim("c", "t", "i", "g", 0, 0)


class Picky(Sink[Config]):
    """Takes all but `bad`."""

    type_name = "picky"

    def write(self, batch: Batch) -> None:
        rejected = {batch.id(row): "not wanted" for row, event in enumerate(batch) if event.body == b"bad"}
        if rejected:
            raise Rejected(rejected)


class Recording(KafkaChannel):
    """Keeps the positions that Kafka would; its topic is the claim's."""

    recorded: Mapping[PartitionClaim, int]

    def record(self, positions: Mapping[PartitionClaim, int], last: Any = None) -> None:
        self.recorded = dict(positions)

    def confirm(self, claim: PartitionClaim) -> None:
        assert claim == CLAIM

    def starts(self) -> Mapping[int, int]:
        return {}

    def refusals(self, group: str | None, positions: Any = None, _: Any = None) -> Any:
        return []

    def refuse(self, error: FlafkaError) -> None:
        pass

    restore = record


def jobs(tolerance: Tolerance) -> tuple[Job, SinkJob]:
    config, _ = KafkaChannelConfig.parse({"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.topic": "t"})
    assert config is not None
    channel = ChannelSpec("c", "a.channels.c", Recording, config, {}, PLACE)
    sink = SinkSpec("k", "a.sinks.k", Picky, Config(), {}, PLACE, channel="c", tolerance=tolerance)
    job = SinkJob(sink, channel)
    return Job("a", (job,), AgentOptions(), "", ""), job


def records(*bodies: bytes) -> Any:
    rows = [
        {"partition": 0, "offset": at, "timestamp": 7, "key": None, "value": body, "headers": RAW}
        for at, body in enumerate(bodies)
    ]
    return pa.RecordBatch.from_pylist(rows)


RAW = [{"key": "flafka.format", "value": b"raw/1"}]


def run(tolerance: Tolerance, *bodies: bytes) -> Result:
    result = PartitionTask(*jobs(tolerance), {0: CLAIM}, CLAIM).run(iter([records(*bodies)]))
    assert result is not None
    return result


def one_batch(query: Query, *bodies: bytes) -> None:
    """Have a query that has partition 0 commit a micro-batch of them."""
    result = SimpleNamespace(result=pickle.dumps(run(query.rejections.tolerance, *bodies)))
    query._commit(SimpleNamespace(collect=lambda: [result]), 0)
