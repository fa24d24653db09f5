"""Every file format and codec of the HDFS sink on a real HDFS, read by Hadoop itself."""

from __future__ import annotations

import bz2
import functools
import gzip
import io
import json
import subprocess
import uuid
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from flafka.agent.jvm.jars import ensure_all
from flafka.agent.jvm.java import find_java
from flafka.agent.services.hdfs import HdfsCluster
from flafka.plugins import Batch, Event, OffsetRange, Origin
from flafka.sinks.hdfs import HdfsConfig, HdfsSink
from tests.fixtures.partitions import assignment

ASSIGNMENT = assignment("cluster", "formats", "t0p1c", "group", 0, 0)
EVENTS = 30_000
"""Number of events with which every format writes several blocks."""
SCHEMA = '{"type": "string"}'
STREAM, COMPRESSED = {"hdfs.fileType": "DataStream"}, {"hdfs.fileType": "CompressedStream"}
LONG_AGO = 1_704_157_445_006

Lines = list[bytes]


def body(number: int) -> bytes:
    return b"line %d of many, none of them like another %d" % (number, number * 7919)


def avro_body(number: int) -> bytes:
    text = body(number)
    return bytes([len(text) << 1]) + text


def json_of(number: int) -> bytes:
    return b'{"headers":{"host":"h%d","timestamp":"%d"},"body":"%s"}' % (number % 3, LONG_AGO + number, body(number))


def hex_of(number: int) -> bytes:
    return b"%d\t%s" % (LONG_AGO + number, body(number).hex(" ").encode())


def text_of(number: int) -> bytes:
    return b"%d\t%s" % (LONG_AGO + number, body(number))


def headed(number: int) -> bytes:
    return b"{host=h%d, timestamp=%d} %s" % (number % 3, LONG_AGO + number, body(number))


AVRO = ("null", "deflate", "snappy", "bzip2", "zstandard")
CODECS = ("gzip", "bzip2", "snappy", "lz4", "deflate", "default")

HADOOP: dict[str, tuple[dict[str, str], Callable[[int], bytes]]] = {
    "text": (STREAM, body),
    "header and text": ({**STREAM, "serializer": "HEADER_AND_TEXT"}, headed),
    "json": ({**STREAM, "serializer": "JSON"}, json_of),
    "avro bodies": ({**STREAM, "serializer": "AVRO_BODY"}, lambda n: b'"' + body(n) + b'"'),
    **{
        f"avro {codec}": ({**STREAM, "serializer": "avro_event", "serializer.compressionCodec": codec}, json_of)
        for codec in AVRO
    },
    **{f"stream {codec}": ({**COMPRESSED, "hdfs.codeC": codec}, body) for codec in CODECS},
    "sequence": ({}, hex_of),
    "sequence text": ({"hdfs.writeFormat": "Text"}, text_of),
    **{f"sequence {c}": ({"hdfs.codeC": c, "hdfs.writeFormat": "Text"}, text_of) for c in CODECS},
    "sequence bytes snappy": ({"hdfs.codeC": "snappy"}, hex_of),
}
"""Options of formats that Hadoop reads, and the line that it prints for an event."""


@functools.cache
def batch(offset: int, events: int, bodies: Callable[[int], bytes]) -> Batch:
    numbers = range(offset, offset + events)
    indexes, times = np.zeros(events, np.int32), np.zeros(events, np.int64)
    origin = Origin(ASSIGNMENT.topic, ASSIGNMENT.partition, np.array(numbers), indexes, times)
    headers = [{"host": f"h{n % 3}", "timestamp": str(LONG_AGO + n)} for n in numbers]
    if bodies is avro_body:
        headers = [{"flume.avro.schema.literal": SCHEMA} for _ in numbers]
    return Batch.of((Event(bodies(n), h) for n, h in zip(numbers, headers, strict=True)), origin)


def write(cluster: HdfsCluster, root: str, staging: Path, options: dict[str, str]) -> str:
    """Write one committed file of all events; return its path."""
    properties = {"hdfs.path": root, "hdfs.webhdfs": cluster.webhdfs, "hdfs.stagingDir": str(staging), **options}
    config, problems = HdfsConfig.parse(properties)
    assert config is not None, problems
    sink = HdfsSink(config)
    sink.open()
    try:
        bodies = avro_body if options.get("serializer") == "AVRO_BODY" else body
        for offset in range(0, EVENTS, EVENTS // 3):
            sink.write(batch(offset, EVENTS // 3, bodies))
        receipt = sink.stage(sink.resume(ASSIGNMENT), OffsetRange(0, EVENTS))
        sink.commit(receipt)
        [file] = receipt.staged.files
        return str(file.final)
    finally:
        sink.close()


def content(cluster: HdfsCluster, path: str) -> bytes:
    config, _ = HdfsConfig.parse({"hdfs.path": "/", "hdfs.webhdfs": cluster.webhdfs})
    assert config is not None
    hdfs = HdfsSink(config)._connect()
    try:
        data = hdfs.read(path)
        assert data is not None
        return data
    finally:
        hdfs.close()


def test_hadoop_reads_every_format(hdfs_cluster: HdfsCluster, tmp_path: Path, figures: list[str]) -> None:
    root = f"/formats-{uuid.uuid4().hex}"
    paths = {
        name: write(hdfs_cluster, f"{root}/{number}", tmp_path, options)
        for number, (name, (options, _)) in enumerate(HADOOP.items())
    }
    for name, path in paths.items():
        if name.startswith("stream"):
            assert unpacked(name.split()[1], content(hdfs_cluster, path)) == expected_lines(body), name
        if name.startswith("avro") and not name.endswith("zstandard"):  # fastavro needs another library for it
            records = list(fastavro.reader(io.BytesIO(content(hdfs_cluster, path))))
            assert len(records) == EVENTS
            assert [b if isinstance(b, str) else b["body"].decode() for b in records] == [
                body(n).decode() for n in range(EVENTS)
            ]
    read = hadoop_text(hdfs_cluster, list(paths.values()), tmp_path)
    for (name, (_, line)), lines in zip(HADOOP.items(), read, strict=True):
        if name.startswith("avro"):
            assert [json.loads(a) for a in lines] == [json.loads(line(n)) for n in range(EVENTS)], name
        else:
            assert lines == [line(n) for n in range(EVENTS)], name
    figures.append(f"hdfs formats read by Hadoop: {len(read)} of {EVENTS:,} events each")


def expected_lines(line: Callable[[int], bytes]) -> bytes:
    return b"".join(line(n) + b"\n" for n in range(EVENTS))


def unpacked(codec: str, data: bytes) -> bytes:
    """Return the contents of a compressed file, decompressed by Python."""
    if codec == "gzip":
        return gzip.decompress(data)
    if codec == "bzip2":
        return bz2.decompress(data)
    out = []
    while data and codec in ("deflate", "default"):
        stream = zlib.decompressobj()
        out.append(stream.decompress(data))
        data = stream.unused_data
    while data:
        size, compressed_size = (int.from_bytes(data[i : i + 4], "big") for i in (0, 4))
        block = data[8 : 8 + compressed_size]
        out.append(pa.Codec({"lz4": "lz4_raw"}.get(codec, codec)).decompress(block, size, asbytes=True))
        data = data[8 + compressed_size :]
    return b"".join(out)


def hadoop_text(cluster: HdfsCluster, paths: list[str], directory: Path) -> list[Lines]:
    """Return the lines of `hdfs dfs -text` for each file. One JVM reads all; small files between them mark the
    borders."""
    mark = f"--- {uuid.uuid4().hex}"
    (directory / "mark").write_text(f"{mark}\n")
    arguments = [argument for path in paths for argument in (path, (directory / "mark").as_uri())]
    folders = ensure_all("hdfs", "kafka")
    # Kafka brings the Java libraries for LZ4 and Zstandard.
    codecs = [jar for jar in folders["kafka"].iterdir() if jar.name.startswith(("lz4-java", "zstd-jni"))]
    (directory / "core-site.xml").write_text((cluster.directory / "conf" / "namenode" / "core-site.xml").read_text())
    classes = ":".join(map(str, [directory, folders["hdfs"] / "*", *codecs]))
    shell = ["org.apache.hadoop.fs.FsShell", "-text", *arguments]
    result = subprocess.run(
        [find_java().path, "-Xmx256m", "-cp", classes, *shell],
        capture_output=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stderr.decode()[-3000:]
    parts = result.stdout.split(mark.encode() + b"\n")
    assert parts.pop() == b""
    return [part.splitlines() for part in parts]


def test_formats_for_which_hadoop_needs_native_code(hdfs_cluster: HdfsCluster, tmp_path: Path) -> None:
    """Python reads Zstandard, which no jar of Hadoop has, and Parquet and xz, which are not Hadoop's."""
    root = f"/formats-{uuid.uuid4().hex}"

    def written(name: str, **options: Any) -> bytes:
        path = write(hdfs_cluster, f"{root}/{name}", tmp_path, options)
        return content(hdfs_cluster, path)

    with pa.input_stream(
        io.BytesIO(written("zstd", **COMPRESSED, **{"hdfs.codeC": "zstd"})), compression="zstd"
    ) as stream:
        assert stream.read() == expected_lines(body)
    for codec in ("null", "snappy", "zstandard", "gzip", "lz4", "brotli"):
        table = pq.read_table(
            io.BytesIO(
                written(f"parquet-{codec}", **STREAM, serializer="parquet", **{"serializer.compressionCodec": codec})
            )
        )
        assert table["body"].to_pylist() == [body(n) for n in range(EVENTS)]
        assert dict(table["headers"][5].as_py()) == {"host": "h2", "timestamp": str(LONG_AGO + 5)}
    events = fastavro.reader(
        io.BytesIO(written("xz", **STREAM, serializer="avro_event", **{"serializer.compressionCodec": "xz"}))
    )
    assert [event["body"] for event in events] == [body(n) for n in range(EVENTS)]
