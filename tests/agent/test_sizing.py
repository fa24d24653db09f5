"""`agent size`: the sizing model and its costs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from flafka.agent.cli import main
from flafka.agent.sizing import COSTS, SINKS, SOURCES, Load, read_costs, requirements

LOAD = Load(events=1_000_000, bytes=200, hosts=10_000)
COST = {
    "source": {"syslog": {"event": 1.0, "byte": 0.005}},
    "mask": {"event": 0.5},
    "process": {"idle": 0.1, "batch": 700, "delivery": 300, "linger": 0.01, "cores": 1.6, "connections": 10_000},
    "kafka": {"stored": 0.25, "byte": 0.01, "batch": 2_000, "delivery": 1_000, "idle": 0.1, "cores": 4},
    "sink": {"hdfs-text": {"event": 2.0, "reader": 500_000}},
    "spark": {
        "hdfs-text": {"core": 400_000},
        "executors": {"base": 0.1, "batch": 30},
        "driver": {"base": 0.2, "batch": 60},
    },
}


def amounts(load: Load, cost: Any = COST) -> dict[str, float]:
    return {need.resource: need.amount for need in requirements(load, cost)}


def run(*words: str) -> Any:
    return CliRunner().invoke(main, ["size", *words])


def test_the_formulas() -> None:
    sizes = amounts(LOAD)
    batches = 6 * 1e6 / (6 + 1e6 * 0.01)  # of six agents, each a batch for the events of 10 ms
    assert sizes["cores of agents"] == pytest.approx((4.5 + batches * 0.001 + 6 * 0.1) / 0.5)
    assert sizes["agents"] == 6
    assert sizes["cores of brokers"] == pytest.approx((200 * 0.01 + batches * 0.003 + 3 * 0.1) / 0.5)
    assert sizes["brokers"] == 3
    assert sizes["partitions"] == 6  # four readers at half of their rate, as many for each broker
    assert sizes["disk of brokers"] == pytest.approx(200e6 * 0.25 * 3 * 168 * 3600 / 0.8 / 1e9)
    assert sizes["files an hour"] == 6 * 12


def test_on_spark_the_executors_deliver() -> None:
    sizes = amounts(replace(LOAD, runner="spark"))
    batches = 4 * 1e6 / (4 + 1e6 * 0.01)
    assert sizes["cores of agents"] == pytest.approx((2.5 + batches * 0.0007 + 4 * 0.1) / 0.5)
    assert sizes["cores of executors"] == pytest.approx((2.5 + 0.1 + 30 / 300) / 0.5)
    assert sizes["cores of the driver"] == pytest.approx((0.2 + 60 / 300) / 0.5)
    assert sizes["partitions"] == 6


def test_few_events_cost_a_batch_each() -> None:
    few, many = (amounts(replace(LOAD, events=events, hosts=1))["cores of agents"] for events in (1, 10))
    assert many - few == pytest.approx(9 * (0.0045 + 1) / 1e3 / 0.5, rel=0.1)


@given(st.floats(1, 1e8), st.floats(1, 1e5), st.integers(1, 10**6), st.floats(1.01, 100))
def test_more_load_never_needs_less(events: float, size: float, hosts: int, more: float) -> None:
    load = Load(events=events, bytes=size, hosts=hosts)
    before = amounts(load)
    rounded = {"partitions", "files an hour"}  # to a multiple of the brokers, of which there may be more
    for larger in (replace(load, events=events * more), replace(load, bytes=size * more)):
        after = amounts(larger)
        assert all(after[what] >= before[what] for what in before.keys() - rounded)
        assert after["partitions"] > before["partitions"] - before["brokers"]


def test_every_cost_names_its_origin() -> None:
    for kind, named in read_costs().items():
        for name, cost in named.items() if kind in ("source", "sink", "spark") else [(kind, named)]:
            assert cost["from"], f"{kind}.{name}"


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("sink", SINKS)
def test_every_source_and_sink_has_costs(source: str, sink: str) -> None:
    assert amounts(replace(LOAD, source=source, sink=sink), read_costs(COSTS))
    if sink.startswith("hdfs"):
        assert amounts(replace(LOAD, source=source, sink=sink, runner="spark"), read_costs(COSTS))


def test_the_command_prints_each_need_with_its_reason() -> None:
    result = run("--events", "1000000", "--bytes", "200", "--hosts", "10000", "--json")
    assert result.exit_code == 0, result.output
    rows = {row["need"]: row for row in json.loads(result.output)}
    assert rows["brokers"]["amount"] >= 3
    assert "1,000,000/s" in rows["cores of agents"]["because"]


def test_costs_of_the_users_machine(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(COSTS.read_text().replace("reader = ", "reader = 1 #"))
    result = run("--events", "10", "--bytes", "200", "--costs", str(file), "--json")
    assert {row["need"]: row["amount"] for row in json.loads(result.output)}["partitions"] == 21
    file.write_text("nothing")
    result = run("--events", "10", "--bytes", "200", "--costs", str(file))
    assert result.exit_code == 1
    assert "is not a file of costs" in result.output
    file.write_text("[source.syslog]\nevent = 1\n")
    assert "the file of costs has no" in run("--events", "10", "--bytes", "200", "--costs", str(file)).output


def test_stores_are_not_sized_on_spark() -> None:
    result = run("--events", "10", "--bytes", "200", "--sink", "solr", "--runner", "spark")
    assert result.exit_code == 2
    assert "solr has no measured cost on Spark" in result.output
