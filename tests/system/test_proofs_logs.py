"""Real log files through the whole pipeline and back, byte for byte."""

import shutil
from pathlib import Path

import pytest

from flafka.agent.audit.reconciliation import HdfsReader
from flafka.agent.services.hdfs import HdfsCluster
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import RunningAgent
from tests.system.running import ROOT, hdfs_sink, in_topic, kafka_channel, reconciliation, unique

LOGS = ROOT.parent / "shared" / "data" / "loghub"
NAMES = ("HDFS", "Hadoop", "Linux", "OpenSSH")


@pytest.mark.skipif(not LOGS.is_dir(), reason=f"no logs in {LOGS}")
def test_real_logs_come_back_byte_for_byte(
    tmp_path: Path, kafka_cluster: KafkaCluster, hdfs_cluster: HdfsCluster
) -> None:
    originals = {name: (LOGS / f"{name}_2k.log").read_bytes() for name in NAMES}
    assert any(b"\r\n" in content for content in originals.values())
    inbox, topic = tmp_path / "in", unique("logs")
    inbox.mkdir()
    for name in NAMES:
        shutil.copy(LOGS / f"{name}_2k.log", inbox / f"{name}.log")
    groups = "".join(
        f"a1.sources.s1.filegroups.{name} = {inbox}/{name}[.]log\na1.sources.s1.headers.{name}.log = {name}\n"
        for name in NAMES
    )
    configuration = f"""
a1.sources = s1
a1.channels = c1
a1.sinks = k1
a1.sources.s1.type = TAILDIR
a1.sources.s1.channels = c1
a1.sources.s1.filegroups = {" ".join(NAMES)}
{groups}
a1.sources.s1.positionFile = {tmp_path}/positions.json
a1.sources.s1.keepCarriageReturn = true
a1.sources.s1.byteOffsetHeader = true
a1.sources.s1.idleTimeout = 500
a1.sources.s1.maxBackoffSleep = 200
a1.sources.s1.backoffSleepIncrement = 100
{kafka_channel(kafka_cluster.bootstrap_servers, topic, partitions=1)}
{hdfs_sink(hdfs_cluster.webhdfs, f"/proofs/{topic}/%{{log}}")}
"""
    complete = sum(content.count(b"\n") for content in originals.values())
    with RunningAgent(tmp_path / "a", configuration) as agent:
        agent.until(lambda: agent.count("SINK.k1", "EventDrainSuccessCount") >= complete, "all whole lines in HDFS")
        # The last line of three of them has no newline: it is complete once its file is rotated.
        for name in NAMES:
            (inbox / f"{name}.log").rename(inbox / f"{name}.log.1")
        events = sum(len(content.removesuffix(b"\n").split(b"\n")) for content in originals.values())
        agent.until(lambda: agent.count("SOURCE.s1", "EventAcceptedCount") >= events, "the last lines")
        assert agent.stop() == 0

    audited = reconciliation(kafka_cluster, topic, hdfs_cluster, f"/proofs/{topic}")
    assert audited.differences == []
    assert (audited.channel_events, audited.delivered_events) == (events, events)
    stored = in_topic(kafka_cluster, topic)
    reader = HdfsReader(hdfs_cluster.webhdfs)
    for name, content in originals.items():
        paths = sorted(reader.visible(f"/proofs/{topic}/{name}"))
        delivered = b"".join(reader.read(path) for path in paths)
        assert delivered.removesuffix(b"\n") == content.removesuffix(b"\n"), name
        # Each line in the channel has its file offset, which distinguishes a last line without a newline.
        copy = bytearray(b"\n" * len(content))
        for event in stored:
            if event.headers["log"] == name:
                offset = int(event.headers["byteoffset"])
                copy[offset : offset + len(event.body)] = event.body
        assert bytes(copy) == content, name
