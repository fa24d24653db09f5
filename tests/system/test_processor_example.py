"""Example of docs/processors.md, and the messages of `agent process` for authors of such functions.

Every run takes one of the tests of `agent process` that start Spark, by its seed; `./dev soak` takes all.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import RunningAgent, until
from tests.fixtures.ports import free_port
from tests.processors import logins
from tests.system.running import agent_command, kafka_channel, unique
from tests.system.test_proofs_formats import put
from tests.system.test_proofs_spark import put_undecodable

PAGE = Path(__file__).parents[2] / "docs" / "processors.md"
BODIES = [
    *(b'{"user": "eve", "outcome": "failed", "at": "2024-01-01T10:00:0%d"}' % n for n in range(5)),
    b'{"user": "amy", "outcome": "failed", "at": "2024-01-01T10:00:01"}',
]
LATER = b'{"user": "amy", "outcome": "failed", "at": "2024-01-01T10:%02d:00"}'


def example(directory: Path) -> Path:
    """Write the two files of the example under their documented names."""
    match = re.search(r"```python\n(.*?)```\n+```properties\n(.*?)```", PAGE.read_text(), re.S)
    assert match is not None
    code, properties = match.groups()
    file = directory / code[2 : code.index(",")]
    file.parent.mkdir(parents=True)
    file.write_text(code)
    (directory / "agent.conf").write_text(properties)
    return directory / "agent.conf"


def admin(cluster: KafkaCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap_servers})


@pytest.fixture
def topics(kafka_cluster: KafkaCluster) -> Iterator[None]:
    """Delete the topics before and afterwards, as other tests use their names."""
    client, names = admin(kafka_cluster), ("flafka", "alerts")

    def delete() -> None:
        existing = [name for name in names if name in client.list_topics().topics]
        for deletion in client.delete_topics(existing).values() if existing else ():
            deletion.result()
        until(lambda: not set(names) & client.list_topics().topics.keys(), "the topics to be gone")

    delete()
    yield
    delete()


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("topics")
def test_the_documented_example_delivers(
    tmp_path: Path, kafka_cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLAFKA_CLUSTER_DIR", str(kafka_cluster.directory))
    file, site = example(tmp_path), tmp_path / "site.conf"
    site.write_text(f"a1.spark.triggerInterval = 1\na1.monitoring.port = {free_port()}\n")
    reader = Consumer(
        {
            "bootstrap.servers": kafka_cluster.bootstrap_servers,
            "group.id": unique("reader"),
            "auto.offset.reset": "earliest",
            "topic.metadata.refresh.interval.ms": 500,
        }
    )
    reader.subscribe(["alerts"])
    rows: list[dict[str, object]] = []
    minutes, next_at = iter(range(2, 60)), 0.0

    def alerted() -> bool:
        nonlocal next_at
        if time.monotonic() > next_at:  # event time advances, so that windows close
            next_at = time.monotonic() + 5
            put(kafka_cluster, "flafka", "raw", [LATER % next(minutes)])
        message = reader.poll(0.1)
        if message is not None and message.error() is None:
            rows.append(json.loads(message.value() or b""))
        return any(row["user"] == "eve" for row in rows)

    with RunningAgent(tmp_path / "run", file, "-f", str(file), "-f", str(site)) as agent:
        agent.until(lambda: "flafka" in admin(kafka_cluster).list_topics().topics, "the channel's topic")
        put(kafka_cluster, "flafka", "raw", BODIES)
        agent.until(alerted, "an alert")
        assert agent.stop() == 0
    reader.close()
    assert [row["count"] for row in rows if row["user"] == "eve"] == [5]
    created = admin(kafka_cluster).list_topics().topics
    assert len(created["alerts"].partitions) == len(created["flafka"].partitions)
    assert {len(part.replicas) for part in created["alerts"].partitions.values()} == {3}


def configuration(channel: str, function: str) -> str:
    own = {"type": "spark", "channel": "c1", "processor": f"logins:{function}", "output.rows.type": "console"}
    own |= {"processor.path": str(Path(logins.__file__).parent)}
    lines = "".join(f"a1.sinks.p.{name} = {value}\n" for name, value in own.items())
    return f"a1.channels = c1\na1.sinks = p\n{channel}\n{lines}"


def test_an_empty_channel_is_reported_before_spark_starts(
    tmp_path: Path, kafka_cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    topic, file = unique("empty"), tmp_path / "agent.conf"
    file.write_text(configuration(kafka_channel(kafka_cluster.bootstrap_servers, topic), "fails_later"))
    tried = agent_command("process", "-c", str(file))
    assert tried.returncode == 1
    assert f"channel c1 is empty: topic {topic} has no events" in tried.stderr, tried.stderr
    assert not list((tmp_path / "state").rglob("*.process.log"))


@pytest.mark.drawn(1, of="samples")
def test_the_events_of_a_channel_are_shown(tmp_path: Path, kafka_cluster: KafkaCluster) -> None:
    topic, file = unique("shown"), tmp_path / "agent.conf"
    bodies = [b"event %d" % number for number in range(400)]
    put(kafka_cluster, topic, "arrow", bodies[:200])
    put(kafka_cluster, topic, "raw", bodies[200:])
    put_undecodable(kafka_cluster, topic)
    options = "a1.sinks.p.output.capitals.type = console\na1.sinks.p.interceptors = i1\n"
    options += "a1.sinks.p.interceptors.i1.type = mask\na1.sinks.p.interceptors.i1.patterns = email\n"
    file.write_text(configuration(kafka_channel(kafka_cluster.bootstrap_servers, topic), "both") + options)
    shown = agent_command("process", "-c", str(file), "--rows", "1000", "p")
    assert shown.returncode == 0, shown.stderr
    assert all(body.decode().upper() in shown.stdout for body in bodies)


@pytest.mark.drawn(1, of="samples")
@pytest.mark.usefixtures("servers")
def test_a_function_is_tried_on_samples_without_kafka(tmp_path: Path) -> None:
    file, samples = example(tmp_path), tmp_path / "samples.json"
    events = [*BODIES[:4], json.dumps({"headers": {"a": "b"}, "body": BODIES[4].decode()}).encode()]
    samples.write_bytes(b"\n".join(events))
    tried = agent_command("process", "-c", str(file), "--events", str(samples))
    assert tried.returncode == 0, tried.stderr
    assert "|2024-01-01 10:00:00|eve |5    |" in tried.stdout, tried.stdout
    assert tried.stderr == ""


@pytest.mark.drawn(1, of="samples")
@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize(
    ("function", "location", "code", "arguments"),
    [
        ("fails_later", "<lambda>", "1 // 0", "b'first'"),
        ("fails_in_a_batch", "<listcomp>", "1 // (len", "rows that begin with {'topic': "),
    ],
)
def test_an_error_within_a_function_shows_where_and_a_row(
    tmp_path: Path, function: str, location: str, code: str, arguments: str
) -> None:
    file, samples = tmp_path / "agent.conf", tmp_path / "samples.txt"
    samples.write_text("first\n")
    file.write_text(configuration("a1.channels.c1.type = kafka", function))
    tried = agent_command("process", "-c", str(file), "--events", str(samples))
    line = Path(logins.__file__).read_text().split(code)[0].count("\n") + 1
    assert tried.returncode == 1
    assert tried.stderr.startswith(
        f"error: a1.sinks.p: ZeroDivisionError: integer division or modulo by zero in {location} (logins.py, line "
        f"{line}; processor logins:{function}); its arguments were: {arguments}"
    )
