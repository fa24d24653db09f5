"""Stored formats of every release: the present code reads its samples, and writes no format without a sample.

The directory of a release, such as 0.3.0, is never changed after it. A new or changed format gets a new sample, in
the directory of the next release: `FLAFKA_ACCEPT=1 ./dev test tests/formats` writes it.
"""

from __future__ import annotations

import base64
import io
import json
import os
import re
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from flafka.agent.audit.sums import Report, Sum
from flafka.agent.runner.deadletters.reading import StoredDeadLetter
from flafka.channels.file.checkpoint import Checkpoint
from flafka.plugins import Event, EventId, Generation, LastRecord
from flafka.plugins.kafka.offsets import OffsetMetadata
from flafka.sinks.hdfs.commitlog import File, Manifest, Successor
from flafka.sinks.kafka.commitlog import CommitLogEntry
from flafka.sources.spooldir.tracker import FileOffset, SkippedFile
from tests.fixtures.partitions import assignment
from tests.formats.samples import HERE, releases, sample
from tests.formats.written import CURSORS, EVENT, FORMATS, STATE, Files, schema

ROOT = Path(__file__).parents[2]
NEXT_RELEASE = "0.4.0"
"""Release whose samples may still change."""
TIME_MS = 1_790_000_000_000

# --- the content of all samples

BOTH = [b"\xff body", b""]
HEADERS = {"host": "h", "key": "k", "größe": "x y"}
WIDE = {f"header-{number}": str(number) for number in range(70)}


def ids(offset: int, *indexes: int) -> list[str]:
    return [f"t~68e2cedb67-3-{offset}-{index}" for index in indexes]


RECORDS = [
    ("rows/1", "", ids(0, 0, 1), BOTH, [HEADERS, {}]),
    ("arrow/1", "", ids(1, 0, 1), BOTH, [HEADERS, {}]),
    ("arrow/1", "", ids(2, 0), [b"wide"], [WIDE]),
    ("arrow/1", "", ids(3, 0), [70_000], [{}]),
    ("arrow/1", "", ids(4, 0), [1_100_000], [{}]),
    *(
        (format, "", ids(offset, 0), BOTH[:1], [HEADERS])
        for offset, format in enumerate(("rows/1", "flume", "raw/1"), 5)
    ),
    ("rows/1", "replayed", ids(5, 1), BOTH[:1], [HEADERS]),
    ("", "replayed", ids(5, 1), BOTH[:1], [HEADERS]),
    ("raw/1", "replayed", ids(5, 1), BOTH[:1], [HEADERS]),
]
HDFS_LOG = Generation(TIME_MS, 2, "hdfs:/logs/.flafka")
LETTER = StoredDeadLetter(
    "ab" * 16,
    TIME_MS + 1,
    "a1.sinks.k1",
    EventId("t~0123456789", 3, 4, 1),
    "no number",
    EVENT,
    TIME_MS,
    False,
    False,
    "g",
)
OF_SOURCE = StoredDeadLetter(
    "cd" * 16, TIME_MS + 1, "a1.sources.s1", None, "too large", Event(b"", {}), TIME_MS + 1, True, True, ""
)
FILE = File("/logs/.flafka/tmp/x/0", "/logs/FlumeData.t-3-0000000000-0000000001-7d2b4a11", 4)
END = Successor("/logs/.flafka", TIME_MS + 1)
LAST = LastRecord(TIME_MS, 4)

CONTENT: dict[str, Any] = {
    "audit": [
        Report("t", "put", {TIME_MS: Sum(2, 2**64 - 1)}),
        Report("t", "group", {0: Sum(1, 5)}, f"tOp1c-id/{TIME_MS}/3", 4, 7, "a1-k1", True),
    ],
    "channel-file": (
        Checkpoint(
            {
                0: assignment(
                    *("file", "files", "08cc3c0ef1db40f7a5ce8b5fe4a1a9e4.8d8797b62938", "files", 0, 0, 2),
                    "hdfs:/x/.flafka",
                    next_offset=1,
                )
            },
            {"/data/flafka-00000000000000000000-8d8797b62938.log": None},
            runs=["8d8797b62938"],
            inode=7,
            exists=True,
        ),
        [((n, 0, TIME_MS, 1), [Event(b"%d" % n, {"n": str(n)})]) for n in range(2)],
        5,
    ),
    "channel-kafka": RECORDS,
    "cluster": {"broker-1": 9092},
    "committed-offset": [
        OffsetMetadata(HDFS_LOG, "tOp1c-id", time=TIME_MS),
        OffsetMetadata(HDFS_LOG._replace(id_scheme=TIME_MS - 1), "tOp1c-id", "7?", time=TIME_MS),
    ],
    "dead-letters": (
        [replace(LETTER, kept_by="/etc/flafka/agent.conf"), replace(OF_SOURCE, kept_by="/etc/flafka/agent.conf")],
        [LETTER, OF_SOURCE, replace(LETTER, name="ef" * 16)],
    ),
    "hdfs-commit-log": [
        Manifest("one", "t", 3, 0, 0, 0, (), 3, LAST),
        Manifest("two", "t", 3, 0, 2, 2, (FILE,), 3, LAST, None, "/logs/.flafka/tmp/x/done"),
        Manifest("end", "t", 3, 2, 2, 0, (), 3, LAST, END),
    ],
    "history": [
        {"SINK.k1": {"Lag": [7] * slots, "EventDrainSuccessCount": [None, *[5] * (slots - 1)]}} for slots in (12, 3)
    ],
    "kafka-commit-log": CommitLogEntry(TIME_MS, 7),
    "overflow": [([Event(b"a", {}), Event(b"b", {})], ["a1.sources.s1"] * 2, "run-1")],
    "processor": {
        "sink": "a1.sinks.k1",
        "processor": "counts:by_level",
        "topic": "t",
        "topic id": "i",
        "cluster": "c",
        "configuration": "/etc/flafka/agent.conf",
    },
    "spooldir": (FileOffset("/spool/a", 70_000, STATE), {"/spool/b": SkippedFile(STATE, "was changed", True)}),
    "taildir": [msgspec.structs.replace(CURSORS[0], offset=9), CURSORS[1]],
}


@pytest.mark.parametrize(
    ("name", "release"), [(name, release) for name in FORMATS for release in releases(name) if FORMATS[name].read]
)
def test_the_formats_of_every_release_can_be_read(name: str, release: str, tmp_path: Path) -> None:
    read = FORMATS[name].read
    assert read is not None
    assert read(sample(release, name), tmp_path) == CONTENT[name]


@pytest.mark.parametrize("name", FORMATS)
def test_a_written_format_has_a_sample(name: str, tmp_path: Path) -> None:
    written = FORMATS[name].write(tmp_path)
    if os.environ.get("FLAFKA_ACCEPT"):
        directory = HERE / NEXT_RELEASE / name
        directory.mkdir(parents=True, exist_ok=True)
        for file, text in written.items():
            (directory / file).write_text(text)
    newest = releases(name)[-1]
    assert comparable(written) == comparable(sample(newest, name))


def comparable(files: Files) -> dict[str, Any]:
    """Return the files with the schema of an Arrow stream and the arrays of NumPy instead of their bytes."""
    compared: dict[str, Any] = dict(files)
    for name, text in files.items():
        if name == "records.jsonl":
            lines = [json.loads(line) for line in text.splitlines()]
            for line in lines:
                value = zlib.decompress(base64.b64decode(line["value"]))
                line["value"] = schema(value) if value.startswith(b"\xff\xff\xff\xff") else value
            compared[name] = lines
        elif name.endswith(".log.base64"):
            # Magic, and of each entry: partition, events, number, arrival; checksum and size follow from the stream.
            entries = re.split(rb"(?=FLE1)", base64.b64decode(text))[1:]
            compared[name] = [(entry[:4], entry[12:34], schema(entry[34:])) for entry in entries]
        elif name.endswith(".npz.base64"):
            with np.load(io.BytesIO(base64.b64decode(text))) as arrays:
                compared[name] = {key: arrays[key].dtype.str + repr(arrays[key].tolist()) for key in arrays}
    return compared


# --- completeness

WRITES = re.compile(
    r"replace_file\(|append_to_file\(|\.write_(?:text|bytes)\(|\.produce\(|O_CREAT|open\(\"[awx]|\.upload\(|files\.create\("
)
PACKAGES = ("agent", "channels", "plugins", "sinks", "sources", "interceptors")
ELSEWHERE = re.compile(r"agent/(?:services|jvm|cli|templates)/|plugins/templates/")
"""Configurations of the sandbox's servers, downloads, and files that a user asks for."""
WRITERS = {
    "agent/audit/publishing.py": "audit",
    "agent/monitoring/history.py": "history",
    "agent/runner/agent.py": "the file of `monitoring.file`, which no agent reads",
    "agent/runner/deadletterreplay.py": "channel-kafka, dead-letters",
    "agent/runner/deadletters/store.py": "dead-letters",
    "agent/runner/spark/gateway.py": "files of one run of a driver",
    "agent/runner/spark/packing.py": "packages for executors, in the cache",
    "agent/runner/spark/processing.py": "processor",
    "agent/runner/spark/scratch.py": "a lock",
    "agent/yarn/application.py": "a lock, and files of one run",
    "agent/yarn/uploads.py": "uploads of one Spark version, and a mark of them in the cache",
    "channels/file/bulkload.py": "channel-file",
    "channels/file/channel.py": "channel-file",
    "channels/file/checkpoint.py": "channel-file",
    "channels/file/lock.py": "a lock",
    "channels/file/log.py": "channel-file",
    "channels/kafka/producer.py": "channel-kafka",
    "plugins/storage.py": "functions for the others",
    "sinks/file_roll.py": "files for readers",
    "sinks/hdfs/commitlog.py": "hdfs-commit-log",
    "sinks/hdfs/localdisk.py": "functions for the others",
    "sinks/hdfs/sink.py": "files for readers",
    "sinks/hdfs/staging.py": "files of one run, and a lock",
    "sinks/hdfs/trial.py": "an empty file that is deleted",
    "sinks/hdfs/webhdfs.py": "functions for the others",
    "sinks/kafka/commitlog.py": "kafka-commit-log",
    "sinks/kafka/producers.py": "functions for the others, names",
    "sinks/kafka/records.py": "records for readers",
    "sources/spooldir/directory.py": "empty files, named as Flume names them",
    "sources/spooldir/tracker.py": "spooldir",
    "sources/taildir/cursors.py": "taildir",
}
"""Module that writes to disks, topics or HDFS → its formats, or the reason why no later agent reads them."""


def test_every_module_that_stores_something_is_known() -> None:
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
    texts = {str(file.relative_to(ROOT)): file.read_text() for file in files}
    writing = {name for name, text in texts.items() if WRITES.search(text) and not ELSEWHERE.match(name)}
    assert writing == {*WRITERS}, "add it to WRITERS, and what it stores to FORMATS"
