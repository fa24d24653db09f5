"""Problems of an agent: order, causes, figures and sections, the same for page, `/healthz`, `agent top` and log."""

from __future__ import annotations

import json
import logging
import re
import time
from pathlib import Path

import pytest

from flafka.agent.monitoring import problemkinds, problemmonitor, problems, problemsearch
from flafka.agent.monitoring.advice import advice
from flafka.agent.monitoring.problemkinds import KINDS
from flafka.agent.monitoring.problems import AgentProblem
from flafka.agent.services.running import fetch_page
from tests.agent.browsing import configured
from tests.agent.scenes import Scene, cluster
from tests.agent.states import STATES

ROOT = Path(__file__).parents[2]


def found(state: str, directory: Path) -> tuple[Scene, list[AgentProblem]]:
    scene = STATES[state](directory)
    return scene, scene.view.problems.current()


def test_an_outage_of_all_brokers_stands_above_a_trivial_sink(tmp_path: Path) -> None:
    _, all_problems = found("brokers away", tmp_path)
    own = [(p.kind, p.component) for p in all_problems if not p.cause]
    assert own == [("brokers-away", "collector.channels.events"), ("sink-fails", "collector.sinks.debug")]
    caused = {p.component for p in all_problems if p.cause == "collector.channels.events"}
    assert caused == {f"collector.sources.{name}" for name in ("firewall", "syslog", "orders", "audit")} | {
        "collector.sinks.archive"
    }
    assert [p.cause for p in all_problems] == sorted(p.cause for p in all_problems)


def test_an_overflow_stands_above_a_trivial_sink_although_it_is_only_degraded(tmp_path: Path) -> None:
    scene = STATES["overflow filling"](tmp_path)
    scene.metrics["SINK.debug"].set_error("standard output is closed")
    first, second = scene.view.problems.current()
    assert (first.kind, first.severity) == ("overflowing", "degraded")
    assert (second.kind, second.severity) == ("sink-fails", "failing")


def test_the_sink_with_most_waiting_events_is_the_first(tmp_path: Path) -> None:
    scene, (search, debug) = found("sink fails", tmp_path)
    assert (search.component, debug.component) == ("collector.sinks.search", "collector.sinks.debug")
    scene.metrics["SINK.debug"].set("Lag", 1e7)
    assert scene.view.problems.current()[0].component == "collector.sinks.search", "Kafka deletes its events soon"
    scene.metrics["SINK.search"].set("RetentionSecondsLeft", 1e6)
    assert scene.view.problems.current()[0].component == "collector.sinks.debug"


@pytest.mark.parametrize(
    ("error", "action", "command"),
    [
        (
            "cannot listen on [::1]:514 (UDP): another program listens there; stop it or choose another port",
            "Stop the other program at UDP port 514, or choose another port.",
            "sudo ss -lunp 'sport = :514'",
        ),
        (
            "https://es-1:9200: Connection refused; http://[::1]:9200/_bulk: timed out",
            "Start the server at es-1:9200 or [::1]:9200, or repair the network to it.",
            "",
        ),
        (
            "standard output is closed",
            "Restart the agent with an open standard output, or remove this sink.",
            "",
        ),
        ("/var/lib/x: No space left on device", "Make room on the disk.", ""),
        ("/srv/a: Permission denied", "Give the user of the agent the permission that the error names.", ""),
    ],
)
def test_an_error_says_what_to_do(error: str, action: str, command: str) -> None:
    assert advice(error) == (action, command)


@pytest.mark.parametrize(
    "error", ["", "schema of 2026-11-30 10:20:30 refused", "org.x.Error at A.java:120: not known"]
)
def test_an_error_without_a_known_remedy_gets_none(error: str) -> None:
    assert advice(error) is None


def test_the_name_of_a_component_keeps_its_capitals(tmp_path: Path) -> None:
    file = tmp_path / "a.conf"
    lines = ["sources = S", "channels = C", "sinks = HdfsOut", "sources.S.type = seq", "sources.S.channels = C"]
    lines += ["channels.C.type = memory", "sinks.HdfsOut.type = null", "sinks.HdfsOut.channel = C"]
    file.write_text("".join(f"a1.{line}\n" for line in lines))
    scene = Scene(configured(file))
    scene.metrics["SINK.HdfsOut"].set("RetentionSecondsLeft", 3600)
    (problem,) = scene.view.problems.current()
    assert problem.title == 'Kafka deletes events that sink "HdfsOut" has not delivered, in 1.0 h.'


def test_a_full_channel_is_the_fault_of_its_sink(tmp_path: Path) -> None:
    scene = STATES["well"](tmp_path)
    scene.metrics["SINK.hook"].set_error("hooks.example: Connection refused")
    for name, value in (("ChannelSize", 199_990), ("ChannelFillPercentage", 100)):
        scene.metrics["CHANNEL.slow"].set(name, value)
    scene.metrics["SOURCE.uploads"].set_error("channel slow is full")
    sink, *caused = scene.view.problems.current()
    assert (sink.kind, sink.component, sink.cause) == ("sink-fails", "collector.sinks.hook", "")
    assert {(p.kind, p.component, p.cause) for p in caused} == {
        ("source-fails", "collector.sources.uploads", "collector.sinks.hook"),
        ("channel-full", "collector.channels.slow", "collector.sinks.hook"),
    }


def test_limits_are_warnings_and_do_not_change_the_state(tmp_path: Path) -> None:
    scene = STATES["well"](tmp_path)
    assert scene.view.state()["state"] == "ok"
    assert scene.view.state()["problems"] == []
    for key, figure, value in (
        ("SOURCE.api", "UnacknowledgedSeconds", 61),
        ("SOURCE.firewall", "KernelDropCount", 5),
        ("CHANNEL.quick", "ChannelFillPercentage", 81),
        ("SINK.archive", "LagSeconds", 601),
        ("SINK.table", "RetentionSecondsLeft", 3600),
        ("CHANNEL.slow", "DiskFreeBytes", 1.9e9),
        ("SOURCE.api", "CertificateSecondsLeft", 86400),
    ):
        scene.metrics[key].set(figure, value)
    state = scene.view.state()
    assert state["state"] == "ok"
    kinds = [problem["kind"] for problem in state["problems"]]
    expected = ["retention-near", "datagrams-lost", "events-not-stored", "channel-full", "disk-full", "sink-behind"]
    assert kinds == [*expected, "certificate-expires"]
    assert {problem["severity"] for problem in state["problems"]} == {"warning"}
    scene.metrics["SINK.table"].set("RetentionSecondsLeft", 7 * 3600)
    assert "retention-near" not in [problem.kind for problem in scene.view.problems.current()]


def test_the_health_has_the_problems_and_503_only_for_failures(tmp_path: Path) -> None:
    for state, status in (("dead letters", 200), ("sink fails", 503)):
        with STATES[state](tmp_path).served() as scene:
            answered, body = fetch_page("127.0.0.1", scene.server.port, "/healthz")
            assert answered == status
            health = json.loads(body)
            shown = scene.view.state()["problems"]
            assert [p["title"] for p in health["problems"]] == [p["title"] for p in shown]
            for problem in health["problems"]:
                assert problem["component"].startswith("collector.")
                assert problem["since"] > 1e9
                assert f"-c {tmp_path}/collector.conf -n collector" in problem["command"], "for any directory"


def test_a_lasting_problem_is_logged_again_and_its_end_as_well(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = STATES["sink fails"](tmp_path)
    monitor, clock = scene.view.problems, [0.0]
    monkeypatch.setattr(problemmonitor.time, "monotonic", lambda: clock[0])
    caplog.set_level(logging.INFO, "collector")

    def lines() -> list[tuple[str, str]]:
        clock[0] += problemmonitor.SCAN_INTERVAL_SECONDS
        caplog.clear()
        monitor.log_due()
        return [(record.name, record.getMessage()) for record in caplog.records]

    ((component, text),) = lines()
    assert component == "collector.sinks.search", "the other fails since three minutes only"
    assert re.match(
        r"since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC, 108 attempts: Sink \"search\" \(solr\) does not deliver\. "
        r"3\.5 M events wait in collector\.channels\.events, .*Getting worse: 1,330 more events wait every second\. "
        r"See failures\.md#a-sink-fails\. ",
        text,
    ), text
    assert lines() == []
    for metrics in scene.metrics.values():
        metrics.set_error("")
    scene.metrics["SINK.search"].set("LagSeconds", 0)
    scene.metrics["SINK.search"].remove("RetentionSecondsLeft")
    assert lines() == [("collector.sinks.search", 'no longer, after 44 min: Sink "search" (solr) does not deliver.')]


def test_a_problem_that_is_over_is_named_for_a_day(tmp_path: Path) -> None:
    scene = STATES["well"](tmp_path)
    monitor, metrics, clock = scene.view.problems, scene.metrics["SINK.debug"], [time.time()]
    monitor._now, monitor._past = lambda: clock[0], {}
    for times in (1, 2):
        metrics.set_error("standard output is closed")
        assert [problem.component for problem in monitor.current()] == ["collector.sinks.debug"]
        assert monitor.past() == []
        clock[0] += 100
        metrics.set_error("")
        assert monitor.current() == []
        (past,) = monitor.past()
        assert (past.title, past.error) == ('Sink "debug" (logger) does not deliver.', "standard output is closed")
        assert (past.until, past.times) == (clock[0], times)
        (shown,) = scene.view.state()["past"]
        assert shown["component"] == "collector.sinks.debug"
    clock[0] += problemmonitor.PAST_SECONDS
    assert monitor.past() == []


def test_a_problem_with_a_cause_is_not_named_as_past_and_the_list_is_bounded(tmp_path: Path) -> None:
    scene = STATES["brokers away"](tmp_path)
    monitor = scene.view.problems
    assert len(monitor.current()) > 2
    scene.set_cluster("events", cluster("events"))
    scene.metrics["CHANNEL.events"].set_error("")
    monitor._now = lambda: time.time() + problems.RECENT_DROP_SECONDS
    assert {problem.kind for problem in monitor.current()} == {"source-fails", "sink-fails"}, "the channel was first"
    for metrics in scene.metrics.values():
        metrics.set_error("")
        metrics.set("UnacknowledgedSeconds", 0)
    monitor.current()
    assert {past.component for past in monitor.past()} == {"collector.channels.events", "collector.sinks.debug"}
    for number in range(2 * problemmonitor.MAX_PAST):
        monitor._record_past({("c", str(number)): AgentProblem("c", "failing", str(number), "", "")}, time.time())
    assert len(monitor.past()) == problemmonitor.MAX_PAST


def test_lost_datagrams_are_counted_since_the_loss_began(tmp_path: Path) -> None:
    scene = STATES["well"](tmp_path)
    monitor, metrics, clock = scene.view.problems, scene.metrics["SOURCE.firewall"], [1e9]
    monitor._now = lambda: clock[0]
    for lost in (3, 2):
        metrics.add("KernelDropCount", lost)
        (problem,) = monitor.current()
        clock[0] += 10
    assert problem.loss == "5 datagrams since 2001-09-09 01:46 UTC."
    clock[0] += problems.RECENT_DROP_SECONDS
    assert monitor.current() == []
    assert "5 datagrams lost and no event rejected" in scene.view.state()["loss_so_far"]
    metrics.add("KernelDropCount", 7)
    (problem,) = monitor.current()
    assert problem.loss == "7 datagrams since 2001-09-09 01:52 UTC."
    metrics.add("KernelDropCount", 4 - metrics.get("KernelDropCount"))  # as of a source that a reload has replaced
    clock[0] += 60
    (problem,) = monitor.current()
    assert problem.loss == "4 datagrams since 2001-09-09 01:53 UTC."
    clock[0] -= 86400
    assert monitor.current() == []
    past = next(past for past in monitor.past() if past.component == "collector.sources.firewall")
    assert past.until == past.since, "it began after its end, by the clock"


def test_since_is_the_first_failure_and_attempts_do_not_change_it() -> None:
    from flafka.plugins import Metrics

    metrics = Metrics()
    metrics.set_error("a")
    since = metrics.failing_since
    metrics.set_error("b")
    assert metrics.failing_since == since > 0
    metrics.set_error("")
    assert metrics.failing_since == 0


def test_each_kind_has_a_section_in_the_documentation_and_on_the_page_of_the_agent() -> None:
    text = (ROOT / "docs" / problemkinds.DOCUMENT).read_text("utf-8")
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    page = problemkinds.help_page()
    for name, kind in KINDS.items():
        assert headings.count(kind.heading) == 1, name
        assert kind.anchor == re.sub(r"[^\w-]", "", kind.heading.lower().replace(" ", "-"))
        assert f'<section id="{kind.anchor}"><h2>{kind.heading}</h2>' in page, name
        assert kind.steps, name
    source = Path(problemsearch.__file__).read_text("utf-8")
    used = {word for word in re.findall(r'"([a-z-]+)"', source) if word in KINDS}
    assert used == KINDS.keys()
