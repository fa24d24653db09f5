"""Samples of the reference, in an agent within this process."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from flafka.agent.runner.agent import Agent
from flafka.agent.services.running import free_ports, until
from tests.docs.blocks import ROOT, completed
from tests.docs.test_blocks import check_configuration

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
EVENTS = 20


def run(name: str, directory: Path, replacements: Mapping[str, str], added: str = "") -> None:
    """Run until all components are open and, in a sample without its own source, events have reached its end."""
    text = localised(completed((SAMPLES / f"{name}.conf").read_text("utf-8"), added), directory)
    for old, new in replacements.items():
        assert old in text, f"{name} does not say {old}"
        text = text.replace(old, new)
    file = directory / "agent.conf"
    file.write_text(text)
    agent = Agent(check_configuration(file))
    agent.start()
    try:
        until(lambda: not agent.registry.waiting(), "all to be open")
        if made := re.search(r"totalEvents = (\d+)", text):
            until(lambda: passed(agent) == int(made[1]), "the events at the end")
    finally:
        assert agent.stop()
    assert all(not runner.failing() for runner in agent.sinks)


def localised(text: str, directory: Path) -> str:
    """Return the sample with directories, addresses and ports of this test, and a bounded number of events."""
    text = re.sub(r"= /(?=\w)", f"= {directory}/", text)
    text = re.sub(r"\b0\.0\.0\.0\b", "127.0.0.1", text)
    ports = " ".join(re.findall(r"^a1\.sources\.\w+\.ports? = (.*)$", text, re.MULTILINE)).split()
    for written, free in zip(ports, free_ports(len(ports)), strict=True):
        text = re.sub(rf"\b{written}\b", str(free), text)
    if re.search(r"type = seq$(?!\n.*totalEvents)", text, re.MULTILINE):
        text += f"a1.sources.s1.totalEvents = {EVENTS}\n"
    return f"{text}a1.monitoring.port = 0\na1.deadletters.directory = {directory}/letters\n"


def passed(agent: Agent) -> int:
    """Return the number of events that were delivered, or dropped by an interceptor."""
    ends = {"SINK": "EventDrainSuccessCount", "INTERCEPTOR": "EventDroppedCount"}
    counted = ((component.metrics, ends.get(component.kind)) for component in agent.registry.components)
    return int(sum(metrics.get(name) for metrics, name in counted if name))
