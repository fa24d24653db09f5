"""Sides of a contract test: real brokers, or their model within a simulation."""

from __future__ import annotations

import functools
import itertools
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import kafka
import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import NewTopic

from tests.simulator import kafka as model
from tests.simulator.processes import Process, Signal
from tests.simulator.world import World, simulation

CONSUMER = {
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "partition.assignment.strategy": "cooperative-sticky",
    "session.timeout.ms": 6000,
    "heartbeat.interval.ms": 500,
    "fetch.wait.max.ms": 100,
    "isolation.level": "read_committed",
    "log_level": 0,
}
PRODUCER = {"acks": "all", "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
GENEROUS_SECONDS = 60.0
NAMES = ("a", "b", "c", "d", "e", "f", "g", "h", "i", "j")


class Side:
    """Clients, and a clock."""

    Consumer: Any
    Producer: Any
    AdminClient: Any
    KafkaAdminClient: Any
    is_model = False

    def __init__(self, servers: str, tag: str) -> None:
        self.servers, self._tag, self._numbers = servers, tag, itertools.count(1)
        self._consumers: list[Any] = []
        self._common: Any = None

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def until(self, there: Callable[[], Any], seconds: float = GENEROUS_SECONDS) -> Any:
        """Return the result of the call once it is true."""
        deadline = self.now() + seconds
        while not (result := there()):
            assert self.now() < deadline, "it does not come about"
            self.sleep(0.02)
        return result

    def message(self, reader: Any) -> Any:
        """The next one it is given."""
        deadline = self.now() + GENEROUS_SECONDS
        while (message := reader.poll(1)) is None:
            assert self.now() < deadline, "nothing comes"
        return message

    # --- clients

    @functools.cached_property
    def admin(self) -> Any:
        return self.AdminClient({"bootstrap.servers": self.servers, "log_level": 0})

    @functools.cached_property
    def _brokers(self) -> list[Any]:
        """A client of each broker: they hear of a change one after the other, and a request may go to any."""
        return [self.AdminClient({"bootstrap.servers": server, "log_level": 0}) for server in self.servers.split(",")]

    def name(self, what: str) -> str:
        return f"{what}-{self._tag}-{next(self._numbers)}"

    def consumer(self, group: str, **config: Any) -> Any:
        made = self.Consumer({**CONSUMER, "bootstrap.servers": self.servers, "group.id": group, **_dotted(config)})
        self._consumers.append(made)
        return made

    def member(self, group: str, *topics: str, **config: Any) -> Member:
        return Member(self, self.consumer(group, **config), topics)

    def producer(self, **config: Any) -> Any:
        return self.Producer({**PRODUCER, "bootstrap.servers": self.servers, **_dotted(config)})

    def transactional(self, id: str, **config: Any) -> Any:
        made = self.producer(transactional_id=id, **config)
        made.init_transactions(30)
        return made

    # --- what most tests begin with

    def topic(self, partitions: int = 1, name: str | None = None, **configs: str) -> str:
        """A new one; under the name of one just deleted, as soon as that is gone."""
        name = name or self.name("topic")
        new = NewTopic(name, num_partitions=partitions, replication_factor=3, config=_dotted(configs))

        def made() -> bool:
            try:
                self.admin.create_topics([new])[name].result(30)
            except KafkaException as e:
                if e.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
                return False
            return True

        self.until(made)
        for broker in self._brokers:
            self.until(lambda broker=broker: broker.list_topics(name, timeout=30).topics[name].error is None)
        return name

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(30)
        for broker in self._brokers:
            self.until(lambda broker=broker: topic not in broker.list_topics(timeout=30).topics)

    def put(self, topic: str, *values: str, partition: int = 0) -> None:
        """Stored when it returns."""
        if self._common is None:
            self._common = self.producer()
        self._common.list_topics(topic, timeout=30)  # else it looks at new ones twice, half a second apart
        for value in values:
            self._common.produce(topic, value.encode(), partition=partition)
        assert self._common.flush(GENEROUS_SECONDS) == 0

    def committed(self, group: str, topic: str, partition: int = 0) -> tuple[int, str | None]:
        onlooker = self.consumer(group)
        (committed,) = onlooker.committed([TopicPartition(topic, partition)], timeout=30)
        onlooker.close()
        return committed.offset, committed.metadata

    def values(self, topic: str, partition: int = 0, **config: Any) -> list[tuple[int, str]]:
        """Offsets and values of all that is in a partition, for readers of what is committed."""
        reader = self.consumer(self.name("values"), **config)
        reader.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
        values: list[tuple[int, str]] = []
        deadline = self.now() + GENEROUS_SECONDS
        while self.now() < deadline:
            message = reader.poll(0.1)
            if message is None:
                continue
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                break
            values.append((message.offset(), message.value().decode()))
        reader.close()
        return values

    def close(self) -> None:
        for consumer in self._consumers:
            consumer.close()


class Real(Side):
    """The real ones."""

    Consumer = confluent_kafka.Consumer
    Producer = confluent_kafka.Producer
    AdminClient = confluent_kafka.admin.AdminClient
    KafkaAdminClient = kafka.KafkaAdminClient


class Model(Side):
    """The simulated ones."""

    Consumer = model.Consumer
    Producer = model.Producer
    AdminClient = model.AdminClient
    KafkaAdminClient = model.KafkaAdminClient
    is_model = True

    def __init__(self, world: World) -> None:
        super().__init__("model:9092", "m")
        self.world = world

    def now(self) -> float:
        return self.world.now

    def sleep(self, seconds: float) -> None:
        self.world.sleep(seconds)


class Member:
    """A member of a group that notes what happens to it, and begins where the group stands, or at the beginning."""

    def __init__(self, side: Side, consumer: Any, topics: Iterable[str]) -> None:
        self.side, self.consumer, self.topics = side, consumer, list(topics)
        self.callbacks: list[tuple[str, list[int]]] = []
        """Callbacks and their partitions, but for those without any."""
        self.shares = 0
        """Number of assignments, empty ones included."""
        self.records: list[tuple[int, int, str]] = []
        """Partition, offset and value."""
        self.ends: list[tuple[int, int]] = []
        self.errors: list[Any] = []
        consumer.subscribe(self.topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost)

    def _note(self, what: str, partitions: list[TopicPartition]) -> None:
        if partitions:
            self.callbacks.append((what, sorted(tp.partition for tp in partitions)))

    def _on_assign(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        self._note("assign", partitions)
        self.shares += 1
        if not partitions:
            return
        starts = [
            TopicPartition(tp.topic, tp.partition, tp.offset if tp.offset >= 0 else OFFSET_BEGINNING)
            for tp in consumer.committed(partitions, timeout=30)
        ]
        consumer.incremental_assign(starts)

    def _on_revoke(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        self._note("revoke", partitions)
        consumer.incremental_unassign(partitions)

    def _on_lost(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        self._note("lost", partitions)
        consumer.incremental_unassign(partitions)

    def poll(self, timeout: float = 0.05) -> None:
        message = self.consumer.poll(timeout)
        for record in [message, *self.consumer.consume(100, timeout=0)] if message is not None else ():
            error = record.error()
            if error is None:
                self.records.append((record.partition(), record.offset(), record.value().decode()))
            elif error.code() == KafkaError._PARTITION_EOF:
                self.ends.append((record.partition(), record.offset()))
            else:
                self.errors.append(record)

    def until(self, there: Callable[[], Any], *others: Member, seconds: float = GENEROUS_SECONDS) -> Any:
        """Poll, and so do the others, until that is true."""
        deadline = self.side.now() + seconds
        while not (result := there()):
            assert self.side.now() < deadline, (
                f"it does not come about: {self.callbacks} {self.records} {self.errors}"
            )
            for member in (self, *others):
                member.poll(0.02)
        return result

    def for_a_while(self, seconds: float, *others: Member) -> None:
        end = self.side.now() + seconds
        while self.side.now() < end:
            for member in (self, *others):
                member.poll(0.02)

    @property
    def owned(self) -> list[int]:
        return sorted(tp.partition for tp in self.consumer.assignment())

    @property
    def codes(self) -> list[int]:
        return [message.error().code() for message in self.errors]

    def commit(self, offset: int, partition: int = 0, metadata: str = "") -> None:
        tp = TopicPartition(self.topics[0], partition, offset, metadata=metadata)
        self.consumer.commit(offsets=[tp], asynchronous=False)

    def close(self) -> None:
        self.consumer.close()


def refused(call: Callable[[], Any]) -> KafkaError:
    """The error that the call raises."""
    with pytest.raises(KafkaException) as caught:
        call()
    error: KafkaError = caught.value.args[0]
    return error


def simulated(test: Callable[[Model], Any], world: World) -> None:
    """Run it within a simulation, as a process of its own."""
    with simulation(world):
        world.models["kafka"] = model.Brokers(world)
        side, process, ended = Model(world), Process(world, "test"), Signal(world)
        failures: list[BaseException] = []
        done: list[bool] = []

        def body() -> None:
            try:
                test(side)
            except BaseException as e:
                failures.append(e)
            done.append(True)
            ended.fire()

        def main() -> None:
            process.spawn(body, "test")
            while not done:
                ended.wait(3600)

        world.run(main)
        if failures:
            raise failures[0]


def on_both(test: Callable[[Side], Any]) -> Callable[..., None]:
    """A test that runs on the model and on the real brokers."""

    @pytest.mark.parametrize("side", ["model", "real"])
    def run_on_side(side: str, request: pytest.FixtureRequest) -> None:
        if side == "model":
            simulated(test, World(7))
        else:
            real = Real(request.getfixturevalue("kafka_cluster").bootstrap_servers, uuid.uuid4().hex[:8])
            try:
                test(real)
            finally:
                real.close()

    run_on_side.__name__, run_on_side.__doc__, run_on_side.__module__ = test.__name__, test.__doc__, test.__module__
    return run_on_side


def _dotted(config: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "."): value for name, value in config.items()}
