"""`agent top`: the figures of the page, on a terminal, in a pipe and as JSON."""

from __future__ import annotations

import io
import json
import re
import shutil
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from flafka.agent.cli import main
from flafka.agent.cli.top import draw, rows, select_rows
from flafka.agent.config import load
from flafka.agent.graph import graph_of
from flafka.agent.monitoring.registry import Registry
from flafka.agent.monitoring.server import MetricsServer
from flafka.agent.monitoring.view import View
from flafka.agent.units import format_milliseconds, format_number, format_seconds
from flafka.plugins import Components, Metrics
from tests.fixtures.ports import free_port
from tests.plugins.certificates import certificate

TIME = r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC"
CONFIGURATION = """\
a1.sources = s1
a1.channels = c1
a1.sinks = k1 k2
a1.sources.s1.type = netcat
a1.sources.s1.bind = 127.0.0.1
a1.sources.s1.port = 0
a1.sources.s1.channels = c1
a1.sources.s1.interceptors = i1
a1.sources.s1.interceptors.i1.type = regex_filter
a1.channels.c1.type = memory
a1.sinks.k1.type = null
a1.sinks.k1.channel = c1
a1.sinks.k2.type = logger
a1.sinks.k2.channel = c1
"""


class Served:
    """Figures of an agent behind its HTTP server, without the agent."""

    def __init__(self, directory: Path, token: str = "", *lines: str) -> None:
        self.file = directory / "agent.conf"
        port = free_port()
        secret = f"a1.monitoring.token = {token}\n" if token else ""
        self.file.write_text("\n".join((f"{CONFIGURATION}a1.monitoring.port = {port}", secret, *lines)))
        spec, _ = load(self.file, components=Components())
        assert spec is not None
        registry = Registry("a1")
        self.metrics = {
            name: Metrics() for name in ("SOURCE.s1", "INTERCEPTOR.s1.i1", "CHANNEL.c1", "SINK.k1", "SINK.k2")
        }
        for key, metrics in self.metrics.items():
            kind, _, name = key.partition(".")
            registry.add(kind, name, metrics)
        self.view = View(graph_of(spec), registry)
        self.server = MetricsServer(registry, "127.0.0.1", port, self.view, token, spec.options.tls)
        self.url = f"http://127.0.0.1:{port}"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path)
    served.metrics["SOURCE.s1"].add("EventAcceptedCount", 123_456)
    served.metrics["SOURCE.s1"].add("KernelDropCount", 7)
    served.metrics["INTERCEPTOR.s1.i1"].add("EventReceivedCount", 130_000)
    served.metrics["INTERCEPTOR.s1.i1"].add("EventFilteredCount", 6544)
    served.metrics["CHANNEL.c1"].set("ChannelSize", 17)
    served.metrics["SINK.k1"].set("Lag", 9)
    served.metrics["SINK.k1"].set("LagSeconds", 4.2)
    served.metrics["SINK.k1"].set("BatchMilliseconds", 2140)
    served.metrics["SINK.k1"].add("EventRejectedCount", 3)
    served.metrics["SINK.k2"].set_error("[the disk] is full")
    served.metrics["SINK.k2"].set("RetryAttempt", 2)
    served.metrics["SINK.k2"].set("RetryTime", 4e12)
    served.server.start()
    yield served
    served.server.stop()


def run(*words: str) -> Any:
    return CliRunner().invoke(main, ["top", *words])


def test_a_pipe_gets_one_snapshot_as_lines(served: Served) -> None:
    result = run("-c", str(served.file))
    assert result.exit_code == 0, result.output
    first, heads, *lines = result.output.splitlines()
    assert first.startswith("a1 is failing, up ")
    assert heads.split()[:3] == ["COMPONENT", "EV/S", "EVENTS"]
    by_name = {line.split()[0]: line.split() for line in lines}
    assert by_name["s1"] == ["s1", "netcat", "-", "123.5", "k", "7", "lost"]
    assert by_name["s1.i1"] == ["s1.i1", "regex_filter", "-", "130.0", "k", "6,544", "dropped"]
    assert by_name["c1"] == ["c1", "memory", "-", "0", "holds", "17"]
    assert by_name["k1"] == ["k1", "null", "-", "0", "9", "events", "4", "s", "2.1", "s", "3", "ok"]
    assert by_name["k2"][:8] == ["k2", "logger", "-", "0", "unknown", "unknown", "failing", "#3"]
    heading, title, error, loss, action, command, docs = lines[5:12]
    assert re.fullmatch(rf"a1\.sinks\.k2: failing, since {TIME}, 2 attempts", heading)
    assert title == (
        '  Sink "k2" (logger) does not deliver. The number of waiting events in a1.channels.c1 is not known. '
        "Unchanged: all 2 attempts have failed."
    )
    assert loss == "  Lost: Nothing yet. Events in a1.channels.c1 are in memory, and are lost if the agent ends."
    assert error == "  Error: [the disk] is full"
    assert command == f"  Run: agent check --connect -c {served.file} -n a1"
    assert action == "  Do: Repair what the error names."
    assert docs == "  See: failures.md#a-sink-fails"
    assert lines[12].startswith("a1.sources.s1: warning, since "), "it lost datagrams"


def test_a_problem_that_is_over_is_named_below_the_others(served: Served) -> None:
    served.view.problems.current()
    served.metrics["SINK.k2"].set_error("")
    last = run("-c", str(served.file)).output.splitlines()[-1]
    text = rf'a1\.sinks\.k2: over since {TIME}, after \d+ s: Sink "k2" \(logger\) does not deliver\.'
    assert re.fullmatch(text, last), last
    (past,) = json.loads(run("--url", served.url, "--json").output)["past"]
    assert (past["component"], past["error"]) == ("a1.sinks.k2", "[the disk] is full")


def test_json_has_the_values_that_the_metrics_have(served: Served) -> None:
    result = run("--url", served.url, "--json")
    assert result.exit_code == 0, result.output
    snapshot = json.loads(result.output)
    components = {component["id"]: component for component in snapshot["components"]}
    assert [*components] == [
        "a1.sources.s1",
        "a1.sources.s1.interceptors.i1",
        "a1.channels.c1",
        "a1.sinks.k1",
        "a1.sinks.k2",
    ]
    assert components["a1.sources.s1"]["events"] == 123_456
    assert (components["a1.sinks.k1"]["lag"], components["a1.sinks.k1"]["lag_seconds"]) == (9, 4.2)
    assert components["a1.sources.s1"]["dropped_datagrams"] == 7
    assert components["a1.sinks.k1"]["batch_milliseconds"] == 2140
    assert components["a1.sinks.k2"]["retry_attempt"] == 2
    assert [(p["component"], p["error"]) for p in snapshot["problems"]] == [
        ("a1.sinks.k2", "[the disk] is full"),
        ("a1.sources.s1", ""),
    ]


def test_several_snapshots_are_a_line_each(served: Served) -> None:
    result = run("--url", served.url.removeprefix("http://"), "--json", "--count", "3", "--interval", "0.1")
    times = [json.loads(line)["time"] for line in result.output.splitlines()]
    assert len(times) == 3
    assert times == sorted(set(times))


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_shows_all_of_it(served: Served, width: int) -> None:
    console = Console(width=width, height=24, record=True, file=io.StringIO(), force_terminal=True)
    console.print(draw(served.view.graph(), served.view.state(), "", 24))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    for word in (
        "s1 netcat",
        "123.5 k",
        "6,544",
        "failing",
        "#3",
        "a1.sinks.k2: failing, since",
        "[the disk] is full",
    ):
        assert word in text


def test_a_terminal_says_what_is_lost_if_the_agent_has_ended(served: Served) -> None:
    console = Console(width=200, record=True, file=io.StringIO(), force_terminal=True)
    console.print(draw(served.view.graph(), served.view.state(), "no agent answers.", 24))
    text = console.export_text()
    assert "Lost if it has ended: 17 events in a1.channels.c1, which is in memory. Senders to s1 cannot" in text


def test_without_room_failing_components_are_shown_first(served: Served) -> None:
    all_rows = list(rows(served.view.graph(), served.view.state()))
    assert [row.name for row in select_rows(all_rows, 2)] == ["k2"]
    assert [row.name for row in select_rows(all_rows, 3)] == ["s1", "k2"]
    assert select_rows(all_rows, 5) == all_rows


def test_a_missing_agent_is_reported(tmp_path: Path) -> None:
    served = Served(tmp_path)
    result = run("-c", str(served.file))
    assert result.exit_code == 1
    assert result.output == f"Error: no agent answers at {served.url} (Connection refused): is it started?\n"


@pytest.mark.parametrize("agent", ["b1", "a1"])
def test_another_agent_on_the_port_is_not_taken_for_this_one(served: Served, tmp_path: Path, agent: str) -> None:
    other = tmp_path / "other.conf"
    other.write_text(served.file.read_text().replace("a1.", f"{agent}."))
    result = run("-c", str(other))
    assert result.exit_code == 1
    assert result.output == (
        f"Error: at {served.url} answers agent a1 of {served.file}, not agent {agent} of {other}: set another "
        f"monitoring.port for one of them. For the agent that answers: agent top --url {served.url}\n"
    )
    link = tmp_path / "link.conf"
    link.symlink_to(served.file)
    assert run("-c", str(link)).exit_code == 0


def test_the_token_is_the_configurations_or_a_given_one(tmp_path: Path) -> None:
    served = Served(tmp_path, "word")
    served.server.start()
    try:
        assert run("-c", str(served.file)).exit_code == 0
        assert run("--url", served.url, "--token", "word").exit_code == 0
        refused = run("--url", served.url)
        assert "the token is missing or wrong" in refused.output
    finally:
        served.server.stop()


@pytest.fixture
def encrypted(tmp_path: Path) -> Iterator[Served]:
    certificate(tmp_path, "subjectAltName=DNS:elsewhere.example")
    keystore = f"a1.monitoring.keystore = {tmp_path}/server.pem"
    served = Served(tmp_path, "word", "a1.monitoring.ssl = true", keystore)
    served.server.start()
    yield served
    served.server.stop()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_each_refusal_of_a_certificate_says_how_to_get_on(
    encrypted: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, port = str(tmp_path / "server.crt"), encrypted.server.port
    url = ("--url", f"https://127.0.0.1:{port}", "--token", "word")
    assert run("-c", str(encrypted.file)).exit_code == 0
    for words in [("-c", str(encrypted.file)), url]:
        output = run(*words, "--cacert", authority).output
        assert "IP address mismatch" in output
        assert output.endswith(f"by a name in the certificate: https://HOST:{port}, with --cacert FILE\n")
    assert run(*url).output.endswith("self-signed certificate; name its authority with --cacert FILE\n")
    (tmp_path / "server.pem").write_text("damaged")
    assert f"agent top --url https://HOST:{port} --cacert FILE" in run("-c", str(encrypted.file)).output

    def fail(*_: object, **__: object) -> None:
        error = ssl.SSLCertVerificationError(1, "certificate has expired")
        error.verify_code, error.verify_message = 10, "certificate has expired"
        raise error

    monkeypatch.setattr("http.client.HTTPSConnection.request", fail)
    output = run(*url, "--cacert", authority).output
    assert output.endswith("has expired; replace it in the agent's keystore, and run agent reload\n")


def test_an_authority_without_tls_is_refused(served: Served, tmp_path: Path) -> None:
    for words in [("--url", served.url), ("-c", str(served.file))]:
        result = run(*words, "--cacert", str(tmp_path / "ca.pem"))
        assert result.exit_code == 2
        assert f"--cacert has no effect: {served.url} is without TLS" in result.output


def test_the_agent_has_to_be_named() -> None:
    assert "which agent?" in run().output
    assert "is no address" in run("--url", "ftp://x").output


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (None, "-"),
        (0, "0"),
        (0.25, "0.2"),
        (9999, "9,999"),
        (9999.9, "10.0 k"),
        (12345, "12.3 k"),
        (999_999, "1.0 M"),
        (1.5e6, "1.5 M"),
        (2e9, "2.0 G"),
    ],
)
def test_numbers_are_short(number: float | None, text: str) -> None:
    assert format_number(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-"), (3, "3 s"), (90, "2 min"), (5400, "1.5 h"), (864_000, "10.0 d")]
)
def test_times_are_short(seconds: float | None, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("milliseconds", "text"), [(0, "0.0 ms"), (0.44, "0.4 ms"), (12.3, "12 ms"), (2140, "2.1 s"), (90_000, "2 min")]
)
def test_times_of_batches_are_short(milliseconds: float, text: str) -> None:
    assert format_milliseconds(milliseconds) == text
