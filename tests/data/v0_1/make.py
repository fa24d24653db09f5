"""Makes `state.json`: what version 0.1 left on real servers. Run by that version, in a checkout of commit fdcd801:

    git archive fdcd801 | tar -x -C DIRECTORY
    PYTHONPATH=DIRECTORY python tests/data/v0_1/make.py DIRECTORY

Events in all three forms go into one topic, and from there into every store, on threads and on Spark; some are
rejected, some of these replayed; and one group is reset.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import happybase
from agent.books import HdfsReader, hbase_rows, read_topic, solr_documents
from confluent_kafka import Consumer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from agent.services.hbase import HBaseCluster
from agent.services.hdfs import HdfsCluster
from agent.services.kafka import KafkaCluster
from agent.services.solr import SolrCluster
from plugins import Batch, Components, Event

TREE = Path(sys.argv[1]).resolve()
TOPIC = "t"
CHANNEL = """
a1.channels = c1
a1.channels.c1.type = kafka
a1.channels.c1.kafka.bootstrap.servers = {brokers}
a1.channels.c1.kafka.topic = t
a1.channels.c1.partitions = 1
"""
HDFS = """
a1.sinks.{name}.type = hdfs
a1.sinks.{name}.channel = c1
a1.sinks.{name}.group = {name}
a1.sinks.{name}.errors.tolerance = all
a1.sinks.{name}.hdfs.path = webhdfs://{webhdfs}/{name}/%{{place}}
a1.sinks.{name}.hdfs.fileType = DataStream
"""
STORES = """
a1.sinks.kafka.type = kafka
a1.sinks.kafka.channel = c1
a1.sinks.kafka.group = kafka
a1.sinks.kafka.errors.tolerance = all
a1.sinks.kafka.kafka.bootstrap.servers = {brokers}
a1.sinks.kafka.kafka.topic = out
a1.sinks.kafka.partitionIdHeader = to
a1.sinks.solr.type = solr
a1.sinks.solr.channel = c1
a1.sinks.solr.group = solr
a1.sinks.solr.errors.tolerance = all
a1.sinks.solr.url = {solr}
a1.sinks.solr.field.number_i = %{{number}}
a1.sinks.hbase.type = hbase2
a1.sinks.hbase.channel = c1
a1.sinks.hbase.group = hbase
a1.sinks.hbase.thrift = {thrift}
a1.sinks.hbase.table = events
a1.sinks.hbase.columnFamily = event
"""
GROUPS = ("hdfs", "again", "kafka", "solr", "hbase", "spark")


def event(number: int, *, bad: bool = False) -> Event:
    """One that every store takes; or that HDFS, Solr and the topic `out` reject."""
    body = b"event %d%s" % (number, b" bad" * bad)
    return Event(
        body, {"place": "a:b", "to": "77", "number": "x"} if bad else {"place": "x", "to": "0", "number": "1"}
    )


def put(brokers: str, form: str, *batches: list[Event]) -> None:
    """Into the topic, in that form."""
    kind = Components().get("channel", "kafka")
    options = {"kafka.bootstrap.servers": brokers, "kafka.topic": TOPIC, "partitions": "1", "format": form}
    config, problems = kind.config_class.parse(options)
    assert config is not None, problems
    channel = kind(config, "c1")
    channel.open()
    for batch in batches:
        channel.put(Batch.of(batch))
    channel.close()


def agent(*arguments: str) -> None:
    """One command, to its end."""
    environment = {**os.environ, "PYTHONPATH": str(TREE)}
    subprocess.run([sys.executable, "-m", "agent", *arguments], env=environment, cwd=TREE, check=True)


def records(brokers: str, topic: str) -> list[dict[str, Any]]:
    """All of its only partition, those of transactions that came about; bytes in base64."""
    options = {"group.id": "reader", "enable.partition.eof": True, "isolation.level": "read_committed"}
    consumer = Consumer({"bootstrap.servers": brokers, **options})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    while (message := consumer.poll(60)) is not None and message.error() is None:
        headers = [(name, encoded(value)) for name, value in message.headers() or ()]
        key, value = encoded(message.key()), encoded(message.value())
        time = message.timestamp()[1]
        found.append({"offset": message.offset(), "time": time, "key": key, "value": value, "headers": headers})
    consumer.close()
    return found


def encoded(data: bytes | None) -> str | None:
    """As JSON holds it."""
    return None if data is None else base64.b64encode(data).decode()


def committed(brokers: str, group: str) -> dict[str, Any]:
    """Offset and metadata of the only partition."""
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": group})
    (at,) = consumer.committed([TopicPartition(TOPIC, 0)], timeout=60)
    consumer.close()
    return {"offset": at.offset, "metadata": at.metadata}


def main() -> None:
    """Start everything, have it done, and write down what is left."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kafka, hdfs, solr, hbase = (
            stack.enter_context(kind(directory / kind.__name__, fixed_ports=False))
            for kind in (KafkaCluster, HdfsCluster, SolrCluster, HBaseCluster)
        )
        brokers = kafka.bootstrap_servers
        host, _, port = hbase.address.partition(":")
        with contextlib.closing(happybase.Connection(host, int(port), timeout=60_000)) as connection:
            connection.create_table("events", {"event": {}})
        servers = {
            "brokers": brokers,
            "webhdfs": hdfs.webhdfs,
            "solr": solr.create_core("old"),
            "thrift": hbase.address,
        }
        threads, spark, again = directory / "threads.conf", directory / "spark.conf", directory / "again.conf"
        end = "a1.monitoring.port = 0\n"

        def write(file: Path, text: str, *names: str) -> None:
            text = text.format(**servers) + "".join(HDFS.format(name=name, **servers) for name in names)
            sinks = sorted({line.split(".")[2] for line in text.splitlines() if line.startswith("a1.sinks.")})
            file.write_text(f"{text}a1.sinks = {' '.join(sinks)}\n{end}")

        write(threads, CHANNEL + STORES, "hdfs", "again")
        write(spark, CHANNEL + "a1.runner = spark\na1.spark.triggerInterval = 1\n", "spark")
        write(again, CHANNEL, "again")

        admin = AdminClient({"bootstrap.servers": brokers})
        admin.create_topics([NewTopic("out", 1, 3)])["out"].result(60)
        put(brokers, "arrow", [event(0), event(1, bad=True), event(2)], [event(3)])
        agent("start", "-c", str(threads), "--drain")
        put(brokers, "flume", [event(4), event(5, bad=True)])
        put(brokers, "raw", [event(6), event(7, bad=True)])
        agent("start", "-c", str(threads), "--drain")
        agent("start", "-c", str(spark), "--drain")
        agent("group", "reset", "again", "--to", "earliest", "--yes", "--bootstrap-server", brokers)
        agent("start", "-c", str(again), "--drain")
        agent("dlq", "replay", "-c", str(threads), "--component", "a1.sinks.solr", "--limit", "2", "--yes")

        (topic,) = admin.describe_topics(TopicCollection([TOPIC])).values()
        reader = HdfsReader(hdfs.webhdfs)
        taken = read_topic(brokers, TOPIC, Components().get("channel", "kafka"))
        state = {
            "cluster": admin.list_topics(timeout=60).cluster_id,
            "topic": str(topic.result(60).topic_id),
            "offsets": {group: committed(brokers, group) for group in GROUPS},
            "records": {name: records(brokers, name) for name in (TOPIC, f"{TOPIC}.deadletters", "out")},
            "ids": {str(id): body.decode() for id, body in pairs(taken)},
            "hdfs": {
                path: reader.read(path).decode()
                for group in ("hdfs", "again", "spark")
                for path in reader.walk(f"/{group}")
            },
            "solr": sorted(solr_documents(servers["solr"])),
            "hbase": sorted(hbase_rows(hbase.address, "events")),
        }
    Path(__file__).with_name("state.json").write_text(json.dumps(state, indent=1, sort_keys=True) + "\n")


def pairs(taken: dict[int, Any]) -> list[tuple[Any, bytes]]:
    """Ids and bodies of all events."""
    return [
        (id, body) for one in taken[0] for id, body in zip(one.batch.ids(), one.batch.bodies.to_pylist(), strict=True)
    ]


if __name__ == "__main__":
    main()
