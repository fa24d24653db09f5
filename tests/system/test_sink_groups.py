"""Sink groups of a real agent before two agents, of which one is killed: every line arrives."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path

from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import RunningAgent, free_ports
from tests.system.running import in_topic, kafka_channel, unique


class Writer(threading.Thread):
    """Thread that appends numbered lines to a log until it is stopped."""

    def __init__(self, file: Path) -> None:
        super().__init__(daemon=True)
        self.file, self.written, self.enough = file, 0, threading.Event()

    def run(self) -> None:
        with self.file.open("ab", buffering=0) as log:
            while not self.enough.wait(0.02):
                log.write(b"".join(b"%d\n" % (self.written + n) for n in range(50)))
                self.written += 50


def front(directory: Path, servers: str, ports: list[int]) -> str:
    """Return a log through a Kafka channel to a failover group, and through a memory channel to a balanced one."""
    names = ("k1", "k2", "k3", "k4")
    sinks = "".join(
        f"""
a1.sinks.{name}.type = avro
a1.sinks.{name}.channel = {channel}
a1.sinks.{name}.hostname = 127.0.0.1
a1.sinks.{name}.port = {port}
a1.sinks.{name}.request-timeout = 5000
"""
        for name, channel, port in zip(names, ("c1", "c1", "c2", "c2"), ports, strict=True)
    )
    return f"""
a1.sources = s1
a1.channels = c1 c2
a1.sinks = {" ".join(names)}
a1.sinkgroups = first even
a1.sources.s1.type = TAILDIR
a1.sources.s1.filegroups = f
a1.sources.s1.filegroups.f = {directory}/.*log
a1.sources.s1.positionFile = {directory}/position.json
a1.sources.s1.channels = c1 c2
a1.channels.c2.type = memory
a1.sinkgroups.first.sinks = k1 k2
a1.sinkgroups.first.processor.type = failover
a1.sinkgroups.first.processor.priority.k1 = 10
a1.sinkgroups.first.processor.priority.k2 = 5
a1.sinkgroups.first.processor.maxpenalty = 2000
a1.sinkgroups.even.sinks = k3 k4
a1.sinkgroups.even.processor.type = load_balance
a1.sinkgroups.even.processor.backoff = true
{kafka_channel(servers, unique("front"))}
{sinks}
"""


def back(servers: str, ports: list[int], topics: list[str]) -> str:
    """Return an agent that stores the events of the failover group in one topic, and balanced ones in another."""
    return "a1.sources = s1 s2\na1.channels = c1 c2\n" + "".join(
        f"""
a1.sources.s{n}.type = avro
a1.sources.s{n}.bind = 127.0.0.1
a1.sources.s{n}.port = {port}
a1.sources.s{n}.channels = c{n}
{kafka_channel(servers, topic, name=f"c{n}")}
"""
        for n, port, topic in zip((1, 2), ports, topics, strict=True)
    )


def test_every_line_arrives_though_an_agent_is_killed(tmp_path: Path, kafka_cluster: KafkaCluster) -> None:
    servers = kafka_cluster.bootstrap_servers
    topics = [unique("failover"), unique("balance")]
    k1, k2, k3, k4 = free_ports(4)
    logs = tmp_path / "logs"
    logs.mkdir()
    writer = Writer(logs / "a.log")
    first, second = back(servers, [k1, k3], topics), back(servers, [k2, k4], topics)
    with (
        RunningAgent(tmp_path / "second", second),
        RunningAgent(tmp_path / "front", front(logs, servers, [k1, k2, k3, k4])) as agent,
    ):

        def delivered(*sinks: str) -> list[int]:
            return [agent.count(f"SINK.{sink}", "EventDrainSuccessCount") for sink in sinks]

        with RunningAgent(tmp_path / "first", first) as killed:
            writer.start()
            agent.until(lambda: min(delivered("k1", "k3", "k4")) > 500, "both groups to deliver")
            killed.stop(signal.SIGKILL)
        before = delivered("k2", "k4")
        agent.until(
            lambda: all(n > b + 500 for n, b in zip(delivered("k2", "k4"), before, strict=True)), "the others"
        )
        agent.until(lambda: agent.failing().keys() == {"SINK.k3"}, "the failing member to be shown")
        standby = json.loads(agent.get("/healthz")[1])["standby"]
        assert standby.keys() == {"SINK.k1"}, "another sink of its failover group delivers"
        with RunningAgent(tmp_path / "first", first):
            before = delivered("k1", "k3")
            agent.until(
                lambda: all(n > b + 500 for n, b in zip(delivered("k1", "k3"), before, strict=True)), "them to return"
            )
            agent.wait_until_healthy()
            writer.enough.set()
            writer.join()
            ends = [writer.written] * 2
            agent.until(
                lambda: [sum(delivered("k1", "k2")), sum(delivered("k3", "k4"))] >= ends, "the rest to be delivered"
            )
            assert agent.stop() == 0
    lines = {b"%d" % number for number in range(writer.written)}
    for topic in topics:
        assert {event.body for event in in_topic(kafka_cluster, topic)} == lines
