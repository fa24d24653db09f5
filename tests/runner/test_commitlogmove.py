"""Moves and refused moves of a sink's commit log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from flafka.agent.runner.commitlogmove import CommitLogMove
from flafka.plugins import Assignment, Retry
from tests.fixtures.partitions import assignment

HERE, THERE = "hdfs:/new/.flafka", "hdfs:/old/.flafka"


class LoggingSink:
    """Sink whose commit log is at `log`."""

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
        return committed.replace(commit_log=HERE)


class KafkaGroup:
    """Group whose offset names a commit-log location, and its members."""

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


def test_a_commit_log_moves_at_a_start_without_group_members() -> None:
    assert moved(CommitLogMove(), LoggingSink(THERE), KafkaGroup(THERE, {}))
    assert moved(CommitLogMove(), LoggingSink(THERE), KafkaGroup(THERE, {"reads another topic": []}))


def test_a_driver_commits_the_new_location_to_the_group() -> None:
    group = KafkaGroup(THERE, {})
    assert moved(CommitLogMove(), LoggingSink(THERE), group, joins=False)
    assert [(assignment.generation.commit_log, assignment.next_offset) for assignment in group.stored] == [(HERE, 5)]


def test_a_move_is_refused_with_the_names_of_group_members() -> None:
    sink = LoggingSink(THERE)
    with pytest.raises(Retry, match=r"^group g is read by h1, h2, and has its commit log in hdfs:/old/\.flafka"):
        moved(CommitLogMove(), sink, KafkaGroup(THERE, {"h2": [0], "h1": [1]}))
    assert not sink.moves


def test_a_running_driver_does_not_move_the_log_later() -> None:
    move, sink = CommitLogMove(), LoggingSink(HERE)
    assert not moved(move, sink, KafkaGroup(HERE, {"h1": [0]}), joins=False)
    sink.log = THERE
    with pytest.raises(Retry, match=r"^group g has its commit log in hdfs:/old/\.flafka, not in hdfs:/new"):
        moved(move, sink, KafkaGroup(THERE, {}), joins=False)
    assert not sink.moves


def test_a_move_without_the_commit_to_the_group_counts() -> None:
    assert not moved(CommitLogMove(), LoggingSink(HERE), KafkaGroup(THERE, {"h1": [0]}))
