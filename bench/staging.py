"""Events of 165 bytes into files on the local disk, in every format of the sink `hdfs`.

One partition, batches of 10,000 events with four headers, into one file, and into twenty at a time. The figure is the
CPU time of this process, without the upload.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from bench.frame import CPU, Bench, Figures, without_setup
from bench.frame.varied import Events, varied
from flafka.plugins import Batch, Origin
from flafka.sinks.hdfs import HdfsConfig
from flafka.sinks.hdfs.formats import format_of
from flafka.sinks.hdfs.sink import HdfsSink
from flafka.sinks.hdfs.staging import Staging
from flafka.sinks.serializers import fetch_schema

BATCHES, EVENTS, HOSTS = 20, 10_000, 20
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


def batches(count: int) -> list[Batch]:
    """Return batches of `EVENTS` events from `HOSTS` hosts."""
    content = Events(count * EVENTS, population=replace(varied(), hosts=varied().hosts[:HOSTS]))
    bodies, headers, result = content.bodies(), content.headers(), []
    for first in range(0, len(bodies), EVENTS):
        rows = slice(first, first + EVENTS)
        offsets = np.arange(first, first + EVENTS)
        origin = Origin("topic", 0, offsets, np.zeros(EVENTS, np.int32), np.zeros(EVENTS, np.int64))
        columns = {name: values[rows] for name, values in headers.items()}
        result.append(Batch.of_columns(bodies[rows], columns).with_origin(origin))
    return result


def measure(batches: list[Batch], path: str, options: dict[str, str]) -> Figures:
    """Measure CPU time and bytes per event."""
    properties = {"hdfs.path": path, "hdfs.webhdfs": "none:1", "hdfs.rollInterval": "0", **options}
    config, problems = HdfsConfig.parse(properties)
    assert config is not None, problems
    sink = HdfsSink(config)
    with tempfile.TemporaryDirectory() as directory:
        sink._staging = staging = Staging(Path(directory), format_of(config, fetch_schema))
        started = time.process_time()
        for each in batches:
            sink.write(each)
        files = staging.partitions[0].files.values()
        for file in files:
            staging.close_file(file)
        seconds = time.process_time() - started
        events, size = sum(file.events for file in files), sum(file.length for file in files)
        staging.close()
    return {CPU: seconds / events * 1e6, "bytes": size / events}


def run(bench: Bench) -> None:
    """Measure all formats."""
    events = batches(2 if bench.smoke else BATCHES)
    for name, options in FORMATS.items():
        bench.compare(f"{name}, one file", without_setup(partial(measure, events, "/logs", options)), {})
        bench.compare(f"{name}, {HOSTS} files", without_setup(partial(measure, events, "/logs/%{host}", options)), {})
