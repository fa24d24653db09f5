"""Hostile input of every kind: the agent delivers what can be delivered and reports the rest."""

import contextlib
import socket
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from flafka.agent.services.hdfs import HdfsCluster
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import RunningAgent, until
from tests.system.running import (
    connected,
    hdfs_sink,
    in_topic,
    kafka_channel,
    reconciliation,
    send,
    syslog_sources,
    unique,
)

STATUS = "flume.syslog.status"
HEAD = b"<13>Oct 11 22:14:15 web-1 "
SILENT = 500


class Pipeline(NamedTuple):
    """Syslog over TCP and UDP, through Kafka, into HDFS."""

    agent: RunningAgent
    topic: str
    root: str


@pytest.fixture(scope="module")
def syslog(
    tmp_path_factory: pytest.TempPathFactory, kafka_cluster: KafkaCluster, hdfs_cluster: HdfsCluster
) -> Iterator[Pipeline]:
    topic = unique("input")
    configuration = f"""
a1.channels = c1
a1.sinks = k1
{syslog_sources()}
{kafka_channel(kafka_cluster.bootstrap_servers, topic)}
{hdfs_sink(hdfs_cluster.webhdfs, f"/proofs/{topic}")}
"""
    with RunningAgent(tmp_path_factory.mktemp("syslog"), configuration) as agent:
        yield Pipeline(agent, topic, f"/proofs/{topic}")


OVERSIZE = HEAD + b"x" * 6000
FRAMES: dict[str, tuple[bytes, list[tuple[bytes, str | None]]]] = {
    "a line longer than eventSize": (
        OVERSIZE + b"\n" + HEAD + b"after it\n",
        [
            (OVERSIZE[len(HEAD) : 2500], "Incomplete"),
            (OVERSIZE[2500:5000], "Invalid"),
            (OVERSIZE[5000:], "Invalid"),
            (b"after it", None),
        ],
    ),
    "bytes that are not UTF-8": (HEAD + b"\xff\xfe\x80 \xc3\n", [(b"\xff\xfe\x80 \xc3", None)]),
    "a host that is not UTF-8": (b"<13>Oct 11 22:14:15 h\xff a\n", [(b"<13>Oct 11 22:14:15 h\xff a", "Invalid")]),
    "NUL bytes": (HEAD + b"a\0b\0\n" + b"\0\0\0\n", [(b"a", None), (b"b", "Invalid")]),  # each may end a line
    "priority 999": (b"<999>Oct 11 22:14:15 h a\n", [(b"<999>Oct 11 22:14:15 h a", "Invalid")]),
    "a line cut off": (HEAD + b"cut of", [(b"cut of", "Incomplete")]),
    "a head cut off": (b"<1", [(b"<1", "Invalid")]),
    "a counted frame cut off": (b"99 <13>1 - h a - - - cut o", [(b"a - - - cut o", "Incomplete")]),
    "a count cut off": (b"30", [(b"30", "Invalid")]),
    "a count of ten digits": (b"9999999999 <13>1 - h a - - - x", [(b"9999999999 <13>1 - h a - - - x", "Invalid")]),
    "a line that begins with a number": (b"22 Nov 2026\n" * 2, [(b"22 Nov 2026", "Invalid")] * 2),
    "no count behind a good frame": (
        b"20 <13>1 - h a - - - ok" + b"no count " * 300,
        [(b"a - - - ok", None), (b"no count " * 277 + b"no coun", "Invalid"), (b"t " + b"no count " * 22, "Invalid")],
    ),
    "nothing": (b"", []),
}


def statuses(kafka_cluster: KafkaCluster, topic: str) -> Counter[tuple[bytes, str | None]]:
    return Counter((event.body, event.headers.get(STATUS)) for event in in_topic(kafka_cluster, topic))


def test_no_frame_is_lost_or_breaks_another(kafka_cluster: KafkaCluster, syslog: Pipeline) -> None:
    agent, topic, _ = syslog
    port = agent.port("tcp")
    before, already = agent.count("SOURCE.tcp", "EventAcceptedCount"), statuses(kafka_cluster, topic)
    expected: Counter[tuple[bytes, str | None]] = Counter()
    for data, events in FRAMES.values():
        send(port, data)
        expected.update(events)
    agent.until(lambda: agent.count("SOURCE.tcp", "EventAcceptedCount") - before >= expected.total(), "all frames")
    assert statuses(kafka_cluster, topic) - already == expected
    assert "expected an octet count from 1 to 9999999, not b'no count no count no cou'" in agent.log
    assert "Traceback" not in agent.log


def test_silent_connections_do_not_hold_up_a_healthy_sender(kafka_cluster: KafkaCluster, syslog: Pipeline) -> None:
    agent, topic, _ = syslog
    port = agent.port("tcp")
    before = len(in_topic(kafka_cluster, topic))
    messages = {f"healthy {number}".encode() for number in range(3000)}
    with contextlib.ExitStack() as stack:
        for _ in range(SILENT):
            stack.enter_context(connected(port)).sendall(b"<")
        agent.until(lambda: agent.count("SOURCE.tcp", "OpenConnectionCount") >= SILENT, "all silent connections")
        send(port, b"".join(HEAD + message + b"\n" for message in sorted(messages)))
        until(lambda: len(in_topic(kafka_cluster, topic)) >= before + len(messages), "the healthy sender's messages")
        assert Counter(e.body for e in in_topic(kafka_cluster, topic) if e.body in messages) == Counter(messages)
        agent.until(lambda: agent.count("SOURCE.tcp", "OpenConnectionCount") == SILENT, "only the silent ones")
    agent.until(lambda: not agent.count("SOURCE.tcp", "OpenConnectionCount"), "the silent ones to be gone")


def test_datagrams_of_any_content_are_events(kafka_cluster: KafkaCluster, syslog: Pipeline) -> None:
    agent, topic, _ = syslog
    datagrams = [b"<13>1 - udp a - - - \xff\xfe\0", b"<999>udp", b"udp" * 20_000, b"", b"<13>1 - udp b - - - last"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.connect(("127.0.0.1", agent.port("udp")))
        for datagram in datagrams:
            client.send(datagram)
    agent.until(lambda: agent.count("SOURCE.udp", "EventAcceptedCount") >= 4, "the datagrams")
    counts = Counter((e.body, e.headers.get(STATUS)) for e in in_topic(kafka_cluster, topic) if b"udp" in e.body[:20])
    bodies = {(b"<999>udp", "Invalid"): 1, (b"udp" * 20_000, "Invalid"): 1}
    assert counts == bodies
    hosts = sorted(e.body for e in in_topic(kafka_cluster, topic) if e.headers.get("host") == "udp")
    assert hosts == [b"a - - - \xff\xfe", b"b - - - last"], "a NUL may end a message"


def test_all_of_it_is_in_hdfs(kafka_cluster: KafkaCluster, hdfs_cluster: HdfsCluster, syslog: Pipeline) -> None:
    agent, topic, root = syslog
    sent = len(in_topic(kafka_cluster, topic))
    agent.until(lambda: agent.count("SINK.k1", "EventDrainAttemptCount") >= sent, "all events to be staged")
    assert agent.stop() == 0
    audited = reconciliation(kafka_cluster, topic, hdfs_cluster, root)
    assert audited.balanced, audited.differences
    assert "Traceback" not in agent.log
