"""`agent explain`: declarations of components, as text; the documentation has the same source."""

from __future__ import annotations

import json
from typing import Any

import click
import pytest
from click.testing import CliRunner

from flafka.agent import explain as facts
from flafka.agent.cli import main
from flafka.agent.cli.explain import component_lines
from flafka.plugins import Component, Components

ALL = [(kind, cls) for kind in facts.KINDS for cls in Components().all(kind)]


def run(*words: str) -> Any:
    return CliRunner().invoke(main, ["explain", *words])


@pytest.mark.parametrize(("kind", "cls"), ALL, ids=[f"{kind}-{cls.type_name}" for kind, cls in ALL])
def test_every_option_of_every_component_is_in_one_section(kind: str, cls: type[Component]) -> None:
    description = facts.describe_component(Components(), kind, cls.type_name)
    named = [option.name.removesuffix("*") for option in description.options()]
    own = [option for option in named if not (kind == "sink" and option.startswith("errors."))]
    assert sorted(own) == sorted(o.name for o in cls.config_class.options() if not o.without_effect)
    assert {option.name.removesuffix("*") for option in description.sections.get(facts.REQUIRED, ())} == {
        o.name for o in cls.config_class.options() if o.is_required and not o.without_effect
    }
    shown = "\n".join(component_lines(description, 80))
    assert all(option.name in shown for option in description.options())
    assert all(metric.name in shown for metric in (*description.metrics, *description.metrics_of_every))
    assert not [line for line in shown.splitlines() if len(click.unstyle(line)) > 80]


def test_without_a_kind_it_lists_all_types() -> None:
    result = run()
    assert result.exit_code == 0, result.output
    first = {line.split()[0] for line in result.output.splitlines() if line.startswith("  ")}
    assert {cls.type_name for _, cls in ALL} | {"failover"} <= first
    types = json.loads(run("--json").output)
    assert [entry["type"] for entry in types["channel"]] == [cls.type_name for kind, cls in ALL if kind == "channel"]


def test_a_kind_lists_its_types_alone() -> None:
    shown = run("interceptors").output
    assert "  mask" in shown
    assert "hdfs" not in shown


def test_shared_options_have_a_section_of_their_own() -> None:
    description = json.loads(run("source", "avro", "--json").output)
    assert [*description["sections"]] == ["Required", "Options", "Connections", "TLS"]
    assert "keystore" in [option["name"] for option in description["sections"]["TLS"]]
    assert description["without_effect"]["threads"] == "one thread serves all connections"


def test_a_component_has_its_metrics() -> None:
    lines = run("source", "syslogudp").output.splitlines()
    start = lines.index("Metrics")
    assert lines[start + 1 : start + 3] == [
        "  KernelDropCount  counter, datagrams",
        "      Datagrams that the kernel had no room for.",
    ]
    description = json.loads(run("source", "syslogudp", "--json").output)
    assert [metric["name"] for metric in description["metrics"]] == ["KernelDropCount", "EventIncompleteCount"]
    assert "EventAcceptedCount" in [metric["name"] for metric in description["metrics_of_every"]]


def test_a_java_class_names_a_component_with_its_own_defaults() -> None:
    by_type = json.loads(run("source", "kafka", "kafka.bootstrap.servers", "--json").output)
    java = "org.apache.flume.source.kafka.KafkaSource"
    flumes = json.loads(run("source", java, "kafka.bootstrap.servers", "--json").output)
    assert (by_type["required"], flumes["required"]) == (False, True)
    assert flumes["type"] == "kafka"


def test_one_option_shows_its_line_of_a_configuration() -> None:
    lines = run("sink", "hdfs", "hdfs.rollInterval").output.splitlines()
    assert lines[:2] == ["hdfs.rollInterval of sink hdfs", "integer, default 30 s"]
    assert lines[-1] == "a1.sinks.k1.hdfs.rollInterval = 30"
    assert run("agent", "monitoring.port").output.splitlines()[-1] == "a1.monitoring.port = 14141"
    prefixed = run("source", "kafka", "kafka.consumer.max.poll.records").output
    assert prefixed.startswith("kafka.consumer.* of source kafka")
    assert "without effect: one thread serves all" in run("source", "avro", "threads").output


@pytest.mark.parametrize(
    ("words", "suggestion"),
    [
        (["sinc"], "no kind of component is named 'sinc', did you mean 'sink'?"),
        (["hdfs"], "did you mean `agent explain sink hdfs`?"),
        (["sink", "hdfss"], "unknown sink type 'hdfss', did you mean 'hdfs'?"),
        (["sink", "hdfs", "hdfs.rolInterval"], "has no option 'hdfs.rolInterval', did you mean 'hdfs.rollInterval'?"),
        (["sink", "qqqqqq"], "unknown sink type 'qqqqqq'; `agent explain sink` lists all"),
        (["processor", "qqqqqq"], "unknown sink processor 'qqqqqq'; there are default, failover, load_balance"),
        (["source", "jms"], "Flume's source jms is not built: carry the queue into a Kafka topic"),
        (["processor", "failovr"], "unknown sink processor 'failovr', did you mean 'failover'?"),
        (["agent", "monitoring.prt"], "has no option 'monitoring.prt', did you mean 'monitoring.port'?"),
    ],
)
def test_mistyped_names_get_suggestions(words: list[str], suggestion: str) -> None:
    result = run(*words)
    assert result.exit_code == 1
    assert suggestion in " ".join(result.output.split())


def test_where_an_interceptor_may_stand() -> None:
    why = "a redelivered event may get another result"
    for name, note in (
        ("mask", "On sources and sinks."),
        ("uuid", f"On sources only: {why}."),
        ("sample", f"On sources, and with `by` on sinks too: without it {why}."),
    ):
        assert facts.describe_component(Components(), "interceptor", name).notes == (note,)
