"""Source `spooldir` in its own agent: SIGKILL, and the messages of `agent check` about a directory."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path

import pytest

from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import RunningAgent
from tests.system.running import agent_command, in_topic, kafka_channel, unique

BATCH = 500
KILLS = 3


def put(spool: Path, name: str, count: int) -> list[bytes]:
    lines = [f"{name} {number:06} grüße".encode() for number in range(count)]
    (spool / ".written").write_bytes(b"".join(line + b"\n" for line in lines))
    (spool / ".written").rename(spool / name)
    return lines


def test_sigkill_repeats_a_batch_at_most(tmp_path: Path, kafka_cluster: KafkaCluster) -> None:
    topic = unique("spool")
    spool = tmp_path / "spool"
    spool.mkdir()
    configuration = f"""
a1.sources = s1
a1.channels = c1
a1.sinks = k1
a1.sources.s1.type = org.apache.flume.source.SpoolDirectorySource
a1.sources.s1.spoolDir = {spool}
a1.sources.s1.batchSize = {BATCH}
a1.sources.s1.pollDelay = 50
a1.sources.s1.basenameHeader = true
a1.sources.s1.channels = c1
{kafka_channel(kafka_cluster.bootstrap_servers, topic, partitions=1)}
a1.sinks.k1.type = null
a1.sinks.k1.channel = c1
"""
    files = {name: put(spool, name, count) for name, count in (("large", 40_000), ("a", 10), ("b", 700))}
    for kill in range(KILLS):
        with RunningAgent(tmp_path, configuration) as agent:
            # At another offset each time: at once, within the large file, and later.
            agent.until(lambda: agent.count("SOURCE.s1", "EventAcceptedCount") > 4_000 * kill, "events")
            agent.process.send_signal(signal.SIGKILL)
            agent.process.wait()
        files[f"later {kill}"] = put(spool, f"later {kill}", 50)
    with RunningAgent(tmp_path, configuration) as agent:
        agent.until(lambda: all((spool / f"{name}.COMPLETED").exists() for name in files), "all files to be read")
        assert agent.stop() == 0
    events = in_topic(kafka_cluster, topic)
    for name, lines in files.items():
        bodies = [event.body for event in events if event.headers["basename"] == name]
        assert list(dict.fromkeys(bodies)) == lines
    repeated = Counter(event.body for event in events)
    assert sum(times - 1 for times in repeated.values()) <= KILLS * BATCH


@pytest.mark.usefixtures("servers")
def test_check_names_the_line_of_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "agent.conf"
    text = """
a1.sources = s1 s2
a1.channels = c1
a1.sinks = k1
a1.sources.s1.type = spooldir
a1.sources.s1.spoolDir = {directory}/missing
a1.sources.s1.channels = c1
a1.sources.s2.type = SPOOLDIR
a1.sources.s2.spoolDir = {directory}
a1.sources.s2.ignorePattern = {pattern}
a1.sources.s2.channels = c1
a1.channels.c1.type = memory
a1.sinks.k1.type = null
a1.sinks.k1.channel = c1
"""
    file.write_text(text.format(directory=tmp_path, pattern="^(.*"))
    checked = agent_command("check", "-c", str(file), "--json")
    (diagnostic,) = [d for d in json.loads(checked.stdout)["diagnostics"] if d["severity"] == "error"]
    assert (diagnostic["line"], diagnostic["component"]) == (10, "a1.sources.s2")
    assert "the regular expression '^(.*' cannot be read" in diagnostic["message"]
    file.write_text(text.format(directory=tmp_path, pattern="^.*[.]tmp$"))
    assert agent_command("check", "-c", str(file)).returncode == 0
    checked = agent_command("check", "-c", str(file), "--json", "--connect")
    (diagnostic,) = [d for d in json.loads(checked.stdout)["diagnostics"] if d["severity"] == "error"]
    assert (diagnostic["line"], diagnostic["component"]) == (5, "a1.sources.s1")
    assert diagnostic["message"] == f"spoolDir {tmp_path}/missing does not exist"
    assert not (tmp_path / ".flumespool").exists()
