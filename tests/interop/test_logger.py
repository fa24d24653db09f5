"""`logger` of util-linux in every mode, through the agent and Kafka into HDFS."""

import re
import shutil
import subprocess
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from flafka.agent.services.hdfs import HdfsCluster
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import RunningAgent
from flafka.plugins import Event
from tests.system.running import hdfs_sink, in_hdfs, in_topic, kafka_channel, reconciliation, syslog_sources, unique

MESSAGES = [
    "plain",
    "  blanks  around  ",
    "quotes \" and ' and \\ backslashes",
    '<34>1 brackets > and [a b="c"] like structure',
    "grüße, 世界 🌍",
    "42 <13>looks like a frame",
    "tab\tand % percent %s %{host}",
    "long " + "x" * 2000,
    *(f"message {number}" for number in range(40)),
]
WAYS = [
    (protocol, form, counted)
    for protocol in ("tcp", "udp")
    for form in ("rfc3164", "rfc5424")
    for counted in (False, True)
]
HEAD_5424 = re.compile(rb'- - \[timeQuality tzKnown="[01]"(?: isSynced="[01]")?(?: syncAccuracy="\d+")?\] ')


@pytest.mark.skipif(shutil.which("logger") is None, reason="no logger (util-linux)")
def test_every_way_of_logger(tmp_path: Path, kafka_cluster: KafkaCluster, hdfs_cluster: HdfsCluster) -> None:
    topic, source = unique("logger"), tmp_path / "messages"
    source.write_text("".join(f"{message}\n" for message in MESSAGES))
    configuration = f"""
a1.channels = c1
a1.sinks = k1
{syslog_sources()}
{kafka_channel(kafka_cluster.bootstrap_servers, topic)}
{hdfs_sink(hdfs_cluster.webhdfs, f"/proofs/{topic}/%{{Facility}}/%{{Severity}}")}
"""
    sent = len(WAYS) * len(MESSAGES)
    with RunningAgent(tmp_path / "a", configuration) as agent:
        began = time.time()
        for protocol, form, counted in WAYS:
            server = ["--server", "127.0.0.1", "--port", str(agent.port(protocol)), f"--{protocol}", f"--{form}"]
            options = ["--tag", tag(protocol, form, counted), "--priority", "auth.err", "--size", "4096"]
            octets = ["--octet-count"] if counted else []
            subprocess.run(["logger", *server, *octets, *options, "--file", str(source)], check=True)
        agent.until(lambda: agent.count("SINK.k1", "EventDrainSuccessCount") == sent, "all messages in HDFS")
        ended = time.time()
        assert agent.stop() == 0
        assert agent.count("SOURCE.udp", "KernelDropCount") == 0

    events = in_topic(kafka_cluster, topic)
    by_way = defaultdict(list)
    for event in events:
        match = re.search(rb"(?:tcp|udp)-rfc\d+-\w+", event.body)
        assert match is not None, event
        by_way[match[0].decode()].append(event)
    for way in WAYS:
        check(way, by_way.pop(tag(*way)), began, ended)
    assert not by_way

    audited = reconciliation(kafka_cluster, topic, hdfs_cluster, f"/proofs/{topic}")
    assert audited.balanced, audited.differences
    bodies = [event.body for event in events if event.headers["Facility"] == "4"]
    assert Counter(in_hdfs(hdfs_cluster, f"/proofs/{topic}/4/3")) == Counter(bodies)


def check(way: tuple[str, str, bool], events: list[Event], began: float, ended: float) -> None:
    """Check every message of that mode: once, unchanged, with its headers."""
    protocol, form, counted = way
    head = tag(*way).encode() + (b": " if form == "rfc3164" else b" ")
    texts = []
    host = subprocess.run(["hostname"], capture_output=True, text=True, check=True).stdout.strip()
    for event in events:
        body, headers = event.body, dict(event.headers)
        if (protocol, counted) == ("udp", True):
            # Datagrams have no octet counts (RFC 5426): a datagram that begins with one is kept unchanged, and
            # marked.
            assert headers == {"Facility": "0", "Severity": "0", "flume.syslog.status": "Invalid"}
            count, _, body = body.partition(b" ")
            assert int(count) == len(body)
            body = body[body.index(head) :]
        else:
            millis = int(headers.pop("timestamp"))
            assert int(began) * 1000 <= millis <= ended * 1000
            assert headers.pop("version", None) == (None if form == "rfc3164" else "1")
            assert headers == {"Facility": "4", "Severity": "3", "priority": "35", "host": host}
        assert body.startswith(head)
        text = body.removeprefix(head)
        if form == "rfc5424":
            match = HEAD_5424.match(text)
            assert match is not None, text
            text = text[match.end() :]
        texts.append(text.decode())
    assert Counter(texts) == Counter(MESSAGES)


def tag(protocol: str, form: str, counted: bool) -> str:
    return f"{protocol}-{form}-{'counted' if counted else 'lines'}"
