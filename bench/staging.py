"""`./dev bench staging`: events of 110 bytes into files on the local disk, in every format of the hdfs sink.

One partition, batches of 10,000 events with four headers; once into one file, once into twenty at a time. The rate is
events for a second of this process's CPU, upload not included.
"""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from plugins import Batch, Event, Origin
from sinks.hdfs import HdfsConfig
from sinks.hdfs.formats import format_of
from sinks.hdfs.sink import HdfsSink
from sinks.hdfs.staging import Staging
from sinks.serializers import fetch

BATCHES, EVENTS, HOSTS = 20, 10_000, 20
WORDS = [
    b"GET",
    b"POST",
    b"/index.html",
    b"HTTP/1.1",
    b"200",
    b"404",
    b"Mozilla/5.0",
    b"timeout",
    b"session",
    b"of",
    b"user",
]
STREAM, COMPRESSED = {"hdfs.fileType": "DataStream"}, {"hdfs.fileType": "CompressedStream"}
FORMATS = {
    "text": STREAM,
    "header and text": {**STREAM, "serializer": "HEADER_AND_TEXT"},
    "json": {**STREAM, "serializer": "JSON"},
    **{
        f"avro {codec}": {**STREAM, "serializer": "AVRO_EVENT", "serializer.compressionCodec": codec}
        for codec in ("null", "snappy", "deflate", "zstandard")
    },
    **{
        f"parquet {codec}": {**STREAM, "serializer": "PARQUET", "serializer.compressionCodec": codec}
        for codec in ("snappy", "zstandard")
    },
    **{
        f"text {codec}": {**COMPRESSED, "hdfs.codeC": codec}
        for codec in ("gzip", "bzip2", "snappy", "lz4", "zstandard", "deflate")
    },
    "sequence file": {},
    **{f"sequence file {codec}": {"hdfs.codeC": codec} for codec in ("gzip", "snappy", "lz4")},
}


def batch(number: int) -> Batch:
    """The n-th batch."""
    first = number * EVENTS
    events = [
        Event(
            b"%d %s" % (first + row, b" ".join(random.choices(WORDS, k=16))),
            {
                "host": f"web{row % HOSTS}",
                "timestamp": str(1_700_000_000_000 + first + row),
                "severity": "6",
                "app": "x",
            },
        )
        for row in range(EVENTS)
    ]
    offsets = np.arange(first, first + EVENTS)
    return Batch.of(events, Origin("topic", 0, offsets, np.zeros(EVENTS, np.int32), np.zeros(EVENTS, np.int64)))


def measure(batches: list[Batch], path: str, options: dict[str, str]) -> tuple[float, float]:
    """Events a second of CPU, and bytes an event."""
    properties = {"hdfs.path": path, "hdfs.webhdfs": "none:1", "hdfs.rollInterval": "0", **options}
    config, problems = HdfsConfig.parse(properties)
    assert config is not None, problems
    sink = HdfsSink(config)
    with tempfile.TemporaryDirectory() as directory:
        sink._staging = staging = Staging(Path(directory), format_of(config, fetch))
        began = time.process_time()
        for one in batches:
            sink.write(one)
        files = staging.partitions[0].files.values()
        for file in files:
            staging.close_file(file)
        seconds = time.process_time() - began
        events, size = sum(file.events for file in files), sum(file.length for file in files)
        staging.close()
    return events / seconds, size / events


def main() -> None:
    """Print a table."""
    batches = [batch(number) for number in range(BATCHES)]
    table = Table("format", "events/s, one file", f"events/s, {HOSTS} files", "bytes/event")
    for name, options in FORMATS.items():
        one, size = measure(batches, "/logs", options)
        many, _ = measure(batches, "/logs/%{host}", options)
        table.add_row(name, f"{one:,.0f}", f"{many:,.0f}", f"{size:.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
