"""Lag of sinks, in the metrics and in `agent top`: undelivered events and their age, also while the sink fails."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flafka.agent.cli import main
from flafka.agent.config import load
from flafka.agent.graph import graph_of
from flafka.agent.runner.lag import MAX_SAMPLES, ChannelLag
from flafka.agent.services.running import RunningAgent
from flafka.plugins import Components, Metrics
from tests.fixtures.ports import free_port

EVENTS = 600
CONFIGURATION = """
a1.sources = s1
a1.channels = m f
a1.sinks = km kf
a1.sources.s1.type = netcat
a1.sources.s1.bind = 127.0.0.1
a1.sources.s1.port = 0
a1.sources.s1.channels = m f
a1.channels.m.type = memory
a1.channels.f.type = file
a1.channels.f.dataDirs = {directory}/data
a1.channels.f.checkpointDir = {directory}/checkpoint
a1.sinks.km.type = http
a1.sinks.km.channel = m
a1.sinks.km.endpoint = http://127.0.0.1:{away}/
a1.sinks.kf.type = http
a1.sinks.kf.channel = f
a1.sinks.kf.endpoint = http://127.0.0.1:{away}/
a1.monitoring.port = {port}
"""


def sinks(agent: RunningAgent) -> dict[str, tuple[Any, str, Any]]:
    """Return lag, unit and seconds of each sink from `agent top`."""
    snapshot = json.loads(CliRunner().invoke(main, ["top", "-c", str(agent.file), "--json"]).stdout)
    return {
        sink["name"]: (sink["lag"], sink["lag_unit"], sink["lag_seconds"])
        for sink in snapshot["components"]
        if sink["kind"] == "sink"
    }


@pytest.mark.usefixtures("servers")
def test_sinks_that_fail_have_the_lag_in_events_of_memory_and_file(tmp_path: Path) -> None:
    text = CONFIGURATION.format(directory=tmp_path, away=free_port(), port=free_port())
    with RunningAgent(tmp_path / "agent", text) as agent:
        with socket.create_connection(("127.0.0.1", agent.port("s1"))) as client, client.makefile("rb") as answers:
            for start in range(0, EVENTS, 100):  # several batches of each channel
                client.sendall(b"".join(b"%d\n" % n for n in range(start, start + 100)))
                assert [answers.readline() for _ in range(100)] == [b"OK\n"] * 100
            agent.until(lambda: agent.failing().keys() == {"SINK.km", "SINK.kf"}, "both sinks to fail")
            first = sinks(agent)
            assert {name: lag[:2] for name, lag in first.items()} == dict.fromkeys(("km", "kf"), (EVENTS, "events"))
            agent.until(
                lambda: all(new[2] > old[2] for new, old in zip(sinks(agent).values(), first.values(), strict=True)),
                "the oldest event to be older",
            )
            client.sendall(b"more\n")
            assert answers.readline() == b"OK\n"
            agent.until(
                lambda: {lag[0] for lag in sinks(agent).values()} == {EVENTS + 1}, "one more, amid the failure"
            )
        assert f"{EVENTS + 1} events" in CliRunner().invoke(main, ["top", "-c", str(agent.file)]).stdout
        prometheus = agent.get("/metrics/prometheus")[1].decode()
        assert f'flafka_lag{{agent="a1",kind="sink",name="kf"}} {EVENTS + 1}.0' in prometheus
        assert "# HELP flafka_lag Events of the channel that are not delivered" in prometheus
        agent.process.kill()
        agent.process.wait()
    with RunningAgent(tmp_path / "agent", agent.file) as restarted:
        restarted.until(lambda: restarted.failing().keys() >= {"SINK.kf"}, "the sink to fail once more")
        assert sinks(restarted)["kf"] == (EVENTS + 1, "events", None), (
            "the file has them, and the agent not their age"
        )
        assert sinks(restarted)["km"] == (0, "events", 0)


def test_the_age_is_that_of_the_oldest_event() -> None:
    metrics, clock = Metrics(), [100.0]
    held = ChannelLag(metrics, lambda: clock[0])
    assert (held.events(), held.seconds()) == (None, None), "of a channel that is not open"
    metrics.set("ChannelSize", 0)
    assert (held.events(), held.seconds()) == (0, 0.0)
    for moment, put, size, seconds in (
        (102, 10, 10, 0),
        (104, 10, 5, 2),
        (106, 30, 25, 4),  # the events that came at 106
        (108, 30, 20, 2),  # those that came at 106
        (110, 30, 1, 4),
        (112, 30, 0, 0),
        (114, 31, 1, 0),
    ):
        clock[0] = moment
        metrics.add("EventPutSuccessCount", put - metrics.get("EventPutSuccessCount"))
        metrics.set("ChannelSize", size)
        assert held.seconds() == seconds


def test_an_age_is_reported_however_long_the_outage_is() -> None:
    metrics, clock = Metrics(), [0.0]
    held = ChannelLag(metrics, lambda: clock[0])
    for number in range(2 * MAX_SAMPLES):
        clock[0] = 2.0 * number
        metrics.add("EventPutSuccessCount")
        metrics.set("ChannelSize", number + 1)
        held.seconds()
    assert len(held._samples) <= MAX_SAMPLES
    assert clock[0] - 10 <= (held.seconds() or 0) <= clock[0]


@pytest.mark.parametrize(
    ("form", "unit"), [("arrow", "records"), ("flume", "events"), ("raw", "events"), (None, "events")]
)
def test_the_unit_of_a_lag_is_that_of_the_channel(tmp_path: Path, form: str | None, unit: str) -> None:
    file = tmp_path / "agent.conf"
    kafka = f"type = kafka\na1.channels.c.kafka.bootstrap.servers = b1:9092\na1.channels.c.format = {form}"
    channel = kafka if form else "type = memory"
    file.write_text(
        f"a1.channels = c\na1.sinks = k\na1.channels.c.{channel}\na1.sinks.k.type = null\na1.sinks.k.channel = c"
    )
    spec, diagnostics = load(file, components=Components())
    assert spec is not None, diagnostics
    assert {node.kind: node.lag_unit for node in graph_of(spec).nodes} == {"channel": "", "sink": unit}
