"""Rejected events are said: by cause, in the log and in the health, whatever the runner."""

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
from flafka.agent.runner.deadletters.causes import cause_of, common, matches
from flafka.agent.runner.deadletters.letters import DeadLetter, FileDeadLetters
from flafka.agent.runner.deadletters.notices import AGAIN_SECONDS, MOST_CAUSES, RECENT_SECONDS, Heard, Notices
from flafka.agent.runner.spark.progress import report_rejected
from flafka.agent.runner.spark.supervisor import SparkRunner
from flafka.agent.services.running import until
from flafka.plugins import Batch, Component, Components, Config, Event, EventId, Rejected, Sink, Source, hookimpl

TOPIC = "orders~0a1b2c3d4e"


def letter(number: int, reason: str, component: str = "a1.sinks.k1", **headers: str) -> DeadLetter:
    event = Event(b"body %d" % number, headers)
    return DeadLetter(component, EventId(TOPIC, 0, number, 0), event, reason)


def causes(*letters: DeadLetter) -> set[str]:
    return {cause_of(one.reason, one.id, one.event) for one in letters}


SOLR = "Solr refuses its document: [doc={}] Error adding field 'n_i'='{}' msg=For input string: \"{}\""


def test_one_cause_is_one_whatever_ids_and_values_its_reasons_hold() -> None:
    value = ["twelve", "dozen", "a dozen"]
    refused = [
        letter(n, SOLR.format(EventId(TOPIC, 0, n, 0), value[n % 3], value[n % 3]), n=value[n % 3]) for n in range(49)
    ]
    assert len(causes(*refused)) == 1
    assert len(causes(*refused, letter(1, SOLR.replace("n_i", "size_i").format(1, 2, 2)))) == 2
    shown = refused[0].reason
    for one in refused:
        shown = common(shown, one.reason)
    assert shown == "Solr refuses its document: [doc=…] Error adding field 'n_i'=… msg=For input string: …"
    assert all(matches(shown, one.reason) for one in refused)


def test_what_a_document_is_called_by_its_headers_is_no_part_of_a_cause() -> None:
    named = [letter(n, f"Solr refuses it: [doc={host}] too long", host=host) for n, host in enumerate(["alpha", "b"])]
    assert causes(*named) == {"Solr refuses it: [doc=…] too long"}


@pytest.mark.parametrize("header", ["app", "timestamp"])
def test_the_names_of_headers_and_words_stay(header: str) -> None:
    found = causes(
        *(
            letter(n, f"its header '{header}' is '{value}': no name can't be it", **{header: value})
            for n, value in enumerate(["a/b", "../x", "7", ""])
        )
    )
    assert found == {
        f"its header '{header}' is …: no name can't be it",
        f"its header '{header}' is '': no name can't be it",
    }


def test_numbers_that_all_of_them_have_are_shown() -> None:
    one, other = "offset 12 is more than 255 bytes", "offset 7 is more than 255 bytes"
    assert causes(letter(1, one), letter(2, other)) == {"offset … is more than … bytes"}
    assert common(one, other) == "offset … is more than 255 bytes"
    assert common(one, one) == one
    assert matches("offset … is more", one)
    assert not matches("offset … is less", one)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[Warnings]:
    with caplog.at_level(logging.WARNING):
        yield Warnings(caplog)


class Warnings:
    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def take(self) -> list[tuple[str, str]]:
        found = [(record.name, record.getMessage()) for record in self._caplog.records]
        self._caplog.clear()
        return found


ADVICE = "They are dead letters: agent dlq list -c x.conf --component a1.sinks.k1"


def test_a_cause_is_said_at_once_and_then_once_a_minute_with_the_number_since(said: Warnings) -> None:
    clock = Clock()
    notices = Notices("agent dlq list -c x.conf", clock)
    notices.add("a1.sinks.k1", {"x …": ("x 1", 1)})
    assert said.take() == [("a1.sinks.k1", f"1 event was rejected: x 1. {ADVICE}")]
    for number in range(2, 100):
        clock.now += 0.1
        notices.add("a1.sinks.k1", {"x …": (f"x {number}", 1)})
    assert said.take() == []
    notices.add("a1.sinks.k1", {"y": ("y", 1)})
    assert said.take() == [("a1.sinks.k1", f"1 event was rejected: y. {ADVICE}")]
    clock.now = 1000 + AGAIN_SECONDS
    notices.say()  # though nothing more comes
    assert said.take() == [("a1.sinks.k1", f"98 events were rejected within 60 s: x …. {ADVICE}")]
    clock.now += 10 * AGAIN_SECONDS
    notices.say(all_of_them=True)
    assert said.take() == []


def test_the_end_says_what_was_not_said(said: Warnings) -> None:
    notices = Notices("agent dlq list -c x.conf", Clock())
    for _ in range(3):
        notices.add("a1.sinks.k1", {"x": ("x", 1)})
    said.take()
    notices.say(all_of_them=True)
    assert said.take() == [("a1.sinks.k1", f"2 events were rejected within 0 s: x. {ADVICE}")]


def test_causes_without_end_are_few_lines(said: Warnings) -> None:
    notices = Notices("agent dlq list", Clock())
    for number in range(1000):
        notices.add("a1.sinks.k1", {f"word{number}": (f"word{number}", 1)})
    assert len(said.take()) == MOST_CAUSES + 1
    assert "1,000 events were rejected" in notices.recent()["a1.sinks.k1"]


def test_a_component_is_degraded_while_its_rejections_are_recent(said: Warnings) -> None:
    clock = Clock()
    notices = Notices("agent dlq list -c x.conf", clock)
    assert notices.recent() == {}
    notices.add("a1.sinks.k1", {"x": ("x", 3), "y": ("y", 9)})
    clock.now += 7
    assert notices.recent() == {
        "a1.sinks.k1": "12 events were rejected, the latest 7 s ago (9: y; 3: x): "
        "agent dlq list -c x.conf --component a1.sinks.k1"
    }
    clock.now += RECENT_SECONDS
    assert notices.recent() == {}
    notices.add("a1.sinks.k1", {"x": ("x", 1)})
    assert notices.recent()["a1.sinks.k1"].startswith("1 event was rejected, the latest 0 s ago (1: x)")


def test_letters_are_heard_of_only_once_they_are_durable(tmp_path: Path) -> None:
    heard: list[Any] = []
    (tmp_path / "file").touch()
    broken = Heard(FileDeadLetters(tmp_path / "file" / "letters"), lambda *told: heard.append(told))
    with pytest.raises(Exception, match="cannot be written"):
        broken.put([letter(1, "x")])
    assert heard == []
    letters = Heard(FileDeadLetters(tmp_path / "letters"), lambda *told: heard.append(told))
    letters.put(iter([letter(1, "x 1"), letter(2, "x 2"), letter(3, "y", component="a1.sources.s1")]))
    assert heard == [("a1.sinks.k1", {"x …": ("x …", 2)}), ("a1.sources.s1", {"y": ("y", 1)})]


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


def test_an_agent_that_rejects_says_so_in_its_log_and_in_its_health(
    tmp_path: Path, said: Warnings, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "agent.conf"
    file.write_text(CONFIGURATION.format(directory=tmp_path))
    components = Components([Plugin()])
    spec, found = load(file, components=components)
    assert spec is not None, found
    agent = Agent(spec)
    agent.start()
    try:
        metrics = agent.sinks[0].members[0].metrics
        until(lambda: metrics.get("EventRejectedCount") == 100, "the odd ones to be rejected")
        with urllib.request.urlopen(f"http://127.0.0.1:{agent.server.port}/healthz") as answer:  # 200
            health = json.loads(answer.read())
    finally:
        assert agent.stop()
    assert health["failing"] == {}
    advice = f"agent dlq list -c {file} -n a1 --component a1.sinks.k1"
    assert health["degraded"].keys() == {"SINK.k1"}
    assert "100 events were rejected" in health["degraded"]["SINK.k1"]
    assert "100: … is odd" in health["degraded"]["SINK.k1"]
    assert health["degraded"]["SINK.k1"].endswith(f": {advice}")
    warnings = [text for name, text in said.take() if name == "a1.sinks.k1"]
    assert warnings == [f"100 events were rejected: … is odd. They are dead letters: {advice}"]
    monkeypatch.setattr("flafka.agent.cli.configured.Components", lambda: components)
    listed = CliRunner().invoke(main, ["dlq", "list", "--json", *advice.split()[3:]])
    assert [(row["reason"], row["events"]) for row in json.loads(listed.stdout)] == [("… is odd", 100)]
    listed = CliRunner().invoke(main, ["dlq", "list", "--json", *advice.split()[3:], "--reason", "01 … odd"])
    assert [(row["reason"], row["events"]) for row in json.loads(listed.stdout)] == [("… is odd", 19)]

    other = tmp_path / "other.conf"  # another pipeline, whose components have the same names
    other.write_text(file.read_text())
    listed = CliRunner().invoke(main, ["dlq", "list", "-c", str(other), "--json"])
    assert json.loads(listed.stdout) == []
    own = f"--kept-by {file}"
    assert (
        f"100 more letters of a1.sinks.k1 are those of {file}, and not of this configuration: {own}" in listed.stderr
    )
    assert "nothing to replay" in CliRunner().invoke(main, ["dlq", "replay", "-c", str(other), "--yes"]).stderr
    renamed = CliRunner().invoke(main, ["dlq", "list", "-c", str(other), "--json", *own.split()])
    assert [row["events"] for row in json.loads(renamed.stdout)] == [100]


# --- Spark's driver


def test_what_a_driver_says_of_rejected_events_reaches_the_agent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], said: Warnings
) -> None:
    file = tmp_path / "agent.conf"
    file.write_text(
        "a1.channels = c1\na1.sinks = k1\na1.channels.c1.type = kafka\n"
        "a1.channels.c1.kafka.bootstrap.servers = 127.0.0.1:1\n"
        "a1.sinks.k1.type = logger\na1.sinks.k1.channel = c1\na1.sinks.k1.runner = spark\n"
    )
    spec, found = load(file, components=Components())
    assert spec is not None, found
    agent = Agent(spec)
    assert isinstance(agent.spark, SparkRunner)
    agent.spark.metrics["k1"].error("another failure")
    in_driver = Heard(FileDeadLetters(tmp_path / "letters"), report_rejected)
    in_driver.put([letter(1, "x 1"), letter(2, "x 2")])
    agent.spark._report(capsys.readouterr().out.encode())
    assert [text for _, text in said.take()] == [
        f"2 events were rejected: x …. They are dead letters: agent dlq list -c {file} -n a1 --component a1.sinks.k1"
    ]
    assert "2: x …" in agent.registry.degraded()["SINK.k1"]
    assert agent.registry.failing() == {"SINK.k1": "another failure"}, "a letter is no sign that it works again"
