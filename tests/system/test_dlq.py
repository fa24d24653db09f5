"""`agent dlq` on a topic and on a file with dead letters."""

import base64
import json
from pathlib import Path

import pytest

from flafka.agent.runner.deadletters.store import PART_BYTES, DeadLetter, FileDeadLetterStore, KafkaDeadLetterStore
from flafka.agent.services.kafka import KafkaCluster
from flafka.plugins import Event, EventId, KafkaStream
from tests.system.running import agent_command, kafka_channel, unique

CONFIGURATION = "a1.channels = c1\na1.sinks = k1\na1.sinks.k1.type = null\na1.sinks.k1.channel = c1\n"
HUGE = bytes(range(256)) * (2 * PART_BYTES // 256) + b"end"
LETTERS = [
    DeadLetter("a1.sinks.k1", EventId("t", 1, 2, 3), Event(b"\xff\0", {"grüße": "世界"}), "no such row", group="g"),
    DeadLetter("a1.sinks.k1", EventId("t", 1, 2, 4), Event(HUGE), "no such row", group="g"),
    DeadLetter("a1.sources.s1", None, Event(b"x", {"grüße": "世" * 1_000_000}), "too large"),
]


@pytest.mark.parametrize("kind", ["file", "topic"])
def test_dead_letters_are_counted_and_shown_whole(kafka_cluster: KafkaCluster, tmp_path: Path, kind: str) -> None:
    file = tmp_path / "agent.conf"
    letters: FileDeadLetterStore | KafkaDeadLetterStore
    if kind == "topic":
        topic, servers = unique("dlq"), kafka_cluster.bootstrap_servers
        file.write_text(CONFIGURATION + "a1.sinks.k1.group = g\n" + kafka_channel(servers, topic))
        letters = KafkaDeadLetterStore(KafkaStream(servers, topic, topic), f"{topic}.deadletters", 3)
    else:
        file.write_text(CONFIGURATION + f"a1.channels.c1.type = memory\na1.deadletters.directory = {tmp_path}\n")
        letters = FileDeadLetterStore(tmp_path / "a1.c1.deadletters.jsonl")
    assert json.loads(agent_command("dlq", "list", "-c", str(file), "--json").stdout) == []
    letters.put(LETTERS)
    listed = json.loads(agent_command("dlq", "list", "-c", str(file), "--json").stdout)
    assert [(row["component"], row["reason"], row["events"]) for row in listed] == [
        ("a1.sinks.k1", "no such row", 2),
        ("a1.sources.s1", "too large", 1),
    ]
    shown = json.loads(agent_command("dlq", "show", "-c", str(file), "--json").stdout)
    assert [(letter["component"], letter["id"], letter["reason"], letter["headers"]) for letter in shown] == [
        (letter.component, letter.id and str(letter.id), letter.reason, letter.event.headers) for letter in LETTERS
    ]
    assert [base64.b64decode(letter["body"]) for letter in shown] == [letter.event.body for letter in LETTERS]
    output = agent_command("dlq", "show", "-c", str(file), "--component", "a1.sources.s1").stdout
    assert "too large" in output
    assert "no such row" not in output
