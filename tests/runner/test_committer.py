"""Commit protocol: the order of its steps, and the state after a failed step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import pytest

from flafka.agent.audit.sums import Minutes, Sum
from flafka.agent.runner.committer import CommitState, CommitStep, Committer, StagedRange
from flafka.plugins import Assignment, Conflict, LastRecord, NotCommitted, OffsetRange, OutcomeUnknown, Receipt, Retry
from tests.fixtures.partitions import assignment

LAST = LastRecord(7, 3)


def staged(partition: int = 0, start: int = 5, end: int = 8) -> StagedRange:
    owned = assignment("cluster", "t", "id", "g", 1, partition, commit_log="hdfs:/old", next_offset=start)
    return StagedRange(Receipt(owned, OffsetRange(start, end), 3, None, LAST), {0: Sum(3, 1)})


class Scene:
    """Committer between a sink, an audit, and stores of dead letters and offsets, which record their calls."""

    def __init__(self, *, logs: bool = True) -> None:
        self.calls: list[str] = []
        self.failures: dict[str, Exception] = {}
        """Exception by call."""
        self.offsets: dict[int, int | None] = {}
        self.last_records: dict[int, LastRecord] = {}
        self.during_store: Callable[[], None] = lambda: None
        fake: Any = self
        self.committer = Committer(fake if logs else None, fake, logging.getLogger())

    def called(self, name: str) -> None:
        self.calls.append(name)
        if name in self.failures:
            raise self.failures[name]

    # --- sink

    def resume(self, committed: Assignment) -> Assignment:
        self.called("resume")
        return committed.replace(epoch=2, commit_log="hdfs:/new").with_offset(9)

    def commit(self, receipt: Receipt) -> None:
        self.called("commit")

    # --- audit

    def taken(self, ranges: Iterable[tuple[Receipt, Minutes]], by: str) -> None:
        self.called(f"audit {sum(minutes[0].events for _, minutes in ranges)}")

    def withdraw(self, receipt: Receipt, by: str) -> None:
        self.called(f"withdraw {receipt.offsets.start}")

    # --- OffsetStore

    def verify(self, ranges: Sequence[StagedRange]) -> None:
        self.called("verify")

    def store(self, committed: Collection[Assignment]) -> None:
        self.called("store")
        self.offsets |= {assignment.partition: assignment.next_offset for assignment in committed}
        self.last_records |= {assignment.partition: assignment.last_record for assignment in committed}
        self.during_store()

    # --- the runner

    def prepare(self, *ranges: StagedRange) -> CommitStep:
        self.committer.prepare(ranges, self, lambda: self.called("dead letters"))
        return self.committer.step


def test_each_step_follows_its_prerequisites() -> None:
    scene = Scene()
    committer = scene.committer
    assert scene.prepare(staged(0), staged(1)) is CommitStep.AUDITED
    assert scene.calls == ["verify", "dead letters", "audit 6"]
    assert committer.commit(staged(0)).state is CommitState.COMMITTED
    assert (committer.step, committer.unstored) == (CommitStep.COMMITTED, {0})
    committer.commit(staged(1))
    committer.store_offsets(scene)
    assert (committer.step, committer.unstored) == (CommitStep.OFFSET_STORED, frozenset())
    assert scene.calls[3:] == ["commit", "commit", "store"]
    assert (scene.offsets, scene.last_records) == ({0: 8, 1: 8}, {0: LAST, 1: LAST})


@pytest.mark.parametrize(
    ("fails", "calls", "step"),
    [
        ("verify", ["verify"], CommitStep.STAGED),
        ("dead letters", ["verify", "dead letters"], CommitStep.STAGED),
        ("audit 3", ["verify", "dead letters", "audit 3"], CommitStep.DEAD_LETTERS_STORED),
    ],
)
def test_a_failed_step_is_the_last_one(
    fails: str, calls: list[str], step: CommitStep, caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene()
    scene.failures[fails] = Retry("away")
    with caplog.at_level(logging.DEBUG), pytest.raises(Retry, match="away"):
        scene.prepare(staged())
    assert (scene.calls, scene.committer.step) == (calls, step)
    assert caplog.messages == [f"the commit fails after the step: {step.value}"]


def test_dead_letters_are_stored_without_other_commits() -> None:
    scene = Scene()
    scene.prepare()
    assert scene.calls[:1] == ["dead letters"], "and no group is looked at"


def test_a_failed_commit_is_withdrawn_from_the_audit() -> None:
    scene = Scene()
    scene.failures["commit"] = NotCommitted("refused")
    with pytest.raises(NotCommitted):
        scene.committer.commit(staged())
    assert scene.calls == ["commit", "withdraw 5"]
    assert not scene.committer.unstored


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (Conflict("another was faster"), CommitState.OVERTAKEN),
        (OutcomeUnknown("no answer"), CommitState.UNKNOWN),
    ],
)
def test_a_commit_that_conflicts_with_another_owner_stores_no_offset(error: Conflict, state: CommitState) -> None:
    scene = Scene()
    scene.failures["commit"] = error
    assert scene.committer.commit(staged()) == (state, error)
    scene.committer.store_offsets(scene)
    assert scene.calls == ["commit"], "the audit keeps its report: what is resumed makes another one"


def test_offsets_that_could_not_be_stored_go_with_the_next_ones() -> None:
    scene = Scene(logs=False)
    committer = scene.committer
    committer.commit(staged(0))
    scene.failures["store"] = Retry("the group has members")
    for _ in range(2):
        with pytest.raises(Retry):
            committer.store_offsets(scene)
    assert (committer.step, committer.unstored) == (CommitStep.COMMITTED, {0})
    scene.failures.clear()
    committer.commit(staged(1))
    committer.store_offsets(scene)
    assert scene.offsets == {0: 8, 1: 8}
    scene.calls.clear()
    committer.store_offsets(scene)
    assert scene.calls == [], "they are stored once"


def test_an_offset_that_arrives_while_others_are_stored_goes_with_the_next_ones() -> None:
    scene = Scene(logs=False)
    scene.committer.commit(staged())
    scene.during_store = lambda: scene.committer.committed(staged().receipt.assignment.with_offset(11))
    scene.committer.store_offsets(scene)
    assert (scene.offsets, scene.committer.unstored) == ({0: 8}, {0})


@pytest.mark.parametrize(("partitions", "left"), [({0}, {1}), ({0, 2}, {1}), (None, set())])
def test_offsets_of_partitions_that_others_own_are_forgotten(partitions: set[int] | None, left: set[int]) -> None:
    committer = Scene(logs=False).committer
    committer.commit(staged(0))
    committer.commit(staged(1))
    committer.forget(partitions)
    assert committer.unstored == left


@pytest.mark.parametrize(
    ("logs", "commit_log", "next_offset"), [(True, "hdfs:/new", 9), (False, "", 5)], ids=["commit log", "none"]
)
def test_a_partition_is_resumed_by_the_commit_log_if_present(logs: bool, commit_log: str, next_offset: int) -> None:
    scene = Scene(logs=logs)
    scene.committer.commit(staged())
    start = scene.committer.resume(staged().receipt.assignment)
    assert (start.generation.commit_log, start.next_offset) == (commit_log, next_offset)
    assert not scene.committer.unstored, "what was committed before is in the answer"
