"""Whole pipeline under kills: nothing is lost, and nothing leaves the channel twice."""

import json
import random
import signal
import threading
import time
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Generic, Self, TypeVar, cast

import pytest
from confluent_kafka import Consumer
from kafka import KafkaAdminClient

from flafka.agent.audit.reconciliation import reconcile
from flafka.agent.config import load
from flafka.agent.runner.agent import Agent
from flafka.agent.services.hdfs import HdfsCluster
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import until
from flafka.plugins import (
    Assignment,
    Batch,
    CommittingSink,
    Components,
    Config,
    Conflict,
    OffsetRange,
    Receipt,
    Retry,
    Sink,
    hookimpl,
)
from tests.system.campaign import Campaign, Phase, Plan
from tests.system.evidence import Evidence, line

LINES = 20_000


def short_plan(seed: int) -> tuple[Plan, dict[str, int]]:
    """Return a plan that kills one of Spark's two processes, drawn by the seed, as both take a start of Spark."""
    driver = random.Random(seed).random() < 0.5
    phases = (
        Phase("local", agent=2, leader=1, end=signal.SIGKILL),
        Phase("spark", driver=int(driver), jvm=int(not driver)),
        Phase("local", agent=1, stop=1, namenode=1),
    )
    kills = {"agent": 4, "leader": 1, "namenode": 1, "driver" if driver else "jvm": 1}
    return Plan(lines=LINES, rate=1_000, phases=phases), kills


@pytest.fixture(scope="module")
def campaign(
    kafka_cluster: KafkaCluster, hdfs_cluster: HdfsCluster, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> Campaign:
    plan, _ = short_plan(seed)
    return Campaign(plan, kafka_cluster, hdfs_cluster, tmp_path_factory.mktemp("campaign"), seed)


@pytest.fixture(scope="module")
def evidence(campaign: Campaign, figures: list[str]) -> Evidence:
    evidence = campaign.run()
    figures.append(campaign.describe(evidence))
    return evidence


@pytest.mark.timeout(1200)  # a busy machine takes ten times as long as an idle one
def test_every_line_is_on_hdfs_whatever_is_killed(campaign: Campaign, evidence: Evidence) -> None:
    _, kills = short_plan(campaign.seed)
    assert campaign.kills == kills
    assert evidence.written >= LINES
    assert evidence.differences() == []
    # One batch at a time is in flight to the channel, so that a kill repeats at most one.
    assert evidence.repeated()[1] <= campaign.kills["agent"]
    assert list(campaign.temporary.glob("flafka-spark-*")) == []


# --- does a reconciliation detect each kind of damage?


def _files(evidence: Evidence) -> tuple[str, str]:
    """Return two files of different commits, each with three lines and more."""
    files = [path for path in evidence.hdfs.visible(evidence.root) if evidence.hdfs.read(path).count(b"\n") > 2]
    return files[0], files[-1]


def delete(evidence: Evidence) -> Evidence:
    path, _ = _files(evidence)
    return evidence.with_files({path: evidence.hdfs.read(path).partition(b"\n")[2]})


def duplicate(evidence: Evidence) -> Evidence:
    path, _ = _files(evidence)
    data = evidence.hdfs.read(path)
    return evidence.with_files({path: data + data[: data.index(b"\n") + 1]})


def alter(evidence: Evidence) -> Evidence:
    path, _ = _files(evidence)
    data = evidence.hdfs.read(path)
    return evidence.with_files({path: data[:7] + bytes([data[7] ^ 1]) + data[8:]})


def replace_one_by_another(evidence: Evidence) -> Evidence:
    """Replace one line by another, which a comparison of counts does not detect."""
    path, _ = _files(evidence)
    first, _, *remaining = evidence.hdfs.read(path).split(b"\n")
    return evidence.with_files({path: b"\n".join([first, first, *remaining])})


def move(evidence: Evidence) -> Evidence:
    """Move a line from one commit to another, which a comparison of all lines does not detect."""
    path, other = _files(evidence)
    first, _, remaining = evidence.hdfs.read(path).partition(b"\n")
    return evidence.with_files({path: remaining, other: evidence.hdfs.read(other) + first + b"\n"})


def remove_a_file(evidence: Evidence) -> Evidence:
    path, _ = _files(evidence)
    return evidence.with_files({path: None})


def add_a_file(evidence: Evidence) -> Evidence:
    return evidence.with_files({f"{evidence.root}/a/.events.tmp": b""})


def _manifest(evidence: Evidence) -> str:
    """Return the first manifest with records."""
    paths = evidence.hdfs.walk(f"{evidence.root}/.flafka/chain")
    return next(path for path in paths if json.loads(evidence.hdfs.read(path))["files"])


def forget_a_commit(evidence: Evidence) -> Evidence:
    return evidence.with_files({_manifest(evidence): None})


def commit_twice(evidence: Evidence) -> Evidence:
    path = _manifest(evidence)
    return evidence.with_files({f"{path}-again": evidence.hdfs.read(path)})


@pytest.mark.parametrize(
    ("tamper", "shown"),
    [
        (delete, "events lost"),
        (duplicate, "events too many"),
        (alter, "events lost"),
        (replace_one_by_another, "events lost"),
        (move, "events lost"),
        (remove_a_file, "was committed and does not exist"),
        (add_a_file, "is in no commit"),
        (forget_a_commit, "in 0 commits"),
        (commit_twice, "in 2 commits"),
    ],
)
def test_the_audit_finds(evidence: Evidence, tamper: Callable[[Evidence], Evidence], shown: str) -> None:
    tampered = tamper(evidence)
    books = reconcile(tampered.records, tampered.hdfs, tampered.root)
    assert not books.balanced
    assert any(shown in difference for difference in books.differences), books.differences
    assert set(books.differences) <= set(tampered.differences())


def _without_line_7(batch: Batch) -> Batch:
    return batch.map(lambda event: None if event.body.startswith(b"%08d " % 7) else event)


def test_the_ledger_finds_a_line_that_never_came(evidence: Evidence) -> None:
    records = {
        partition: [replace(poll, batch=_without_line_7(poll.batch)) for poll in polled]
        for partition, polled in evidence.records.items()
    }
    assert "line 7 was never stored" in replace(evidence, records=records).differences()


def test_the_ledger_finds_a_line_that_nobody_wrote(evidence: Evidence) -> None:
    differences = replace(evidence, written=evidence.written - 1).differences()
    last = line(evidence.seed, evidence.written - 1)
    assert differences == [f"in the channel, but not as written: {last[:40]!r}"]


def test_the_ledger_finds_remaining_staged_files(evidence: Evidence) -> None:
    path = f"{evidence.root}/.flafka/tmp/claim-0/00000000000000000000-id/0-0"
    assert evidence.with_files({path: b""}).differences() == [f"left behind: {path}"]


# --- slow and failing sinks

CONFIGURATION = """
s.sources = files
s.channels = events
s.sinks = {sink}
s.sources.files.type = taildir
s.sources.files.filegroups = log
s.sources.files.filegroups.log = {directory}/numbers.log
s.sources.files.positionFile = {directory}/positions.json
s.sources.files.channels = events
s.channels.events.type = kafka
s.channels.events.kafka.bootstrap.servers = {brokers}
s.channels.events.kafka.topic = {topic}
s.channels.events.kafka.consumer.group.id = {topic}
s.channels.events.kafka.consumer.session.timeout.ms = 6000
s.channels.events.kafka.consumer.max.poll.interval.ms = 6000
s.sinks.{sink}.type = {sink}
s.sinks.{sink}.channel = events
s.monitoring.port = 0
"""


S = TypeVar("S", bound=Sink[Config])


class Run(Generic[S]):
    """Agent with one sink in this process, which tails `numbers.log`; a context manager."""

    def __init__(self, sink: type[S], kafka_cluster: KafkaCluster, directory: Path) -> None:
        self.topic = self.group = f"{sink.type_name}-{time.time_ns()}"
        self.log = directory / "numbers.log"
        file, brokers = directory / "agent.conf", kafka_cluster.bootstrap_servers
        file.write_text(
            CONFIGURATION.format(directory=directory, brokers=brokers, topic=self.topic, sink=sink.type_name)
        )
        plugin = types.SimpleNamespace(components=hookimpl(lambda: [sink]))
        spec, diagnostics = load(file, components=Components([plugin]))
        assert spec is not None, diagnostics
        self.agent = Agent(spec)
        self.sink = cast(S, self.agent.sinks[0].members[0].sink)

    def __enter__(self) -> Self:
        self.agent.start()
        until(lambda: self.agent.sinks[0].ranges)  # the sink has partitions
        return self

    def __exit__(self, *_: object) -> None:
        assert self.agent.stop()

    def append(self, number: int) -> None:
        with self.log.open("a") as log:
            log.write(f"{number}\n")


class SlowSink(Sink[Config]):
    """At-least-once sink that delays each batch."""

    type_name = "slow"

    def __init__(self, config: Config, name: str = "") -> None:
        super().__init__(config, name)
        self.written: list[bytes] = []
        self.begun, self.ready = threading.Event(), threading.Event()

    def write(self, batch: Batch) -> None:
        self.begun.set()
        self.ready.wait()
        self.written += batch.bodies.to_pylist()


class Idle:
    """Consumer with the settings of `Run` that is not polled after its assignment."""

    def __init__(self, kafka_cluster: KafkaCluster, topic: str) -> None:
        self.group = f"idle-{topic}"
        self._consumer = Consumer(
            {
                "bootstrap.servers": kafka_cluster.bootstrap_servers,
                "group.id": self.group,
                "session.timeout.ms": 6000,
                "max.poll.interval.ms": 6000,
            }
        )
        self._consumer.subscribe([topic])

    def __enter__(self) -> Self:
        until(lambda: self._consumer.poll(0.1) is None and self._consumer.assignment(), "a partition")
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()


def test_a_slow_sink_remains_a_member_of_its_group(
    kafka_cluster: KafkaCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def members(group: str) -> list[str]:
        with KafkaAdminClient(bootstrap_servers=kafka_cluster.bootstrap_servers) as admin:
            return [member["member_id"] for member in admin.describe_groups([group])[group]["members"]]

    caplog.set_level("INFO")
    with Run(SlowSink, kafka_cluster, tmp_path) as run:
        before = members(run.group)
        run.append(0)
        until(run.sink.begun.is_set)
        caplog.clear()
        with Idle(kafka_cluster, run.topic) as idle:
            assert members(idle.group)
            until(lambda: not members(idle.group), "the place of one that does not poll to be lost")
        run.sink.ready.set()
        until(lambda: len(run.sink.written) == 1)
        run.append(1)
        until(lambda: len(run.sink.written) == 2)
        assert members(run.group) == before
    assert run.sink.written == [b"0", b"1"]
    assert not any("has partitions" in message for message in caplog.messages), "it got none anew"


class HalfSink(CommittingSink[Config]):
    """Exactly-once sink that fails once, between the commits of two partitions."""

    type_name = "half"

    def __init__(self, config: Config, name: str = "") -> None:
        super().__init__(config, name)
        self.held: dict[int, list[bytes]] = {}
        self.commits: list[Receipt] = []
        self.conflicts = self.failures = 0

    def resume(self, committed: Assignment) -> Assignment:
        own = (receipt for receipt in self.commits if receipt.assignment.partition == committed.partition)
        return committed.with_offset(max((receipt.offsets.end for receipt in own), default=committed.next_offset))

    def write(self, batch: Batch) -> None:
        assert batch.origin is not None
        self.held.setdefault(batch.origin.partition, []).extend(batch.bodies.to_pylist())

    def due_partitions(self) -> set[int]:
        return set(self.held) if len(self.held) > 1 or self.failures else set()

    def stage(self, assignment: Assignment, offsets: OffsetRange) -> Receipt:
        events = self.held.pop(assignment.partition)
        return Receipt(assignment, offsets, len(events), events)

    def commit(self, receipt: Receipt) -> None:
        start = receipt.offsets.start
        if start != self.resume(receipt.assignment.with_offset(start)).next_offset:
            self.conflicts += 1
            raise Conflict("it is committed already")
        if self.commits and not self.failures:
            self.failures += 1
            raise Retry("away for a moment")
        self.commits.append(receipt)

    def reset(self, partition: int | None = None) -> None:
        for number in list(self.held) if partition is None else [partition]:
            self.held.pop(number, None)


def test_partitions_committed_before_another_one_fails_are_not_redelivered(
    kafka_cluster: KafkaCluster, tmp_path: Path
) -> None:
    written = 0
    with Run(HalfSink, kafka_cluster, tmp_path) as run:
        while not run.sink.failures:
            run.append(written)
            written += 1
            time.sleep(0.05)  # one by one, so that they are put into several partitions
        until(lambda: sum(receipt.events for receipt in run.sink.commits) >= written)
    delivered = [int(body) for receipt in run.sink.commits for body in receipt.staged]
    assert sorted(delivered) == list(range(written))
    assert run.sink.conflicts == 0
