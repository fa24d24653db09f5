"""Kafka source at positions that its brokers no longer have, or that are of a deleted topic."""

from __future__ import annotations

import logging

import pytest

from flafka.plugins import Metrics
from flafka.plugins.kafka.offsets import OffsetMetadata
from tests.simulator.kafka import Brokers
from tests.simulator.kafka.groups import Committed
from tests.simulator.processes import Process
from tests.simulator.program import installed
from tests.simulator.running import run_in
from tests.simulator.world import World, simulation


def committed(brokers: Brokers, partition: int) -> Committed:
    """Return the offset that the group has committed in that partition of the topic."""
    offset = brokers.committed("g", "t", partition)
    assert offset is not None
    return offset


def test_it_goes_on_with_the_first_record_that_is_left_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    from flafka.sources.kafka import consumer

    metrics, read = Metrics(), list[tuple[int, int]]()

    def body() -> None:
        source = consumer.TopicConsumer(
            {"group.id": "g", "group.instance.id": "i", "enable.partition.eof": False},
            ["t"],
            "latest",
            metrics,
            logging.getLogger("a1.sources.s1"),
        )
        while len(read) < 4:
            messages, positions = source.take(10, 1 << 20, 0.1, 0.2)
            read.extend((message.partition(), message.offset()) for message in messages)
            source.stored(positions)
        source.close()

    caplog.set_level(logging.ERROR)
    with installed(), simulation(World(3)) as world:
        brokers = world.models["kafka"] = Brokers(world)
        brokers.create_topic("t", 2)
        for partition in (0, 1):
            for value in (b"a", b"b", b"c", b"d", b"e"):
                brokers.put("t", partition, value)
            brokers.commit_as_foreigner("g", "t", partition, 1 + 3 * partition)
        brokers.advance_low_watermark("t", 0, 3)
        world.later(30, lambda: brokers.put("t", 0, b"f"))
        run_in(world, Process(world, "p"), body)
        assert [committed(brokers, partition).offset for partition in (0, 1)] == [6, 5]
    assert sorted(read) == [(0, 3), (0, 4), (0, 5), (1, 4)]
    assert "2 records are lost; it continues with the earliest record, 3" in caplog.text
    assert metrics.get("KafkaOffsetLostCount") == 1


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("new", "begins"), [(3, "earliest"), (8, "earliest"), (8, "latest")])
def test_a_topic_that_was_created_again_is_read_from_its_first_record(
    caplog: pytest.LogCaptureFixture, seed: int, new: int, begins: str
) -> None:
    from flafka.sources.kafka import consumer

    metrics, read = Metrics(), list[tuple[int, bytes | None]]()

    def body() -> None:
        source = consumer.TopicConsumer(
            {"group.id": "g", "group.instance.id": "i", "enable.partition.eof": False},
            ["t"],
            begins,
            metrics,
            logging.getLogger("a1.sources.s1"),
        )
        while world.now < 60:
            messages, positions = source.take(10, 1 << 20, 0.1, 0.2)
            read.extend((message.partition(), message.value()) for message in messages)
            source.stored(positions)
        source.close()

    def create_again() -> None:
        brokers.delete_topic("t")
        brokers.create_topic("t", 2)
        for number in range(new):
            for partition in (0, 1):
                brokers.put("t", partition, b"new %d" % number)

    caplog.set_level(logging.ERROR)
    with installed(), simulation(World(seed)) as world:
        brokers = world.models["kafka"] = Brokers(world)
        brokers.create_topic("t", 2)
        for partition in (0, 1):
            for number in range(5):
                brokers.put("t", partition, b"old %d" % number)
            brokers.commit_as_foreigner("g", "t", partition, 0)
        world.later(20, create_again)
        run_in(world, Process(world, "p"), body)
        assert [committed(brokers, partition).offset for partition in (0, 1)] == [new, new]
    expected = {(p, b"new %d" % number) for p in (0, 1) for number in range(new)}
    assert expected <= set(read)
    assert len(read) < 10 + 2 * 2 * new, "none comes more than twice"
    assert "topic t was deleted and created again: group g begins with the first record" in caplog.text
    assert metrics.get("KafkaOffsetLostCount") == 2


def test_an_offset_of_a_deleted_topic_counts_as_none(caplog: pytest.LogCaptureFixture) -> None:
    """Handover by a member that has not noticed yet and commits the offset to the new topic."""
    from flafka.sources.kafka import consumer

    metrics, read = Metrics(), set[int]()

    def body() -> None:
        source = consumer.TopicConsumer(
            {"group.id": "g", "group.instance.id": "i", "enable.partition.eof": False},
            ["t"],
            "latest",
            metrics,
            logging.getLogger("a1.sources.s1"),
        )
        while world.now < 20:
            messages, positions = source.take(10, 1 << 20, 0.1, 0.2)
            read.update(message.offset() for message in messages)
            source.stored(positions)
        source.close()

    caplog.set_level(logging.ERROR)
    with installed(), simulation(World(5)) as world:
        brokers = world.models["kafka"] = Brokers(world)
        brokers.create_topic("t", 1)
        for _ in range(5):
            brokers.put("t", 0, b"a")
        brokers.commit_as_foreigner("g", "t", 0, 3, OffsetMetadata(topic_id="deleted").text())
        run_in(world, Process(world, "p"), body)
        offset = committed(brokers, 0)
        assert (offset.offset, OffsetMetadata.parse(offset.metadata).topic_id) == (5, str(brokers.topics["t"].id))
    assert read == {0, 1, 2, 3, 4}
    assert "begins with the first record of partitions 0;" in caplog.text
    assert metrics.get("KafkaOffsetLostCount") == 1
