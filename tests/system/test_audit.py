"""Audit of killed agents: repeated deliveries count once, on both runners."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import RunningAgent
from tests.system.running import agent_command, kafka_channel, send, unique
from tests.system.test_kafka_ends import create

LINES, KILLS = 3000, 2


def test_the_audit_balances_after_kills(tmp_path: Path, kafka_cluster: KafkaCluster) -> None:
    topic = unique("audited")
    create(kafka_cluster, f"{topic}-copy")
    channel = kafka_channel(kafka_cluster.bootstrap_servers, topic) + f"\na1.audit.topic = {topic}.audit\n"
    source = f"""
a1.sources = s1
a1.channels = c1
a1.sources.s1.type = syslogtcp
a1.sources.s1.host = 127.0.0.1
a1.sources.s1.port = 0
a1.sources.s1.channels = c1
{channel}"""
    sinks = f"""
a1.channels = c1
a1.sinks = simple committing
a1.sinks.simple.type = null
a1.sinks.simple.channel = c1
a1.sinks.committing.type = kafka
a1.sinks.committing.channel = c1
a1.sinks.committing.group = {topic}-committing
a1.sinks.committing.kafka.bootstrap.servers = {kafka_cluster.bootstrap_servers}
a1.sinks.committing.kafka.topic = {topic}-copy
{channel}"""

    def audit() -> tuple[int, dict[str, int], set[str | None]]:
        """Return exit code, events by stage, and messages."""
        result = agent_command("audit", "-c", str(tmp_path / "out/agent.conf"), "--grace", "0", "--json")
        events: dict[str, int] = {}
        rows = json.loads(result.stdout)
        for row in rows:
            events[row["stage"]] = events.get(row["stage"], 0) + row["events"]
        return result.returncode, events, {row["difference"] for row in rows}

    with RunningAgent(tmp_path / "in", source) as agent:
        port, sent = agent.port("s1"), 0
        for _ in range(KILLS):
            stamps = (time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - n % 300)) for n in range(LINES))
            send(port, b"".join(f"<13>1 {stamp} web app - - - {n}\n".encode() for n, stamp in enumerate(stamps)))
            sent += LINES
            with RunningAgent(tmp_path / "out", sinks) as out:
                out.until(lambda o=out: o.count("SINK.simple", "EventDrainSuccessCount"), "events to be delivered")
                out.stop(signal.SIGKILL)
        agent.until(lambda: agent.count("SOURCE.s1", "EventAcceptedCount") == sent, "all lines in the channel")
        assert agent.stop() == 0
    drain = sinks + "a1.runner = spark\na1.spark.triggerInterval = 1\na1.sinks.committing.runner = local\n"
    arguments = "-c", str(tmp_path / "out/agent.conf"), "--drain"
    with RunningAgent(tmp_path / "out", drain, *arguments) as out:
        assert out.wait_for_exit() == 0, out.log[-4000:]
    stages = ("put", topic, f"{topic}-committing")
    assert audit() == (0, dict.fromkeys(stages, sent), {None})
