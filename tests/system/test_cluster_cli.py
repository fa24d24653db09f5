"""`agent cluster`, `agent topic` and `agent group` against real brokers."""

import contextlib
import json
import re
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Consumer, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient

from flafka.agent.cli.cluster import cluster
from flafka.agent.cli.group import group
from flafka.agent.cli.topic import topic
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.process import await_ready
from flafka.plugins import Generation
from flafka.plugins.kafka.offsets import OffsetMetadata

agent = click.Group(commands=[cluster, topic, group])
REVIEW_SECONDS = 0.05
"""Seconds after which a reset verifies the committed offsets."""
Run = Callable[..., Result]


@pytest.fixture
def run(kafka_cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command line, `run("topic list")`, with the test's cluster as the default."""
    monkeypatch.setenv("FLAFKA_CLUSTER_DIR", str(kafka_cluster.directory))
    monkeypatch.setattr("flafka.agent.cli.group.MEMBERLESS_COMMIT_SECONDS", REVIEW_SECONDS)

    def run(line: str, code: int = 0) -> Result:
        result = CliRunner().invoke(agent, shlex.split(line))
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.output
        return result

    return run


@pytest.fixture
def log(run: Run, kafka_cluster: KafkaCluster, request: pytest.FixtureRequest) -> str:
    """Return a topic of two partitions; partition 0 has records of the times 1000, 2000 … 10000 ms, partition 1
    three."""
    name = re.sub(r"[^\w-]", "-", f"log-{request.node.name}")
    run(f"topic create {name} --partitions 2")
    producer = Producer({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    for number in range(1, 11):
        producer.produce(name, b"x", partition=0, timestamp=number * 1000)
    for _ in range(3):
        producer.produce(name, b"y", partition=1)
    assert producer.flush(30) == 0
    return name


@contextmanager
def reading(kafka_cluster: KafkaCluster, name: str, topic: str) -> Iterator[Consumer]:
    """Have a live member in group `name`."""
    settings = {"bootstrap.servers": kafka_cluster.bootstrap_servers, "group.id": name, "client.id": "a-reader"}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    consumer.subscribe([topic])
    try:
        assert len(consumer.consume(13, timeout=60)) == 13
        yield consumer
    finally:
        consumer.close()


def commit(kafka_cluster: KafkaCluster, name: str, topic: str, *offsets: int, metadata: str = "") -> None:
    """Commit one offset per partition, without joining the group."""
    consumer = Consumer({"bootstrap.servers": kafka_cluster.bootstrap_servers, "group.id": name})
    options = {"metadata": metadata} if metadata else {}
    positions = [TopicPartition(topic, number, offset, **options) for number, offset in enumerate(offsets)]
    deadline = time.monotonic() + 60
    while True:
        try:
            consumer.commit(offsets=positions, asynchronous=False)
            break
        except Exception:  # the first commit on a cluster waits until the offsets topic is created
            if time.monotonic() > deadline:
                raise
    consumer.close()


def committed(kafka_cluster: KafkaCluster, name: str) -> list[tuple[int, str]]:
    """Return offset and metadata per partition."""
    with KafkaAdminClient(bootstrap_servers=kafka_cluster.bootstrap_servers) as admin:
        return [
            (stored.offset, stored.metadata) for _, stored in sorted(admin.list_group_offsets(name)[name].items())
        ]


def committed_metadata(kafka_cluster: KafkaCluster, name: str) -> list[tuple[int, OffsetMetadata]]:
    """Return the committed offsets with their decoded metadata."""
    return [(offset, OffsetMetadata.parse(metadata)) for offset, metadata in committed(kafka_cluster, name)]


def id_of(kafka_cluster: KafkaCluster, topic: str) -> str:
    """Return a topic's id as channels use it."""
    admin = AdminClient({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    return str(admin.describe_topics(TopicCollection([topic]))[topic].result(60).topic_id)


def rows(result: Result) -> list[list[str]]:
    return [line.split("\t") for line in result.stdout.splitlines()[1:]]


def parsed(result: Result) -> Any:
    return json.loads(result.stdout)


def test_cluster_start_finds_it_running_and_status_shows_it(run: Run, kafka_cluster: KafkaCluster) -> None:
    before = [kafka_cluster.server(name).pid for name in kafka_cluster.names()]
    started = rows(run("cluster start"))
    assert [row[:2] for row in started] == [["1", "up"], ["2", "up"], ["3", "up"]]
    assert [int(row[3]) for row in started] == before
    status = parsed(run("cluster status --json"))
    assert status["bootstrap_servers"] == kafka_cluster.bootstrap_servers
    assert status["under_replicated"] == []
    assert sum(row[5] == "yes" for row in started) == 1
    restarted = parsed(run("cluster start --json"))
    assert [broker["pid"] for broker in restarted["brokers"]] == before


def test_cluster_status_without_a_cluster(run: Run, tmp_path: Path) -> None:
    result = run(f"cluster status --dir {tmp_path}", code=1)
    assert result.stderr == f"Error: no cluster in {tmp_path}: it was never started\n"
    assert "no cluster" in run(f"cluster stop --dir {tmp_path}", code=1).stderr


def test_cluster_stop_and_start_again(run: Run, kafka_cluster: KafkaCluster) -> None:
    try:
        assert "not the racks of 3 brokers: a, b" in run("cluster start --racks a,b", code=1).stderr
        assert "that get their rack at their next start: 1, 2, 3" in run("cluster start --racks a,b,b").stderr
        run("cluster stop")
        assert [row[1] for row in rows(run("cluster status", code=1))] == ["down"] * 3
        assert "Connection refused" in run("topic list", code=1).stderr
    finally:
        kafka_cluster.start()
    await_ready(lambda: ", ".join(kafka_cluster.status().under_replicated) or None, [], 60)
    assert [row[7] for row in rows(run("cluster status"))] == ["a", "b", "b"]
    assert [broker["rack"] for broker in parsed(run("cluster describe --json"))["brokers"]] == ["a", "b", "b"]
    run("topic create in-racks --partitions 6 --replication-factor 2")
    assert all("1" in row[2].split(",") for row in rows(run("topic describe in-racks"))), "a replica in each rack"


def test_topic_commands(run: Run) -> None:
    run("topic create made --partitions 2 --config retention.ms=3600000")
    assert ["made", "2", "3"] in rows(run("topic list"))
    assert {"topic": "made", "partitions": 2, "replicas": 3} in parsed(run("topic list --json"))
    described = run("topic describe made")
    assert [row[0] for row in rows(described)] == ["0", "1"]
    assert sorted(rows(described)[0][2].split(",")) == ["1", "2", "3"]
    assert "retention.ms=3600000" in described.stderr
    assert parsed(run("topic describe made --json"))["configs"] == {"retention.ms": "3600000"}

    assert run("topic create made", code=1).stderr == "Error: topic made: Topic 'made' already exists.\n"
    run("topic create made --if-not-exists")
    assert "Unknown topic config name: retention" in run("topic create other --config retention=1", code=1).stderr
    assert "is not NAME=VALUE" in run("topic create other --config retention", code=2).stderr

    assert "needs --yes" in run("topic delete made", code=2).stderr
    run("topic delete made --yes")
    assert run("topic describe made", code=1).stderr == "Error: topic made: no such topic\n"
    assert "__consumer_offsets" not in run("topic list").stdout


@pytest.mark.parametrize("command", ["topic describe", "topic create", "topic delete --yes", "group reset g --topic"])
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("a b/ü", "'a b/ü' must consist of A-Z, a-z, 0-9, '.', '_' and '-', and has ' '"),
        ("..", "must not be '..', which Kafka does not accept as a name"),
        ("", "must not be empty"),
        ("a" * 250, "must have at most 249 characters, not 250"),
    ],
)
def test_an_invalid_topic_name_is_refused(run: Run, command: str, name: str, problem: str) -> None:
    options = " --to earliest --yes" if command.startswith("group") else ""
    stderr = run(f"{command} {shlex.quote(name)}{options}", code=1).stderr
    assert stderr == f"Error: the topic's name {problem}\n"


def test_group_describe_shows_lag_and_who_reads(run: Run, kafka_cluster: KafkaCluster, log: str) -> None:
    with reading(kafka_cluster, "described", log) as consumer:
        consumer.commit(offsets=[TopicPartition(log, 0, 4)], asynchronous=False)
        first, second = parsed(run("group describe described --json"))
        assert (first["current_offset"], first["log_end_offset"], first["lag"]) == (4, 10, 6)
        assert (second["current_offset"], second["lag"]) == (None, None)
        assert first["consumer_id"].startswith("a-reader")
        assert ["described", "Stable", "classic"] in rows(run("group list"))
        listed = {row["group"]: row["state"] for row in parsed(run("group list --json"))}
        assert listed["described"] == "Stable"
    assert rows(run("group describe described"))[0][2:] == ["4", "10", "6", "-", "-", "-"]
    assert (
        run("group describe nobody", code=1).stderr == "Error: no group nobody: `agent group list` shows all groups\n"
    )


def test_an_offset_of_a_topic_that_was_deleted_is_shown_as_none(
    run: Run, kafka_cluster: KafkaCluster, log: str
) -> None:
    commit(kafka_cluster, "made-again", log, 4, metadata=OffsetMetadata(Generation(7), "another").text())
    assert rows(run("group describe made-again"))[0][2:6] == ["-", "10", "-", "7"]
    assert rows(run("group reset made-again --to 2", code=2))[0][:4] == [log, "0", "-", "2"]


def test_group_reset_by_offset_opens_an_epoch(run: Run, kafka_cluster: KafkaCluster, log: str) -> None:
    commit(kafka_cluster, "by-offset", log, 4, 1)
    before = int(time.time() * 1000)
    preview = run("group reset by-offset --to 2", code=2)
    assert [row[:4] for row in rows(preview)] == [[log, "0", "4", "2"], [log, "1", "1", "2"]]
    assert "nothing was changed" in preview.stderr
    assert committed(kafka_cluster, "by-offset") == [(4, ""), (1, "")]

    assert [row["new_offset"] for row in parsed(run("group reset by-offset --to 2 --yes --json"))] == [2, 2]
    (offset, first), (second_offset, second) = committed_metadata(kafka_cluster, "by-offset")
    assert (offset, second_offset) == (2, 2)
    assert (
        before
        <= min(first.generation.epoch, second.generation.epoch)
        <= max(first.generation.epoch, second.generation.epoch)
        <= time.time() * 1000
    )
    assert first == OffsetMetadata(Generation(first.generation.epoch), id_of(kafka_cluster, log))
    run(f"group reset by-offset --to earliest --topic {log}:1 --yes")
    (_, untouched), (offset, third) = committed_metadata(kafka_cluster, "by-offset")
    assert (untouched, offset) == (first, 0)
    assert third.generation.epoch > second.generation.epoch, "no epoch is used twice"
    assert [row[5] for row in rows(run("group describe by-offset"))] == [
        str(first.generation.epoch),
        str(third.generation.epoch),
    ]
    run(f"group reset by-offset --topic {log}:1 --to 1 --new-ids --yes")
    run("group reset by-offset --to 0 --yes")
    (_, first), (_, fourth) = committed_metadata(kafka_cluster, "by-offset")
    assert first.generation.id_scheme == 2
    assert third.generation.epoch < fourth.generation.id_scheme < fourth.generation.epoch, (
        "a later reset does not give them the ids from before"
    )


@pytest.mark.parametrize("version", [0, 2])
def test_group_reset_resolves_an_offset_of_another_version(
    run: Run, kafka_cluster: KafkaCluster, log: str, version: int
) -> None:
    name = f"other-{version}"
    later = f"{OffsetMetadata(Generation(7), id_of(kafka_cluster, log)).text()}&version={version}"
    metadata = later if version else "epoch=7"
    commit(kafka_cluster, name, log, 4, 1, metadata=metadata)
    run(f"group reset {name} --to current --yes")
    (offset, first), (second_offset, _) = committed_metadata(kafka_cluster, name)
    assert (offset, second_offset) == (4, 1)
    assert first == OffsetMetadata(Generation(first.generation.epoch), id_of(kafka_cluster, log))
    assert first.generation.epoch > 7


def test_group_reset_to_current_needs_an_offset(run: Run, kafka_cluster: KafkaCluster, log: str) -> None:
    refused = run(f"group reset nowhere --to current --topic {log}:1 --yes", code=1)
    assert refused.stderr == f"Error: group nowhere has no offset in {log}-1: --to needs another value\n"


def test_group_reset_by_time(run: Run, kafka_cluster: KafkaCluster, log: str) -> None:
    commit(kafka_cluster, "by-time", log, 10, 3)
    run("group reset by-time --to 1970-01-01T00:00:04Z --yes")
    assert [offset for offset, _ in committed(kafka_cluster, "by-time")] == [3, 0]
    local = datetime.fromtimestamp(6.5, UTC).astimezone().replace(tzinfo=None).isoformat()
    run(f"group reset by-time --to {local} --topic {log}:0 --yes")
    assert [offset for offset, _ in committed(kafka_cluster, "by-time")] == [6, 0]
    run("group reset by-time --to 2999-01-01 --yes")  # no record is that new: the end
    assert [offset for offset, _ in committed(kafka_cluster, "by-time")] == [10, 3]


def test_group_reset_of_a_group_that_has_committed_nothing(run: Run, kafka_cluster: KafkaCluster, log: str) -> None:
    assert "name a --topic" in run("group reset fresh --to latest --yes", code=1).stderr
    run(f"group reset fresh --to latest --topic {log} --yes")
    assert [
        (offset, metadata.generation.epoch > 0) for offset, metadata in committed_metadata(kafka_cluster, "fresh")
    ] == [
        (10, True),
        (3, True),
    ]


def test_group_reset_refuses_invalid_targets(run: Run, kafka_cluster: KafkaCluster, log: str) -> None:
    commit(kafka_cluster, "strict", log, 4, 1)
    refused = run("group reset strict --to 7 --yes", code=1)
    assert refused.stderr == f"Error: {log}-1 holds offsets 0 to 3, not 7\n"
    assert "is not earliest, latest" in run("group reset strict --to yesterday --yes", code=2).stderr
    assert "has no partition '5'" in run(f"group reset strict --to 0 --topic {log}:5 --yes", code=2).stderr
    assert "no such topic" in run("group reset strict --to 0 --topic nope --yes", code=1).stderr
    assert committed(kafka_cluster, "strict") == [(4, ""), (1, "")]


def test_group_reset_refuses_while_somebody_reads(run: Run, kafka_cluster: KafkaCluster, log: str) -> None:
    with reading(kafka_cluster, "busy", log) as consumer:
        consumer.commit(asynchronous=False)
        refused = run("group reset busy --to earliest --yes", code=1)
        assert "group busy is being read by a-reader on 127.0.0.1" in refused.stderr
    run("group reset busy --to earliest --yes")
    assert [
        (offset, metadata.generation.epoch > 0) for offset, metadata in committed_metadata(kafka_cluster, "busy")
    ] == [
        (0, True),
        (0, True),
    ]


@pytest.mark.parametrize("often", [1, 1000])
def test_group_reset_survives_a_memberless_commit_in_flight(
    run: Run, kafka_cluster: KafkaCluster, log: str, monkeypatch: pytest.MonkeyPatch, often: int
) -> None:
    name, sleep = f"outside-{often}", time.sleep
    before = OffsetMetadata(topic_id=id_of(kafka_cluster, log)).text()
    attempts = iter(range(often))

    def driver(seconds: float) -> None:
        """Commit as a driver that read the group before the reset."""
        if seconds != REVIEW_SECONDS:
            sleep(seconds)
        elif next(attempts, None) is not None:
            commit(kafka_cluster, name, log, 5, 2, metadata=before)

    commit(kafka_cluster, name, log, 4, 1, metadata=before)
    monkeypatch.setattr("flafka.agent.cli.group.time.sleep", driver)
    result = run(f"group reset {name} --to 0 --topic {log}:0 --yes", code=int(often > 1))
    assert f"a concurrent commit has overwritten the reset of {log}-0" in result.stderr
    (first, _), untouched = committed_metadata(kafka_cluster, name)
    assert (first, untouched[0]) == (0 if often == 1 else 5, 2)


def test_group_reset_reports_a_new_member_that_overwrites_it(
    run: Run, kafka_cluster: KafkaCluster, log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleep = time.sleep
    before = OffsetMetadata(topic_id=id_of(kafka_cluster, log)).text()
    commit(kafka_cluster, "joined", log, 0, 0, metadata=before)
    with contextlib.ExitStack() as stack:

        def driver(seconds: float) -> None:
            if seconds == REVIEW_SECONDS:
                commit(kafka_cluster, "joined", log, 0, 0, metadata=before)
                stack.enter_context(reading(kafka_cluster, "joined", log))
            else:
                sleep(seconds)

        monkeypatch.setattr("flafka.agent.cli.group.time.sleep", driver)
        result = run("group reset joined --to latest --yes", code=1)
        assert (
            f"has overwritten the reset of {log}-0, {log}-1, and group joined is being read by a-reader"
            in result.stderr
        )


def test_a_command_config_names_the_cluster(run: Run, kafka_cluster: KafkaCluster, tmp_path: Path, log: str) -> None:
    config = tmp_path / "client.properties"
    config.write_text(
        f"bootstrap.servers={kafka_cluster.bootstrap_servers}\nsecurity.protocol=PLAINTEXT\nlinger.ms=5\n"
    )
    listed = run(f"topic list --command-config {config}")
    assert [log, "2", "3"] in rows(listed)
    assert listed.stderr == f"{config}: linger.ms is not used\n"
