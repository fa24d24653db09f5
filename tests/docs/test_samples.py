"""The samples of the reference in an agent: what needs no server opens, and passes events on."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.runner.agent import Agent
from agent.services.running import free_ports, until
from tests.docs.blocks import ROOT, completed
from tests.docs.test_blocks import right
from tests.sinks.test_http import Server
from tests.sources.calling import Running as AvroSource
from tests.sources.test_thrift import Running as ThriftSource

SAMPLES = ROOT / "docs" / "samples"
ON_SERVERS = {
    "channel-kafka",
    "sink-elasticsearch",
    "sink-hbase",
    "sink-hdfs",
    "sink-kafka",
    "sink-solr",
    "sink-spark",
    "source-kafka",
}
"""They need servers: what they say is checked, and tests/system runs these components."""
EVENTS = 20
HERE = sorted(path.stem for path in SAMPLES.glob("*.conf") if path.stem not in ON_SERVERS)


def here(text: str, directory: Path) -> str:
    """The sample with directories, addresses and ports of this test, and a bounded number of events."""
    text = re.sub(r"= /(?=\w)", f"= {directory}/", text)
    text = re.sub(r"\b0\.0\.0\.0\b", "127.0.0.1", text)
    ports = " ".join(re.findall(r"^a1\.sources\.\w+\.ports? = (.*)$", text, re.MULTILINE)).split()
    for written, free in zip(ports, free_ports(len(ports)), strict=True):
        text = re.sub(rf"\b{written}\b", str(free), text)
    if re.search(r"type = seq$(?!\n.*totalEvents)", text, re.MULTILINE):
        text += f"a1.sources.s1.totalEvents = {EVENTS}\n"
    return f"{text}a1.monitoring.port = 0\na1.deadletters.directory = {directory}/letters\n"


@contextlib.contextmanager
def receiver(name: str) -> Iterator[dict[str, str]]:
    """What the sample's sink sends to, as replacements for its text."""
    if name == "sink-http":
        with Server() as server:
            yield {"http://alerts.example.com:8080/events": server.url}
    elif name in ("sink-avro", "sink-thrift"):
        deflated = {"compression-type": "deflate"}
        with AvroSource(**deflated) if name == "sink-avro" else ThriftSource() as running:
            yield {"collector.example.com": "127.0.0.1"} | dict.fromkeys(("4141", "4353"), str(running.source.port))
    else:
        yield {}


@pytest.mark.usefixtures("brisk")
@pytest.mark.parametrize("name", HERE)
def test_sample_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("XDG_STATE_HOME", "HOME"):
        monkeypatch.setenv(variable, str(tmp_path / "home"))
    for part in ("var/log/nginx", "var/log/shop", "var/spool/orders"):
        (tmp_path / part).mkdir(parents=True)
    with receiver(name) as replacements:
        text = here(completed((SAMPLES / f"{name}.conf").read_text("utf-8")), tmp_path)
        for old, new in replacements.items():
            text = text.replace(old, new)
        file = tmp_path / "agent.conf"
        file.write_text(text)
        agent = Agent(right(file))
        agent.start()
        try:
            until(lambda: not agent._waiting(), "all to be open")
            if made := re.search(r"totalEvents = (\d+)", text):
                until(lambda: passed(agent) == int(made[1]), "the events at the end")
        finally:
            assert agent.stop()
        assert all(not runner.failing() for runner in agent.sinks)


def passed(agent: Agent) -> int:
    """Events that came to an end: delivered, or dropped by an interceptor."""
    ends = {"SINK": "EventDrainSuccessCount", "INTERCEPTOR": "EventDroppedCount"}
    counted = ((one.metrics, ends.get(one.kind)) for one in agent.registry.components)
    return int(sum(metrics.get(name) for metrics, name in counted if name))


def test_those_that_need_servers_are_there() -> None:
    assert {path.stem for path in SAMPLES.glob("*.conf")} >= ON_SERVERS
