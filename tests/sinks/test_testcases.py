"""Cases of sinks as data: where the events of `input.jsonl` are delivered.

A sink with `<temp>` in its options writes files, which have to equal the files in `expected`. For any other sink,
`expected.jsonl` has the result of `Sink.destinations`.
"""

from __future__ import annotations

import gzip
import io
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.parquet as pq
import pytest

from flafka.plugins import Batch, CommittingSink, OffsetRange, Rejected
from tests.fixtures.partitions import assignment
from tests.fixtures.testcases import NOW_MS, Case, describe, each_case


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Names of files may have the time in the host's zone."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@each_case("sink")
def test_case(directory: Path, tmp_path: Path) -> None:
    case = Case(directory, tmp_path)
    sink, batch = case.make("sink"), case.batch()
    if not any("<temp>" in text for text in case.properties().values()):
        case.compare(sink.destinations(batch))
        return
    with closing(sink):
        rejected = _deliver(sink, batch)
    if rejected:
        events = zip(batch.ids(), batch, strict=True)
        case.compare({**describe(event), "rejected": rejected[id]} for id, event in events if id in rejected)
    case.compare_files(dict(map(_readable, _visible(tmp_path))))


def _deliver(sink: Any, batch: Batch) -> Mapping[Any, str]:
    """Write, flush or commit the events of a batch; return the rejected ones."""
    rejected: Mapping[Any, str] = {}
    if hasattr(sink, "clock"):
        sink.clock = lambda: NOW_MS / 1000
    sink.open()
    owned = sink.resume(assignment("cluster", "t", "id", "group", 0, 0)) if isinstance(sink, CommittingSink) else None
    try:
        sink.write(batch)
    except Rejected as e:
        rejected = e.reasons
    if owned is None:
        sink.flush()
    else:
        sink.commit(sink.stage(owned, OffsetRange(7, 8)))
    return rejected


def _visible(directory: Path) -> list[tuple[str, bytes]]:
    """Return names and contents of the files below a directory, without the sink's own hidden ones."""
    files = {file.relative_to(directory): file for file in directory.rglob("*") if file.is_file()}
    return [
        (str(name), file.read_bytes())
        for name, file in sorted(files.items())
        if not any(part.startswith(".") for part in name.parts)
    ]


def _readable(file: tuple[str, bytes]) -> tuple[str, bytes]:
    """Return the file as text that a person can write: compressed files unpacked, records as lines of JSON."""
    name, data = file
    if data.startswith(b"\x1f\x8b"):
        return f"{name}.unpacked", gzip.decompress(data)
    records: list[Any]
    if data.startswith(b"Obj\x01"):
        records = list(fastavro.reader(io.BytesIO(data)))
    elif data.startswith(b"PAR1"):
        records = pq.read_table(io.BytesIO(data)).to_pylist()
    else:
        return name, data
    text = "".join(f"{json.dumps(record, ensure_ascii=False, default=_as_json)}\n" for record in records)
    return f"{name}.jsonl", text.encode()


def _as_json(value: Any) -> str:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
