"""Undeliverable events are kept, with their bytes and the reason, and delay no other event."""

import base64
import json
import random
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, cast

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from flafka.agent.audit.reconciliation import HdfsReader
from flafka.agent.services.hdfs import HdfsCluster
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import RunningAgent
from tests.system.running import hdfs_sink, in_hdfs, in_topic, kafka_channel, send, unique

HOSTILE = {"up": "../../up", "dots": "..", "within": "a/../b", "own": ".flafka/chain", "nul": "a\\u0000b"}
"""Values of a header that make no path, by the name of the file whose lines have it."""
PATHS = {"good": "shop", "slash": "a/b", "absolute": "/etc"}
"""Values that make directories below the sink's path."""


class TopicDeadLetter(NamedTuple):
    """Record of a topic with dead letters."""

    body: bytes
    headers: dict[str, str]


def dead_letters(kafka: KafkaCluster, topic: str) -> list[TopicDeadLetter]:
    """Return all present dead letters in order."""
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "letters", "fetch.message.max.bytes": 1 << 24}
    )
    name = f"{topic}.deadletters"
    try:
        (partition,) = consumer.list_topics(name, timeout=60).topics[name].partitions.values()
        assert len(partition.replicas) == 3
        end = consumer.get_watermark_offsets(TopicPartition(name, 0), timeout=60)[1]
        consumer.assign([TopicPartition(name, 0, OFFSET_BEGINNING)])
        letters = []
        for message in consumer.consume(end, timeout=60):
            assert message.error() is None
            headers = cast("list[tuple[str, bytes]]", message.headers())
            letters.append(TopicDeadLetter(message.value() or b"", {key: value.decode() for key, value in headers}))
        assert len(letters) == end
        return letters
    finally:
        consumer.close()


def tailed(directory: Path, values: Iterable[tuple[str, str]], channel: str) -> str:
    """Return lines of a source `files` that follows `<name>.log` for each name, with its value as header `app`."""
    values = list(values)
    groups = "".join(
        f"a1.sources.{channel}files.filegroups.{name} = {directory}/{name}[.]log\n"
        f"a1.sources.{channel}files.headers.{name}.app = {value}\n"
        for name, value in values
    )
    return f"""
a1.sources.{channel}files.type = taildir
a1.sources.{channel}files.channels = {channel}
a1.sources.{channel}files.filegroups = {" ".join(name for name, _ in values)}
a1.sources.{channel}files.positionFile = {directory}/{channel}.json
{groups}
"""


def test_a_header_that_makes_no_path_is_rejected(
    tmp_path: Path, kafka_cluster: KafkaCluster, hdfs_cluster: HdfsCluster
) -> None:
    topic, root = unique("rejected"), unique("/proofs/rejected")
    for name in (*PATHS, *HOSTILE):
        (tmp_path / f"{name}.log").write_bytes(b"".join(b"%s %d\n" % (name.encode(), n) for n in range(20)))
    values = [*PATHS.items(), *HOSTILE.items()]
    configuration = f"""
a1.sources = c1files c2files
a1.channels = c1 c2
a1.sinks = k1 k2
{tailed(tmp_path, values, "c1")}
{tailed(tmp_path, values, "c2")}
{kafka_channel(kafka_cluster.bootstrap_servers, topic)}
a1.channels.c2.type = memory
{hdfs_sink(hdfs_cluster.webhdfs, f"{root}/kafka/%{{app}}")}
{hdfs_sink(hdfs_cluster.webhdfs, f"{root}/memory/%{{app}}", name="k2", channel="c2")}
a1.deadletters.directory = {tmp_path}/letters
"""
    rejected = Counter(b"%s %d" % (name.encode(), n) for name in HOSTILE for n in range(20))
    with RunningAgent(tmp_path / "a", configuration) as agent:
        delivered = 20 * len(PATHS)
        expected = {("SINK.k1", delivered, rejected.total()), ("SINK.k2", delivered, rejected.total())}
        agent.until(
            lambda: (
                expected
                == {
                    (sink, agent.count(sink, "EventDrainSuccessCount"), agent.count(sink, "EventRejectedCount"))
                    for sink in ("SINK.k1", "SINK.k2")
                }
            ),
            "the good ones to be delivered and the others rejected",
        )
        agent.wait_until_healthy()
        degraded = agent.degraded()
        for sink in ("k1", "k2"):
            assert f"{rejected.total()} events were rejected" in degraded[f"SINK.{sink}"]
            assert f"a1.sinks.{sink}: " in agent.log
            assert f"agent dlq list -c {tmp_path}/a/agent.conf -n a1 --component a1.sinks.{sink}" in agent.log
        assert agent.stop() == 0
        assert "Traceback" not in agent.log

    for name, value in PATHS.items():
        expected_lines = [b"%s %d" % (name.encode(), n) for n in range(20)]
        for kind in ("kafka", "memory"):
            assert sorted(in_hdfs(hdfs_cluster, f"{root}/{kind}/{value}")) == sorted(expected_lines), (name, kind)
    reader = HdfsReader(hdfs_cluster.webhdfs)
    directories = tuple(
        f"{root}/{kind}/{value.strip('/')}/" for kind in ("kafka", "memory") for value in PATHS.values()
    )
    assert not [path for path in reader.visible(root) if not path.startswith(directories)]

    letters = dead_letters(kafka_cluster, topic)
    assert Counter(letter.body for letter in letters) == rejected
    for letter in letters:
        name = letter.body.split()[0].decode()
        assert letter.headers["flafka.component"] == "a1.sinks.k1"
        assert letter.headers["flafka.id"].startswith(f"{topic}~")
        assert json.loads(letter.headers["flafka.headers"])["app"] == {**HOSTILE, "nul": "a\0b"}[name]
        assert ("reserved name '.flafka'" if name == "own" else "'app'") in letter.headers["flafka.reason"]
    stored = [json.loads(line) for line in (tmp_path / "letters/a1.c2.deadletters.jsonl").read_text().splitlines()]
    assert Counter(base64.b64decode(letter["body"]) for letter in stored) == rejected
    assert {letter["component"] for letter in stored} == {"a1.sinks.k2"}
    assert all("'app'" in letter["reason"] or "reserved name '.flafka'" in letter["reason"] for letter in stored)


def test_a_record_that_cannot_be_decoded_is_kept_as_it_is(
    tmp_path: Path, kafka_cluster: KafkaCluster, hdfs_cluster: HdfsCluster
) -> None:
    topic, log = unique("undecodable"), tmp_path / "good.log"
    configuration = f"""
a1.sources = c1files
a1.channels = c1
a1.sinks = k1
{tailed(tmp_path, [("good", "shop")], "c1")}
{kafka_channel(kafka_cluster.bootstrap_servers, topic, partitions=1)}
{hdfs_sink(hdfs_cluster.webhdfs, f"/proofs/{topic}")}
"""
    foreign: list[tuple[bytes | None, dict[str, str | bytes | None], str]] = [
        (b"plain text \xff\0", {}, "it has no flafka.format header, and is no AvroFlumeEvent either"),
        (b"from the future", {"flafka.format": b"arrow/9"}, "arrow/9, and this agent reads arrow/1, rows/1"),
        (b"not Arrow", {"flafka.format": b"arrow/1"}, "not an Arrow IPC stream"),
        (None, {"flafka.format": b"arrow/1"}, "not an Arrow IPC stream"),
    ]
    with RunningAgent(tmp_path / "a", configuration) as agent:
        log.write_bytes(b"before\n")
        agent.until(lambda: agent.count("SINK.k1", "EventDrainSuccessCount") == 1, "the line before")
        producer = Producer({"bootstrap.servers": kafka_cluster.bootstrap_servers})
        for value, headers, _ in foreign:
            producer.produce(topic, value, headers=headers)
        assert producer.flush(30) == 0
        with log.open("ab") as file:
            file.write(b"after\n")
        agent.until(lambda: agent.count("SINK.k1", "EventDrainSuccessCount") == 2, "the line after")
        agent.until(lambda: agent.count("SINK.k1", "EventRejectedCount") == len(foreign), "the others' letters")
        assert agent.stop() == 0
    assert in_hdfs(hdfs_cluster, f"/proofs/{topic}") == [b"before", b"after"]
    letters = dead_letters(kafka_cluster, topic)
    assert [letter.body for letter in letters] == [value or b"" for value, _, _ in foreign]
    for number, (letter, (_, _, reason)) in enumerate(zip(letters, foreign, strict=True)):
        assert reason in letter.headers["flafka.reason"]
        assert re.fullmatch(rf"{topic}~[0-9a-f]{{10}}-0-{number + 1}-0", letter.headers["flafka.id"])


def test_an_event_larger_than_a_record_is_kept_in_parts(
    tmp_path: Path, kafka_cluster: KafkaCluster, hdfs_cluster: HdfsCluster, seed: int
) -> None:
    topic = unique("large")
    random.seed(seed)
    large = random.randbytes(9 << 20).replace(b"\n", b" ")
    long_line = random.randbytes(9 << 20).replace(b"\n", b" ").replace(b"\r", b" ")
    (tmp_path / "good.log").write_bytes(b"a line\n" + long_line + b"\nanother\n")
    configuration = f"""
a1.sources = c1files syslog
a1.channels = c1
a1.sinks = k1
{tailed(tmp_path, [("good", "shop")], "c1")}
a1.sources.syslog.type = syslogtcp
a1.sources.syslog.host = 127.0.0.1
a1.sources.syslog.port = 0
a1.sources.syslog.eventSize = 9999999
a1.sources.syslog.channels = c1
{kafka_channel(kafka_cluster.bootstrap_servers, topic)}
{hdfs_sink(hdfs_cluster.webhdfs, f"/proofs/{topic}")}
"""
    head = b"<13>1 - big "
    with RunningAgent(tmp_path / "a", configuration) as agent:
        frames = [head + b"first", head + large, head + b"last"]
        send(agent.port("syslog"), b"".join(b"%d %s" % (len(frame), frame) for frame in frames))
        agent.until(lambda: agent.count("SOURCE.syslog", "EventRejectedCount") == 1, "the large event to be rejected")
        agent.until(lambda: agent.count("SINK.k1", "EventDrainSuccessCount") == 7, "the others")
        agent.wait_until_healthy()
        assert agent.stop() == 0
        assert "Traceback" not in agent.log

    letters = dead_letters(kafka_cluster, topic)
    assert len(letters) > 9
    assert b"".join(letter.body for letter in letters) == large
    assert [letter.headers["flafka.part"] for letter in letters] == [
        f"{number}/{len(letters)}" for number in range(1, len(letters) + 1)
    ]
    for letter in letters:
        assert letter.headers["flafka.component"] == "a1.sources.syslog"
        assert json.loads(letter.headers["flafka.headers"])["host"] == "big"
        assert "is larger than a record of the channel may be (8,388,608)" in letter.headers["flafka.reason"]
    # A line this long is not rejected: taildir cuts it into events that fit into a record.
    bodies = in_hdfs(hdfs_cluster, f"/proofs/{topic}")
    pieces = [long_line[start : start + (4 << 20)] for start in range(0, len(long_line), 4 << 20)]
    assert Counter(bodies) == Counter([b"first", b"last", b"a line", b"another", *pieces])
    assert len(in_topic(kafka_cluster, topic)) == 7
