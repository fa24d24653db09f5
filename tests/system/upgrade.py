"""A campaign: events flow while two agents of the same groups are upgraded, and downgraded, one after the other."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import ge
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from agent.audit.reconciliation import solr_documents
from agent.services.hdfs import HdfsCluster
from agent.services.kafka import KafkaCluster
from agent.services.running import RunningAgent, until
from agent.services.solr import SolrCluster
from tests.system.running import agent_command, in_hdfs, unique

PARTITIONS = 4
RATE = 100
"""Events a second."""
PATIENCE = 600.0
"""Seconds, for what takes a few on an idle machine."""
REFUSED = "was written by a newer version of this sink: upgrade this agent too"
OLDER, NEWER = "older", "newer"

CONFIGURATION = """
{name}.channels = c1
{name}.sinks = hdfs again kafka solr
{name}.channels.c1.type = kafka
{name}.channels.c1.kafka.bootstrap.servers = {brokers}
{name}.channels.c1.kafka.topic = {topic}
{name}.channels.c1.kafka.consumer.session.timeout.ms = 6000
{name}.channels.c1.format = raw
{name}.channels.c1.parseAsFlumeEvent = false
{name}.sinks.kafka.type = kafka
{name}.sinks.kafka.kafka.bootstrap.servers = {brokers}
{name}.sinks.kafka.kafka.topic = {topic}-out
{name}.sinks.solr.type = solr
{name}.sinks.solr.url = {solr}
{name}.sinks.solr.commitWithin = 1000
{name}.monitoring.port = 0
"""
EACH = """
{name}.sinks.{sink}.channel = c1
{name}.sinks.{sink}.group = {topic}-{sink}
"""
ON_HDFS = """
{name}.sinks.{sink}.type = hdfs
{name}.sinks.{sink}.hdfs.path = webhdfs://{webhdfs}/{topic}/{sink}/all
{name}.sinks.{sink}.hdfs.fileType = DataStream
{name}.sinks.{sink}.hdfs.rollInterval = 1
{name}.sinks.{sink}.hdfs.rollSize = 0
{name}.sinks.{sink}.hdfs.rollCount = 0
"""
SINKS = ("hdfs", "again", "kafka", "solr")
"""`again` is a second one on HDFS, whose group was reset by the older version."""


@dataclass(frozen=True)
class Change:
    """One agent ends, and goes on as another version, or as the same."""

    host: str
    version: str


class Feed(threading.Thread):
    """Numbered events into all partitions."""

    def __init__(self, brokers: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.enough = threading.Event()
        self.events = 0
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": brokers, "acks": "all", "enable.idempotence": True})

    def run(self) -> None:
        while not self.enough.wait(1 / RATE):
            self._producer.produce(self._topic, b"event %d" % self.events, partition=self.events % PARTITIONS)
            self._producer.poll(0)
            self.events += 1
        self._producer.flush(PATIENCE)

    def finish(self) -> int:
        """No more; how many there were, once all are stored."""
        self.enough.set()
        self.join()
        assert not len(self._producer)
        return self.events


class Upgrade:
    """Runs the changes, each by SIGTERM or SIGKILL, and tells what came of it."""

    def __init__(
        self,
        older: Path,
        kafka: KafkaCluster,
        hdfs: HdfsCluster,
        solr: SolrCluster,
        directory: Path,
        seed: int,
    ) -> None:
        self.trees = {OLDER: {"tree": older}, NEWER: {}}
        self.kafka, self.hdfs, self.directory = kafka, hdfs, directory
        self.chance = random.Random(seed)
        self.topic = unique("upgrade")
        self.url = solr.create_core(self.topic)
        self.agents: dict[str, RunningAgent] = {}
        self.versions: dict[str, str] = {}
        self.refusals = 0
        """How often an agent of the older version refused to go on."""
        self.signals: Counter[str] = Counter()
        names = (self.topic, f"{self.topic}-out")
        wanted = [NewTopic(name, PARTITIONS, 3) for name in names]
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        for future in admin.create_topics(wanted).values():
            future.result(60)
        self.feed = Feed(kafka.bootstrap_servers, self.topic)

    def run(self, changes: Sequence[Change]) -> int:
        """How many events there were. Afterwards all are delivered, and nothing runs any more."""
        self._reset_as_older()
        signals = [signal.SIGTERM, signal.SIGKILL] * (len(changes) // 2 + 1)
        self.chance.shuffle(signals)
        try:
            self.feed.start()
            for host in ("h1", "h2"):
                self._start(host, OLDER)
            self._await_delivery("as it was")
            for change, number in zip(changes, signals, strict=False):
                self.agents[change.host].stop(number)
                self.signals[number.name] += 1
                self._start(change.host, change.version)
                self._await_delivery(f"{change} by {number.name}")
            events = self.feed.finish()
            self._await_delivery("all")
            for agent in self.agents.values():
                agent.healthy()  # a sink that waits for its next try has not delivered everything, for all it knows
                assert agent.stop() == 0
            return events
        finally:
            self.feed.enough.set()
            for agent in self.agents.values():
                agent.__exit__()

    def describe(self, events: int) -> str:
        """For the figures of a run."""
        ends = ", ".join(f"{count} {name}" for name, count in sorted(self.signals.items()))
        return f"upgrade: {events:,} events, {ends}, {self.refusals} refusals of version 0.1"

    def delivered(self, sink: str) -> Counter[bytes]:
        """What came out of it."""
        if sink == "kafka":
            return Counter(_committed(self.kafka.bootstrap_servers, f"{self.topic}-out"))
        if sink == "solr":
            return Counter(str(document["body_t"]).encode() for document in solr_documents(self.url).values())
        return Counter(in_hdfs(self.hdfs, f"/{self.topic}/{sink}"))

    def _reset_as_older(self) -> None:
        arguments = ("--topic", self.topic, "--to", "earliest", "--yes")
        command = ("group", "reset", f"{self.topic}-again", *arguments)
        command += ("--bootstrap-server", self.kafka.bootstrap_servers)
        # The first that asks for a group waits for the topic of offsets to be made.
        until(lambda: agent_command(*command, **self.trees[OLDER]).returncode == 0, "the reset", PATIENCE)

    def _start(self, host: str, version: str) -> None:
        parts = [(CONFIGURATION, ""), *((EACH, sink) for sink in SINKS), *((ON_HDFS, sink) for sink in SINKS[:2])]
        brokers, webhdfs = self.kafka.bootstrap_servers, self.hdfs.webhdfs
        text = "".join(
            part.format(name=host, sink=sink, brokers=brokers, topic=self.topic, webhdfs=webhdfs, solr=self.url)
            for part, sink in parts
        )
        agent = RunningAgent(self.directory / host, text, **self.trees[version])
        self.agents[host] = agent.__enter__()
        self.versions[host] = version
        agent.until(lambda: f"{host} runs: " in agent.log, "its start, before which SIGTERM just kills", PATIENCE)

    def _await_delivery(self, what: str) -> None:
        """Until each group has come to where the topic ends now, or an older agent refuses to."""
        ends = self._ends()
        for sink in SINKS:
            until(
                lambda s=sink: all(map(ge, self._at(s), ends)) or self._refused(s),
                f"{sink} to deliver, {what}",
                PATIENCE,
            )
        self.refusals += sum(self._refused(sink) for sink in SINKS)

    def _refused(self, sink: str) -> bool:
        older = [self.agents[host] for host, version in self.versions.items() if version == OLDER]
        return any(REFUSED in agent.failing().get(f"SINK.{sink}", "") for agent in older)

    def _ends(self) -> tuple[int, ...]:
        with _consumer(self.kafka.bootstrap_servers, self.topic) as consumer:
            places = [TopicPartition(self.topic, partition) for partition in range(PARTITIONS)]
            return tuple(consumer.get_watermark_offsets(place, timeout=60)[1] for place in places)

    def _at(self, sink: str) -> tuple[int, ...]:
        with _consumer(self.kafka.bootstrap_servers, f"{self.topic}-{sink}") as consumer:
            places = [TopicPartition(self.topic, partition) for partition in range(PARTITIONS)]
            try:
                return tuple(at.offset for at in consumer.committed(places, timeout=60))
            except KafkaException:  # the brokers are busy with who leads the group: it is asked again
                return (-1,) * PARTITIONS


@contextlib.contextmanager
def _consumer(brokers: str, group: str) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": group,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()


def _committed(brokers: str, topic: str) -> list[bytes]:
    """The values of all records of its transactions that came about."""
    found: list[bytes] = []
    with _consumer(brokers, unique("reader")) as consumer:
        for partition in range(PARTITIONS):
            consumer.assign([TopicPartition(topic, partition, 0)])
            while (message := consumer.poll(60)) is not None and message.error() is None:
                found.append(message.value())
            assert message is not None, "the topic does not come to its end"
    return found
