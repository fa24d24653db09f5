"""Sources `spooldir` over a directory of real files, and their remains there."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import fastavro
import pyarrow as pa

from flafka.sources.spooldir import SpooldirConfig, SpooldirSource

RECORD = {
    "type": "record",
    "name": "Line",
    "namespace": "test",
    "fields": [{"name": "number", "type": "long"}, {"name": "text", "type": ["null", "string"], "default": None}],
}
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": partial(lzma.compress, preset=0),
    "zstd": lambda data: bytes(pa.compress(data, "zstd", asbytes=True)),
}


def make(spool: Path, **options: str) -> SpooldirSource:
    names = {name.replace("__", "."): value for name, value in options.items()}
    config, problems = SpooldirConfig.parse({"spoolDir": str(spool), **names})
    assert config is not None, problems
    return SpooldirSource(config)


def start(spool: Path, **options: str) -> SpooldirSource:
    source = make(spool, **options)
    source.open()
    return source


def read(source: SpooldirSource) -> list[bytes]:
    """Read everything now, as stored."""
    bodies: list[bytes] = []
    for batch in source.poll():
        bodies += batch.bodies.to_pylist()
        source.stored(batch)
    return bodies


def read_anew(spool: Path, **options: str) -> list[bytes]:
    """Read with a source that is started now and killed afterwards."""
    source = start(spool, **options)
    try:
        return read(source)
    finally:
        source.close()


def names(spool: Path) -> list[str]:
    return sorted(str(path.relative_to(spool)) for path in spool.rglob("*") if path.is_file())


def put(path: Path, data: bytes, age: float = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    when = 1_700_000_000 - age
    os.utime(path, (when, when))
    return path


def avro(records: int, codec: str = "null", interval: int = 100) -> bytes:
    file = io.BytesIO()
    lines = ({"number": number, "text": f"line {number}"} for number in range(records))
    fastavro.writer(file, RECORD, lines, codec=codec, sync_interval=interval)
    return file.getvalue()
