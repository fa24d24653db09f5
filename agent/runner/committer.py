"""Commit protocol of sinks, on threads of the agent and on Spark.

Order of the steps:

1. Stage the events: durable, and not visible yet.
2. Store the dead letters.
3. Report to the audit.
4. Commit the sink, if it has a commit log.
5. Commit the offset of the channel's consumer group.

After a failure, delivery starts over at the last commit.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import NamedTuple, Protocol

from flafka.agent.audit.publishing import Audit
from flafka.agent.audit.sums import Minutes
from flafka.plugins import Assignment, CommittingSink, Conflict, NotCommitted, OutcomeUnknown, Receipt


class CommitStep(Enum):
    """Latest step of the current commit that is done."""

    STAGED = "staged"
    DEAD_LETTERS_STORED = "dead letters stored"
    AUDITED = "audit reported"
    COMMITTED = "committed by the sink"
    OFFSET_STORED = "offset of the group stored"


class CommitState(Enum):
    """Outcome of one commit."""

    COMMITTED = "committed"
    OVERTAKEN = "overtaken"
    """State of a commit that another owner of the partition preceded: nothing of it is visible."""
    UNKNOWN = "unknown"
    """State of a commit that the store has not answered: `Committer.resume` finds out its outcome."""


class CommitOutcome(NamedTuple):
    """State of one commit, with the reason if it is not committed."""

    state: CommitState
    reason: Conflict | None = None


class StagedRange(NamedTuple):
    """Records of one partition whose events are staged, and not committed yet. Picklable."""

    receipt: Receipt
    minutes: Minutes
    """Sums of the events by minute, for the audit."""


class OffsetStore(Protocol):
    """Committed offsets of the channel's consumer group. Called by the thread that commits."""

    def verify(self, staged: Sequence[StagedRange]) -> None:
        """Raise Conflict if the group was reset or the topic was recreated since these ranges were taken.

        An implementation for members of the group does nothing, as brokers accept only offsets of present members.
        """

    def store(self, committed: Collection[Assignment]) -> None:
        """Commit the `next_offset` of these assignments for the group, together.

        Raises Retry, after which nothing may be assumed. Raises Conflict, only without membership, if the group was
        reset.
        """


class Committer:
    """Commit protocol of one sink, or of the sinks without a commit log on one reader.

    Used by one thread, except for the offsets that are to be stored: `committed`, `unstored`, `store_offsets` and
    `forget` are thread-safe.
    """

    def __init__(self, sink: CommittingSink | None, audit: Audit | None, log: logging.Logger) -> None:
        """`sink` is None for sinks without a commit log, whose flushed events are committed with the offset.

        `audit` is None for a channel without an audit. `log` gets the step of a failed commit, at DEBUG.
        """
        self._sink, self._audit, self._log, self._reader_id = sink, audit, log, uuid.uuid4().hex[:8]
        self._lock = threading.Lock()
        self._unstored: dict[int, Assignment] = {}
        self.step = CommitStep.OFFSET_STORED

    def resume(self, committed: Assignment) -> Assignment:
        """Fence earlier owners of a partition, and return the assignment with the offset at which delivery resumes.

        The sink's commit log decides if there is one, otherwise the group's offset in `committed`. An offset of the
        partition that is not stored yet is forgotten. Raises the errors of the sink.
        """
        self.forget({committed.partition})
        return committed.replace(commit_log="") if self._sink is None else self._sink.resume(committed)

    def prepare(
        self, staged: Sequence[StagedRange], offsets: OffsetStore, store_dead_letters: Callable[[], None]
    ) -> None:
        """Do the steps between staging and commit: verify the group, store the dead letters, and report to the audit.

        Raises Conflict if the group was reset or the topic recreated, and the errors of the dead letter store and the
        audit.
        """
        self.step = CommitStep.STAGED
        with self._failure_logged():
            if staged:
                offsets.verify(staged)
            store_dead_letters()
            self.step = CommitStep.DEAD_LETTERS_STORED
            if self._audit is not None:
                self._audit.taken(
                    ((staged_range.receipt, staged_range.minutes) for staged_range in staged), self._reader_id
                )
            self.step = CommitStep.AUDITED

    def commit(self, staged: StagedRange) -> CommitOutcome:
        """Make one staged range visible through the sink's commit log, and keep its offset for `store_offsets`.

        Return COMMITTED; OVERTAKEN if another owner of the partition was first; UNKNOWN if the store does not answer.
        Without a commit log there is nothing to do but to keep the offset. Raises NotCommitted if the sink knows that
        nothing was committed, which is also withdrawn from the audit, and the sink's other errors.
        """
        receipt = staged.receipt
        if self._sink is not None:
            try:
                with self._failure_logged():
                    self._sink.commit(receipt)
            except NotCommitted:
                if self._audit is not None:
                    self._audit.withdraw(receipt, self._reader_id)
                raise
            except OutcomeUnknown as e:
                return CommitOutcome(CommitState.UNKNOWN, e)
            except Conflict as e:
                return CommitOutcome(CommitState.OVERTAKEN, e)
        self.step = CommitStep.COMMITTED
        self.committed(receipt.assignment.with_offset(receipt.offsets.end, receipt.last_record))
        return CommitOutcome(CommitState.COMMITTED)

    def committed(self, assignment: Assignment) -> None:
        """Keep `next_offset` of this assignment, which ends a committed range, for the next call of `store_offsets`.

        A later offset of the same partition replaces an earlier one.
        """
        with self._lock:
            self._unstored[assignment.partition] = assignment

    @property
    def unstored(self) -> frozenset[int]:
        """Partitions with a committed range whose offset is not stored yet."""
        with self._lock:
            return frozenset(self._unstored)

    def store_offsets(self, offsets: OffsetStore) -> None:
        """Store the kept offsets of committed ranges in `offsets`, and forget them. No-op without kept offsets.

        If `offsets` raises, the error is passed on, and the offsets are kept for the next call.
        """
        with self._lock:
            unstored = dict(self._unstored)
        if not unstored:
            return
        with self._failure_logged():
            offsets.store(unstored.values())
        with self._lock:
            for partition, stored in unstored.items():
                if self._unstored.get(partition) is stored:
                    del self._unstored[partition]
        self.step = CommitStep.OFFSET_STORED

    @contextmanager
    def _failure_logged(self) -> Iterator[None]:
        """Log the latest completed step at DEBUG if the block raises, and pass the error on."""
        try:
            yield
        except BaseException:
            self._log.debug("the commit fails after the step: %s", self.step.value)
            raise

    def forget(self, partitions: Collection[int] | None = None) -> None:
        """Discard the kept offsets of these partitions, or of all partitions for None.

        Another owner or generation has the partitions by now.
        """
        with self._lock:
            for partition in list(self._unstored) if partitions is None else partitions:
                self._unstored.pop(partition, None)
