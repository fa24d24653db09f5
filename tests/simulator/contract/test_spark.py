"""The model of Spark does what Spark does with a topic, as the driver's queries see it."""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from pyspark.cloudpickle import register_pickle_by_value

from flafka.agent.runner.spark.driver import failure_reason
from flafka.agent.runner.spark.query import read_topic
from flafka.agent.testing import session
from flafka.plugins import KafkaStream, Retry
from flafka.plugins.kafka.properties import QUIET
from tests.simulator.contract.conftest import made
from tests.simulator.processes import Process
from tests.simulator.spark import Spark
from tests.simulator.test_spark_model import Log
from tests.simulator.world import World
from tests.system.running import unique

TIMEOUT_SECONDS = 120.0
EARLIEST = None


class Offsets:
    """A task that answers what it was given."""

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        given = [
            (batch.column("partition")[0].as_py(), batch.column("offset").to_pylist())
            for batch in batches
            if len(batch)
        ]
        yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(pair) for pair in given], pa.binary())], ["result"])


class Failing:
    """A task that fails."""

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        for _ in batches:
            raise Retry("the disk is full")
        yield from ()


class Topic(Protocol):
    """One topic, and a Spark that can read it."""

    spark: Any
    name: str
    servers: str

    def append(self, partition: int, count: int) -> None: ...

    def make_anew(self) -> None: ...

    def delete(self) -> None: ...

    def grow(self) -> None: ...

    def age(self, partition: int, low: int) -> None: ...

    def sleep(self, seconds: float) -> None: ...


class Modelled:
    def __init__(self, world: World) -> None:
        self.world, self.log = world, Log()
        self.name, self.servers = "t", "kafka:9092"
        self.spark = Spark(world, self.log, driver=Process(world, "driver"), max_failures=1)

    def append(self, partition: int, count: int) -> None:
        self.log.add(partition, count)

    def make_anew(self) -> None:
        self.log.records = {0: [], 1: []}

    def delete(self) -> None:
        self.log.records = {}

    def grow(self) -> None:
        self.log.records[2] = []

    def age(self, partition: int, low: int) -> None:
        self.log.low[partition] = low

    def sleep(self, seconds: float) -> None:
        self.world.sleep(seconds)


class Real:
    def __init__(self, servers: str) -> None:
        self.spark, self.name, self.servers = session(), unique("spark"), servers
        # Spark's workers need not find the tests.
        register_pickle_by_value(sys.modules[Offsets.__module__])
        self._admin = AdminClient({"bootstrap.servers": servers, **QUIET})
        self._create()

    def _create(self) -> None:
        def create() -> bool:
            try:
                self._done(self._admin.create_topics([NewTopic(self.name, 2, 3)]))
            except Exception as e:
                if "marked for deletion" not in str(e) and "already exists" not in str(e):
                    raise
                return False
            return True

        self._until(create)
        self._until(lambda: len(self._admin.list_topics(self.name, 10).topics[self.name].partitions) == 2)

    def append(self, partition: int, count: int) -> None:
        producer = Producer({"bootstrap.servers": self.servers, "acks": "all", **QUIET})
        for _ in range(count):
            producer.produce(self.name, b"x", partition=partition)
        assert producer.flush(60) == 0

    def make_anew(self) -> None:
        self.delete()
        self._create()

    def delete(self) -> None:
        self._done(self._admin.delete_topics([self.name]))

    def grow(self) -> None:
        self._done(self._admin.create_partitions([NewPartitions(self.name, 3)]))

    def age(self, partition: int, low: int) -> None:
        self._done(self._admin.delete_records([TopicPartition(self.name, partition, low)]))

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def _done(self, futures: dict[Any, Future[Any]]) -> None:
        for future in futures.values():
            future.result(60)

    def _until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.1)


@pytest.fixture(params=["model", pytest.param("real", marks=pytest.mark.soak)])
def world(request: pytest.FixtureRequest) -> Iterator[World | None]:
    """Spark's half takes minutes: most of its tests wait for micro-batches."""
    yield from made(request.param)


@pytest.fixture
def topic(world: World | None, request: pytest.FixtureRequest) -> Topic:
    return Modelled(world) if world is not None else Real(request.getfixturevalue("kafka_cluster").bootstrap_servers)


class Reading:
    """A query over a topic, and its micro-batches: what each task was given, by partition."""

    def __init__(
        self,
        topic: Topic,
        directory: Path,
        *,
        task: Any = None,
        most: int = 1000,
        starts: dict[int, int | None] | None = None,
    ) -> None:
        self.topic = topic
        self.batches: list[dict[int, list[int]]] = []
        self.numbers: list[int] = []
        self.function: Callable[[], None] = lambda: None
        stream = KafkaStream(topic.servers, topic.name, "g", client={})
        records = read_topic(topic.spark, stream, starts or {0: EARLIEST, 1: EARLIEST}, str(most))
        self.query = (
            records.mapInArrow(task or Offsets(), "result binary")
            .writeStream.foreachBatch(self._take)
            .queryName(topic.name)
            .option("checkpointLocation", directory.as_uri())
            .trigger(processingTime="1 seconds")
            .start()
        )

    def _take(self, frame: Any, number: int) -> None:
        rows = [pickle.loads(row.result) for row in frame.collect()]
        self.function()
        assert len({partition for partition, _ in rows}) == len(rows)
        self.batches.append(dict(rows))
        self.numbers.append(number)

    def until(self, condition: Callable[[], Any]) -> None:
        waited = 0.0
        while not condition():
            assert waited < TIMEOUT_SECONDS
            assert self.query.isActive, self.query.exception()
            waited += 0.1
            self.topic.sleep(0.1)

    def failure(self) -> str:
        """Text of Spark's error with which the query ended."""
        with pytest.raises(Exception, match="STREAM_FAILED") as failed:
            self.query.awaitTermination(TIMEOUT_SECONDS)
        return f"{type(failed.value).__name__}: {failed.value}"

    def seen(self, partition: int) -> list[int]:
        """The offsets that were read, in their order."""
        return [offset for batch in self.batches for offset in batch.get(partition, [])]


@pytest.fixture
def read(topic: Topic, tmp_path: Path) -> Iterator[Callable[..., Reading]]:
    made: list[Reading] = []

    def make(**options: Any) -> Reading:
        made.append(Reading(topic, tmp_path, **options))
        return made[-1]

    yield make
    if isinstance(topic, Real):
        for reading in made:
            reading.query.stop()


def test_micro_batches(topic: Topic, read: Any) -> None:
    topic.append(1, 3)
    topic.age(1, 1)
    reading = read()
    reading.until(lambda: reading.batches)
    assert reading.batches == [{1: [1, 2]}]
    topic.append(0, 2)
    reading.until(lambda: reading.seen(0) == [0, 1])
    topic.append(1, 1)
    reading.until(lambda: reading.seen(1) == [1, 2, 3])
    assert reading.numbers == list(range(len(reading.batches)))
    assert all(batch for batch in reading.batches), "none is empty"


def test_the_first_micro_batch_comes_without_records_and_no_other(topic: Topic, read: Any) -> None:
    reading = read()
    reading.until(lambda: reading.batches)
    topic.sleep(2.5)
    assert reading.batches == [{}]
    reading.until(lambda: not reading.query.status["isTriggerActive"])
    reading.query.stop()
    assert not reading.query.isActive
    assert reading.query.exception() is None
    assert reading.query.awaitTermination(1)


def test_a_micro_batch_has_so_many_records_at_most(topic: Topic, read: Any) -> None:
    topic.append(0, 30)
    topic.append(1, 10)
    reading = read(most=8)
    reading.until(lambda: len(reading.seen(0)) == 30)
    reading.until(lambda: len(reading.seen(1)) == 10)
    assert [len(offsets) for offsets in reading.batches[0].values()] in ([6, 2], [2, 6])
    assert all(sum(map(len, batch.values())) <= 9 for batch in reading.batches)


@pytest.mark.parametrize("records", [0, 2])
def test_a_topic_made_anew_that_is_shorter_fails_the_query(topic: Topic, read: Any, records: int) -> None:
    topic.append(0, 5)
    reading = read()
    reading.until(lambda: reading.seen(0) == [0, 1, 2, 3, 4])
    topic.make_anew()
    topic.append(0, records)
    assert "failOnDataLoss" in reading.failure()


def test_a_topic_made_anew_that_is_longer_is_read_on_in_silence(topic: Topic, read: Any) -> None:
    topic.append(0, 3)
    reading = read()
    reading.until(lambda: reading.seen(0) == [0, 1, 2])
    sleeping = True

    def wait() -> None:
        while sleeping:
            topic.sleep(0.05)

    reading.function = wait  # no trigger meanwhile
    topic.append(1, 1)
    topic.sleep(2)
    topic.make_anew()
    topic.append(0, 7)
    topic.append(1, 4)
    sleeping = False
    reading.until(lambda: reading.seen(0) == [0, 1, 2, 3, 4, 5, 6])
    reading.until(lambda: reading.seen(1) == [0, 1, 2, 3])


def test_records_that_are_too_old_fail_the_query(topic: Topic, read: Any) -> None:
    topic.append(0, 5)
    topic.age(0, 3)
    assert "failOnDataLoss" in read(starts={0: 1, 1: 0}).failure()


def test_a_start_behind_the_end_fails_the_query(topic: Topic, read: Any) -> None:
    topic.append(0, 5)
    assert "failOnDataLoss" in read(starts={0: 9, 1: 0}).failure()


def test_all_partitions_need_a_start(topic: Topic, read: Any) -> None:
    assert "you must specify all TopicPartitions" in read(starts={0: 0}).failure()


def test_a_new_partition_is_read_from_its_start(topic: Topic, read: Any) -> None:
    topic.append(0, 1)
    reading = read()
    reading.until(lambda: reading.batches)
    topic.grow()
    topic.append(2, 2)
    reading.until(lambda: reading.seen(2) == [0, 1])
    assert reading.seen(0) == [0]


def test_a_topic_that_is_gone_fails_the_query(topic: Topic, read: Any) -> None:
    topic.append(0, 1)
    reading = read()
    reading.until(lambda: reading.batches)
    topic.delete()
    assert "UnknownTopicOrPartitionException" in reading.failure()


def test_a_failed_task_is_reported_with_its_python_error(topic: Topic, read: Any) -> None:
    topic.append(0, 1)
    assert failure_reason(read(task=Failing()).failure()) == "the disk is full"


def test_a_failed_function_is_reported_with_its_python_error(topic: Topic, read: Any) -> None:
    def fail() -> None:
        raise Retry("not now")

    topic.append(0, 1)
    reading = read()
    reading.function = fail
    topic.append(0, 1)
    assert failure_reason(reading.failure()) == "not now"
