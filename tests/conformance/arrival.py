"""A real file, run: its agent is started as the file has it, its sources are sent events, and its sinks looked at.

Only what belongs to the machine that a file was written for is replaced: addresses, paths and topics, by lines behind
the file's own, of which the last one counts, as in Flume. Everything else is as the file says.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import shlex
import socket
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import happybase
import requests
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from agent.audit.reconciliation import HdfsReader
from agent.services import ServiceError
from agent.services.hbase import HBaseCluster
from agent.services.hdfs import HdfsCluster
from agent.services.kafka import KafkaCluster
from agent.services.opensearch import OpenSearchCluster
from agent.services.running import RunningAgent, until
from agent.topology import AgentSpec, ComponentSpec, SourceSpec
from plugins import Batch, Event
from sinks.avro import AvroSink, AvroSinkConfig
from tests.conformance import real_files

EVENTS = 1100
"""Each kind of line is sent so often: more than most channels hold."""
SHOWN = 8
"""So many of them lie in a file before `tail` begins, which shows no more than ten of what was there."""
WHOLE = {"file_roll", "hdfs", "kafka"}
"""Sinks in whose output a line stands as it was sent: `logger` shows its beginning, others write it as JSON."""
DATAGRAMS = 100
"""So many are sent before those are awaited."""
LINES: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
"""By file and channels: what is sent, where not every line goes to every channel of its source."""

_ID = re.compile(rb"[0-9a-f]{8}-[a-z]\d{4}")
_READS_A_FILE = re.compile(r"(tail -[fF]) (\S+)")


class Servers(Protocol):
    """The real servers that all files share."""

    @property
    def kafka(self) -> KafkaCluster: ...
    @property
    def hdfs(self) -> HdfsCluster: ...
    @property
    def hbase(self) -> HBaseCluster: ...
    @property
    def opensearch(self) -> OpenSearchCluster: ...
    @property
    def collector(self) -> Collector: ...


@dataclass(frozen=True)
class Collector:
    """An agent at the other end of Avro sinks."""

    plain: int
    deflate: int
    """Ports: without compression, and with it."""
    directory: Path

    @classmethod
    @contextlib.contextmanager
    def started(cls, home: Path) -> Iterator[Collector]:
        """It runs until the end of the block."""
        directory = home / "arrived"
        directory.mkdir(parents=True)
        text = f"""
            c.sources = plain deflate
            c.channels = m
            c.sinks = files
            c.sources.plain.type = avro
            c.sources.plain.bind = 127.0.0.1
            c.sources.plain.port = 0
            c.sources.plain.channels = m
            c.sources.deflate.type = avro
            c.sources.deflate.bind = 127.0.0.1
            c.sources.deflate.port = 0
            c.sources.deflate.compression-type = deflate
            c.sources.deflate.channels = m
            c.channels.m.type = memory
            c.sinks.files.type = file_roll
            c.sinks.files.channel = m
            c.sinks.files.sink.directory = {directory}
        """
        with RunningAgent(home, text) as agent:
            yield cls(agent.port("plain"), agent.port("deflate"), directory)


@dataclass
class Run:
    """One agent of one file on this machine: what its sources are sent, and where that is to arrive."""

    id: str
    spec: AgentSpec
    home: Path
    """Everything that the file calls by a path lies below it."""
    servers: Servers
    lines: Sequence[bytes] = ()
    """What the events are of, in turns, where the file lets them be anything; else of a few words."""
    settings: dict[str, str] = field(default_factory=dict)
    """What replaces the file's own, by its full key."""
    expected: dict[str, set[bytes]] = field(default_factory=dict)
    """By channel: the ids of the events that its sinks are to have between them."""
    before: list[Callable[[], None]] = field(default_factory=list)
    """What is sent before the agent starts."""
    after: list[Callable[[RunningAgent], None]] = field(default_factory=list)
    """What is sent once it has started."""
    found: dict[str, Callable[[], bytes]] = field(default_factory=dict)
    """By sink: all that it has written, once the agent has ended."""
    environment: dict[str, str | None] = field(default_factory=dict)
    log: str = ""
    sent: dict[bytes, bytes] = field(default_factory=dict)
    """By id: the whole line."""

    def __post_init__(self) -> None:
        self.home.mkdir(parents=True)
        for number, source in enumerate(self.spec.sources):
            _SOURCES[source.cls.type_name](self, source, self._lines(source, number))
        for channel in self.spec.channels:
            if local := _CHANNELS.get(channel.cls.type_name):
                local(self, channel)
        for sink in self.spec.sinks:
            self.found[sink.name] = _SINKS[sink.cls.type_name](self, sink)

    def _lines(self, source: SourceSpec, number: int) -> list[bytes]:
        kinds = LINES.get(self.id, {" ".join(source.channels): "{id} an event"})
        lines = []
        for channels, line in kinds.items():
            kind = chr(ord("a") + 8 * number + list(kinds).index(channels))
            ids = [f"{self.id[5:13]}-{kind}{event:04}" for event in range(EVENTS)]
            made = [line.format(id=id).encode() for id in ids]
            if self.lines and self.id not in LINES:
                made = [b"%b %b" % (id.encode(), self.lines[n % len(self.lines)]) for n, id in enumerate(ids)]
            self.sent.update(zip((id.encode() for id in ids), made, strict=True))
            lines += made
            for channel in channels.split():
                self.expected.setdefault(channel, set()).update(id.encode() for id in ids)
        return lines

    def put(self, part: ComponentSpec, key: str, value: object) -> None:
        """Replace an option of a component."""
        self.settings[f"{part.path}.{key}"] = str(value)

    def path(self, part: ComponentSpec, key: str, default: str = "") -> Path:
        """Replace a path by the like of it below `home`; returns that."""
        local = Path(f"{self.home}/{part.properties.get(key, default)}")
        self.put(part, key, local)
        return local

    def execute(self, text: str) -> None:
        """Start the agent, send, wait until its sinks have taken it all, and stop it."""
        for send in self.before:
            send()
        lines = [text, *(f"{key} = {value}" for key, value in self.settings.items())]
        file = self.home / "agent.conf"
        file.write_text("\n".join([*lines, f"{self.spec.name}.monitoring.port = 0", ""]), "utf-8")
        given = [f"-D{name}={value}" for name, value in real_files.system(self.id).items()]
        arguments = ("-c", str(file), "-n", self.spec.name, *given)
        environment = {**real_files.environment(self.id), **self.environment}
        with RunningAgent(self.home, file, *arguments, environment=environment) as agent:
            for send_to in self.after:
                send_to(agent)
            agent.until(lambda: not self.waits_for(agent.metrics()), f"the events of {self.id}")
            code = agent.stop()
            self.log = agent.log
            assert code == 0, self.log

    def waits_for(self, metrics: Mapping[str, Mapping[str, str]]) -> dict[str, int]:
        """How many events each channel's sinks have not taken yet. They may hold them until the agent ends."""
        waits = {}
        for channel, ids in self.expected.items():
            sinks = [f"SINK.{sink.name}" for sink in self.spec.sinks if sink.channel == channel]
            taken = sum(int(float(metrics.get(sink, {}).get("EventDrainAttemptCount", 0))) for sink in sinks)
            if sinks and taken < len(ids):
                waits[channel] = len(ids) - taken
        return waits

    def differences(self) -> list[str]:
        """What has not arrived where it should, or not once, in words, at most a minute after the agent's end."""
        with contextlib.suppress(ServiceError):  # an agent at the other end may write a little later
            until(lambda: not self._differences(), seconds=60)
        return self._differences()

    def _differences(self) -> list[str]:
        told = []
        for channel in self.spec.channels:
            sinks = [sink.name for sink in self.spec.sinks if sink.channel == channel.name]
            if not sinks:
                continue
            arrived = Counter(id for sink in sinks for id in _ID.findall(self.found[sink]()) if self._ours(id))
            expected = Counter(self.expected.get(channel.name, set()))
            told += [f"{channel.name}: {id.decode()} is missing" for id in expected - arrived]
            told += [f"{channel.name}: {id.decode()} came unexpected" for id in arrived - expected]
        return told

    def altered(self) -> list[str]:
        """Lines that have arrived other than they were sent, of sinks that write them as they are."""
        told = []
        for sink in self.spec.sinks:
            if sink.cls.type_name in WHOLE:
                found = self.found[sink.name]()
                arrived = [id for id in _ID.findall(found) if self._ours(id)]
                told += [f"{sink.name}: {id.decode()} is altered" for id in arrived if self.sent[id] not in found]
        return told

    def _ours(self, id: bytes) -> bool:
        return id.startswith(self.id[5:13].encode())


# --- sources


def _exec(run: Run, source: ComponentSpec, lines: Sequence[bytes]) -> None:
    """`tail` of a file gets another file; another program gets a stand-in of its name that prints the lines."""
    command = source.properties["command"]
    printed = run.home / f"{source.name}.log"
    if reads := _READS_A_FILE.fullmatch(command):
        run.put(source, "command", f"{reads[1]} {printed}")
        _write_lines(printed, lines[:SHOWN])

        def append(agent: RunningAgent) -> None:
            seen = f"SOURCE.{source.name}", "EventAcceptedCount"
            agent.until(lambda: agent.count(*seen) >= SHOWN, f"{source.name} to read its file")
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
    """A source that clients send to: it gets an address of this machine. `send` may ask how much was received."""

    def local(run: Run, source: ComponentSpec, lines: Sequence[bytes]) -> None:
        run.put(source, "host" if "syslog" in source.cls.type_name else "bind", "127.0.0.1")
        run.put(source, "port", 0)
        seen = f"SOURCE.{source.name}", "EventReceivedCount"
        run.after.append(lambda agent: send(agent.port(source.name), lines, lambda: agent.count(*seen)))

    return local


def _send_lines(port: int, lines: Sequence[bytes], _: Callable[[], int]) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(b"".join(line + b"\n" for line in lines))
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass


def _send_datagrams(port: int, lines: Sequence[bytes], received: Callable[[], int]) -> None:
    """No more under way than the system holds, however busy the machine is."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        for begin in range(0, len(lines), DATAGRAMS):
            some = lines[begin : begin + DATAGRAMS]
            for line in some:
                client.sendto(b"<13>Nov 23 10:00:00 host program: " + line, ("127.0.0.1", port))
            sent = begin + len(some)
            until(lambda sent=sent: received() >= sent, f"{sent} datagrams to be received")  # type: ignore[misc]


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
    """What is in the topic when a group is new is not read, so its position is there before it."""
    servers, topic = run.servers.kafka.bootstrap_servers, run.id
    group = source.properties.get("kafka.consumer.group.id", source.properties.get("groupId", "flume"))
    run.put(source, "kafka.bootstrap.servers", servers)
    run.put(source, "kafka.topics", topic)

    def send() -> None:
        _make_topic(servers, topic)
        consumer = Consumer({"bootstrap.servers": servers, "group.id": group})

        def committed() -> bool:
            try:
                consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
            except KafkaException:  # while the topic of offsets is made
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
    servers, topic = run.servers.kafka.bootstrap_servers, f"{run.id}-{channel.name}"
    run.put(channel, "brokerList" if "brokerList" in channel.properties else "kafka.bootstrap.servers", servers)
    run.put(channel, "topic" if "topic" in channel.properties else "kafka.topic", topic)
    run.before.append(lambda: _make_topic(servers, topic))
    if not run.spec.sources:
        ids = [f"{run.id[5:13]}-a{event:04}".encode() for event in range(EVENTS)]
        run.expected[channel.name] = set(ids)
        run.before.append(lambda: _produce(servers, topic, ids))


# --- sinks: each returns what gives all that it has written


def _hdfs(run: Run, sink: ComponentSpec) -> Callable[[], bytes]:
    hdfs = run.servers.hdfs
    run.environment["HADOOP_CONF_DIR"] = str(hdfs.directory / "conf" / "namenode")
    path = re.sub(r"^\w+://[^/]*", "", sink.properties["hdfs.path"])
    home = "/" if path.startswith("/") else f"/user/{getpass.getuser()}/"
    root = f"{home}{run.id}/{sink.name}"
    run.put(sink, "hdfs.path", f"{'/' if path.startswith('/') else ''}{run.id}/{sink.name}/{path.lstrip('/')}")

    def found() -> bytes:
        reader = HdfsReader(hdfs.webhdfs)
        return b"\n".join(reader.read(path) for path in reader.visible(root))

    return found


def _logger(run: Run, sink: ComponentSpec) -> Callable[[], bytes]:
    return lambda: run.log.encode()


def _files(directory: Path) -> bytes:
    return b"\n".join(file.read_bytes() for file in directory.iterdir() if file.is_file())


def _file_roll(run: Run, sink: ComponentSpec) -> Callable[[], bytes]:
    directory = run.path(sink, "sink.directory")
    directory.mkdir(parents=True)
    return lambda: _files(directory)


def _kafka(run: Run, sink: ComponentSpec) -> Callable[[], bytes]:
    servers, topic = run.servers.kafka.bootstrap_servers, f"{run.id}-{sink.name}"
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
    if group is not None and sink.name != group.sinks[0]:  # all of a group's sinks write to the same place
        return lambda: b""

    return lambda: _files(directory)


def _hbase(run: Run, sink: ComponentSpec) -> Callable[[], bytes]:
    host, _, port = run.servers.hbase.address.partition(":")
    table, family = f"{run.id}-{sink.properties['table']}", sink.properties["columnFamily"]
    run.put(sink, "thrift", run.servers.hbase.address)
    run.put(sink, "table", table)

    def make() -> None:
        with contextlib.closing(happybase.Connection(host, int(port), timeout=60_000)) as connection:
            connection.create_table(table, {family: {}})

    def found() -> bytes:
        with contextlib.closing(happybase.Connection(host, int(port), timeout=60_000)) as connection:
            return b"\n".join(value for _, row in connection.table(table).scan() for value in row.values())

    run.before.append(make)
    return found


def _elasticsearch(run: Run, sink: ComponentSpec) -> Callable[[], bytes]:
    address = f"http://{run.servers.opensearch.address}"
    run.put(sink, "hostNames", address)
    run.put(sink, "indexName", run.id)

    def found() -> bytes:
        with requests.Session() as session:
            session.post(f"{address}/{run.id}*/_refresh", timeout=60)
            return session.get(f"{address}/{run.id}*/_search?size=10000", timeout=60).content

    return found


# --- Kafka


def _make_topic(servers: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    for made in admin.create_topics([NewTopic(topic, 1, 3)]).values():
        made.result(60)


def _produce(servers: str, topic: str, lines: Sequence[bytes]) -> None:
    producer = Producer({"bootstrap.servers": servers, "acks": "all"})
    for line in lines:
        producer.produce(topic, line)
    assert not producer.flush(60)


def _consume(servers: str, topic: str) -> list[bytes]:
    """All that is in the only partition of a topic."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": topic, "enable.auto.commit": False})
    partition = TopicPartition(topic, 0, 0)
    _, end = consumer.get_watermark_offsets(partition, timeout=60)
    consumer.assign([partition])
    found: list[bytes] = []
    while consumer.position([partition])[0].offset < end:
        found += [message.value() or b"" for message in consumer.consume(100, timeout=1) if not message.error()]
    consumer.close()
    return found


_SOURCES: dict[str, Callable[[Run, SourceSpec, Sequence[bytes]], None]] = {
    "exec": _exec,
    "spooldir": _spooldir,
    "taildir": _taildir,
    "netcat": _listening(_send_lines),
    "syslogudp": _listening(_send_datagrams),
    "avro": _listening(_send_avro),
    "kafka": _kafka_source,
}
_CHANNELS: dict[str, Callable[[Run, ComponentSpec], None]] = {"file": _file_channel, "kafka": _kafka_channel}
_SINKS: dict[str, Callable[[Run, ComponentSpec], Callable[[], bytes]]] = {
    "hdfs": _hdfs,
    "logger": _logger,
    "file_roll": _file_roll,
    "kafka": _kafka,
    "avro": _avro,
    "hbase": _hbase,
    "elasticsearch": _elasticsearch,
}
