"""Query on Spark that is stopped, or whose group, topic, records or clock change."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from flafka.agent.runner.commitlogmove import CommitLogMove
from flafka.agent.runner.deadletters.rejections import Rejections
from flafka.agent.runner.spark import query as query_module
from flafka.agent.runner.spark.query import ClockMonitor, Query
from flafka.agent.topology import Tolerance
from flafka.plugins import Assignment, Conflict, FlafkaError, Retry
from flafka.plugins.kafka.offsets import out_of_range_errors
from tests.runner.spark_jobs import ASSIGNMENT, Recording, jobs, one_batch
from tests.runner.test_rejections import MemoryDeadLetters


class Busy:
    """Query that always begins the next micro-batch at once."""

    status = MappingProxyType({"isTriggerActive": True})

    def __init__(self, query: Query) -> None:
        self.query, self.batches, self.stopped = query, 0, False

    def awaitTermination(self, _: float) -> bool:
        assert self.batches < 3, "not stopped"
        self.query._commit(SimpleNamespace(collect=list), self.batches)
        self.batches += 1
        return False

    def stop(self) -> None:
        self.stopped = True


class Away(Recording):
    """Channel that never contacts a broker."""

    def open(self) -> None:
        pass

    def committed(self, group: str | None) -> Sequence[Assignment]:
        return [ASSIGNMENT]


def test_a_query_that_lags_ends_after_the_present_micro_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    job, sink = jobs(tolerance := Tolerance())
    sink = replace(sink, channel=replace(sink.channel, cls=Away))
    query = Query(job, sink, Rejections(MemoryDeadLetters(), tolerance), CommitLogMove())
    busy, stopping = Busy(query), threading.Event()
    monkeypatch.setattr(query, "_start", lambda *_: busy)
    stopping.set()
    query.run(None, stopping)
    assert (busy.batches, busy.stopped) == (1, True)
    assert isinstance(query.channel, Away)
    assert query.channel.stored == {0: 0}, "whoever has it next does not know what this sink took over"


class Overtaken(Recording):
    """Channel whose group has another committed offset by now."""

    current = ASSIGNMENT
    ranges: tuple[int, int] = (0, 9)

    def open(self) -> None:
        pass

    def committed(self, group: str | None) -> Sequence[Assignment]:
        return [self.current.with_offset(3)]

    def beginning_offsets(self) -> Mapping[int, int]:
        return {0: self.ranges[0]}

    def blocking_errors(self, group: str | None, starts: Any = None) -> Any:
        return [*out_of_range_errors(starts or (), {0: self.ranges}).values()]


def overtaken(**changes: Any) -> tuple[Query, Overtaken]:
    """Return a query with partition 0, at 3 of 9, and its channel, whose group has that offset."""
    job, sink = jobs(tolerance := Tolerance())
    sink = replace(sink, channel=replace(sink.channel, cls=Overtaken))
    query = Query(job, sink, Rejections(MemoryDeadLetters(), tolerance), CommitLogMove())
    query.assignments = {0: ASSIGNMENT.replace(commit_log="hdfs:/a").with_offset(3)}
    source = SimpleNamespace(endOffset='{"t": {"0": 3}}', latestOffset='{"t": {"0": 9}}')
    query.on_progress(SimpleNamespace(batchDuration=1, processedRowsPerSecond=1, sources=[source], stateOperators=[]))
    assert isinstance(query.channel, Overtaken)
    query.channel.current = ASSIGNMENT.replace(**changes)
    return query, query.channel


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"epoch": 1}, "group g was reset"),
        ({"commit_log": "hdfs:/b"}, "another sink of group g commits t-0, below hdfs:/b"),
        ({"topic_id": "j"}, "6 records that the old one held at the latest check are lost$"),
    ],
)
def test_a_driver_with_a_stale_offset_commits_nothing(found: dict[str, Any], message: str) -> None:
    query, channel = overtaken(**found)
    query.committing = SimpleNamespace(commit=None)
    with pytest.raises(Conflict, match=message):
        one_batch(query, b"1")
    assert not hasattr(channel, "stored")


def test_a_query_with_a_stale_offset_while_idle_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    query, channel = overtaken()
    monkeypatch.setattr(query, "_start", lambda *_: Idle(channel))
    monkeypatch.setattr(query_module, "CHECK_SECONDS", 0.0)
    with pytest.raises(Conflict, match="group g was reset"):
        query.run(None, threading.Event())


class Idle:
    """Query without new records, during which somebody resets the group."""

    status = MappingProxyType({"isTriggerActive": False})

    def __init__(self, channel: Overtaken) -> None:
        self.channel = channel

    def awaitTermination(self, _: float) -> bool:
        self.channel.current = ASSIGNMENT.replace(epoch=1)
        time.sleep(0.01)
        return False

    def stop(self) -> None:
        pass


@pytest.mark.parametrize("answer", [None, Retry("the group has members")])
def test_an_offset_of_an_earlier_epoch_is_overwritten_by_that_of_the_query(
    answer: Retry | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, channel = overtaken()
    query.assignments = {0: ASSIGNMENT.replace(epoch=2).with_offset(3)}
    restored = []

    def restore(assignments: Collection[Assignment]) -> None:
        restored.append(
            [
                (assignment.partition, assignment.generation.epoch, assignment.next_offset)
                for assignment in assignments
            ]
        )
        if answer is not None:
            raise answer

    monkeypatch.setattr(channel, "restore_offsets", restore)
    query._check_ownership()
    assert restored == [[(0, 2, 3)]]
    channel.current = query.assignments[0]
    query._check_ownership()
    assert len(restored) == 1


def test_a_query_that_spark_ends_reports_the_cause(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    query, channel = overtaken()

    def end(*_: Any) -> None:
        channel.current = ASSIGNMENT.replace(topic_id="j")
        raise RuntimeError("KAFKA_DATA_LOSS")

    monkeypatch.setattr(query, "_start", end)
    with pytest.raises(Conflict, match="topic t was deleted and recreated"):
        query.run(None, threading.Event())
    assert '"TopicRecreatedCount": 1, "RecordLostCount": 6' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        (
            (5, 9),
            r"committed offset 3 of t-0, .* records 3 to 4, 2 in all, were removed .*--topic t:0 --to earliest",
        ),
        ((0, 2), r"committed offset 3 of t-0, .* t-0 ended at 2: the brokers lost .* --topic t:0 --to 2 --new-ids"),
    ],
)
def test_records_missing_at_the_brokers_are_named_with_advice(
    ranges: tuple[int, int], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, channel = overtaken()

    def end(*_: Any) -> None:
        channel.ranges = ranges
        raise RuntimeError("KAFKA_DATA_LOSS")

    monkeypatch.setattr(query, "_start", end)
    with pytest.raises(FlafkaError, match=message):
        query.run(None, threading.Event())


def test_a_clock_that_is_set_back_ends_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, real = ClockMonitor(), time.time
    clock.check()
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    clock.check()
    monkeypatch.setattr(time, "time", lambda: real() - 3600)
    with pytest.raises(Retry, match="set back by 3600 s"):
        clock.check()
