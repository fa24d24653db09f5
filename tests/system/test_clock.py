"""Clock of an agent's host that jumps by minutes and by years: nothing is lost or delivered twice."""

from __future__ import annotations

import mmap
import random
import shutil
import struct
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from flafka.agent.services.hdfs import HdfsCluster
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import RunningAgent
from tests.system.running import (
    hdfs_sink,
    in_hdfs,
    in_topic,
    kafka_channel,
    reconciliation,
    send,
    syslog_sources,
    unique,
)

SOURCE = Path(__file__).with_name("clock.c")
MINUTE, DAY = 60, 86_400
JUMPS = (70 * MINUTE, -3 * 60 * MINUTE, 400 * DAY, -400 * DAY, 0)
"""Seconds ahead of the system's clock."""


class Clock:
    """Clock of the agents that run in its environment."""

    def __init__(self, directory: Path) -> None:
        library, file = directory / "clock.so", directory / "ahead"
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("no C compiler is here, to make an agent's own time of day")
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
        file.write_bytes(struct.pack("q", 0))
        with file.open("r+b") as opened:
            self._page = mmap.mmap(opened.fileno(), 0)
        self.environment = {"LD_PRELOAD": str(library), "CLOCK_FILE": str(file)}

    def jump(self, seconds: int) -> None:
        """Set the clock this many seconds ahead of the system's."""
        self._page[:] = struct.pack("q", seconds)


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path)


def test_the_clock_of_an_agents_host_jumps(
    tmp_path: Path, clock: Clock, kafka_cluster: KafkaCluster, hdfs_cluster: HdfsCluster, seed: int
) -> None:
    topic = unique("clock")
    root = f"/clock/{topic}"
    configuration = f"""
a1.channels = c1
a1.sinks = k1
{syslog_sources()}
{kafka_channel(kafka_cluster.bootstrap_servers, topic)}
{hdfs_sink(hdfs_cluster.webhdfs, root)}
"""
    expected: list[bytes] = []

    def take(agent: RunningAgent) -> None:
        added = [b"event %d" % (len(expected) + n) for n in range(100)]
        expected.extend(added)
        send(agent.port("tcp"), b"".join(b"<13>Oct 11 22:14:15 web-1 %b\n" % body for body in added))

    def arrive(agent: RunningAgent) -> None:
        agent.until(lambda: len(in_hdfs(hdfs_cluster, root)) >= len(expected), "all events on HDFS")
        agent.wait_until_healthy()

    drawn = random.Random(seed).sample(JUMPS, 2)
    for begin, jumps in (0, JUMPS), (-DAY, drawn):  # the second agent starts in the past, behind the first one
        clock.jump(begin)
        with RunningAgent(tmp_path / "a", configuration, environment=clock.environment) as agent:
            take(agent)
            arrive(agent)  # a client of Kafka that begins or ends may wait until the former time comes again
            for ahead in jumps:
                take(agent)  # still in flight
                clock.jump(ahead)
                take(agent)
                arrive(agent)
            clock.jump(-2 * DAY)  # Kafka's client is idle now, as nothing arrives
            assert agent.stop() == 0
    assert Counter(event.body for event in in_topic(kafka_cluster, topic)) == Counter(expected)
    audited = reconciliation(kafka_cluster, topic, hdfs_cluster, root)
    assert audited.differences == []
    assert audited.delivered_events == len(expected)
