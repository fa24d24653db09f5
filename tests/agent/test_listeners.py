"""Warnings of `agent check` about listeners that any host may reach."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from flafka.agent.cli import main

CONFIGURATION = """\
a1.channels = c1
a1.sinks = k1
a1.sources = s1
a1.channels.c1.type = memory
a1.sinks.k1.type = null
a1.sinks.k1.channel = c1
a1.sources.s1.channels = c1
a1.monitoring.keystore = /dev/null
a1.sources.s1.type = """


def listener_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, *words: str) -> list[str]:
    """Return severity, component and start of the message of each warning or note about a listener."""
    monkeypatch.chdir(tmp_path)
    Path("agent.conf").write_text(CONFIGURATION + text.replace("; ", "\n"))
    result = CliRunner().invoke(main, ["check", "-c", "agent.conf", *words])
    assert result.exit_code == 0, result.output
    lines = [line.partition(": ")[2] for line in result.output.splitlines() if line.startswith("agent.conf:")]
    return [
        line.partition(": set ")[0].partition(": name ")[0]
        for line in lines
        if " lets any " in line or "host = " in line
    ]


EVENTS = "lets any host send events"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("syslogtcp; a1.sources.s1.port = 1", f"warning: a1.sources.s1: host = 0.0.0.0 {EVENTS} in clear text"),
        (
            "multiport_syslogtcp; a1.sources.s1.host = ::; a1.sources.s1.ports = 1 2",
            f"warning: a1.sources.s1: host = :: {EVENTS} in clear text",
        ),
        ("http; a1.sources.s1.port = 1", f"warning: a1.sources.s1: bind = 0.0.0.0 {EVENTS} in clear text"),
        (
            "avro; a1.sources.s1.bind = 0.0.0.0; a1.sources.s1.port = 1",
            f"warning: a1.sources.s1: bind = 0.0.0.0 {EVENTS} in clear text",
        ),
        ("syslogudp; a1.sources.s1.port = 1", f"note: a1.sources.s1: host = 0.0.0.0 {EVENTS}"),
        (
            "netcat; a1.sources.s1.bind = 0.0.0.0; a1.sources.s1.port = 1",
            f"note: a1.sources.s1: bind = 0.0.0.0 {EVENTS}",
        ),
        (
            "seq; a1.monitoring.host = 0.0.0.0",
            "warning: a1: monitoring.host = 0.0.0.0 shows metrics and errors to any host in clear text",
        ),
        (
            "seq; a1.monitoring.host = 0.0.0.0; a1.monitoring.ssl = false",
            "warning: a1: monitoring.host = 0.0.0.0 shows metrics and errors to any host in clear text",
        ),
        (
            "seq; a1.monitoring.host = 192.0.2.1; a1.monitoring.token = word",
            "warning: a1: monitoring.host = 192.0.2.1 keeps the dashboard from everyone, as it would be in "
            "clear text",
        ),
    ],
)
def test_an_open_listener_gets_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, message: str
) -> None:
    assert listener_messages(tmp_path, monkeypatch, lines, "-v") == [message]
    assert listener_messages(tmp_path, monkeypatch, lines, "--strict") == [message] * message.startswith("warning")


@pytest.mark.parametrize(
    "lines",
    [
        "syslogtcp; a1.sources.s1.port = 1; a1.sources.s1.host = localhost",
        "syslogtcp; a1.sources.s1.port = 1; a1.sources.s1.host = 192.0.2.1",
        "syslogtcp; a1.sources.s1.port = 1; a1.sources.s1.ssl = true; a1.sources.s1.keystore = /dev/null",
        "http; a1.sources.s1.port = 1; a1.sources.s1.token = word; a1.sources.s1.ssl = true; "
        "a1.sources.s1.keystore = /dev/null",
        "avro; a1.sources.s1.bind = 0.0.0.0; a1.sources.s1.port = 1; a1.sources.s1.ipFilter = true; "
        "a1.sources.s1.ipFilterRules = allow:ip:10.*,deny:ip:*",
        "seq; a1.monitoring.host = ::1",
        "seq; a1.monitoring.host = 192.0.2.1",
        "seq; a1.monitoring.host = 0.0.0.0; a1.monitoring.ssl = true",
        "seq; a1.monitoring.host = 0.0.0.0; a1.monitoring.ssl = false; a1.monitoring.token = word",
    ],
)
def test_other_listeners_get_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str) -> None:
    assert listener_messages(tmp_path, monkeypatch, lines, "-v") == []
