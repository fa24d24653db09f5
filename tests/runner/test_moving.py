"""When a sink's commit log moves, and when it is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from flafka.agent.runner.moving import CommitLogMove
from flafka.plugins import Assignment, Retry
from tests.fixtures.partitions import assignment

HERE, THERE = "hdfs:/new/.flafka", "hdfs:/old/.flafka"


class LoggingSink:
    """Has its commit log in the place that `log` names."""

    commit_log = HERE

    def __init__(self, log: str) -> None:
        self.log, self.moves = log, 0

    def commit_log_moved(self, committed: Assignment) -> bool:
        return committed.generation.commit_log != HERE

    def has_commit_log(self, committed: Assignment) -> bool:
        return self.log == HERE

    def move_commit_log(self, committed: Assignment) -> Assignment | None:
        if self.log == HERE:
            return None
        self.moves += 1
        self.log = HERE
        return committed.of(commit_log=HERE)


class KafkaGroup:
    """A group whose offset names a place, and its members."""

    kafka = property(lambda self: self)

    def __init__(self, log: str, members: Mapping[str, list[int]]) -> None:
        self.offset, self.readers = assignment("c", "t", "id", "g", 0, 0, commit_log=log, next_offset=5), members
        self.stored: list[Assignment] = []

    def committed(self, group: str | None) -> list[Assignment]:
        return [self.offset]

    def commit_offsets(self, assignments: list[Assignment]) -> None:
        self.stored += assignments

    def members(self, group: str | None) -> Mapping[str, list[int]]:
        return self.readers


def moved(move: CommitLogMove, sink: Any, group: Any, *, joins: bool = True) -> bool:
    return bool(move.make(sink, group, None, joins=joins))


def test_it_moves_at_a_start_while_nobody_reads_the_topic() -> None:
    assert moved(CommitLogMove(), LoggingSink(THERE), KafkaGroup(THERE, {}))
    assert moved(CommitLogMove(), LoggingSink(THERE), KafkaGroup(THERE, {"reads another topic": []}))


def test_a_driver_tells_the_group_of_the_new_place() -> None:
    group = KafkaGroup(THERE, {})
    assert moved(CommitLogMove(), LoggingSink(THERE), group, joins=False)
    assert [(one.generation.commit_log, one.next_offset) for one in group.stored] == [(HERE, 5)]


def test_it_is_refused_with_the_readers_names() -> None:
    sink = LoggingSink(THERE)
    with pytest.raises(Retry, match=r"^group g is read by h1, h2, and has its commit log in hdfs:/old/\.flafka"):
        moved(CommitLogMove(), sink, KafkaGroup(THERE, {"h2": [0], "h1": [1]}))
    assert not sink.moves


def test_a_driver_that_runs_does_not_move_it_later() -> None:
    move, sink = CommitLogMove(), LoggingSink(HERE)
    assert not moved(move, sink, KafkaGroup(HERE, {"h1": [0]}), joins=False)
    sink.log = THERE
    with pytest.raises(Retry, match=r"^group g has its commit log in hdfs:/old/\.flafka, not in hdfs:/new"):
        moved(move, sink, KafkaGroup(THERE, {}), joins=False)
    assert not sink.moves


def test_a_move_that_the_group_was_not_told_of_counts() -> None:
    assert not moved(CommitLogMove(), LoggingSink(HERE), KafkaGroup(THERE, {"h1": [0]}))
