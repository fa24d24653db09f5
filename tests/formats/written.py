"""Stored formats: the same content in each of them, as the present code writes and reads it.

A group of formats is a directory of samples. Its writer returns file name → text, with base64 for what is no text.
Its reader returns the content of such files as plain values.
"""

from __future__ import annotations

import base64
import io
import itertools
import json
import logging
import secrets
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import msgspec
import pyarrow as pa

from flafka.agent.audit.sums import Report, Sum, decode_report
from flafka.agent.monitoring.history import PROCESS, History
from flafka.agent.monitoring.registry import Registry
from flafka.agent.runner.deadletters import reading, store
from flafka.agent.runner.deadletters.reading import read_dead_letters
from flafka.agent.runner.deadletters.store import (
    DeadLetter,
    FileDeadLetterStore,
    KafkaDeadLetterStore,
    dead_letter_name,
    replay_record,
)
from flafka.agent.runner.local.forwarding import Forwarder
from flafka.agent.runner.spark.processing import OWNER_FILE, checkpoint_owner
from flafka.agent.services.kafka import KafkaCluster
from flafka.channels.file.bulkload import MARKER, BulkLoad
from flafka.channels.file.checkpoint import FILE_NAME, Checkpoint, read_checkpoint, write_checkpoint
from flafka.channels.file.log import Log
from flafka.channels.kafka import records
from flafka.plugins import Batch, Event, EventId, KafkaStream, LastRecord, Metrics, OffsetRange, Record
from flafka.plugins.kafka.offsets import OffsetMetadata
from flafka.plugins.partitions import replay_group
from flafka.sinks.hdfs.commitlog import File, HdfsCommitLog, Manifest, Successor
from flafka.sinks.hdfs.layout import final_path, safe_name, stage_directory
from flafka.sinks.kafka import producers
from flafka.sinks.kafka.commitlog import KafkaCommitLog
from flafka.sinks.kafka.producers import TransactionalProducer
from flafka.sources.spooldir import tracker
from flafka.sources.spooldir.tracker import FileOffset, FileState, SkippedFile, SkippedFiles, Tracker
from flafka.sources.taildir.cursors import FileCheckpoint, FileCursor, PositionFile
from tests.fixtures.partitions import assignment

Files = Mapping[str, str]
"""Content of a sample's files by name."""
LOGGER = logging.getLogger(__name__)
TIME_MS = 1_790_000_000_000
ASSIGNMENT = assignment(
    "cluster", "t", "tOp1c-id", "group", TIME_MS, 3, 2, "hdfs:/logs/.flafka", next_offset=7
).with_offset(7, LastRecord(TIME_MS, 4))
EVENT = Event(b"\xff body", {"host": "h", "key": "k", "größe": "x y"})
EVENTS = [EVENT, Event(b"", {})]
RUN, CHANNEL_ID = "8d8797b62938", "08cc3c0ef1db40f7a5ce8b5fe4a1a9e4"


class Format(NamedTuple):
    """Writer and reader of one group of formats."""

    write: Callable[[Path], Files]
    """Write into an empty directory, and return the files."""
    read: Callable[[Files, Path], Any] | None
    """Return the content of the files, with an empty directory for them; None if nothing reads them as a file."""


# --- channel kafka


def write_records(_: Path) -> Files:
    wide = Event(b"wide", {f"header-{number}": str(number) for number in range(70)})
    batches = {
        "rows": records.encode_batch(Batch.of(EVENTS)),
        "arrow": (records.ARROW, records.encode(Batch.of(EVENTS))),
        "arrow, more headers than columns": (records.ARROW, records.encode(Batch.of([wide]))),
        "arrow with LZ4": (records.ARROW, records.encode(Batch.of([Event(b"a" * 70_000)]))),
        "arrow with Zstandard": (records.ARROW, records.encode(Batch.of([Event(b"a" * 1_100_000)]))),
    }
    single = [records.encode_event(EVENT, format) for format in ("arrow", "flume", "raw")]
    id = EventId(ASSIGNMENT.id_prefix, 3, 5, 1)
    lines = [
        *(Record(0, TIME_MS, None, value, [(records.FORMAT, format)]) for format, value in batches.values()),
        *single,
        *(records.address_to_group(record, id, TIME_MS - 1, "group") for record in single),
    ]
    return {"records.jsonl": _lines(map(_of_record, lines))}


def read_records(files: Files, _: Path) -> Any:
    content = []
    for offset, line in enumerate(files["records.jsonl"].splitlines()):
        fields = json.loads(line)
        headers = [(name, base64.b64decode(value)) for name, value in fields["headers"]]
        key = None if fields["key"] is None else fields["key"].encode()
        record = Record(offset, TIME_MS, key, zlib.decompress(base64.b64decode(fields["value"])), headers)
        polled = records.decode(iter([record]), ASSIGNMENT, parse_as_flume_event=True)
        assert polled is not None
        assert not polled.undecodable, polled.undecodable
        format, _, replayed = (dict(headers).get(records.FORMAT, b"flume")).decode().partition(" ")
        ids = [str(id) for id in polled.batch.ids()]
        bodies = [event.body if len(event.body) < 100 else len(event.body) for event in polled.batch]
        content.append((format, replayed, ids, bodies, [event.headers for event in polled.batch]))
    return content


def _of_record(record: Record) -> dict[str, Any]:
    headers = [[name, _base64(value.encode() if isinstance(value, str) else value)] for name, value in record.headers]
    key = None if record.key is None else record.key.decode()
    return {"headers": headers, "key": key, "value": _base64(zlib.compress(record.value or b""))}


def write_offsets(_: Path) -> Files:
    generation = ASSIGNMENT.generation._replace(id_scheme=TIME_MS - 1)
    full = OffsetMetadata(generation, "tOp1c-id", "7?", time=TIME_MS)
    return {"metadata.txt": "\n".join([OffsetMetadata.of(ASSIGNMENT).text(), full.text(), ""])}


def read_offsets(files: Files, _: Path) -> Any:
    return [OffsetMetadata.parse(line) for line in files["metadata.txt"].splitlines()]


# --- channel file, overflow


def write_file_channel(directory: Path) -> Files:
    """Write a checkpoint, a segment with two entries, and the marker of a complete import."""
    log = Log([directory], 1 << 20, RUN)
    assert not [*log.open()]
    log.begin_run(0)
    for number in range(2):
        payload = Batch.of([Event(b"%d" % number, {"n": str(number)})]).to_ipc()
        log.sync(log.append(0, TIME_MS, 1, payload))
    log.close()
    (segment,) = directory.glob("*.log")
    committed = assignment("file", "files", f"{CHANNEL_ID}.{RUN}", "files", 0, 0, 2, "hdfs:/x/.flafka", next_offset=1)
    checkpoint = Checkpoint({0: committed}, {f"/data/{segment.name}": None}, runs=[RUN], inode=7)
    write_checkpoint(directory / FILE_NAME, checkpoint)
    BulkLoad([directory], lambda: iter(()), lambda _: None)._write_marker(5, complete=True)
    return {
        FILE_NAME: (directory / FILE_NAME).read_text(),
        f"{segment.name}.base64": _base64(segment.read_bytes()) + "\n",
        "flafka.channel": CHANNEL_ID,
        MARKER: (directory / MARKER).read_text(),
    }


def read_file_channel(files: Files, directory: Path) -> Any:
    unpack(files, directory)
    log = Log([directory], 1 << 20, "")
    assert not [*log.open()]
    cursor, entries = log.cursor(0), []
    while (entry := log.read(cursor)) is not None:
        entries.append((entry[0][:4], list(Batch.from_ipc(entry[1]))))
    log.close()
    load = BulkLoad([directory], lambda: iter(()), lambda _: None)
    load.resume()
    return read_checkpoint(directory / FILE_NAME, LOGGER), entries, load.first


def write_overflow(_: Path) -> Files:
    batch = _forwarder().tag(Batch.of([Event(b"a"), Event(b"b")]), "a1.sources.s1", "run-1")
    return {"events.jsonl": _lines({"body": event.body.decode(), "headers": event.headers} for event in batch)}


def read_overflow(files: Files, _: Path) -> Any:
    lines = [json.loads(line) for line in files["events.jsonl"].splitlines()]
    batch = Batch.of([Event(line["body"].encode(), line["headers"]) for line in lines])
    return [(list(part), [*owners], id) for part, owners, id in _forwarder()._split(batch)]


def _forwarder() -> Forwarder:
    forwarder = Forwarder.__new__(Forwarder)  # without its thread
    forwarder.assigned([assignment("file", "overflow", f"{CHANNEL_ID}.{RUN}", "overflow", 0, 0)])
    return forwarder


# --- dead letters, audit

LETTERS = [
    DeadLetter(
        "a1.sinks.k1", EventId("t~0123456789", 3, 4, 1), EVENT, "no number", TIME_MS, name="ab" * 16, group="g"
    ),
    DeadLetter("a1.sources.s1", None, Event(b"", {}), "too large", None, undecodable=True, name="cd" * 16),
]


def write_dead_letters(directory: Path) -> Files:
    with mock.patch.object(store, "_now", return_value=TIME_MS + 1):
        file = FileDeadLetterStore(directory / "a1.c1.deadletters.jsonl", "/etc/flafka/agent.conf")
        file.put(LETTERS)
        file.mark_replayed(["cd" * 16])
        parts = [part for letter in LETTERS for part in store._parts(letter)]
        with mock.patch.object(store, "PART_BYTES", 40), mock.patch.object(store, "HEADER_BYTES", 4):
            parts += store._parts(replace(LETTERS[0], name="ef" * 16))
        marks = replay_record(["cd" * 16])
    lines = [{"headers": _text_headers(headers), "value": _base64(value)} for value, headers in parts]
    lines.append({"headers": _text_headers(marks["headers"]), "value": _base64(marks["value"])})
    return {file.path.name: file.path.read_text(), "topic.jsonl": _lines(lines)}


def read_stored_dead_letters(files: Files, directory: Path) -> Any:
    unpack(files, directory)
    lines = [json.loads(line) for line in files["topic.jsonl"].splitlines()]
    stored = [
        (TIME_MS, {name: text.encode() for name, text in line["headers"].items()}, base64.b64decode(line["value"]))
        for line in lines
    ]
    topic = KafkaDeadLetterStore(KafkaStream("", "t", "g"), "t.deadletters", 3)
    with mock.patch.object(reading, "read_records", side_effect=lambda *_: iter(stored)):
        of_topic = [*read_dead_letters(topic)]
    return [*read_dead_letters(FileDeadLetterStore(directory / "a1.c1.deadletters.jsonl"))], of_topic


def write_audit(_: Path) -> Files:
    reports = [
        Report("t", "put", {TIME_MS: Sum(2, 2**64 - 1)}),
        Report("t", "group", {0: Sum(1, 5)}, f"tOp1c-id/{TIME_MS}/3", 4, 7, "a1-k1", True),
    ]
    return {"reports.jsonl": "".join(f"{msgspec.json.encode(report).decode()}\n" for report in reports)}


def read_audit(files: Files, _: Path) -> Any:
    return [decode_report(line.encode()) for line in files["reports.jsonl"].splitlines()]


# --- sources

STATE = FileState(11, 12, 13, 14, 15)
CURSORS = [
    FileCursor(
        id=1, inode=11, device=12, path="/var/log/a.log.1", name="/var/log/a.log", real="/var/log/a.log.1", offset=6,
        checkpoint=FileCheckpoint(4, 4, "0337c82fa5ed25802d407dcdcf69fa32", "0337c82fa5ed25802d407dcdcf69fa32"),
    ),
    FileCursor(id=2, inode=13, device=12, path="/var/log/ö", name="/var/log/ö", real="/x", offset=0, checkpoint=None),
]  # fmt: skip


def write_taildir(directory: Path) -> Files:
    file = PositionFile(directory / "taildir.json")
    assert file.load() == []
    gone = msgspec.structs.replace(CURSORS[0], id=3, path="/var/log/gone")
    file.save([*CURSORS, gone], [], final=True)
    file.save([msgspec.structs.replace(CURSORS[0], offset=9)], [3])
    file.close()
    names = ("taildir.json", "taildir.json.journal")
    return {name: (directory / name).read_text() for name in names}


def read_taildir(files: Files, directory: Path) -> Any:
    unpack(files, directory)
    file = PositionFile(directory / "taildir.json")
    cursors = file.read()
    assert not file.warnings
    return cursors


def write_spooldir(directory: Path) -> Files:
    with mock.patch.object(secrets, "token_bytes", bytes):
        stored = Tracker(directory)
        for offset in (0, 70_000):
            stored.save(FileOffset("/spool/a", offset, STATE))
        stored.close()
    skipped = SkippedFiles(directory)
    skipped.add("/spool/b", SkippedFile(STATE, "was changed", done=True))
    skipped.save()
    return {
        f"{tracker.TRACKER_NAME}.base64": _base64(stored.path.read_bytes()) + "\n",
        tracker.SKIPPED_FILES_NAME: (directory / tracker.SKIPPED_FILES_NAME).read_text(),
    }


def read_spooldir(files: Files, directory: Path) -> Any:
    unpack(files, directory)
    return Tracker(directory).read(), SkippedFiles(directory).files


# --- commit logs of sinks


def write_hdfs_commit_log(_: Path) -> Files:
    final = "/logs/FlumeData.t-3-0000000000-0000000001-7d2b4a11"
    file = File("/logs/.flafka/tmp/x/0", final, 4)
    last, end = LastRecord(TIME_MS, 4), Successor("/logs/.flafka", TIME_MS + 1)
    manifests = [
        Manifest("one", "t", 3, 0, 0, 0, (), 3, last),
        Manifest("two", "t", 3, 0, 2, 2, (file,), 3, last, None, "/logs/.flafka/tmp/x/done"),
        Manifest("end", "t", 3, 2, 2, 0, (), 3, last, end),
    ]
    log = HdfsCommitLog(_Manifests({}), "/logs/.flafka", ASSIGNMENT, LOGGER)
    contents = {log._manifest_path(one.name): msgspec.json.encode(one).decode() for one in manifests}
    return {"manifests.json": json.dumps(contents, indent=1) + "\n"}


def read_hdfs_commit_log(files: Files, _: Path) -> Any:
    stored = json.loads(files["manifests.json"])
    log = HdfsCommitLog(_Manifests(stored), "/logs/.flafka", ASSIGNMENT, LOGGER)
    return [log._read_manifest(path.rpartition("/")[2]) for path in stored]


class _Manifests:
    """File system with the manifests of a commit log."""

    def __init__(self, contents: Mapping[str, str]) -> None:
        self._contents = contents

    def read(self, path: str) -> bytes:
        return self._contents[path].encode()


def write_kafka_commit_log(_: Path) -> Files:
    made: list[dict[str, Any]] = []

    def produce(topic: str, *, value: bytes, key: str, partition: int) -> None:
        made.append({"topic": topic, "partition": partition, "key": key, "value": value.decode()})

    _kafka_commit_log().write(SimpleNamespace(produce=produce), ASSIGNMENT, 7)
    return {"entries.jsonl": _lines(made)}


def read_kafka_commit_log(files: Files, _: Path) -> Any:
    lines = [json.loads(line) for line in files["entries.jsonl"].splitlines()]
    entries = [(line["key"], json.loads(line["value"])) for line in lines]
    log = _kafka_commit_log()
    with mock.patch.object(log, "_records", return_value=entries):
        return log.read(ASSIGNMENT.with_offset(None))


def _kafka_commit_log() -> KafkaCommitLog:
    log = KafkaCommitLog({}, "t", LOGGER)
    log._partitions = 4
    return log


# --- Spark, clusters, history of metrics, names


def write_processor(directory: Path) -> Files:
    owner = {"sink": "a1.sinks.k1", "processor": "counts:by_level", "topic": "t", "topic id": "i", "cluster": "c"}
    checkpoint_owner(_spark(), str(directory), owner | {"configuration": "/etc/flafka/agent.conf"})
    return {OWNER_FILE: (directory / OWNER_FILE).read_text()}


def read_processor(files: Files, directory: Path) -> Any:
    unpack(files, directory)
    return checkpoint_owner(_spark(), str(directory), {})


def _spark() -> Any:
    """Return a session whose Hadoop file system is the local one."""

    class LocalPath:
        def __init__(self, *names: str) -> None:
            self.path = Path(*names)

        def getName(self) -> str:
            return self.path.name

        def getParent(self) -> LocalPath:
            return LocalPath(str(self.path.parent))

        def getFileSystem(self, _: Any) -> Any:
            return SimpleNamespace(exists=exists, open=opened, listStatus=listed, create=created)

    def exists(file: LocalPath) -> bool:
        return file.path.exists()

    def opened(file: LocalPath) -> Any:
        return SimpleNamespace(readAllBytes=file.path.read_bytes, close=lambda: None)

    def listed(directory: LocalPath) -> list[Any]:
        files = [LocalPath(str(file)) for file in directory.path.iterdir()]
        return [SimpleNamespace(getPath=lambda file=file: file) for file in files]

    def created(file: LocalPath, _: bool) -> Any:
        return io.FileIO(file.path, "w")

    hadoop = SimpleNamespace(hadoop=SimpleNamespace(fs=SimpleNamespace(Path=LocalPath)))
    jvm = SimpleNamespace(org=SimpleNamespace(apache=hadoop))
    return SimpleNamespace(_jvm=jvm, _jsc=SimpleNamespace(hadoopConfiguration=lambda: None))


def write_cluster(directory: Path) -> Files:
    KafkaCluster(directory).save_state(ports={"broker-1": 9092})
    return {"cluster.json": (directory / "cluster.json").read_text()}


def read_cluster(files: Files, directory: Path) -> Any:
    unpack(files, directory)
    return KafkaCluster(directory).ports


def write_history(directory: Path) -> Files:
    """Write the history of two minutes of a sink, without figures of the process."""
    registry, metrics = Registry("a1"), Metrics()
    registry.add("SINK", "k1", metrics)
    seconds = itertools.count(TIME_MS // 1000, 10)
    clock = SimpleNamespace(now=0)
    history = History(registry, lambda: clock.now, lambda: clock.now)
    for _ in range(12):
        clock.now = next(seconds)
        metrics.add("EventDrainSuccessCount", 50)
        metrics.set("Lag", 7)
        history.sample()
    for ring in history._rings:
        ring.series = {key: values for key, values in ring.series.items() if key[0] != PROCESS}
    history._write(directory / "history.npz")
    return {"history.npz.base64": _base64((directory / "history.npz").read_bytes()) + "\n"}


def read_history(files: Files, directory: Path) -> Any:
    unpack(files, directory)
    end = TIME_MS / 1000 + 110
    history = History(Registry("a1"), lambda: end, lambda: end)
    history._load(directory / "history.npz")
    return [history.series(span, 0, ["SINK.k1"])["series"] for span in (3600, 86400)]


def write_names(_: Path) -> Files:
    """Write names that servers and files have by which an agent finds its earlier state."""
    id = EventId(ASSIGNMENT.id_prefix, 3, 4, 1)
    names = {
        "event ID": str(id),
        "event ID after a reset with new IDs": ASSIGNMENT.replace(id_scheme=TIME_MS).id_prefix,
        "file on HDFS": final_path("/logs/FlumeData", ASSIGNMENT, OffsetRange(0, 2), ".snappy"),
        "stage on HDFS": stage_directory("/logs/.flafka", ASSIGNMENT, 2, "id"),
        "group in a path": safe_name("a/b é"),
        "dead letter": dead_letter_name("a1.sinks.k1", "group", TIME_MS, id, ""),
        "group of a replay": replay_group("group", "a1.sinks.k1", 0, TIME_MS),
        "transactional ID": _transactional_id(),
    }
    return {"names.json": json.dumps(names, indent=1) + "\n"}


def _transactional_id() -> str:
    with mock.patch.object(producers, "new_producer"):
        return TransactionalProducer({}, ASSIGNMENT).name


# --- helpers


def unpack(files: Files, directory: Path) -> None:
    """Write the files of a sample as they are stored."""
    for name, text in files.items():
        if name.endswith(".base64"):
            (directory / name.removesuffix(".base64")).write_bytes(base64.b64decode(text))
        else:
            (directory / name).write_text(text)


def schema(stream: bytes) -> str:
    """Return the schema of an Arrow IPC stream, whose bytes differ between versions of Arrow."""
    return pa.ipc.open_stream(stream).schema.to_string(show_schema_metadata=True)


def _base64(data: bytes | None) -> str:
    return base64.b64encode(data or b"").decode()


def _text_headers(headers: Iterable[tuple[str, str | bytes | None]]) -> dict[str, str]:
    return {name: value.decode() if isinstance(value, bytes) else value or "" for name, value in headers}


def _lines(values: Iterable[Any]) -> str:
    return "".join(f"{json.dumps(value)}\n" for value in values)


FORMATS = {
    "audit": Format(write_audit, read_audit),
    "channel-file": Format(write_file_channel, read_file_channel),
    "channel-kafka": Format(write_records, read_records),
    "cluster": Format(write_cluster, read_cluster),
    "committed-offset": Format(write_offsets, read_offsets),
    "dead-letters": Format(write_dead_letters, read_stored_dead_letters),
    "hdfs-commit-log": Format(write_hdfs_commit_log, read_hdfs_commit_log),
    "history": Format(write_history, read_history),
    "kafka-commit-log": Format(write_kafka_commit_log, read_kafka_commit_log),
    "names": Format(write_names, None),
    "overflow": Format(write_overflow, read_overflow),
    "processor": Format(write_processor, read_processor),
    "spooldir": Format(write_spooldir, read_spooldir),
    "taildir": Format(write_taildir, read_taildir),
}
