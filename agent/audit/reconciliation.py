"""Reconciliation of a store with a channel's topic, event by event.

Used by the demo and by the fault tests. It reads the topic, the commit log of the `hdfs` sink, the rows of HBase and
the documents of Solr. It does not use the agent's counters, which may be wrong.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath
from typing import Any, cast
from urllib.parse import urlsplit

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
from flafka.plugins.kafka.clients import QUERY, new_admin, new_consumer
from flafka.plugins.kafka.errors import explain_error
from flafka.plugins.kafka.topic import KafkaBackedChannel
from flafka.plugins.net.gssapi import Credential

STORE_READ_SECONDS = 20.0
"""Timeout of each request to Kafka and HDFS."""


@dataclass(frozen=True)
class HdfsCommit:
    """Commit of the `hdfs` sink, from its manifest on HDFS: the files that have the events of these records."""

    partition: int
    offsets: OffsetRange
    files: tuple[str, ...]


@dataclass
class Reconciliation:
    """Result of a comparison: numbers of events, and a text for each difference."""

    channel_events: int = 0
    delivered_events: int = 0
    files: int = 0
    differences: list[str] = field(default_factory=list)

    @property
    def balanced(self) -> bool:
        """True if every event of the channel was delivered exactly once, unchanged."""
        return not self.differences and self.channel_events == self.delivered_events


def read_topic(
    bootstrap_servers: str,
    topic: str,
    channel: type[KafkaBackedChannel],
    properties: Mapping[str, Any] | None = None,
) -> dict[int, list[PolledBatch]]:
    """Return the decoded records of a topic, from the oldest one to the present end, by partition.

    Each record is a PolledBatch of its own. Event IDs are as for consumer groups that were not reset with
    `--new-ids`. `properties` are further ones of the clients, in librdkafka's names, such as a login. Raises Retry if
    the brokers do not answer within 20 s.
    """
    config, _ = channel.config_class.parse({})
    assert config is not None
    decode = channel(config).decode
    client = {"bootstrap.servers": bootstrap_servers, **(properties or {})}
    admin = new_admin(QUERY, client)
    consumer = new_consumer(QUERY, {**client, "group.id": "flafka-audit"})
    try:
        metadata = consumer.list_topics(topic, timeout=STORE_READ_SECONDS)
        described = admin.describe_topics(TopicCollection([topic]))[topic].result(STORE_READ_SECONDS)
        numbers = sorted(metadata.topics[topic].partitions)
        records: dict[int, list[PolledBatch]] = {p: [] for p in numbers}
        for partition in numbers:
            of_topic = metadata.cluster_id or "", topic, str(described.topic_id)
            assignment = Assignment(partitions.TopicPartition(*of_topic, partition), "", Generation())
            start = TopicPartition(topic, partition, OFFSET_BEGINNING)
            _, end = watermarks(consumer, start, STORE_READ_SECONDS)
            for message in read_up_to(consumer, start, end, STORE_READ_SECONDS):
                offset, headers = cast("int", message.offset()), cast("Any", message.headers() or ())
                record = Record(offset, message.timestamp()[1], message.key(), message.value(), headers)
                records[partition] += filter(None, [decode(iter([record]), assignment)])
        return records
    except KafkaException as e:
        raise Retry(f"topic {topic} could not be read to its end: {explain_error(e)}") from e
    finally:
        consumer.close()


class HdfsReader:
    """Reader of the files of the `hdfs` sink, over WebHDFS."""

    def __init__(self, webhdfs: str, credential: Credential | None = None) -> None:
        """`webhdfs` is `host:port` of the NameNode's HTTP server. `credential` authenticates each request to it."""
        pyhdfs, requests = require("pyhdfs", "hdfs"), require("requests", "hdfs")
        session = None
        if credential is not None:
            session = requests.Session()
            session.trust_env = False
            session.auth = partial(_authorize, credential)
        self._client: Any = pyhdfs.HdfsClient(
            hosts=webhdfs, user_name="flafka", timeout=STORE_READ_SECONDS, requests_session=session
        )
        self._absent: Any = pyhdfs.HdfsFileNotFoundException

    def walk(self, root: str) -> Iterator[str]:
        """Yield the paths of all files below a directory, recursively; none if the directory does not exist."""
        for directory, _, files in self._client.walk(root, onerror=self._handle_error):
            yield from (str(PurePosixPath(directory, name)) for name in files)

    def _handle_error(self, error: Exception) -> None:
        if not isinstance(error, self._absent):
            raise error

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        with self._client.open(path) as response:
            data: bytes = response.read()
        return data

    def visible(self, root: str) -> list[str]:
        """Return the data files below a directory, without the sink's own files, whose names begin with `.flafka`."""
        own = ".flafka"
        return [path for path in self.walk(root) if not any(p.startswith(own) for p in PurePosixPath(path).parts)]

    def manifests(self, root: str) -> list[HdfsCommit]:
        """Return the commits in the commit logs below a directory, of all partitions and epochs, without fences."""
        commits = []
        for path in self.walk(f"{root}/.flafka/chain"):
            content = json.loads(self.read(path))
            if content.get("successor") or content["start"] == content["end"]:
                continue  # the begin of a commit log, or a fence
            files = tuple(file["final"] for file in content["files"])
            commits.append(HdfsCommit(content["partition"], OffsetRange(content["start"], content["end"]), files))
        return commits


def _authorize(credential: Credential, request: Any) -> Any:
    """Add the credential to a request of the package requests, and return the request. Raises KerberosError."""
    host = urlsplit(request.url).hostname
    assert host is not None
    request.headers["Authorization"] = credential.negotiate(host)
    return request


def reconcile(records: Mapping[int, list[PolledBatch]], hdfs: HdfsReader, root: str) -> Reconciliation:
    """Return the differences between a topic and the files below `root`.

    Each record has to be in exactly one commit, each line of a body in its files once, and each file in a commit.
    `records` are the result of `read_topic`.
    """
    channel_events = sum(len(polled.batch) for batches in records.values() for polled in batches)
    result = Reconciliation(channel_events=channel_events)
    manifests = hdfs.manifests(root)
    result.differences += _compare_ranges(records, manifests)
    visible, committed = set(hdfs.visible(root)), set[str]()
    for manifest in manifests:
        committed.update(manifest.files)
        bodies = [
            body
            for polled in records.get(manifest.partition, ())
            if manifest.offsets.start <= polled.offsets.start < manifest.offsets.end
            for body in polled.batch.bodies.to_pylist()
        ]
        expected = Counter(line for body in bodies for line in body.split(b"\n"))  # a body may have several lines
        delivered = Counter(line for path in manifest.files if path in visible for line in lines(hdfs.read(path)))
        result.delivered_events += len(bodies) + delivered.total() - expected.total()
        where = f"partition {manifest.partition}, records {manifest.offsets.start} to {manifest.offsets.end - 1}"
        for kind, difference in (("lost", expected - delivered), ("too many", delivered - expected)):
            if difference:
                example = next(iter(difference))[:80]
                result.differences.append(f"{where}: {difference.total()} events {kind}, one of them {example!r}")
    result.files = len(visible)
    result.differences += [f"{path} is in no commit" for path in sorted(visible - committed)]
    result.differences += [f"{path} was committed and does not exist" for path in sorted(committed - visible)]
    return result


def _compare_ranges(records: Mapping[int, list[PolledBatch]], manifests: Iterable[HdfsCommit]) -> Iterator[str]:
    """Yield a text for each record with events that is in no commit or in several."""
    commits: dict[int, Counter[int]] = defaultdict(Counter)
    for manifest in manifests:
        commits[manifest.partition].update(range(manifest.offsets.start, manifest.offsets.end))
    for partition, batches in records.items():
        for polled in batches:
            times = commits[partition][polled.offsets.start]
            if times != 1 and len(polled.batch):
                yield f"partition {partition}, record {polled.offsets.start}: in {times} commits"


def lines(data: bytes) -> list[bytes]:
    """Return the lines of a text file, without their newlines. Data after the last newline is left out."""
    return data.split(b"\n")[:-1]


def bodies_by_id(records: Mapping[int, list[PolledBatch]]) -> dict[str, bytes]:
    """Return event ID → body of all events in these records."""
    batches = [polled.batch for batches in records.values() for polled in batches]
    return {
        str(id): body for batch in batches for id, body in zip(batch.ids(), batch.bodies.to_pylist(), strict=True)
    }


def hbase_rows(thrift: str, table: str) -> dict[str, dict[str, bytes]]:
    """Return row key → qualifier → value of all rows in the table of the `hbase` sink. `thrift` is `host:port`."""
    happybase = require("happybase", "hbase")
    host, _, port = thrift.partition(":")
    with closing(happybase.Connection(host, int(port), timeout=60_000)) as connection:
        return {
            key.decode(): {name.decode().partition(":")[2]: value for name, value in cells.items()}
            for key, cells in connection.table(table).scan()
        }


def solr_documents(url: str, query: str = "*:*") -> dict[str, dict[str, Any]]:
    """Return ID → fields of the documents in a core that match the query. `url` is that of the core.

    Commits first, so that all documents are visible.
    """
    pysolr, requests = require("pysolr", "solr"), require("requests", "solr")
    session = requests.Session()
    session.trust_env = False
    solr = pysolr.Solr(url, timeout=60, session=session)
    solr.commit()
    return {document.pop("id"): document for document in solr.search(query, sort="id asc", rows=5000, cursorMark="*")}


def differences(channel: Mapping[str, bytes], store: Mapping[str, bytes]) -> list[str]:
    """Return a text for each kind of difference: lost, unknown and changed events. Empty if there are none.

    Both mappings have bodies by event ID.
    """
    texts = []
    for kind, ids in (
        ("lost", channel.keys() - store.keys()),
        ("that the channel lacks", store.keys() - channel.keys()),
        ("changed", {id for id in channel.keys() & store.keys() if channel[id] != store[id]}),
    ):
        if ids:
            texts.append(f"{len(ids):,} events {kind}, one of them {min(ids)}")
    return texts
