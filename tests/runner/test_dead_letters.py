"""Dead letters: their names, and how they are stored and read."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from flafka.agent.config import load
from flafka.agent.runner.deadletters import reading
from flafka.agent.runner.deadletters.reading import OwnedDeadLetters, StoredDeadLetter, read_dead_letters
from flafka.agent.runner.deadletters.store import (
    FileDeadLetterStore,
    KafkaDeadLetterStore,
    dead_letter_store,
    rejected_dead_letters,
    undecodable_dead_letters,
)
from flafka.plugins import (
    Assignment,
    Batch,
    Components,
    Event,
    EventId,
    FlafkaError,
    KafkaStream,
    OffsetRange,
    Origin,
    PolledBatch,
    Record,
    Retry,
    UndecodableRecord,
)
from tests.fixtures.partitions import assignment

ASSIGNMENT = assignment("cluster", "t", "id", "group", 0, 3)


def polled(of: Assignment = ASSIGNMENT) -> PolledBatch:
    """Return three events, and a record that is none."""
    batch = Batch.of([Event(b"%d" % n) for n in range(3)], Origin.of_record("t", 3, 7, 99, 3, of.id_prefix))
    broken = UndecodableRecord(EventId(of.id_prefix, 3, 8, 0), Record(8, 99, b"k", b"?", []), "no event")
    return PolledBatch(of, OffsetRange(7, 9), batch, (broken,))


def names(path: str, polled_batch: PolledBatch) -> list[str]:
    letters = rejected_dead_letters(path, dict.fromkeys(polled_batch.batch.ids(), "why"), polled_batch)
    return [letter.name for letter in (*letters, *undecodable_dead_letters(path, polled_batch))]


def test_a_dead_letter_has_one_id_for_all_attempts_of_a_delivery() -> None:
    first = names("a.sinks.k", polled())
    assert len(set(first)) == 4
    moved = ASSIGNMENT.replace(commit_log="hdfs:/logs/.flafka").with_offset(7)
    assert names("a.sinks.k", polled(moved)) == first


def test_another_delivery_makes_another_dead_letter() -> None:
    redelivered = polled()
    redelivered = replace(
        redelivered, replays=dict.fromkeys((*redelivered.batch.ids(), redelivered.undecodable[0].id), 20)
    )
    deliveries = [
        names("a.sinks.k", polled()),
        names("a.sinks.other", polled()),
        names("a.sinks.k", polled(ASSIGNMENT.replace(group="other"))),
        names("a.sinks.k", polled(ASSIGNMENT.replace(epoch=1))),
        names("a.sinks.k", redelivered),
    ]
    assert len({name for delivery in deliveries for name in delivery}) == 5 * 4


def test_a_dead_letter_stored_twice_is_read_once(tmp_path: Path) -> None:
    letters = FileDeadLetterStore(tmp_path / "a.c.deadletters.jsonl")
    first, second = rejected_dead_letters("a.sinks.k", dict.fromkeys(polled().batch.ids()[:2], "why"), polled())
    letters.put([first])
    letters.put([first, second])
    letters.mark_replayed([first.name])
    assert [(kept.name, kept.event.body, kept.replayed) for kept in read_dead_letters(letters)] == [
        (first.name, b"0", True),
        (second.name, b"1", False),
    ]


def test_one_replay_at_a_time_owns_a_file_of_dead_letters(tmp_path: Path) -> None:
    path = tmp_path / "a.c.deadletters.jsonl"
    holder = f"process {os.getpid()} is replaying the dead letters of {path}: wait for its end"
    with (
        FileDeadLetterStore(path).replay_lock(),
        pytest.raises(Retry, match=holder),
        FileDeadLetterStore(path).replay_lock(),
    ):
        pass
    with FileDeadLetterStore(path).replay_lock():
        pass


def test_a_replay_that_cannot_lock_its_file_names_the_lock(tmp_path: Path) -> None:
    lock = tmp_path / "a1.c1.deadletters.replay.lock"
    lock.mkdir()  # a directory cannot be opened, like another user's file
    letters = FileDeadLetterStore(tmp_path / "a1.c1.deadletters.jsonl")
    with pytest.raises(Retry, match=f"{lock}: Is a directory"), letters.replay_lock():
        pass


def test_dead_letters_in_a_topic_belong_to_the_sink_of_their_group(tmp_path: Path) -> None:
    """A second configuration on the same topic has a sink of the same name, in its own group."""
    conf = tmp_path / "agent.conf"
    conf.write_text(
        "a1.channels = c1\na1.sinks = k1 k2\na1.channels.c1.type = kafka\na1.channels.c1.kafka.topic = t\n"
        "a1.channels.c1.kafka.bootstrap.servers = 127.0.0.1:1\na1.channels.c1.kafka.consumer.group.id = ours\n"
        "a1.sinks.k1.type = null\na1.sinks.k1.channel = c1\n"
        "a1.sinks.k2.type = null\na1.sinks.k2.channel = c1\na1.sinks.k2.group = more\n"
    )
    spec, diagnostics = load(conf, components=Components())
    assert spec is not None, diagnostics
    (channel,) = spec.channels
    letters = dead_letter_store(spec.name, channel, channel.make(), spec.options, spec.file)

    def kept(sink: str, group: str) -> StoredDeadLetter:
        return StoredDeadLetter("n", 0, f"a1.sinks.{sink}", None, "why", Event(b""), 0, False, False, group)

    owned = OwnedDeadLetters(spec, channel, letters, None)
    ours = [("k1", "ours"), ("k1", "ours.replay.a1.sinks.k1.1-2"), ("k2", "more"), ("gone", "theirs")]
    theirs = [("k1", "theirs"), ("k1", ""), ("k2", "ours"), ("k1", "ours-too")]
    assert [kept(*letter) in owned for letter in ours + theirs] == [True] * len(ours) + [False] * len(theirs)
    asked = OwnedDeadLetters(spec, channel, letters, "theirs")
    assert [kept(*letter) in asked for letter in [*ours[:2], *theirs[:1]]] == [False, False, True]


# --- versions

ADVICE = "holds a dead letter of version 2, and this agent reads version 1: deliver or replay it with the agent"


def test_dead_letters_of_another_version_in_a_file_are_refused_with_advice(tmp_path: Path) -> None:
    path = tmp_path / "a1.c1.deadletters.jsonl"
    path.write_text('{"version": 2, "letter": "abab"}\n')
    with pytest.raises(FlafkaError, match=f"^{path} {ADVICE} that wrote it$"):
        list(read_dead_letters(FileDeadLetterStore(path)))


@pytest.mark.parametrize("header", ["flafka.deadletter", "flafka.replayed"])
def test_dead_letters_of_another_version_in_a_topic_are_refused_with_advice(
    header: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters = KafkaDeadLetterStore(KafkaStream("", "t", "g"), "t.deadletters", 3)
    monkeypatch.setattr(reading, "read_records", lambda stream, topic: iter([(0, {header: b"2"}, b"[]")]))
    with pytest.raises(FlafkaError, match=rf"^topic t\.deadletters {ADVICE} that wrote it$"):
        list(read_dead_letters(letters))
