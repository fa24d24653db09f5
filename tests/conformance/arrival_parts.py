"""Replacements in the parts of a real file, by type; the events for its sources, and the output of its sinks."""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import shlex
import socket
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import happybase
import requests
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from flafka.agent.audit.reconciliation import HdfsReader
from flafka.agent.services.running import until
from flafka.agent.topology import ComponentSpec, SourceSpec
from flafka.plugins import Batch, Event
from flafka.sinks.avro import AvroSink, AvroSinkConfig

if TYPE_CHECKING:
    from tests.conformance.arrival import Agent, Run

SHOWN = 8
"""Lines in a file before `tail` begins, which shows no more than ten existing ones."""
DATAGRAMS = 100
"""Datagrams that are sent before their arrival is awaited."""
_READS_A_FILE = re.compile(r"(tail -[fF]) (\S+)")

# --- sources


def _exec(run: Run, source: ComponentSpec, lines: Sequence[bytes]) -> None:
    """`tail` of a file gets another file; another program gets a stand-in of its name that prints the lines."""
    command = source.properties["command"]
    printed = run.home / f"{source.name}.log"
    if reads := _READS_A_FILE.fullmatch(command):
        run.put(source, "command", f"{reads[1]} {printed}")
        _write_lines(printed, lines[:SHOWN])

        def append(agent: Agent) -> None:
            counter = f"SOURCE.{source.name}", "EventAcceptedCount"
            agent.until(lambda: agent.count(*counter) >= SHOWN, f"{source.name} to read its file")
            _write_lines(printed, lines[SHOWN:])

        run.after.append(append)
        return
    _write_lines(printed, lines)
    program, *arguments = shlex.split(command)
    stand_in = run.home / "bin" / Path(program).name
    stand_in.parent.mkdir(exist_ok=True)
    stand_in.write_text(f"#!/bin/sh\ncat {printed}\nexec sleep 600\n")
    stand_in.chmod(0o755)
    if Path(program).is_absolute():
        run.put(source, "command", shlex.join([str(stand_in), *arguments]))
    else:
        run.environment["PATH"] = f"{stand_in.parent}:{os.environ['PATH']}"


def _spooldir(run: Run, source: ComponentSpec, lines: Sequence[bytes]) -> None:
    directory = run.path(source, "spoolDir")
    if Path(source.properties.get("trackerDir", "")).is_absolute():
        run.path(source, "trackerDir")
    directory.mkdir(parents=True)
    _write_lines(directory / "events.log", lines)


def _taildir(run: Run, source: ComponentSpec, lines: Sequence[bytes]) -> None:
    run.path(source, "positionFile", "position.json")
    for group in source.properties["filegroups"].split():
        pattern = run.path(source, f"filegroups.{group}")
        pattern.parent.mkdir(parents=True, exist_ok=True)
        _write_lines(pattern.parent / pattern.name.replace(".*", "all."), lines)


def _write_lines(file: Path, lines: Sequence[bytes]) -> None:
    with file.open("ab") as appended:
        appended.write(b"".join(line + b"\n" for line in lines))


def _listening(
    send: Callable[[int, Sequence[bytes], Callable[[], int]], None],
) -> Callable[[Run, ComponentSpec, Sequence[bytes]], None]:
    """Return a function for a source with clients: it gets an address of this machine. `send` may ask how much
    arrived."""

    def local(run: Run, source: ComponentSpec, lines: Sequence[bytes]) -> None:
        run.put(source, "host" if "syslog" in source.cls.type_name else "bind", "127.0.0.1")
        run.put(source, "port", run.unused_port())
        counter = f"SOURCE.{source.name}", "EventReceivedCount"
        run.after.append(lambda agent: send(agent.port(source.name), lines, lambda: agent.count(*counter)))

    return local


def _send_lines(port: int, lines: Sequence[bytes], _: Callable[[], int]) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(b"".join(line + b"\n" for line in lines))
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass


def _send_datagrams(port: int, lines: Sequence[bytes], received: Callable[[], int]) -> None:
    """Send no more datagrams at once than the system buffers, however busy the machine is."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        for begin in range(0, len(lines), DATAGRAMS):
            burst = lines[begin : begin + DATAGRAMS]
            for line in burst:
                client.sendto(b"<13>Nov 23 10:00:00 host program: " + line, ("127.0.0.1", port))
            sent = begin + len(burst)
            until(partial(_at_least, received, sent), f"{sent} datagrams to be received")


def _at_least(count: Callable[[], int], number: int) -> bool:
    return count() >= number


def _send_avro(port: int, lines: Sequence[bytes], _: Callable[[], int]) -> None:
    config, _ = AvroSinkConfig.parse({"hostname": "127.0.0.1", "port": str(port)})
    assert config is not None
    sink = AvroSink(config)
    sink.open()
    try:
        sink.write(Batch.of(Event(line) for line in lines))
        sink.flush()
    finally:
        sink.close()


def _kafka_source(run: Run, source: ComponentSpec, lines: Sequence[bytes]) -> None:
    """Commit the offset of a new group before the events, as it would not read earlier ones."""
    servers, topic = run.servers.kafka.bootstrap_servers, run.place
    group = source.properties.get("kafka.consumer.group.id", source.properties.get("groupId", "flume"))
    run.put(source, "kafka.bootstrap.servers", servers)
    run.put(source, "kafka.topics", topic)

    def send() -> None:
        _make_topic(servers, topic)
        consumer = Consumer({"bootstrap.servers": servers, "group.id": group})

        def committed() -> bool:
            try:
                consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
            except KafkaException:  # while the topic of offsets is created
                return False
            return True

        until(committed, "a position for the source's group")
        consumer.close()
        _produce(servers, topic, lines)

    run.before.append(send)


# --- channels


def _file_channel(run: Run, channel: ComponentSpec) -> None:
    run.path(channel, "checkpointDir", "checkpoint")
    directories = channel.properties.get("dataDirs", "data").split(",")
    run.put(channel, "dataDirs", ",".join(f"{run.home}/{directory.strip()}" for directory in directories))


def _kafka_channel(run: Run, channel: ComponentSpec) -> None:
    servers, topic = run.servers.kafka.bootstrap_servers, f"{run.place}-{channel.name}"
    run.put(channel, "brokerList" if "brokerList" in channel.properties else "kafka.bootstrap.servers", servers)
    run.put(channel, "topic" if "topic" in channel.properties else "kafka.topic", topic)
    run.before.append(lambda: _make_topic(servers, topic))
    if not run.spec.sources:
        ids = [f"{run.key}-a{event:04}".encode() for event in range(run.events)]
        run.expected[channel.name] = set(ids)
        run.before.append(lambda: _produce(servers, topic, ids))


# --- sinks: each function returns a reader of the whole output


def _hdfs(run: Run, sink: ComponentSpec) -> Callable[[], bytes]:
    hdfs = run.servers.hdfs
    path = re.sub(r"^\w+://[^/]*", "", sink.properties["hdfs.path"])
    home = "/" if path.startswith("/") else f"/user/{getpass.getuser()}/"
    root = f"{home}{run.place}/{sink.name}"
    local = f"{run.place}/{sink.name}/{path.lstrip('/')}"
    run.put(sink, "hdfs.path", run.hdfs_path(f"/{local}" if path.startswith("/") else local))

    def read_files() -> bytes:
        reader = HdfsReader(hdfs.webhdfs)
        return b"\n".join(reader.read(path) for path in reader.visible(root))

    run.names[sink.name] = lambda: [path.removeprefix(f"{root}/") for path in HdfsReader(hdfs.webhdfs).visible(root)]
    return read_files


def _logger(run: Run, sink: ComponentSpec) -> Callable[[], bytes]:
    return lambda: run.log.encode()


def _files(directory: Path) -> bytes:
    return b"\n".join(file.read_bytes() for file in directory.iterdir() if file.is_file())


def _file_roll(run: Run, sink: ComponentSpec) -> Callable[[], bytes]:
    directory = run.path(sink, "sink.directory")
    directory.mkdir(parents=True)
    return lambda: _files(directory)


def _kafka(run: Run, sink: ComponentSpec) -> Callable[[], bytes]:
    servers, topic = run.servers.kafka.bootstrap_servers, f"{run.place}-{sink.name}"
    run.put(sink, "brokerList" if "brokerList" in sink.properties else "kafka.bootstrap.servers", servers)
    run.put(sink, "topic" if "topic" in sink.properties else "kafka.topic", topic)
    run.before.append(lambda: _make_topic(servers, topic))
    return lambda: b"\n".join(_consume(servers, topic))


def _avro(run: Run, sink: ComponentSpec) -> Callable[[], bytes]:
    collector = run.servers.collector
    run.put(sink, "hostname", "127.0.0.1")
    run.put(sink, "port", collector.deflate if "compression-type" in sink.properties else collector.plain)
    directory = collector.directory
    group = next((group for group in run.spec.groups if sink.name in group.sinks), None)
    if group is not None and sink.name != group.sinks[0]:  # all sinks of a group write to the same output
        return lambda: b""

    return lambda: _files(directory)


def _hbase(run: Run, sink: ComponentSpec) -> Callable[[], bytes]:
    host, _, port = run.servers.hbase.address.partition(":")
    table, family = f"{run.place}-{sink.properties['table']}", sink.properties["columnFamily"]
    run.put(sink, "thrift", run.servers.hbase.address)
    run.put(sink, "table", table)

    def make() -> None:
        with contextlib.closing(happybase.Connection(host, int(port), timeout=60_000)) as connection:
            connection.create_table(table, {family: {}})

    def read_table() -> bytes:
        with contextlib.closing(happybase.Connection(host, int(port), timeout=60_000)) as connection:
            return b"\n".join(value for _, row in connection.table(table).scan() for value in row.values())

    run.before.append(make)
    return read_table


def _elasticsearch(run: Run, sink: ComponentSpec) -> Callable[[], bytes]:
    address = f"http://{run.servers.opensearch.address}"
    run.put(sink, "hostNames", address)
    run.put(sink, "indexName", run.place)

    def read_index() -> bytes:
        with requests.Session() as session:
            session.post(f"{address}/{run.place}*/_refresh", timeout=60)
            return session.get(f"{address}/{run.place}*/_search?size=10000", timeout=60).content

    return read_index


# --- Kafka


def _make_topic(servers: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    for future in admin.create_topics([NewTopic(topic, 1, 3)]).values():
        future.result(60)


def _produce(servers: str, topic: str, lines: Sequence[bytes]) -> None:
    producer = Producer({"bootstrap.servers": servers, "acks": "all"})
    for line in lines:
        producer.produce(topic, line)
    assert not producer.flush(60)


def _consume(servers: str, topic: str) -> list[bytes]:
    """Return all records of the only partition of a topic."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": topic, "enable.auto.commit": False})
    partition = TopicPartition(topic, 0, 0)
    _, end = consumer.get_watermark_offsets(partition, timeout=60)
    consumer.assign([partition])
    records: list[bytes] = []
    while consumer.position([partition])[0].offset < end:
        records += [message.value() or b"" for message in consumer.consume(100, timeout=1) if not message.error()]
    consumer.close()
    return records


SOURCES: dict[str, Callable[[Run, SourceSpec, Sequence[bytes]], None]] = {
    "exec": _exec,
    "spooldir": _spooldir,
    "taildir": _taildir,
    "netcat": _listening(_send_lines),
    "syslogudp": _listening(_send_datagrams),
    "avro": _listening(_send_avro),
    "kafka": _kafka_source,
}
CHANNELS: dict[str, Callable[[Run, ComponentSpec], None]] = {"file": _file_channel, "kafka": _kafka_channel}
SINKS: dict[str, Callable[[Run, ComponentSpec], Callable[[], bytes]]] = {
    "hdfs": _hdfs,
    "logger": _logger,
    "file_roll": _file_roll,
    "kafka": _kafka,
    "avro": _avro,
    "hbase": _hbase,
    "elasticsearch": _elasticsearch,
}
