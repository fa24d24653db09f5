"""Sink that pauses, and `agent dlq replay`: its sink gets each dead letter once, whatever is killed."""

from __future__ import annotations

import base64
import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from flafka.agent.config import load
from flafka.agent.runner.deadletterreplay import replayer_of
from flafka.agent.runner.deadletters.reading import StoredDeadLetter, read_dead_letters
from flafka.agent.runner.deadletters.store import DeadLetter, FileDeadLetterStore, KafkaDeadLetterStore
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import RunningAgent
from flafka.agent.services.solr import SolrCluster
from flafka.plugins import Components, Event, EventId, KafkaStream, Retry
from tests.fixtures.cores import create_core
from tests.system.running import ROOT, agent_command, in_topic, kafka_channel, unique
from tests.system.test_proofs_dead_letters import tailed
from tests.system.test_proofs_stores import solr_sink, stored
from tests.system.test_solr_sink import documents

DIES_IN_THE_THIRD_LOT = """
import itertools, os, signal, sys
from confluent_kafka import Consumer, TopicPartition
import flafka.agent.runner.deadletterreplay as replay
from flafka.agent.cli import main

servers, topic = sys.argv.pop(1), sys.argv.pop(1)
replay_record, calls = replay.replay_record, itertools.count(1)
replay.REPLAY_BATCH_EVENTS = 50

def third():
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "looks", "isolation.level": "read_uncommitted"})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(3)])
    replayed = 0
    while replayed <= 2 * replay.REPLAY_BATCH_EVENTS:  # until brokers have some of the third lot
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            replayed += dict(message.headers())["flafka.format"].endswith(b" replayed")

def dying(letters):
    if next(calls) == 3:
        third()
        os.kill(os.getpid(), signal.SIGKILL)
    return replay_record(letters)

replay.replay_record = dying
main()
"""


def replay(file: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return agent_command("dlq", "replay", "-c", str(file), *arguments)


def taken_and_rejected(agent: RunningAgent) -> tuple[int, int]:
    counts = agent.metrics().get("SINK.k2", {})
    return int(counts.get("EventDrainSuccessCount", 0)), int(counts.get("EventRejectedCount", 0))


def overtaken(file: Path, servers: str, topic: str) -> None:
    """Replay two batches of one dead letter each; before the second one another replay begins."""
    spec, diagnostics = load(file, components=Components())
    assert spec is not None, diagnostics
    replayer = replayer_of(spec, spec.channels[0])
    letters = [letter for letter in read_dead_letters(replayer.store) if letter.component == "a1.sinks.k2"]

    def lots() -> Iterator[list[StoredDeadLetter]]:
        yield letters[:1]
        name = f"flafka.dlq.{topic}"
        Producer({"bootstrap.servers": servers, "transactional.id": name}).init_transactions(60)
        yield letters[1:2]

    replayer.replay(lots())


def test_a_wrong_schema_pauses_the_sink_and_dead_letters_are_replayed_after_the_repair(
    tmp_path: Path, kafka_cluster: KafkaCluster, solr_cluster: SolrCluster
) -> None:
    topic, servers = unique("mended"), kafka_cluster.bootstrap_servers
    url = create_core(solr_cluster, topic)
    large = b"bad " + b"large " * 250_000
    (tmp_path / "good.log").write_bytes(b"".join(b"good %d \xff\n" % n for n in range(300)))
    (tmp_path / "bad.log").write_bytes(b"".join(b"bad %d \xff\n" % n for n in range(300)) + large + b"\n")
    (tmp_path / "all").mkdir()
    configuration = f"""
a1.sources = c1files
a1.channels = c1
a1.sinks = k1 k2
{tailed(tmp_path, [("good", "shop"), ("bad", "shop")], "c1")}
a1.sources.c1files.headers.bad.colour = blue
{kafka_channel(servers, topic)}
a1.sinks.k1.type = file_roll
a1.sinks.k1.channel = c1
a1.sinks.k1.group = {topic}-files
a1.sinks.k1.sink.directory = {tmp_path}/all
{solr_sink(url, topic, "field.colour = %{colour}")}
"""
    with RunningAgent(tmp_path / "a", configuration) as agent:
        agent.until(lambda: agent.count("SINK.k2", "EventRejectedCount") == 301, "Solr to refuse a half")
        agent.until(lambda: agent.count("SINK.k2", "EventDrainSuccessCount") == 300, "Solr to have the other half")
        agent.wait_until_healthy()
        with (tmp_path / "bad.log").open("ab") as log:
            log.write(b"".join(b"more %d\n" % n for n in range(900)))
        reason = re.compile(r"paused: .* more than errors.tolerance = 50 .*'colour'")
        agent.until(lambda: reason.match(agent.failing().get("SINK.k2", "")), "the sink to pause")
        agent.until(lambda: agent.count("SINK.k1", "EventDrainSuccessCount") == 1501, "files to have all")
        agent.until(lambda: agent.count("SINK.k2", "FailureCount") > 2, "the sink to try again")
        rejected = agent.count("SINK.k2", "EventRejectedCount")
        assert rejected <= 500

        field = {"add-field": {"name": "colour", "type": "string"}}
        mended = urllib.request.Request(f"{url}/schema", json.dumps(field).encode(), {"Content-Type": "text/json"})
        urllib.request.urlopen(mended, timeout=60).close()
        agent.until(lambda: sum(taken_and_rejected(agent)) == 1501, "the sink to go on by itself")
        agent.wait_until_healthy()
        listed = json.loads(agent_command("dlq", "list", "-c", str(agent.file), "--json").stdout)
        letters = sum(row["events"] for row in listed)
        taken = 1501 - letters
        agent.until(lambda: taken_and_rejected(agent) == (taken, letters), "each event to be one or the other")
        written = stored(kafka_cluster, topic)
        store = KafkaDeadLetterStore(KafkaStream(servers, topic, topic), f"{topic}.deadletters", 3)
        store.put([DeadLetter("a1.sources.c1files", None, Event(b"late"), "too large")])
        store.put([DeadLetter("a1.sinks.gone", EventId(topic, 0, 0, 0), Event(b"gone"), "why")])

        dry = replay(agent.file, "--component", "a1.sinks.k2", "--dry-run", "--json")
        assert f"{letters} dead letters would be replayed" in dry.stderr, dry.stderr
        assert {row["to"] for row in json.loads(dry.stdout)} == {f"group {topic}-solr"}
        command = [sys.executable, "-c", DIES_IN_THE_THIRD_LOT, servers, topic]
        killed = subprocess.run(
            [*command, "dlq", "replay", "-c", str(agent.file), "--yes", "--component", "a1.sinks.k2"],
            cwd=ROOT,
            timeout=180,
            check=False,
            capture_output=True,
        )
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        replayed = replay(agent.file, "--yes")
        remaining = letters - 2 * 50 + 1  # two batches of dead letters, and the one of the source
        assert f"{remaining} dead letters replayed" in replayed.stderr, replayed.stderr
        assert "a1.sinks.gone is not in this configuration" in replayed.stderr
        assert "nothing to replay" in replay(agent.file, "--yes").stderr
        agent.until(lambda: agent.count("SINK.k2", "EventDrainSuccessCount") == 1502, "Solr to have the rest")
        agent.until(lambda: agent.count("SINK.k1", "EventDrainSuccessCount") == 1502, "files to have the source's")
        repeated = replay(agent.file, "--yes", "--again", "--limit", "1", "--component", "a1.sinks.k2")
        assert "1 dead letters replayed" in repeated.stderr, repeated.stderr
        agent.until(lambda: agent.count("SINK.k2", "EventDrainSuccessCount") == 1503, "Solr to have one once more")
        with pytest.raises(Retry, match="another replay of these dead letters began"):
            overtaken(agent.file, servers, topic)
        agent.until(lambda: agent.count("SINK.k2", "EventDrainSuccessCount") == 1504, "the lot before that")
        for sink in ("SINK.k1", "SINK.k2"):
            agent.until(
                lambda s=sink: agent.metrics()[s].get("Lag") == "0",
                "no lag, though partitions end with the ends of transactions",
                60,
            )
        assert agent.stop() == 0
    lines = [line for file in (tmp_path / "all").iterdir() for line in file.read_bytes().splitlines()]
    assert Counter(lines) == Counter([*written.values(), b"late"])
    assert Counter(event.body for event in in_topic(kafka_cluster, topic)) == Counter(lines)
    texts = {id: document["body_t"] for id, document in documents(url).items()}
    expected = {id: body.decode(errors="backslashreplace") for id, body in written.items()}
    assert {id: text for id, text in texts.items() if id in written} == expected
    assert [text for id, text in texts.items() if id not in written] == ["late"]


def test_dead_letters_of_a_memory_channel_are_replayed_to_their_sink(tmp_path: Path) -> None:
    file, letters = tmp_path / "agent.conf", FileDeadLetterStore(tmp_path / "letters/a1.c1.deadletters.jsonl")
    for sink in ("k1", "k2"):
        (tmp_path / sink).mkdir()
    file.write_text(
        f"""
a1.channels = c1
a1.sinks = k1 k2
a1.channels.c1.type = memory
a1.deadletters.directory = {tmp_path}/letters
"""
        + "".join(
            f"a1.sinks.{sink}.type = file_roll\na1.sinks.{sink}.channel = c1\n"
            f"a1.sinks.{sink}.sink.directory = {tmp_path}/{sink}\n"
            for sink in ("k1", "k2")
        )
    )
    bodies = {sink: [b"%s \xff %d" % (sink.encode(), n) for n in range(700)] for sink in ("k1", "k2")}
    letters.put(
        DeadLetter(f"a1.sinks.{sink}", EventId("m", 1, n, 0), Event(body), f"{sink} was full")
        for sink, lines in bodies.items()
        for n, body in enumerate(lines)
    )
    with letters.path.open("ab") as cut_off:
        cut_off.write(b'{"letter": "')
    result = replay(file, "--yes", "--reason", "k1 was")
    assert "700 dead letters replayed" in result.stderr, result.stderr
    result = replay(file, "--yes")
    assert "700 dead letters replayed" in result.stderr, result.stderr
    assert "nothing to replay" in replay(file, "--yes").stderr
    for sink, expected in bodies.items():
        lines = [line for path in (tmp_path / sink).iterdir() for line in path.read_bytes().splitlines()]
        assert lines == expected
    shown = json.loads(agent_command("dlq", "show", "-c", str(file), "--json", "--id", "m-1-699-0").stdout)
    assert [(base64.b64decode(letter["body"]), letter["replayed"]) for letter in shown] == [
        (bodies["k1"][699], True),
        (bodies["k2"][699], True),
    ]
