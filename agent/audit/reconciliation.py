"""The audit of a pipeline: does a store hold exactly what the channel holds, event by event?

Used by the demo and by the fault tests. It reads the topic, the commit log of the `hdfs` sink, the rows of HBase and
the documents of Solr. It does not trust the agent's counters, which may be wrong.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, cast

from confluent_kafka import OFFSET_BEGINNING, KafkaException, TopicCollection, TopicPartition

from flafka.plugins import (
    Assignment,
    Generation,
    OffsetRange,
    PolledBatch,
    Record,
    Retry,
    partitions,
    require,
)
from flafka.plugins.kafka.admin import read_up_to, watermarks
from flafka.plugins.kafka.clients import ASK, new_admin, new_consumer
from flafka.plugins.kafka.errors import sentence
from flafka.plugins.kafka.topic import KafkaBackedChannel

STORE_READ_SECONDS = 20.0
"""Time in which Kafka and HDFS answer one request of an audit, a command that has no other work."""


@dataclass(frozen=True)
class HdfsCommit:
    """One commit of the `hdfs` sink as it lies on HDFS: these files hold these records."""

    partition: int
    offsets: OffsetRange
    files: tuple[str, ...]


@dataclass
class Reconciliation:
    """Events compared, and every difference found. They balance when there is none."""

    channel_events: int = 0
    delivered_events: int = 0
    files: int = 0
    differences: list[str] = field(default_factory=list)

    @property
    def balanced(self) -> bool:
        """Return True if every event of the channel was delivered exactly once, unchanged."""
        return not self.differences and self.channel_events == self.delivered_events


def read_topic(bootstrap_servers: str, topic: str, channel: type[KafkaBackedChannel]) -> dict[int, list[PolledBatch]]:
    """Every record of a topic, decoded, by partition. Raises Retry when the brokers stop answering.

    Events have the ids that they have for every group that was not reset with `--new-ids`.
    """
    config, _ = channel.config_class.parse({})
    assert config is not None
    decode = channel(config).decode
    client = {"bootstrap.servers": bootstrap_servers}
    admin = new_admin(ASK, client)
    consumer = new_consumer(ASK, {**client, "group.id": "flafka-audit"})
    try:
        metadata = consumer.list_topics(topic, timeout=STORE_READ_SECONDS)
        described = admin.describe_topics(TopicCollection([topic]))[topic].result(STORE_READ_SECONDS)
        numbers = sorted(metadata.topics[topic].partitions)
        records: dict[int, list[PolledBatch]] = {p: [] for p in numbers}
        for partition in numbers:
            of_topic = metadata.cluster_id or "", topic, str(described.topic_id)
            assignment = Assignment(partitions.TopicPartition(*of_topic, partition), "", Generation())
            at = TopicPartition(topic, partition, OFFSET_BEGINNING)
            _, end = watermarks(consumer, at, STORE_READ_SECONDS)
            for message in read_up_to(consumer, at, end, STORE_READ_SECONDS):
                offset, headers = cast("int", message.offset()), cast("Any", message.headers() or ())
                record = Record(offset, message.timestamp()[1], message.key(), message.value(), headers)
                records[partition] += filter(None, [decode(iter([record]), assignment)])
        return records
    except KafkaException as e:
        raise Retry(f"topic {topic} could not be read to its end: {sentence(e)}") from e
    finally:
        consumer.close()


class HdfsReader:
    """Reads what the `hdfs` sink delivered, over WebHDFS."""

    def __init__(self, webhdfs: str) -> None:
        pyhdfs = require("pyhdfs", "hdfs")
        self._client: Any = pyhdfs.HdfsClient(hosts=webhdfs, user_name="flafka", timeout=STORE_READ_SECONDS)
        self._absent: Any = pyhdfs.HdfsFileNotFoundException

    def walk(self, root: str) -> Iterator[str]:
        """Paths of all files below a directory; none if there is no such directory."""
        for directory, _, files in self._client.walk(root, onerror=self._refuse):
            yield from (str(PurePosixPath(directory, name)) for name in files)

    def _refuse(self, error: Exception) -> None:
        if not isinstance(error, self._absent):
            raise error

    def read(self, path: str) -> bytes:
        """The whole of a file."""
        with self._client.open(path) as response:
            data: bytes = response.read()
        return data

    def visible(self, root: str) -> list[str]:
        """Return all files but the sink's own: below `.flafka`, and a file with which it tries a directory."""
        own = ".flafka"
        return [path for path in self.walk(root) if not any(p.startswith(own) for p in PurePosixPath(path).parts)]

    def manifests(self, root: str) -> list[HdfsCommit]:
        """The commit record below a directory, all partitions and epochs."""
        found = []
        for path in self.walk(f"{root}/.flafka/chain"):
            content = json.loads(self.read(path))
            if content.get("successor") or content["start"] == content["end"]:
                continue  # where the record begins, or was closed
            files = tuple(file["final"] for file in content["files"])
            found.append(HdfsCommit(content["partition"], OffsetRange(content["start"], content["end"]), files))
        return found


def reconcile(records: Mapping[int, list[PolledBatch]], hdfs: HdfsReader, root: str) -> Reconciliation:
    """Compare a topic with what lies below a directory: every id in exactly one commit, every body unchanged."""
    found = Reconciliation(channel_events=sum(len(one.batch) for polled in records.values() for one in polled))
    manifests = hdfs.manifests(root)
    found.differences += _ranges(records, manifests)
    visible, committed = set(hdfs.visible(root)), set[str]()
    for manifest in manifests:
        committed.update(manifest.files)
        bodies = [
            body
            for polled in records.get(manifest.partition, ())
            if manifest.offsets.start <= polled.offsets.start < manifest.offsets.end
            for body in polled.batch.bodies.to_pylist()
        ]
        expected = Counter(line for body in bodies for line in body.split(b"\n"))  # a stack trace has several
        delivered = Counter(line for path in manifest.files if path in visible for line in lines(hdfs.read(path)))
        found.delivered_events += len(bodies) + delivered.total() - expected.total()
        where = f"partition {manifest.partition}, records {manifest.offsets.start} to {manifest.offsets.end - 1}"
        for what, difference in (("lost", expected - delivered), ("too many", delivered - expected)):
            if difference:
                example = next(iter(difference))[:80]
                found.differences.append(f"{where}: {difference.total()} events {what}, one of them {example!r}")
    found.files = len(visible)
    found.differences += [f"{path} is in no commit" for path in sorted(visible - committed)]
    found.differences += [f"{path} was committed and is not there" for path in sorted(committed - visible)]
    return found


def _ranges(records: Mapping[int, list[PolledBatch]], manifests: Iterable[HdfsCommit]) -> Iterator[str]:
    """Records that are in no commit, or in more than one."""
    held: dict[int, Counter[int]] = defaultdict(Counter)
    for manifest in manifests:
        held[manifest.partition].update(range(manifest.offsets.start, manifest.offsets.end))
    for partition, batches in records.items():
        for polled in batches:
            times = held[partition][polled.offsets.start]
            if times != 1 and len(polled.batch):
                yield f"partition {partition}, record {polled.offsets.start}: in {times} commits"


def lines(data: bytes) -> list[bytes]:
    """The bodies in a text file: each was ended by a newline."""
    return data.split(b"\n")[:-1]


def stored(records: Mapping[int, list[PolledBatch]]) -> dict[str, bytes]:
    """Return the bodies of the events that a topic holds, by event id."""
    batches = [polled.batch for batches in records.values() for polled in batches]
    return {
        str(id): body for batch in batches for id, body in zip(batch.ids(), batch.bodies.to_pylist(), strict=True)
    }


def hbase_rows(thrift: str, table: str) -> dict[str, dict[str, bytes]]:
    """Return what the `hbase` sink wrote through a Thrift server, `host:port`: cells by qualifier, by row key."""
    happybase = require("happybase", "hbase")
    host, _, port = thrift.partition(":")
    with closing(happybase.Connection(host, int(port), timeout=60_000)) as connection:
        return {
            key.decode(): {name.decode().partition(":")[2]: value for name, value in cells.items()}
            for key, cells in connection.table(table).scan()
        }


def solr_documents(url: str, query: str = "*:*") -> dict[str, dict[str, Any]]:
    """Return the documents that the `solr` sink wrote into a core, by id. Commits first, to find them all."""
    pysolr, requests = require("pysolr", "solr"), require("requests", "solr")
    session = requests.Session()
    session.trust_env = False
    solr = pysolr.Solr(url, timeout=60, session=session)
    solr.commit()
    return {document.pop("id"): document for document in solr.search(query, sort="id asc", rows=5000, cursorMark="*")}


def differences(channel: Mapping[str, bytes], store: Mapping[str, bytes]) -> list[str]:
    """Return the events that a store which keeps ids has lost, has too many of, or has changed."""
    found = []
    for what, ids in (
        ("lost", channel.keys() - store.keys()),
        ("that the channel lacks", store.keys() - channel.keys()),
        ("changed", {id for id in channel.keys() & store.keys() if channel[id] != store[id]}),
    ):
        if ids:
            found.append(f"{len(ids):,} events {what}, one of them {min(ids)}")
    return found
