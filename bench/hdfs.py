"""A Kafka channel into text and Parquet on HDFS, by threads of an agent, a handwritten loop, and Flume's hdfs sink.

The sink `hdfs` with `runner = local` delivers a channel of Arrow batches. The loop is a process of a confluent-kafka
consumer and WebHDFS uploads, with the same bodies, one per record. Flume's sink reads its KafkaChannel, with 10,000
events per transaction, and writes text.

Time runs from the readiness of a program until its last file is closed and the offsets are committed. Every file is
read back and verified.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from bench.frame import CPU, RATE, Bench, Figures, without_setup
from bench.frame.delivery import ARROW, FLUME_FORMAT, FORMS, INTO_HDFS, PLAIN, StoredEvents, drain
from bench.frame.peers import flume
from bench.frame.processes import cpu_seconds
from flafka.agent.audit.reconciliation import HdfsReader
from flafka.agent.services.running import until
from flafka.agent.web import fetch_page
from tests.fixtures.ports import free_port

BARE, FLUME = "bare consumer and upload", "Apache Flume hdfs sink"
FLUME_CONFIGURATION = """
a1.channels = c
a1.sinks = k
a1.channels.c.type = org.apache.flume.channel.kafka.KafkaChannel
a1.channels.c.kafka.bootstrap.servers = {servers}
a1.channels.c.kafka.topic = {topic}
a1.channels.c.kafka.consumer.group.id = {group}
a1.channels.c.kafka.consumer.auto.offset.reset = earliest
a1.sinks.k.type = hdfs
a1.sinks.k.channel = c
a1.sinks.k.hdfs.path = {rpc}{root}
a1.sinks.k.hdfs.fileType = DataStream
a1.sinks.k.hdfs.batchSize = 10000
a1.sinks.k.hdfs.rollInterval = 0
a1.sinks.k.hdfs.rollSize = 0
a1.sinks.k.hdfs.rollCount = 0
"""


def run(bench: Bench) -> None:
    """Compare both formats."""
    stored = StoredEvents(bench.kafka, bench.events(2_000_000, 20_000))
    for form in FORMS:
        peers = {BARE: without_setup(bare(bench, stored, form))}
        if form == "text":
            peers[FLUME] = without_setup(by_flume(bench, stored, max(stored.events // 20, 1_000)))
        bench.compare(f"channel to HDFS, {form}", without_setup(ours(bench, stored, form)), peers, warm_up_rounds=0)


def ours(bench: Bench, stored: StoredEvents, form: str) -> Callable[[], Figures]:
    """Return a run of the sink on a thread of an agent, which exits once all events are committed."""
    reader = HdfsReader(bench.hdfs.webhdfs)

    def once() -> Figures:
        home, topic = bench.directory("ours"), stored.topic(ARROW)
        root = f"/{home.name}"
        text = INTO_HDFS.format(
            servers=topic.servers,
            topic=topic.name,
            webhdfs=bench.hdfs.webhdfs,
            root=root,
            group=root[1:],
            form=FORMS[form],
        )
        drained = drain(home, text, stored.events)
        stored.check(reader, root, form, masked=False)
        return drained.figures

    return once


def bare(bench: Bench, stored: StoredEvents, form: str) -> Callable[[], Figures]:
    """Return a run of `bench/frame/bare_upload.py`."""
    reader = HdfsReader(bench.hdfs.webhdfs)

    def once() -> Figures:
        root, topic = f"/{bench.directory('bare').name}", stored.topic(PLAIN)
        arguments = [topic.servers, topic.name, bench.hdfs.webhdfs, root, form, str(stored.events)]
        result = subprocess.run(
            [sys.executable, "-m", "bench.frame.bare_upload", *arguments], check=True, capture_output=True
        )
        answer = json.loads(result.stdout)
        stored.check(reader, root, form, masked=False)
        return {RATE: stored.events / answer["seconds"], CPU: answer["cpu"] / stored.events * 1e6}

    return once


def by_flume(bench: Bench, stored: StoredEvents, events: int) -> Callable[[], Figures]:
    """Return a run of Flume's hdfs sink and KafkaChannel, from its first event to its last transaction."""
    reader = HdfsReader(bench.hdfs.webhdfs)

    def once() -> Figures:
        home, port = bench.directory("flume"), free_port()
        topic, root = stored.topic(FLUME_FORMAT, events), f"/{home.name}"
        text = FLUME_CONFIGURATION.format(
            servers=topic.servers, topic=topic.name, rpc=bench.hdfs.rpc, root=root, group=root[1:]
        )
        options = ("-Dflume.monitoring.type=http", f"-Dflume.monitoring.port={port}", "-DHADOOP_USER_NAME=flafka")

        def drained() -> int:
            sink = json.loads(fetch_page("127.0.0.1", port, "/metrics")[1] or b"{}").get("SINK.k", {})
            return int(sink.get("EventDrainAttemptCount", 0) and sink.get("EventDrainSuccessCount", 0))

        with flume(home, text, "hdfs", options=options) as pid:
            until(lambda: fetch_page("127.0.0.1", port, "/metrics")[0], "Flume's metrics")
            cpu, started = cpu_seconds(pid), time.perf_counter()
            until(lambda: drained() >= events, "Flume's sink to be done")
            seconds, cpu = time.perf_counter() - started, cpu_seconds(pid) - cpu
            subprocess.run(["kill", f"-{signal.SIGTERM:d}", str(pid)], check=True)
            until(lambda: not any(path.endswith(".tmp") for path in reader.walk(root)), "Flume to close its file")
        stored.check(reader, root, "text", masked=False, events=events)
        return {RATE: events / seconds, CPU: cpu / events * 1e6}

    return once
