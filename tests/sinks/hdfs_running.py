"""HDFS sinks over a simulated WebHDFS, and their deliveries."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import numpy as np

from flafka.plugins import Batch, Event, OffsetRange, Origin, Receipt
from flafka.sinks.hdfs import HdfsConfig, HdfsSink
from flafka.sinks.hdfs.commitlog import Manifest
from tests.fixtures.partitions import assignment
from tests.sinks.fake_webhdfs import NAMENODE, FakeWebHdfs

ASSIGNMENT = assignment("cluster", "app.logs", "tOp1c-id", "flume", 0, 3)
OWN = ASSIGNMENT.replace(commit_log="hdfs:/logs/.flafka")
"""Assignment as the sink returns it."""
NEVER = {"hdfs.rollInterval": "0", "hdfs.rollSize": "0", "hdfs.rollCount": "0"}
REQUIRED = {"hdfs.path": "/logs", "hdfs.webhdfs": NAMENODE, "hdfs.fileType": "DataStream"}


def configured(**options: str) -> HdfsConfig:
    properties = {**REQUIRED, **NEVER, "hdfs.threadsPoolSize": "1", **options}
    config, problems = HdfsConfig.parse(properties)
    assert config is not None, problems
    assert not problems
    return config


def open_sink(directory: Path, **options: str) -> HdfsSink:
    sink = HdfsSink(configured(**{"hdfs.stagingDir": str(directory), **options}), "k1")
    sink.open()
    assert sink._hdfs is not None
    sink._hdfs._namenodes.failover_pause_seconds = 0
    return sink


def records(start: int, end: int, **headers: str) -> Batch:
    """Return one event a record, its body its offset; `{}` in a header is the offset modulo 2."""
    events = [Event(b"%d" % n, {k: v.format(n % 2) for k, v in headers.items()}) for n in range(start, end)]
    count = end - start
    origin = Origin(
        ASSIGNMENT.topic, ASSIGNMENT.partition, np.arange(start, end), np.zeros(count, np.int32), np.zeros(count, int)
    )
    return Batch.of(events, origin)


def delivered(fake: FakeWebHdfs) -> Counter[int]:
    """Return the number of visible copies of each record."""
    return Counter(int(line) for content in fake.visible().values() for line in content.split())


def manifests(fake: FakeWebHdfs) -> list[Manifest]:
    """Return manifests with records, without chain starts and fences."""
    return [manifest for manifest in whole_record(fake).values() if manifest.start < manifest.end]


def whole_record(fake: FakeWebHdfs) -> dict[str, Manifest]:
    chain = sorted(path for path in fake.files if "/.flafka/chain/" in path)
    return {path: msgspec.json.decode(fake.files[path], type=Manifest) for path in chain}


def write_and_commit(sink: HdfsSink, start: int, end: int, **headers: str) -> Receipt:
    sink.write(records(start, end, **headers))
    receipt = sink.stage(OWN, OffsetRange(start, end))
    commit(sink, receipt)
    return receipt


def commit(sink: HdfsSink, receipt: Receipt) -> None:
    """Commit, and resume before that if the sink has not."""
    staged = receipt.assignment
    if (staged.topic_partition, staged.generation) not in sink._commit_logs:
        sink.resume(staged.with_offset(receipt.offsets.start))
    sink.commit(receipt)
