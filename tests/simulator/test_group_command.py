"""`agent group` and the offsets that a group still has in partitions that were deleted."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.simulator.kafka import Brokers
from tests.simulator.processes import Process
from tests.simulator.program import command, installed
from tests.simulator.running import run_in
from tests.simulator.world import World, simulation

SIMULATED = ("--bootstrap-server", "sim:9092", "--json")


def on_brokers(work: Callable[[Brokers], Any]) -> Any:
    """Call that with brokers that have one partition of topic `t` and three records in it."""
    with installed(), simulation(World(1)) as world:
        brokers = world.models["kafka"] = Brokers(world)
        brokers.create_topic("t", 1)
        for _ in range(3):
            brokers.put("t", 0, b"a")
        return run_in(world, Process(world, "operator"), lambda: work(brokers))


def test_an_offset_of_a_partition_that_was_deleted_counts_as_none() -> None:
    def work(brokers: Brokers) -> list[Any]:
        for topic, partition in (("t", 0), ("t", 1), ("gone", 0)):
            brokers.commit_as_foreigner("g", topic, partition, 1)
        described = command("group", "describe", "g", *SIMULATED)
        moved = command("group", "reset", "g", "--to", "earliest", "--yes", *SIMULATED)
        assert [offset.offset for offset in brokers.groups["g"].offsets.values()] == [0, 1, 1]
        return [*json.loads(described), *json.loads(moved)]

    described, moved = on_brokers(work)
    assert (described["topic"], described["partition"]) == ("t", 0)
    assert (described["current_offset"], described["log_end_offset"], described["lag"]) == (1, 3, 2)
    assert (moved["topic"], moved["partition"], moved["new_offset"]) == ("t", 0, 0)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("describe", "g"), "all partitions with offsets of group g were deleted"),
        (("reset", "g", "--to", "earliest", "--yes"), "no offset in an existing partition: name a --topic"),
    ],
)
def test_a_group_with_no_other_offset_is_named(words: tuple[str, ...], text: str) -> None:
    def work(brokers: Brokers) -> None:
        brokers.commit_as_foreigner("g", "gone", 0, 1)
        with pytest.raises(RuntimeError, match=text):
            command("group", *words, *SIMULATED)

    on_brokers(work)
