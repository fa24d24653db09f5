"""Log of an outage: each change of a component's state appears once, in text and in JSON."""

from __future__ import annotations

import json
import re
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from flafka.agent.services.hdfs import HdfsCluster
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import RunningAgent
from tests.fixtures.ports import free_port
from tests.system.running import hdfs_sink, in_hdfs, kafka_channel, send, unique

OUTAGE_SECONDS = 10.0
MOST_LINES = 12
"""Most lines that an outage of any length and the following stop may log."""
LINE = re.compile(r"\S+ (DEBUG|INFO|WARNING|ERROR) (\S+): (.*)")


class LogLine(NamedTuple):
    """Line of the log."""

    level: str
    component: str
    message: str


def log_lines(agent: RunningAgent, form: str) -> list[LogLine]:
    """Return all lines; a line that is not the agent's fails."""
    return [_parse_line(line, form) for line in agent.log.splitlines()]


def _parse_line(line: str, form: str) -> LogLine:
    if form == "json":
        assert line.startswith("{"), line
        fields = json.loads(line)
        return LogLine(fields["level"], fields["component"], fields["message"])
    match = LINE.fullmatch(line)
    assert match is not None, line
    return LogLine(*match.groups())


def test_an_outage_is_reported_once(tmp_path: Path, kafka_cluster: KafkaCluster, hdfs_cluster: HdfsCluster) -> None:
    agents: dict[str, RunningAgent] = {}
    roots = {form: f"/{unique('logged')}" for form in ("text", "json")}
    ports = {form: free_port() for form in roots}
    with ExitStack() as running:
        for form, root in roots.items():
            text = f"""
a1.sources = s1
a1.channels = c1
a1.sinks = k1
a1.sources.s1.type = netcat
a1.sources.s1.bind = 127.0.0.1
a1.sources.s1.port = {ports[form]}
a1.sources.s1.ack-every-event = false
a1.sources.s1.channels = c1
{kafka_channel(kafka_cluster.bootstrap_servers, unique("logged"))}
{hdfs_sink(hdfs_cluster.webhdfs, root)}
"""
            command = (sys.executable, "-m", "flafka", "start", "--log-format", form)
            agents[form] = running.enter_context(RunningAgent(tmp_path / form, text, command=command))
        for form, agent in agents.items():
            agent.until(lambda a=agent: a.get("/readyz")[0] == 200, "the agent to be ready")
            send(ports[form], b"1\n2\n3\n")
            agent.until(lambda a=agent: a.count("SINK.k1", "EventDrainSuccessCount") == 3, "the first events")
        before = {form: log_lines(agent, form) for form, agent in agents.items()}
        for form, lines in before.items():
            assert len(lines) < 10, form
            warnings = [line for line in lines if line.level != "INFO" and line.component != "a1.channels.c1"]
            assert warnings == [], "only Kafka may be slow for a while"
        for broker in ("broker-1", "broker-2", "broker-3"):
            kafka_cluster.kill(broker)
        killed = time.monotonic()
        try:
            for port in ports.values():
                send(port, b"4\n5\n")
            for agent in agents.values():
                agent.until(agent.failing, "the outage to be shown")
                agent.until(lambda: time.monotonic() - killed > OUTAGE_SECONDS, "the outage to last")
        finally:
            kafka_cluster.start()
        for form, agent in agents.items():
            agent.until(lambda a=agent: a.count("SINK.k1", "EventDrainSuccessCount") == 5, "the other events")
            agent.wait_until_healthy()
            assert agent.stop() == 0
            during = log_lines(agent, form)[len(before[form]) :]
            assert len(during) <= MOST_LINES, during
            channel = [line.message for line in during if line.component == "a1.channels.c1"]
            assert [message.partition(" at ")[0] for message in channel[:1]] == ["no acknowledgement from Kafka"]
            assert channel[-1].startswith("Kafka acknowledges again after ")
            assert len(set(channel)) == len(channel), "a state was reported twice"
            assert during[-1].message == "stopped"
    for root in roots.values():
        assert sorted(in_hdfs(hdfs_cluster, root)) == [b"%d" % n for n in range(1, 6)]
