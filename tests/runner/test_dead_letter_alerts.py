"""Alerts about rejected events: by cause, in the log and in the health, for each runner."""

from __future__ import annotations

import json
import logging
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flafka.agent.cli import main
from flafka.agent.config import load
from flafka.agent.runner.agent import Agent
from flafka.agent.runner.deadletters.alerts import (
    DEGRADED_SECONDS,
    LOG_INTERVAL_SECONDS,
    MAX_GROUPS,
    AlertingStore,
    Alerts,
)
from flafka.agent.runner.deadletters.errorgroups import error_group_of, matches_pattern, merge_reasons
from flafka.agent.runner.deadletters.store import DeadLetter, FileDeadLetterStore
from flafka.agent.runner.spark.progress import report_rejected
from flafka.agent.runner.spark.supervisor import SparkRunner
from flafka.agent.services.running import until
from flafka.plugins import Batch, Component, Components, Config, Event, EventId, Rejected, Sink, Source, hookimpl

TOPIC = "orders~0a1b2c3d4e"


def dead_letter(number: int, reason: str, component: str = "a1.sinks.k1", **headers: str) -> DeadLetter:
    event = Event(b"body %d" % number, headers)
    return DeadLetter(component, EventId(TOPIC, 0, number, 0), event, reason)


def causes(*letters: DeadLetter) -> set[str]:
    return {error_group_of(letter.reason, letter.id, letter.event) for letter in letters}


SOLR = "Solr refuses its document: [doc={}] Error adding field 'n_i'='{}' msg=For input string: \"{}\""


def test_reasons_that_differ_in_ids_and_values_are_one_cause() -> None:
    value = ["twelve", "dozen", "a dozen"]
    refused = [
        dead_letter(n, SOLR.format(EventId(TOPIC, 0, n, 0), value[n % 3], value[n % 3]), n=value[n % 3])
        for n in range(49)
    ]
    assert len(causes(*refused)) == 1
    assert len(causes(*refused, dead_letter(1, SOLR.replace("n_i", "size_i").format(1, 2, 2)))) == 2
    shown = refused[0].reason
    for letter in refused:
        shown = merge_reasons(shown, letter.reason)
    assert shown == "Solr refuses its document: [doc=…] Error adding field 'n_i'=… msg=For input string: …"
    assert all(matches_pattern(shown, letter.reason) for letter in refused)


def test_document_ids_from_headers_are_no_part_of_a_cause() -> None:
    named = [
        dead_letter(n, f"Solr refuses it: [doc={host}] too long", host=host) for n, host in enumerate(["alpha", "b"])
    ]
    assert causes(*named) == {"Solr refuses it: [doc=…] too long"}


@pytest.mark.parametrize("header", ["app", "timestamp"])
def test_the_names_of_headers_and_words_stay(header: str) -> None:
    patterns = causes(
        *(
            dead_letter(n, f"its header '{header}' is '{value}': no name can't be it", **{header: value})
            for n, value in enumerate(["a/b", "../x", "7", ""])
        )
    )
    assert patterns == {
        f"its header '{header}' is …: no name can't be it",
        f"its header '{header}' is '': no name can't be it",
    }


def test_numbers_that_all_reasons_share_are_shown() -> None:
    first, second = "offset 12 is more than 255 bytes", "offset 7 is more than 255 bytes"
    assert causes(dead_letter(1, first), dead_letter(2, second)) == {"offset … is more than … bytes"}
    assert merge_reasons(first, second) == "offset … is more than 255 bytes"
    assert merge_reasons(first, first) == first
    assert matches_pattern("offset … is more", first)
    assert not matches_pattern("offset … is less", first)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[Warnings]:
    with caplog.at_level(logging.WARNING):
        yield Warnings(caplog)


class Warnings:
    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def take(self) -> list[tuple[str, str]]:
        warnings = [(record.name, record.getMessage()) for record in self._caplog.records]
        self._caplog.clear()
        return warnings


ADVICE = "They are dead letters: agent dlq list -c x.conf --component a1.sinks.k1"


def test_a_cause_is_reported_at_once_and_then_once_a_minute_with_the_number_since(logged: Warnings) -> None:
    clock = Clock()
    alerts = Alerts("agent dlq list -c x.conf", clock)
    alerts.add("a1.sinks.k1", {"x …": ("x 1", 1)})
    assert logged.take() == [("a1.sinks.k1", f"1 event was rejected: x 1. {ADVICE}")]
    for number in range(2, 100):
        clock.now += 0.1
        alerts.add("a1.sinks.k1", {"x …": (f"x {number}", 1)})
    assert logged.take() == []
    alerts.add("a1.sinks.k1", {"y": ("y", 1)})
    assert logged.take() == [("a1.sinks.k1", f"1 event was rejected: y. {ADVICE}")]
    clock.now = 1000 + LOG_INTERVAL_SECONDS
    alerts.log_due()  # without further events
    assert logged.take() == [("a1.sinks.k1", f"98 events were rejected within 60 s: x …. {ADVICE}")]
    clock.now += 10 * LOG_INTERVAL_SECONDS
    alerts.log_due(everything=True)
    assert logged.take() == []


def test_the_end_reports_unreported_rejections(logged: Warnings) -> None:
    alerts = Alerts("agent dlq list -c x.conf", Clock())
    for _ in range(3):
        alerts.add("a1.sinks.k1", {"x": ("x", 1)})
    logged.take()
    alerts.log_due(everything=True)
    assert logged.take() == [("a1.sinks.k1", f"2 events were rejected within 0 s: x. {ADVICE}")]


def test_causes_without_end_are_few_lines(logged: Warnings) -> None:
    alerts = Alerts("agent dlq list", Clock())
    for number in range(1000):
        alerts.add("a1.sinks.k1", {f"word{number}": (f"word{number}", 1)})
    assert len(logged.take()) == MAX_GROUPS + 1
    assert "1,000 events were rejected" in alerts.recent()["a1.sinks.k1"]


def test_a_component_is_degraded_while_its_rejections_are_recent(logged: Warnings) -> None:
    clock = Clock()
    alerts = Alerts("agent dlq list -c x.conf", clock)
    assert alerts.recent() == {}
    alerts.add("a1.sinks.k1", {"x": ("x", 3), "y": ("y", 9)})
    clock.now += 7
    assert alerts.recent() == {
        "a1.sinks.k1": "12 events were rejected, the latest 7 s ago (9: y; 3: x): "
        "agent dlq list -c x.conf --component a1.sinks.k1"
    }
    clock.now += DEGRADED_SECONDS
    assert alerts.recent() == {}
    alerts.add("a1.sinks.k1", {"x": ("x", 1)})
    assert alerts.recent()["a1.sinks.k1"].startswith("1 event was rejected, the latest 0 s ago (1: x)")


def test_dead_letters_are_reported_only_once_they_are_durable(tmp_path: Path) -> None:
    alerts: list[Any] = []
    (tmp_path / "file").touch()
    broken = AlertingStore(FileDeadLetterStore(tmp_path / "file" / "letters"), lambda *alert: alerts.append(alert))
    with pytest.raises(Exception, match="cannot be written"):
        broken.put([dead_letter(1, "x")])
    assert alerts == []
    letters = AlertingStore(FileDeadLetterStore(tmp_path / "letters"), lambda *alert: alerts.append(alert))
    letters.put(iter([dead_letter(1, "x 1"), dead_letter(2, "x 2"), dead_letter(3, "y", component="a1.sources.s1")]))
    assert alerts == [("a1.sinks.k1", {"x …": ("x …", 2)}), ("a1.sources.s1", {"y": ("y", 1)})]


# --- a whole agent on threads


class Numbers(Source[Config]):
    type_name = "numbers"

    def batches(self) -> Iterator[Batch]:
        yield Batch.of([Event(b"%d" % number) for number in range(2000)])
        self.stopping.wait()


class Picky(Sink[Config]):
    type_name = "picky"

    def write(self, batch: Batch) -> None:
        reasons = {batch.id(row): f"{e.body.decode()} is odd" for row, e in enumerate(batch) if int(e.body) % 20 == 1}
        if reasons:
            raise Rejected(reasons)


class Plugin:
    @hookimpl
    def components(self) -> list[type[Component]]:
        return [Numbers, Picky]


CONFIGURATION = """
a1.sources = s1
a1.channels = c1
a1.sinks = k1
a1.deadletters.directory = {directory}
a1.monitoring.port = 0
a1.sources.s1.type = numbers
a1.sources.s1.channels = c1
a1.channels.c1.type = memory
a1.channels.c1.capacity = 5000
a1.sinks.k1.type = picky
a1.sinks.k1.channel = c1
"""


def test_rejections_of_an_agent_are_reported_in_its_log_and_in_its_health(
    tmp_path: Path, logged: Warnings, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "agent.conf"
    file.write_text(CONFIGURATION.format(directory=tmp_path))
    components = Components([Plugin()])
    spec, diagnostics = load(file, components=components)
    assert spec is not None, diagnostics
    agent = Agent(spec)
    agent.start()
    try:
        metrics = agent.sinks[0].members[0].metrics
        until(lambda: metrics.get("EventRejectedCount") == 100, "the odd ones to be rejected")
        with urllib.request.urlopen(f"http://127.0.0.1:{agent.server.port}/healthz") as answer:  # 200
            health = json.loads(answer.read())
    finally:
        assert agent.stop()
    advice = f"agent dlq list -c {file} -n a1 --component a1.sinks.k1"
    (problem,) = (problem for problem in health["problems"] if problem["severity"] != "warning")
    assert (problem["kind"], problem["component"]) == ("events-rejected", "a1.sinks.k1")
    assert "100 events were rejected" in problem["error"]
    assert "100: … is odd" in problem["error"]
    assert problem["command"] == advice
    assert problem["effect"] == "100 dead letters since the agent started."
    warnings = [text for name, text in logged.take() if name == "a1.sinks.k1"]
    assert warnings == [f"100 events were rejected: … is odd. They are dead letters: {advice}"]
    monkeypatch.setattr("flafka.agent.cli.configuration.Components", lambda: components)
    listed = CliRunner().invoke(main, ["dlq", "list", "--json", *advice.split()[3:]])
    assert [(row["reason"], row["events"]) for row in json.loads(listed.stdout)] == [("… is odd", 100)]
    listed = CliRunner().invoke(main, ["dlq", "list", "--json", *advice.split()[3:], "--reason", "01 … odd"])
    assert [(row["reason"], row["events"]) for row in json.loads(listed.stdout)] == [("… is odd", 19)]

    other = tmp_path / "other.conf"  # another pipeline, whose components have the same names
    other.write_text(file.read_text())
    listed = CliRunner().invoke(main, ["dlq", "list", "-c", str(other), "--json"])
    assert json.loads(listed.stdout) == []
    own = f"--kept-by {file}"
    assert f"100 more dead letters of a1.sinks.k1 belong to {file}, not to this configuration: {own}" in listed.stderr
    assert "nothing to replay" in CliRunner().invoke(main, ["dlq", "replay", "-c", str(other), "--yes"]).stderr
    renamed = CliRunner().invoke(main, ["dlq", "list", "-c", str(other), "--json", *own.split()])
    assert [row["events"] for row in json.loads(renamed.stdout)] == [100]


# --- Spark's driver


def test_a_driver_reports_rejected_events_to_the_agent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], logged: Warnings
) -> None:
    file = tmp_path / "agent.conf"
    file.write_text(
        "a1.channels = c1\na1.sinks = k1\na1.channels.c1.type = kafka\n"
        "a1.channels.c1.kafka.bootstrap.servers = 127.0.0.1:1\n"
        "a1.sinks.k1.type = logger\na1.sinks.k1.channel = c1\na1.sinks.k1.runner = spark\n"
    )
    spec, diagnostics = load(file, components=Components())
    assert spec is not None, diagnostics
    agent = Agent(spec)
    assert isinstance(agent.spark, SparkRunner)
    agent.spark.metrics["k1"].set_error("another failure")
    in_driver = AlertingStore(FileDeadLetterStore(tmp_path / "letters"), report_rejected)
    in_driver.put([dead_letter(1, "x 1"), dead_letter(2, "x 2")])
    agent.spark._handle_report(capsys.readouterr().out.encode())
    assert [text for _, text in logged.take()] == [
        f"2 events were rejected: x …. They are dead letters: agent dlq list -c {file} -n a1 --component a1.sinks.k1"
    ]
    assert "2: x …" in agent.registry.degraded()["SINK.k1"]
    assert agent.registry.failing() == {"SINK.k1": "another failure"}, "a letter is no sign that it works again"
