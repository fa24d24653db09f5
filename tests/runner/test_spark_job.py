"""Results of a Spark task, and the driver's dead letters and commits."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from flafka.agent.options import AgentOptions
from flafka.agent.runner.commitlogmove import CommitLogMove
from flafka.agent.runner.committer import Committer
from flafka.agent.runner.deadletters.rejections import Rejections
from flafka.agent.runner.spark.job import KEPT_MICRO_BATCHES, EventsTask, PartitionTask, merge_events
from flafka.agent.runner.spark.query import Query, max_records, read_topic
from flafka.agent.testing import session
from flafka.agent.topology import ComponentSpec, Tolerance
from flafka.channels.kafka import KafkaChannelConfig
from flafka.interceptors.json import JsonConfig, JsonInterceptor
from flafka.plugins import Assignment, KafkaStream, Retry
from tests.runner.spark_jobs import ASSIGNMENT, PLACE, Recording, jobs, one_batch, records, run
from tests.runner.test_rejections import MemoryDeadLetters


class MadeAgain(Recording):
    """Channel whose topic has been recreated."""

    def confirm_topic_id(self, assignment: Assignment) -> None:
        raise Retry("topic t was deleted and created again")


def test_a_task_hands_dead_letters_to_the_driver() -> None:
    result = run(Tolerance(), b"1", b"bad", b"2")
    assert [(letter.event.body, letter.id, letter.arrival) for letter in result.dead_letters] == [
        (b"bad", (ASSIGNMENT.id_prefix, 0, 1, 0), 7)
    ]
    assert (result.offered, result.staged.receipt.events) == (3, 2)
    assert pickle.loads(pickle.dumps(result)) == result


def test_a_task_hands_rejections_of_interceptors_to_the_driver() -> None:
    job, sink = jobs(Tolerance())
    config, _ = JsonConfig.parse({"fields": "a", "onError": "reject"})
    assert config is not None
    json = ComponentSpec("i", "a.sinks.k.interceptors.i", JsonInterceptor, config, {}, PLACE)
    sink = replace(sink, sink=replace(sink.sink, interceptors=(json,)))
    result = PartitionTask(job, sink, {0: ASSIGNMENT}, ASSIGNMENT).run(iter([records(b'{"a": 1}', b"no", b"{}")]))
    assert result is not None
    assert [(letter.event.body, letter.id) for letter in result.dead_letters] == [
        (b"no", (ASSIGNMENT.id_prefix, 0, 1, 0))
    ]
    assert (result.offered, result.staged.receipt.events) == (3, 2)
    error_groups: list[Any] = []
    counted: list[Any] = []
    made: list[Any] = []
    events = EventsTask(
        job,
        sink,
        {0: ASSIGNMENT},
        ASSIGNMENT,
        counted.append,
        error_groups.append,
        made.append,
        keep_dead_letters=False,
    )
    batches = [*events(iter([records(b'{"a": 1}', b"no")]))]
    assert made == [{("", 0): {(0, 0): 1}}]
    assert [row["body"] for batch in batches for row in batch.to_pylist()] == [b'{"a": 1}']
    assert counted[0]["i"][0]["EventRejectedCount"] == 1


def test_events_of_a_micro_batch_count_once_and_are_forgotten_later() -> None:
    made = merge_events({}, {("q", 1): {(0, 5): 3}})
    made = merge_events(made, {("q", 1): {(1, 0): 4}})
    made = merge_events(made, {("q", 1): {(0, 5): 3}, ("other", 0): {(0, 5): 3}})  # a task that ran again
    assert made == {("q", 1): {(0, 5): 3, (1, 0): 4}, ("other", 0): {(0, 5): 3}}
    made = merge_events(made, {("q", 1 + KEPT_MICRO_BATCHES): {(0, 8): 1}})
    assert made == {("q", 1 + KEPT_MICRO_BATCHES): {(0, 8): 1}, ("other", 0): {(0, 5): 3}}


def test_a_task_whose_events_are_nearly_all_rejected_fails() -> None:
    with pytest.raises(Retry, match="paused: 600 of the latest 600 events"):
        run(Tolerance(), *[b"bad"] * 600)


def test_a_task_that_reads_a_recreated_topic_delivers_nothing() -> None:
    job, sink = jobs(Tolerance())
    sink = replace(sink, channel=replace(sink.channel, cls=MadeAgain))
    with pytest.raises(Retry, match="created again"):
        PartitionTask(job, sink, {0: ASSIGNMENT}, ASSIGNMENT).run(iter([records(b"1")]))
    task = EventsTask(job, sink, {0: ASSIGNMENT}, ASSIGNMENT, [].append, [].append, [].append, keep_dead_letters=True)
    with pytest.raises(Retry, match="created again"):
        next(task(iter([records(b"1")])))


def test_a_driver_whose_topic_was_recreated_commits_nothing() -> None:
    job, sink = jobs(tolerance := Tolerance())
    sink = replace(sink, channel=replace(sink.channel, cls=MadeAgain))
    query = Query(job, sink, Rejections(letters := MemoryDeadLetters(), tolerance), CommitLogMove())
    query.assignments = {0: ASSIGNMENT}
    with pytest.raises(Retry, match="created again"):
        one_batch(query, b"1", b"bad")
    assert not letters.kept
    assert not hasattr(query.channel, "stored")


def test_a_driver_takes_partitions_over_before_it_commits_for_them() -> None:
    job, sink = jobs(tolerance := Tolerance())
    query = Query(job, sink, Rejections(letters := MemoryDeadLetters(), tolerance), CommitLogMove())
    query.committing = query.sink  # as if it had its own commit log, which may have records of that partition
    with pytest.raises(Retry, match=r"partitions \[0\] are new"):
        one_batch(query, b"1", b"bad")
    assert not letters.kept
    assert not hasattr(query.channel, "stored")


class Joined(Recording):
    """Group that accepts no offsets while it has members."""

    members = 1

    def commit_offsets(self, assignments: Collection[Assignment]) -> None:
        if self.members:
            raise Retry("the group has members")
        super().commit_offsets(assignments)


class Ahead(Recording):
    """Group behind the sink's own commit log."""

    def committed(self, group: str | None) -> Sequence[Assignment]:
        return [ASSIGNMENT.with_offset(3)]


def test_an_offset_missing_in_the_group_is_committed_after_a_restart() -> None:
    job, sink = jobs(tolerance := Tolerance())
    sink = replace(sink, channel=replace(sink.channel, cls=Ahead))
    query = Query(job, sink, Rejections(MemoryDeadLetters(), tolerance), CommitLogMove())
    logged: Any = SimpleNamespace(resume=lambda committed: committed.with_offset(5))
    query.committer = Committer(logged, None, logging.getLogger())
    query._resume()
    assert isinstance(query.channel, Ahead)
    assert query.channel.stored == {0: 5}


def test_offsets_refused_while_a_group_has_members_are_committed_after_they_leave() -> None:
    job, sink = jobs(tolerance := Tolerance())
    sink = replace(sink, channel=replace(sink.channel, cls=Joined))
    query = Query(job, sink, Rejections(MemoryDeadLetters(), tolerance), CommitLogMove())
    assert isinstance(query.channel, Joined)
    query.assignments = {0: ASSIGNMENT}
    one_batch(query, b"1", b"2")
    query.on_idle("a.sinks.k")
    query.channel.members = 0
    query.on_idle("a.sinks.k")
    assert query.channel.stored == {0: 2}
    query.channel.stored = {}
    query.on_idle("a.sinks.k")
    assert query.channel.stored == {}


def test_records_of_one_event_are_read_in_larger_numbers() -> None:
    _, sink = jobs(Tolerance())
    flume, _ = KafkaChannelConfig.parse({"kafka.bootstrap.servers": "127.0.0.1:1", "format": "flume"})
    assert flume is not None
    single = replace(sink.channel, config=flume)
    assert (max_records(sink.channel.make(), AgentOptions()), max_records(single.make(), AgentOptions())) == (
        "20000",
        "500000",
    )
    assert max_records(single.make(), AgentOptions(spark_max_records=7)) == "7"


@pytest.mark.usefixtures("spark_session")
def test_consumer_properties_that_spark_refuses_are_omitted() -> None:
    usual = (
        "auto.offset.reset",
        "enable.auto.commit",
        "value.deserializer",
        "interceptor.classes",
        "max.poll.records",
    )
    stream = KafkaStream("127.0.0.1:1", "t", "g", client=dict.fromkeys(usual, "5"))
    frame = read_topic(session(), stream, {0: None}, "5")
    assert frame.columns == ["partition", "offset", "timestamp", "key", "value", "headers"]


def test_the_driver_stores_dead_letters_before_it_commits_and_pauses_across_micro_batches() -> None:
    job, sink = jobs(tolerance := Tolerance())
    letters = MemoryDeadLetters()
    rejections = Rejections(letters, tolerance)

    def commit(*bodies: bytes) -> Mapping[int, int | None]:
        """Commit one micro-batch, on a query of its own, as after a failure."""
        query = Query(job, sink, rejections, CommitLogMove())
        query.assignments = {0: ASSIGNMENT}
        one_batch(query, *bodies)
        assert isinstance(query.channel, Recording)
        return query.channel.stored

    assert commit(b"1", b"bad") == {0: 2}
    assert len(letters.kept) == 1
    commit(*[b"bad"] * 300)
    for _ in range(3):
        with pytest.raises(Retry, match="paused: 501 of the latest 502"):
            commit(*[b"bad"] * 200)
    assert len(letters.kept) == 301
    commit(*[b"mended"] * 200)
    assert not rejections.paused
