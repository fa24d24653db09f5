"""End of a drain, by the committed offsets of groups alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from flafka.agent.config import load
from flafka.agent.runner import drain
from flafka.agent.runner.agent import Agent
from flafka.agent.runner.drain import DrainStalled
from flafka.plugins import (
    Assignment,
    Component,
    Components,
    Config,
    FlafkaError,
    KafkaStream,
    Retry,
    hookimpl,
)
from flafka.plugins.kafka.topic import KafkaBackedChannel
from tests.fixtures.partitions import assignment


class Kept(KafkaBackedChannel[Config]):
    """Durable channel whose end and committed offset a test sets."""

    type_name = "kept"
    replication = 3
    holds_batches = True
    decode = redelivery = NotImplemented
    kafka = property(lambda self: self)

    def __init__(self, config: Config, name: str = "") -> None:
        super().__init__(config, name)
        self.end: dict[int, int] = {}
        self.next_offsets: dict[int, int | None] = {}
        self.nothing_from: dict[int, int | None] = {}
        """Offset from which nothing can be read."""
        self.held: dict[int, str] = {}
        self.topic_id = "first"
        self.away = False

    def stream(self, group: str | None) -> KafkaStream:
        return KafkaStream("", self.name, "g")

    def put(self, batch: Any) -> None:
        raise AssertionError

    def reader(self, owner: Any, *, group: str | None, member: str) -> Any:
        raise AssertionError

    def end_offsets(self) -> Mapping[int, int]:
        return dict(self.end)

    def committed(self, group: str | None) -> Sequence[Assignment]:
        if self.away:
            raise Retry("no broker answers")
        return [
            assignment("", self.name, self.topic_id, "g", 0, p, next_offset=self.next_offsets.get(p))
            for p in self.end
        ]

    def blocking_errors(self, group: str | None) -> tuple[FlafkaError, ...]:
        return ()

    def is_empty_range(self, partition: int, start: int | None, end: int) -> bool:
        return partition in self.nothing_from and self.nothing_from[partition] == start

    def members(self, group: str | None) -> Mapping[str, list[int]]:
        return {name: [p for p, member in self.held.items() if member == name] for name in self.held.values()}


class Plugin:
    """Plugin with this channel."""

    @hookimpl
    def components(self) -> list[type[Component[Any]]]:
        return [Kept]


class Clock:
    """Clock that a test sets."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Clock of a drain."""
    made = Clock()
    monkeypatch.setattr(drain, "time", made)
    return made


def agent_of(tmp_path: Path, *channels: str, kind: str = "kept", runner: str = "local") -> tuple[Agent, list[Any]]:
    """Return an agent that is not started, with a sink for each of these channels, and the channels."""
    names = " ".join(f"k{number}" for number in range(len(channels)))
    text = f"a1.channels = {' '.join(dict.fromkeys(channels))}\na1.sinks = {names}\n"
    for channel in dict.fromkeys(channels):
        text += f"a1.channels.{channel}.type = {kind}\n"
    for sink, channel in zip(names.split(), channels, strict=True):
        text += f"a1.sinks.{sink}.type = null\na1.sinks.{sink}.channel = {channel}\n"
        text += f"a1.sinks.{sink}.runner = {runner}\n"
    (tmp_path / "agent.conf").write_text(text)
    spec, diagnostics = load(tmp_path / "agent.conf", None, components=Components([Plugin()]))
    assert spec is not None, diagnostics
    agent = Agent(spec)
    for runner in agent.channels.values():
        runner.ready.set()
    return agent, [runner.channel for runner in agent.channels.values()]


def test_a_drain_ends_when_the_group_is_at_the_end_of_all_partitions_of_all_members(
    tmp_path: Path, clock: Clock
) -> None:
    agent, (kept,) = agent_of(tmp_path, "c1", "c1")
    kept.end, kept.next_offsets = {0: 150, 1: 150, 2: 0}, {0: 150, 1: 75}
    assert not agent.is_drained(), "another member has partition 1"
    kept.next_offsets[1] = 150
    assert agent.is_drained()


def test_records_put_after_the_start_of_a_drain_do_not_delay_its_end(tmp_path: Path, clock: Clock) -> None:
    agent, (kept,) = agent_of(tmp_path, "c1")
    kept.end, kept.next_offsets = {0: 10}, {0: 0}
    assert not agent.is_drained()
    kept.end, kept.next_offsets = {0: 20}, {0: 10}
    assert agent.is_drained()


def test_events_forwarded_from_one_channel_to_another_are_delivered_too(tmp_path: Path, clock: Clock) -> None:
    agent, (last, first) = agent_of(tmp_path, "c1", "c2")
    first.end, first.next_offsets, last.end, last.next_offsets = {0: 10}, {0: 0}, {0: 5}, {0: 5}
    assert not agent.is_drained()
    first.next_offsets, last.end = {0: 10}, {0: 15}
    assert not agent.is_drained(), "the ends are looked up again"
    first.end, last.end, last.next_offsets = {0: 11}, {0: 16}, {0: 15}
    assert agent.is_drained(), "later records of another producer are not waited for"


def test_memory_channels_are_empty(tmp_path: Path) -> None:
    agent, _ = agent_of(tmp_path, "c1", kind="memory")
    assert agent.is_drained()


def test_partitions_without_events_count_as_reached(tmp_path: Path, clock: Clock) -> None:
    agent, (kept,) = agent_of(tmp_path, "c1")
    kept.end, kept.next_offsets, kept.nothing_from = {0: 10, 1: 7}, {0: 3}, {0: 9, 1: None}
    assert not agent.is_drained()
    clock.now += drain.IDLE_CHECK_SECONDS
    assert not agent.is_drained(), "records wait in partition 0"
    kept.next_offsets[0] = 9
    assert not agent.is_drained()
    clock.now += drain.IDLE_CHECK_SECONDS
    assert agent.is_drained()


def test_a_recreated_topic_has_its_own_ends(tmp_path: Path, clock: Clock) -> None:
    agent, (kept,) = agent_of(tmp_path, "c1")
    kept.end, kept.next_offsets = {0: 100}, {0: 50}
    assert not agent.is_drained()
    kept.topic_id, kept.end, kept.next_offsets = "second", {0: 3}, {}
    assert not agent.is_drained()
    kept.next_offsets = {0: 3}
    assert agent.is_drained()


def test_a_drain_without_progress_fails_with_the_remaining_partitions_and_their_members(
    tmp_path: Path, clock: Clock
) -> None:
    agent, (kept,) = agent_of(tmp_path, "c1")
    kept.end, kept.next_offsets, kept.held = {0: 10, 1: 20, 2: 30}, {0: 10, 1: 5}, {0: "us", 1: "other on host-b"}
    assert not agent.is_drained()
    clock.now += drain.DRAIN_STALL_SECONDS
    kept.next_offsets[1] = 6
    assert not agent.is_drained(), "it moves"
    clock.now += drain.DRAIN_STALL_SECONDS
    assert not agent.is_drained()
    clock.now += 1
    with pytest.raises(DrainStalled) as stuck:
        agent.is_drained()
    assert str(stuck.value) == (
        "not drained, and nothing was delivered for 60 s: "
        "partition 1 of a1.channels.c1 is delivered up to 6 of 20 in group g, and assigned to other on host-b; "
        "partition 2 of a1.channels.c1 is delivered up to 0 of 30 in group g, and assigned to no member"
    )


def test_a_drain_fails_with_the_reason_when_brokers_stay_unavailable(tmp_path: Path, clock: Clock) -> None:
    agent, (kept,) = agent_of(tmp_path, "c1")
    kept.away = True
    assert not agent.is_drained()
    clock.now += drain.DRAIN_STALL_SECONDS + 1
    with pytest.raises(DrainStalled, match=r"a1\.channels\.c1 cannot be checked: no broker answers"):
        agent.is_drained()


def test_a_drain_continues_while_spark_makes_progress(tmp_path: Path, clock: Clock) -> None:
    agent, (kept,) = agent_of(tmp_path, "c1", runner="spark")
    assert agent.spark is not None
    metrics = agent.spark.metrics["k0"]
    kept.end, kept.next_offsets = {0: 10}, {}
    assert not agent.is_drained()
    clock.now += drain.DRAIN_STALL_SECONDS + 1
    assert not agent.is_drained(), "a micro-batch may take longer"
    clock.now += drain.SPARK_STALL_SECONDS
    with pytest.raises(
        DrainStalled, match=r"was delivered for 600 s: .* 0 of 10 in group g, and assigned to a1.sinks.k0 on Spark$"
    ):
        agent.is_drained()  # it hangs
    clock.now -= drain.SPARK_STALL_SECONDS
    metrics.set_error("HDFS is away")
    with pytest.raises(
        DrainStalled, match=r"0 of 10 in group g, and assigned to a1.sinks.k0 on Spark \(HDFS is away\)$"
    ):
        agent.is_drained()
