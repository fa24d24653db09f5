"""What the Kafka source makes of a position that its brokers no longer have."""

from __future__ import annotations

import logging

import pytest

from plugins import Metrics
from tests.simulator.kafka import Brokers
from tests.simulator.processes import Process
from tests.simulator.program import installed
from tests.simulator.running import run_in
from tests.simulator.world import World, simulation


def test_it_goes_on_with_the_first_record_that_is_left_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    from sources.kafka import consumer

    metrics, read = Metrics(), list[tuple[int, int]]()

    def body() -> None:
        source = consumer.TopicConsumer(
            {"group.id": "g", "group.instance.id": "i"}, ["t"], "latest", metrics, logging.getLogger("a1.sources.s1")
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
        assert [brokers.committed("g", "t", partition).offset for partition in (0, 1)] == [6, 5]  # type: ignore[union-attr]
    assert sorted(read) == [(0, 3), (0, 4), (0, 5), (1, 4)]
    assert "2 records are lost; it goes on with the earliest record there is, 3" in caplog.text
    assert metrics.get("KafkaOffsetLostCount") == 1
