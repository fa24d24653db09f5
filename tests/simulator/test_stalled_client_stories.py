"""Stories of a client of Kafka's that never sends again, as librdkafka's idempotent producer after some outages."""

from __future__ import annotations

import re

import pytest

from tests.simulator.faults import Fault, Kind
from tests.simulator.steps import away, put, start, topic
from tests.simulator.stories import run_story

PUTS = (topic(1), start("h1"), put(good=4, after=5), put(bad=2, after=30))


@pytest.mark.parametrize("sink", ["hdfs", "spark-hdfs"])
def test_a_channel_replaces_a_stalled_producer(sink: str) -> None:
    """A channel sends the batches of a stalled producer with another one."""
    run = run_story(sink, *PUTS, faults=(Fault("h1", "kafka.produce", 1, Kind.STUCK, 0),))
    assert run.world.faults
    assert any("Kafka's client has stalled: no acknowledgement for" in line for line in run.world.story)


def test_the_timeout_of_a_second_stalled_producer_is_longer() -> None:
    """A producer that replaced a stalled one has a longer timeout."""
    stuck = [Fault("h1", "kafka.produce", number, Kind.STUCK, 0) for number in (1, 2)]
    run = run_story("hdfs", *PUTS, put(good=1, after=200), faults=(*stuck,))
    timeouts = [
        int(match[1])
        for line in run.world.story
        if (match := re.search(r"has stalled: no acknowledgement for (\d+) s, although", line))
    ]
    assert [seconds // 10 for seconds in timeouts] == [9, 15]


def test_a_channel_does_not_replace_its_producer_during_an_outage() -> None:
    """A channel keeps its producer while brokers are unreachable."""
    run = run_story(
        "hdfs", *PUTS[:2], away("kafka", seconds=200.0, after=5), put(good=4), put(good=2, after=210)
    )  # fmt: skip
    assert not any("Kafka's client has stalled" in line for line in run.world.story)


@pytest.mark.parametrize(("number", "topic"), [(1, "out"), (2, "out"), (3, "out"), (4, "out"), (1, "t.positions")])
def test_a_sink_replaces_a_stalled_producer(number: int, topic: str) -> None:
    """A sink delivers with another producer if a record of its transaction is never sent."""
    run = run_story("kafka", *PUTS, faults=(Fault("h1", "kafka.produce", number, Kind.STUCK, 0, on=topic),))
    assert run.world.faults


def test_dead_letters_are_stored_after_their_producer_stalled() -> None:
    """Dead letters are stored by another producer if theirs stalls."""
    stuck = Fault("h1", "kafka.produce", 1, Kind.STUCK, 0, on="t.deadletters")
    run = run_story("hdfs", *PUTS, put(good=1, after=60), faults=(stuck,))
    assert run.world.faults
