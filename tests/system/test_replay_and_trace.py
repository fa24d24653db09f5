"""`agent trace` and `agent replay` on real stores: locations of each event, and a replayed time range."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from flafka.agent.audit.reconciliation import HdfsReader, hbase_rows, lines, solr_documents
from flafka.agent.cli import main
from flafka.agent.runner.local import standalone
from flafka.agent.services.hbase import HBaseCluster
from flafka.agent.services.hdfs import HdfsCluster
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import RunningAgent
from flafka.agent.services.solr import SolrCluster
from flafka.plugins import EventId
from flafka.plugins.kafka.admin import read_up_to
from flafka.plugins.kafka.clients import CONSUMER
from tests.fixtures.cores import create_core
from tests.system.running import ROOT, hdfs_sink, kafka_channel, unique
from tests.system.test_proofs_stores import stored, table_of

EVENTS = 300
"""Number of events in the replayed time range."""
DIES_AMID_THE_SECOND_COMMIT = """
import itertools, os, signal
from flafka.agent.cli import main
from flafka.sinks.hdfs.commitlog import HdfsCommitLog

publish, calls = HdfsCommitLog._publish_files, itertools.count(1)

def dying(self, manifest):
    if next(calls) == 2:  # its manifest is committed, and its files have no final names yet
        os.kill(os.getpid(), signal.SIGKILL)
    publish(self, manifest)

HdfsCommitLog._publish_files = dying
main()
"""


@dataclass
class Scene:
    """Running agent, and its deliveries at the end of the time range."""

    agent: RunningAgent
    file: Path
    """Log file that the agent's source follows."""
    topic: str
    root: str
    kafka: KafkaCluster
    hdfs: HdfsCluster
    solr: str
    span: list[str]
    bodies: dict[str, bytes]
    """Bodies of the time range by event id."""

    def put(self, first: int, count: int) -> None:
        """Put more events, after the time range."""
        with self.file.open("ab") as file:
            file.write(b"".join(b"%d\n" % n for n in range(first, first + count)))

    def files(self, *, replayed: bool) -> list[bytes]:
        """Return the lines of the files that replays wrote, or of the other files."""
        reader = HdfsReader(self.hdfs.webhdfs)
        visible = [path for path in reader.visible(self.root) if ("-replay" in path) == replayed]
        return [line for path in visible for line in lines(reader.read(path))]

    def positions(self) -> dict[str, Any]:
        """Return the output of `agent group describe` for the agent's groups."""
        servers = self.kafka.bootstrap_servers
        offsets = {}
        for group in (self.topic, f"{self.topic}-solr"):
            shown = run("group", "describe", group, "--bootstrap-server", servers, "--json")
            assert shown.exit_code == 0, shown.output
            offsets[group] = [(r["partition"], r["current_offset"], r["epoch"]) for r in json.loads(shown.stdout)]
        return offsets


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def unused_address() -> int:
    """Return a port on which nothing listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@pytest.fixture(scope="module")
def scene(
    tmp_path_factory: pytest.TempPathFactory,
    kafka_cluster: KafkaCluster,
    hdfs_cluster: HdfsCluster,
    solr_cluster: SolrCluster,
) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("again")
    topic, root = unique("again"), unique("/again")
    url = create_core(solr_cluster, topic)
    file = directory / "app.log"
    configuration = f"""
a1.sources = app
a1.channels = c1 m1
a1.sinks = k1 k2 k4 k5
a1.sources.app.type = taildir
a1.sources.app.channels = c1
a1.sources.app.filegroups = app
a1.sources.app.filegroups.app = {directory}/app[.]log
a1.sources.app.headers.app.host = web-1
a1.sources.app.positionFile = {directory}/positions.json
a1.sources.app.batchSize = 20
{kafka_channel(kafka_cluster.bootstrap_servers, topic)}
a1.channels.m1.type = memory
{hdfs_sink(hdfs_cluster.webhdfs, f"{root}/%{{host}}")}
a1.sinks.k1.interceptors = no13
a1.sinks.k1.interceptors.no13.type = regex_filter
a1.sinks.k1.interceptors.no13.regex = ^13$
a1.sinks.k1.interceptors.no13.excludeEvents = true
a1.sinks.k2.type = solr
a1.sinks.k2.channel = c1
a1.sinks.k2.group = {topic}-solr
a1.sinks.k2.url = {url}
a1.sinks.k2.field.number_i = %[body]
a1.sinks.k4.type = http
a1.sinks.k4.channel = c1
a1.sinks.k4.group = {topic}-http
a1.sinks.k4.endpoint = http://127.0.0.1:{unused_address()}/
a1.sinks.k5.type = null
a1.sinks.k5.channel = m1
"""
    with RunningAgent(directory / "a", configuration) as agent:
        start = now()
        file.write_bytes(b"".join(b"%d\n" % n for n in range(EVENTS - 1)) + b"bad\n")
        for sink in ("k1", "k2"):
            agent.until(
                lambda sink=sink: agent.count(f"SINK.{sink}", "EventDrainSuccessCount") == EVENTS - 1,
                f"{sink} to have all",
            )
        time.sleep(0.002)  # the time range ends after the millisecond of the last event
        span = ["--from", start, "--to", now()]
        yield Scene(
            agent,
            file,
            topic,
            root,
            kafka_cluster,
            hdfs_cluster,
            url,
            span,
            stored(kafka_cluster, topic),
        )


@pytest.fixture
def replay(scene: Scene) -> Callable[..., Result]:
    def replayed(sink: str, *arguments: str) -> Result:
        return run("replay", "-c", str(scene.agent.file), "--sink", sink, *scene.span, "--yes", *arguments)

    return replayed


@pytest.fixture
def trace(scene: Scene) -> Callable[..., tuple[int, dict[str, Any]]]:
    def traced(id: str) -> tuple[int, dict[str, Any]]:
        shown = run("trace", id, "-c", str(scene.agent.file), "--json")
        return shown.exit_code, json.loads(shown.stdout)

    return traced


def id_of(scene: Scene, body: bytes) -> str:
    (event_id,) = [id for id, value in scene.bodies.items() if value == body]
    return event_id


def sink_result(traced: dict[str, Any], sink: str) -> dict[str, Any]:
    (result,) = [entry for entry in traced["sinks"] if entry["sink"] == f"a1.sinks.{sink}"]
    return dict(result)


def test_a_delivered_event_is_found_in_every_store(
    scene: Scene, trace: Callable[..., tuple[int, dict[str, Any]]]
) -> None:
    id = id_of(scene, b"7")
    code, traced = trace(id)
    assert code == 0
    assert (traced["id"], traced["channel"], traced["sources"]) == (id, "a1.channels.c1", ["a1.sources.app"])
    assert traced["place"]["topic"] == scene.topic
    assert traced["headers"]["host"] == "web-1"

    file = sink_result(traced, "k1")
    (location,) = file["places"]
    assert file["state"] == "delivered"
    assert location["first"] <= traced["place"]["offset"] <= location["last"]
    assert b"7" in lines(HdfsReader(scene.hdfs.webhdfs).read(location["path"]))
    (document,) = sink_result(traced, "k2")["places"]
    assert (document["id"], document["document"]["number_i"]) == (id, 7)
    assert sink_result(traced, "k4")["state"] == "waiting"

    assert trace(f"web-1-{id}")[1]["id"] == id  # the key of a row
    shown = run("trace", id, "-c", str(scene.agent.file))
    assert shown.exit_code == 0
    assert location["path"] in shown.stdout
    assert re.search(r"a1\.sinks\.k4 \(http\)  waiting: group \S+ is at record \d+, \d+ before it", shown.stdout)


def test_rejected_filtered_and_unknown_events_are_reported_as_such(
    scene: Scene, trace: Callable[..., tuple[int, dict[str, Any]]]
) -> None:
    code, traced = trace(id_of(scene, b"bad"))
    assert code == 0
    assert sink_result(traced, "k2")["state"] == "dead letter"
    assert "bad" in sink_result(traced, "k2")["why"]
    assert traced["dead_letters"][0]["component"] == "a1.sinks.k2"
    assert sink_result(trace(id_of(scene, b"13"))[1], "k1")["state"] == "filtered"

    topic, partition, offset, _ = id_of(scene, b"7").rsplit("-", 3)
    code, traced = trace(f"{topic}-{partition}-999999-0")
    assert code == 1
    assert "ends at" in traced["missing"]
    code, traced = trace(f"{topic}-{partition}-{offset}-5000")
    assert code == 1
    assert "events, numbered from 0" in traced["missing"]
    code, traced = trace(f"{scene.topic}~0123456789-0-0-0")
    assert code == 1
    assert "not the topic of this ID" in traced["missing"]
    assert "is no event ID" in run("trace", "hello", "-c", str(scene.agent.file)).stderr


def test_a_killed_replay_to_hdfs_resumes_and_does_not_touch_the_live_group(
    scene: Scene, replay: Callable[..., Result], trace: Callable[..., tuple[int, dict[str, Any]]]
) -> None:
    dry = replay("k1", "--dry-run", "--json")
    assert f"{EVENTS} events would be replayed to a1.sinks.k1 (hdfs), through its interceptors no13" in dry.stderr
    assert sum(row["events"] for row in json.loads(dry.stdout)) == EVENTS
    before = scene.positions()
    scene.put(EVENTS, 100)  # the agent runs meanwhile
    command = [sys.executable, "-c", DIES_AMID_THE_SECOND_COMMIT, "replay", "-c", str(scene.agent.file)]
    killed = subprocess.run(
        [*command, "--sink", "k1", *scene.span, "--yes"], cwd=ROOT, timeout=180, check=False, capture_output=True
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    amid = Counter(scene.files(replayed=True))
    assert 0 < amid.total() < EVENTS - 1

    resumed = replay("k1")
    assert resumed.exit_code == 0, resumed.output
    expected = Counter(body for body in scene.bodies.values() if body != b"13")
    assert Counter(scene.files(replayed=True)) == expected
    assert "this replay is complete" in replay("k1").stderr
    assert Counter(scene.files(replayed=True)) == expected

    scene.put(EVENTS + 100, 1)
    live = expected + Counter(b"%d" % n for n in range(EVENTS, EVENTS + 101))
    scene.agent.until(lambda: Counter(scene.files(replayed=False)) == live, "the agent to go on")
    after = scene.positions()
    assert all(
        epoch == was and position >= old
        for group in before
        for (_, old, was), (_, position, epoch) in zip(before[group], after[group], strict=True)
    )
    places = sink_result(trace(id_of(scene, b"7"))[1], "k1")["places"]
    assert sorted(location["replay"] for location in places) == [False, True]


def test_documents_replace_themselves(scene: Scene, replay: Callable[..., Result]) -> None:
    id = id_of(scene, b"7")
    documents = solr_documents(scene.solr)
    scene.agent.until(lambda: len(solr_documents(scene.solr)) >= EVENTS - 1, "Solr to have all")
    import pysolr

    pysolr.Solr(scene.solr).delete(id=id, commit=True)
    replayed = replay("k2")
    assert f"{EVENTS - 1} events delivered" in replayed.stderr, replayed.output
    assert "1 event became a dead letter: " in replayed.stderr
    assert replayed.exit_code == 1
    restored = solr_documents(scene.solr)
    assert {key: restored[key]["number_i"] for key in scene.bodies if key in documents or key == id} == {
        key: int(body) for key, body in scene.bodies.items() if body != b"bad"
    }
    repeated = replay("k2", "--again")
    assert f"{EVENTS - 1} events delivered" in repeated.stderr, repeated.output
    assert len(solr_documents(scene.solr)) == len(restored)


def test_rows_overwrite_themselves(scene: Scene, hbase_cluster: HBaseCluster, tmp_path: Path) -> None:
    conf, topic = tmp_path / "rows.conf", scene.topic
    lines = (
        f"type = hbase2\nchannel = c1\ngroup = {topic}-hbase\nthrift = {hbase_cluster.address}\ntable = {topic}",
        "columnFamily = f\nrowKey = %{host}-%[id]",
    )
    options = "\n".join(f"a1.sinks.k3.{line}" for line in "\n".join(lines).splitlines())
    conf.write_text(f"{scene.agent.file.read_text()}\na1.sinks = k3\n{options}\n")
    key = f"web-1-{id_of(scene, b'7')}"
    with table_of(hbase_cluster, topic) as table:
        table.connection.create_table(topic, {"f": {"max_versions": 10}})
        for extra in ((), ("--again",)):
            replayed = run("replay", "-c", str(conf), "--sink", "k3", *scene.span, "--yes", *extra)
            assert f"{EVENTS} events delivered" in replayed.stderr, replayed.output
        assert len(table.cells(key, b"f:pCol", versions=10)) == 1
    rows = hbase_rows(hbase_cluster.address, topic)
    assert {key: cells["pCol"] for key, cells in rows.items()} == {
        f"web-1-{id}": body for id, body in scene.bodies.items()
    }
    traced = json.loads(run("trace", key, "-c", str(conf), "--json").stdout)
    (row,) = sink_result(traced, "k3")["places"]
    assert (row["row"], row["cells"]["f:pCol"]) == (key, "7")
    assert sink_result(traced, "k3")["why"] == "it is there ahead of the group's committed offset"


def test_rows_that_a_deletion_hides_are_not_reported_as_delivered(
    scene: Scene, hbase_cluster: HBaseCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf, name = tmp_path / "rows.conf", f"{scene.topic}-deleted"
    options = f"type = hbase2\nchannel = c1\ngroup = {name}\nthrift = {hbase_cluster.address}\ntable = {name}"
    lines = "\n".join(f"a1.sinks.k3.{line}" for line in f"{options}\ncolumnFamily = f".splitlines())
    conf.write_text(f"{scene.agent.file.read_text()}\na1.sinks = k3\n{lines}\n")
    id = id_of(scene, b"7")
    command = ["replay", "-c", str(conf), "--sink", "k3", *scene.span, "--yes"]
    with table_of(hbase_cluster, name) as table:
        table.connection.create_table(name, {"f": {"max_versions": 1}})
        table.put(id.encode(), {b"f:pCol": b"older"})
        table.delete(id.encode())
        for _ in range(2):  # the committed offset stays before it
            with monkeypatch.context() as shortened:
                shortened.setattr(standalone, "SINK_FAILURE_SECONDS", 2.0)
                refused = run(*command)
            assert refused.exit_code == 1
            assert f"HBase's table '{name}' does not return 1 of" in refused.stderr, refused.output
            assert f"major_compact '{name}'" in refused.stderr
            assert "events delivered" not in refused.stderr
        table.connection.disable_table(name)
        table.connection.delete_table(name)
        table.connection.create_table(name, {"f": {"max_versions": 1}})
        replayed = run(*command, "--again")  # events before the deleted row were delivered into the old table
    assert f"{EVENTS} events delivered" in replayed.stderr, replayed.output
    assert hbase_rows(hbase_cluster.address, name)[id]["pCol"] == b"7"


def test_a_replay_to_a_topic_has_each_event_once_more(
    scene: Scene, replay: Callable[..., Result], tmp_path: Path
) -> None:
    servers, copy = scene.kafka.bootstrap_servers, f"{scene.topic}-copy"
    assert run("topic", "create", copy, "--bootstrap-server", servers, "--partitions", "1").exit_code == 0
    conf = tmp_path / "copy.conf"
    conf.write_text(
        f"{scene.agent.file.read_text()}\na1.sinks = k6\na1.sinks.k6.type = kafka\na1.sinks.k6.channel = c1\n"
        f"a1.sinks.k6.group = {scene.topic}-copy\na1.sinks.k6.kafka.topic = {copy}\n"
        f"a1.sinks.k6.kafka.bootstrap.servers = {servers}\n"
    )
    command = ["replay", "-c", str(conf), "--sink", "k6", *scene.span, "--yes"]
    for message in (f"{EVENTS} events delivered to a1.sinks.k6", "this replay is complete"):
        replayed = run(*command)
        assert message in replayed.stderr, replayed.output
    consumer = Consumer({**CONSUMER, "bootstrap.servers": servers, "group.id": copy})
    sink_result = TopicPartition(copy, 0, 0)
    _, end = consumer.get_watermark_offsets(sink_result, timeout=30)
    values = [message.value() for message in read_up_to(consumer, sink_result, end, 30)]
    consumer.close()
    assert Counter(values) == Counter(scene.bodies.values())


def test_a_replay_without_guarantees_is_refused(scene: Scene, replay: Callable[..., Result]) -> None:
    refused = replay("k4", "--dry-run")
    assert refused.exit_code == 1
    assert "a1.sinks.k4 may store duplicates: after a kill it writes" in refused.stderr
    assert "drops delivered events" in replay("k5").stderr
    assert "no sink k9" in replay("k9").stderr
    backwards = ["replay", "-c", str(scene.agent.file), "--sink", "k1", "--from", scene.span[3], "--to"]
    assert "--from must be before --to" in run(*backwards, scene.span[1]).stderr
    assert "in the future" in run(*backwards, "9999-01-01").stderr


def test_events_removed_by_retention_are_still_found_in_the_stores(
    scene: Scene, replay: Callable[..., Result], trace: Callable[..., tuple[int, dict[str, Any]]]
) -> None:
    """Last test: the topic lacks a record afterwards."""
    id = next(id for id in scene.bodies if EventId.parse(id).offset == 0)
    partition = EventId.parse(id).partition
    admin = AdminClient({"bootstrap.servers": scene.kafka.bootstrap_servers})
    for removed in admin.delete_records([TopicPartition(scene.topic, partition, 1)]).values():
        removed.result(60)
    code, traced = trace(id)
    assert code == 0
    assert traced["missing"] == f"retention has removed it: the oldest record of partition {partition} is 1"
    assert traced["body"] is None
    places = sink_result(traced, "k1")["places"]
    assert places
    assert all(location["first"] == 0 for location in places)
    (document,) = sink_result(traced, "k2")["places"]
    assert document["id"] == id
    assert f"partition {partition} begins with record 1" in replay("k1", "--dry-run").stderr
