"""The commit protocol of both runners.

The order is: events durable and invisible (staged), dead letters stored, audit reported, commit of a sink that has a
commit log, the offset of the channel's group. Whatever is interrupted is done again from the last commit.
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
    """The last step that is done of the commit at hand."""

    STAGED = "staged"
    DEAD_LETTERS_STORED = "dead letters stored"
    AUDITED = "audit reported"
    COMMITTED = "committed by the sink"
    OFFSET_STORED = "offset of the group stored"


class CommitState(Enum):
    """Outcome of one commit."""

    COMMITTED = "committed"
    OVERTAKEN = "overtaken"
    """State of a commit that another owner was faster than: nothing of it is visible."""
    UNKNOWN = "unknown"
    """State of a commit of which the store did not say anything: `Committer.resume` finds out."""


class CommitOutcome(NamedTuple):
    """State of one commit, with the reason where it is not committed."""

    state: CommitState
    reason: Conflict | None = None


class StagedRange(NamedTuple):
    """Records of one partition whose events are durable, and not committed. Picklable."""

    receipt: Receipt
    minutes: Minutes
    """Sums of its events, for the audit."""


class OffsetStore(Protocol):
    """Offsets of the channel's group. Called by the thread that commits."""

    def verify(self, staged: Sequence[StagedRange]) -> None:
        """Raise Conflict if the group was reset or the topic created again. A member of the group need not look."""

    def store(self, committed: Collection[Assignment]) -> None:
        """Commit these offsets. Raises Retry, and Conflict without membership."""


class Committer:
    """Commits of one sink, or of the simple sinks on one reader."""

    def __init__(self, sink: CommittingSink | None, audit: Audit | None, log: logging.Logger) -> None:
        """`sink` is None for sinks without a commit log: what they have flushed is committed with the offset."""
        self._sink, self._audit, self._log, self._by = sink, audit, log, uuid.uuid4().hex[:8]
        self._lock = threading.Lock()
        self._unstored: dict[int, Assignment] = {}
        self.step = CommitStep.OFFSET_STORED

    def resume(self, committed: Assignment) -> Assignment:
        """Return where a partition begins, by the sink's commit log if it has one, given the group's offset.

        Whoever had it before can commit no more. Raises what the sink raises.
        """
        self.forget({committed.partition})
        return committed.of(commit_log="") if self._sink is None else self._sink.resume(committed)

    def prepare(
        self, staged: Sequence[StagedRange], offsets: OffsetStore, store_dead_letters: Callable[[], None]
    ) -> None:
        """Do all that comes before the commits of these ranges. Raises Conflict, and what the stores raise."""
        self.step = CommitStep.STAGED
        with self._failure_logged():
            if staged:
                offsets.verify(staged)
            store_dead_letters()
            self.step = CommitStep.DEAD_LETTERS_STORED
            if self._audit is not None:
                self._audit.taken(((one.receipt, one.minutes) for one in staged), self._by)
            self.step = CommitStep.AUDITED

    def commit(self, staged: StagedRange) -> CommitOutcome:
        """Make one range visible; its offset is to be stored then. Raises Retry: the next call finds out."""
        receipt = staged.receipt
        if self._sink is not None:
            try:
                with self._failure_logged():
                    self._sink.commit(receipt)
            except NotCommitted:
                if self._audit is not None:
                    self._audit.withdraw(receipt, self._by)
                raise
            except OutcomeUnknown as e:
                return CommitOutcome(CommitState.UNKNOWN, e)
            except Conflict as e:
                return CommitOutcome(CommitState.OVERTAKEN, e)
        self.step = CommitStep.COMMITTED
        self.committed(receipt.assignment.at(receipt.offsets.end, receipt.last_record))
        return CommitOutcome(CommitState.COMMITTED)

    def committed(self, assignment: Assignment) -> None:
        """Have the offset of what is committed stored with the next ones."""
        with self._lock:
            self._unstored[assignment.partition] = assignment

    @property
    def unstored(self) -> frozenset[int]:
        """Partitions of which something is committed and its offset is not stored yet."""
        with self._lock:
            return frozenset(self._unstored)

    def store_offsets(self, offsets: OffsetStore) -> None:
        """Store the offsets of what is committed. They are kept where it raises, for the next call."""
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
        """Log at DEBUG how far a commit had come that fails within."""
        try:
            yield
        except BaseException:
            self._log.debug("the commit fails after the step: %s", self.step.value)
            raise

    def forget(self, partitions: Collection[int] | None = None) -> None:
        """Store no offsets of these partitions, or of any: others own them now, or another generation does."""
        with self._lock:
            for partition in list(self._unstored) if partitions is None else partitions:
                self._unstored.pop(partition, None)
