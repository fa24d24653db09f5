"""Temporary outage of a dependency of a component: the others continue, and it recovers without a loss."""

import socket
from collections import Counter
from pathlib import Path

from flafka.agent.services.hdfs import HdfsCluster
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import RunningAgent
from tests.system.running import (
    fill,
    hdfs_sink,
    in_hdfs,
    in_topic,
    kafka_channel,
    read_only,
    reconciliation,
    send,
    small_disk,
    unique,
)

SYSLOG = """
a1.sources.syslog.type = syslogtcp
a1.sources.syslog.host = 127.0.0.1
a1.sources.syslog.channels = c1
"""
HEAD = b"<13>Oct 11 22:14:15 web-1 "


def taildir(path: Path, positions: Path) -> str:
    """Return lines of a source `files` that polls often."""
    return f"""
a1.sources.files.type = taildir
a1.sources.files.channels = c1
a1.sources.files.filegroups = logs
a1.sources.files.filegroups.logs = {path}
a1.sources.files.positionFile = {positions}
a1.sources.files.backoffSleepIncrement = 100
a1.sources.files.maxBackoffSleep = 200
"""


def append(path: Path, name: str, start: int, stop: int) -> list[bytes]:
    """Add lines that no other call adds; return them."""
    added = [b"%s %06d" % (name.encode(), number) for number in range(start, stop)]
    with path.open("ab") as file:
        file.writelines(line + b"\n" for line in added)
    return added


def test_a_source_waits_for_its_port(tmp_path: Path, kafka_cluster: KafkaCluster) -> None:
    topic, log = unique("port"), tmp_path / "app.log"
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        configuration = f"""
a1.sources = syslog files
a1.channels = c1
{SYSLOG}
a1.sources.syslog.port = {port}
{taildir(log, tmp_path / "positions.json")}
{kafka_channel(kafka_cluster.bootstrap_servers, topic)}
"""
        with RunningAgent(tmp_path / "a", configuration) as agent:
            reason = f"cannot listen on 127.0.0.1:{port} (TCP): another program listens there; stop it or choose"
            reason += " another port"
            agent.until(lambda: agent.failing() == {"SOURCE.syslog": reason}, "the taken port to be reported")
            assert f"WARNING a1.sources.syslog: {reason}" in agent.log
            expected = append(log, "meanwhile", 0, 100)
            agent.until(lambda: agent.count("SOURCE.files", "EventAcceptedCount") == 100, "the file's lines")
            other.close()
            agent.wait_until_healthy()
            send(port, HEAD + b"at last\n")
            agent.until(lambda: agent.count("SOURCE.syslog", "EventAcceptedCount") == 1, "the message")
            assert agent.stop() == 0
    assert Counter(e.body for e in in_topic(kafka_cluster, topic)) == Counter([*expected, b"at last"])


def test_a_tail_stops_while_its_positions_cannot_be_kept(tmp_path: Path, kafka_cluster: KafkaCluster) -> None:
    topic, log, state = unique("positions"), tmp_path / "app.log", tmp_path / "state"
    positions = state / "positions.json"
    positions.mkdir(parents=True)
    configuration = f"""
a1.sources = syslog files
a1.channels = c1
{SYSLOG}
a1.sources.syslog.port = 0
{taildir(log, positions)}
a1.sources.files.batchSize = 10
a1.sources.files.writePosInterval = 100
{kafka_channel(kafka_cluster.bootstrap_servers, topic, partitions=1)}
"""
    expected = append(log, "line", 0, 100)
    with RunningAgent(tmp_path / "a", configuration) as agent:
        agent.until(lambda: "SOURCE.files" in agent.failing(), "a directory in place of the position file")
        assert f"{positions} cannot be read: Is a directory" in agent.failing()["SOURCE.files"]
        positions.rmdir()
        agent.wait_until_healthy()
        agent.until(lambda: agent.count("SOURCE.files", "EventAcceptedCount") == 100, "the first lines")
        reason = f"positionFile {positions} cannot be written, so nothing is read: Read-only file system"
        with read_only(state):
            expected += append(log, "line", 100, 105)
            agent.until(lambda: agent.failing() == {"SOURCE.files": reason}, "the read-only positions to be reported")
        agent.wait_until_healthy()  # without a new line
        with read_only(state):
            expected += append(log, "line", 105, 200)
            agent.until(lambda: agent.failing() == {"SOURCE.files": reason}, "the read-only positions to be reported")
            send(agent.port("syslog"), HEAD + b"meanwhile\n")
            agent.until(lambda: agent.count("SOURCE.syslog", "EventAcceptedCount") == 1, "the other source")
            # One batch may be stored before its position is saved; no second one is read.
            assert agent.count("SOURCE.files", "EventAcceptedCount") == 115
        agent.until(lambda: agent.count("SOURCE.files", "EventAcceptedCount") == 200, "the rest of the lines")
        agent.wait_until_healthy()
        assert agent.stop() == 0
    bodies = [event.body for event in in_topic(kafka_cluster, topic)]
    assert [body for body in bodies if body != b"meanwhile"] == expected


def test_a_full_staging_disk_delays_hdfs_alone(
    tmp_path: Path, kafka_cluster: KafkaCluster, hdfs_cluster: HdfsCluster
) -> None:
    topic, log, out = unique("staging"), tmp_path / "app.log", tmp_path / "out"
    with small_disk(tmp_path / "staging", megabytes=4) as disk:
        staging = disk / "files"
        staging.touch()
        configuration = f"""
a1.sources = files
a1.channels = c1
a1.sinks = k1 k2
{taildir(log, tmp_path / "positions.json")}
{kafka_channel(kafka_cluster.bootstrap_servers, topic)}
{hdfs_sink(hdfs_cluster.webhdfs, f"/proofs/{topic}")}
a1.sinks.k1.hdfs.stagingDir = {staging}
a1.sinks.k2.type = file_roll
a1.sinks.k2.channel = c1
a1.sinks.k2.group = {topic}-files
a1.sinks.k2.sink.directory = {out}
"""
        with RunningAgent(tmp_path / "a", configuration) as agent:
            reason = f"cannot use the staging directory {staging}: File exists"
            agent.until(
                lambda: agent.failing() == {"SINK.k1": reason}, "a file in the directory's place to be reported"
            )
            staging.unlink()
            agent.wait_until_healthy()  # without an event
            expected = append(log, "before", 0, 1000)
            agent.until(lambda: agent.count("SINK.k1", "EventDrainSuccessCount") == 1000, "the first lines")
            filler = fill(disk)
            expected += append(log, "full", 0, 5000)
            reason = f"the staging directory {staging} is full"
            agent.until(lambda: agent.failing() == {"SINK.k1": reason}, "the full disk to be reported")
            agent.until(lambda: agent.count("SINK.k2", "EventDrainSuccessCount") == 6000, "the other sink")
            assert sorted(in_hdfs(hdfs_cluster, f"/proofs/{topic}")) == sorted(expected[:1000])
            filler.unlink()
            agent.until(lambda: agent.count("SINK.k1", "EventDrainSuccessCount") == 6000, "the rest in HDFS")
            agent.wait_until_healthy()
            assert agent.stop() == 0
    assert sorted(in_hdfs(hdfs_cluster, f"/proofs/{topic}")) == sorted(expected)
    written = [line for file in out.iterdir() for line in file.read_bytes().splitlines()]
    assert sorted(written) == sorted(expected)
    audited = reconciliation(kafka_cluster, topic, hdfs_cluster, f"/proofs/{topic}")
    assert audited.balanced, audited.differences
