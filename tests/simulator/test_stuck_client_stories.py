"""Stories of a client of Kafka's that never sends again, as librdkafka's idempotent producer after some outages."""

from __future__ import annotations

import re

import pytest

from tests.simulator.faults import Fault, Kind
from tests.simulator.plans import Step
from tests.simulator.stories import told

PUTS = (Step(0, "topic", (1,)), Step(0, "start", ("h1",)), Step(5, "put", (4, 0)), Step(30, "put", (2, 1)))


@pytest.mark.parametrize("sink", ["hdfs", "spark-hdfs"])
def test_the_channel_has_another_one_put_again_what_waits(sink: str) -> None:
    run = told(sink, *PUTS, faults=(Fault("h1", "kafka.produce", 1, Kind.STUCK, 0),))
    assert run.world.faults
    assert any("though the brokers could take it: another one takes its place" in line for line in run.world.story)


def test_one_that_does_not_help_either_has_twice_as_long() -> None:
    stuck = [Fault("h1", "kafka.produce", number, Kind.STUCK, 0) for number in (1, 2)]
    run = told("hdfs", *PUTS, Step(200, "put", (1, 0)), faults=(*stuck,))
    told_after = [
        int(found[1])
        for line in run.world.story
        if (found := re.search(r"had nothing acknowledged for (\d+) s, though", line))
    ]
    assert [seconds // 10 for seconds in told_after] == [9, 15]


def test_the_channel_waits_as_long_as_brokers_are_away() -> None:
    run = told(
        "hdfs", *PUTS[:2], Step(5, "away", ("kafka", 200.0)), Step(0, "put", (4, 0)), Step(210, "put", (2, 0))
    )  # fmt: skip
    assert not any("another one takes its place" in line for line in run.world.story)


@pytest.mark.parametrize("number", [2, 3, 4, 5, 6])
def test_the_sink_goes_on_with_another_one(number: int) -> None:
    """What a transaction's client does not send in time fails, or is waited for in vain: both are late."""
    run = told("kafka", *PUTS, faults=(Fault("h1", "kafka.produce", number, Kind.STUCK, 0),))
    assert run.world.faults


def test_dead_letters_go_on_with_another_one() -> None:
    run = told("hdfs", *PUTS, Step(60, "put", (1, 0)), faults=(Fault("h1", "kafka.produce", 3, Kind.STUCK, 0),))
    assert run.world.faults
