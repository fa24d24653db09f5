"""Runner of a sink, or of the sinks of a sink group: drains a channel, commits, and handles failures."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterator, Sequence

from flafka.agent.audit.publishing import Tallies
from flafka.agent.runner.commitlogmove import CommitLogMove
from flafka.agent.runner.committer import Committer, StagedRange
from flafka.agent.runner.deadletters.store import DeadLetterStore
from flafka.agent.runner.delivery import Delivery, Range, Ranges
from flafka.agent.runner.lag import ChannelLag
from flafka.agent.runner.local.channels import ChannelRunner
from flafka.agent.runner.local.sinkprocessors import sink_processor_of
from flafka.agent.runner.retries import LONGEST_WAIT_SECONDS, QUIET_SECONDS, Retries, describe_error, log_failure
from flafka.agent.topology import SinkGroupSpec, SinkSpec
from flafka.plugins import Assignment, Batch, Conflict, FlafkaError, PolledBatch, Reader, Retry
from flafka.plugins.errors import ANY_FAILURE, CONTRACT_VIOLATION_SECONDS, CommitLogMoved
from flafka.plugins.installed import describe_method
from flafka.plugins.kafka.topic import KafkaBackedChannel
from flafka.plugins.threads import start_thread

TAKE_SECONDS = 0.1
"""Longest wait for records in one turn."""
IDLE_TAKE_SECONDS = 0.2
"""Longest wait for records in a turn that has nothing to flush. It delays a stop, and nothing else."""
ROUND_SECONDS = 5.0
"""Longest wait, as in Flume, before the sinks of a group are tried again after all of them have failed."""
FAILOVER_TEXT = "another sink of the group gets the batch"
RETRY_TEXT = "it is tried again in its turn"


class Member:
    """Sink of a runner, with its delivery and its failures."""

    def __init__(self, delivery: Delivery, longest: float) -> None:
        """`longest` is the longest wait between two attempts in seconds."""
        self.delivery = delivery
        self.name, self.path = delivery.spec.name, delivery.path
        self.sink, self.metrics = delivery.sink, delivery.metrics
        self.retries = Retries(delivery.path, delivery.metrics, longest=longest)
        self.retry_time = 0.0
        """Time of `time.monotonic` from which on the sink may be opened again without an event."""

    def failed(self, error: BaseException, then: str = "") -> float:
        """Report a failure in log and metrics, and return the seconds until the next attempt.

        `then` replaces the announcement of that attempt in the log.
        """
        seconds = self.retries.failed(error, then=then)
        self.retry_time = time.monotonic() + seconds
        return seconds


class SinkRunner:
    """Runner of one reader of a channel, with the sinks that deliver its records. Rebalance listener of the reader.

    A batch is the records between two commits of the channel. The sink processor chooses the sink of a batch. After a
    failure the batch is redelivered to another sink of the group. The sinks share the ranges of uncommitted records.
    """

    def __init__(
        self,
        sinks: Sequence[SinkSpec],
        channel: ChannelRunner,
        store: DeadLetterStore,
        member: str,
        group: SinkGroupSpec | None = None,
    ) -> None:
        """`sinks` are one sink, or all sinks of `group`. `store` is for their dead letters.

        `member` is the static member ID of the reader. `group` is the sink group, or None for a sink without one.
        """
        self.path = group.path if group is not None else sinks[0].path
        self.channel, self.member, self.group = channel, member, sinks[0].group
        self.stopping = threading.Event()
        self.draining = threading.Event()
        """Set if no more events are expected, so that taken events are flushed at once."""
        self.ranges = Ranges()
        tallies = Tallies() if channel.audit is not None else None
        longest = LONGEST_WAIT_SECONDS if group is None else ROUND_SECONDS
        self.members = tuple(
            Member(Delivery(spec, store, self.ranges, self.stopping, tallies), longest) for spec in sinks
        )
        if not isinstance(channel.channel, KafkaBackedChannel):  # lags on Kafka channels come from the Kafka monitor
            lag = ChannelLag(channel.metrics)
            for member_of_group in self.members:
                member_of_group.metrics.set_function("Lag", lag.events)
                member_of_group.metrics.set_function("LagSeconds", lag.seconds)
        else:
            servers = channel.channel.kafka.stream(None).bootstrap_servers
            for member_of_group in self.members:
                own = getattr(member_of_group.sink.config, "bootstrap_servers", None) or servers
                member_of_group.retries.brokers = {"group": servers, "topic": own}
        spec = group.processor if group is not None else None
        priorities = spec.priorities if spec is not None and spec.kind == "failover" else {}
        self._by_priority = sorted((one for one in self.members if priorities), key=lambda m: -priorities[m.name])
        """Sinks of a failover group, highest priority first; empty for other groups."""
        self.processor = sink_processor_of(group.processor if group else None, [spec.name for spec in sinks])
        self.committing = self.members[0].delivery.committing
        """The single sink if it has a commit log; None otherwise."""
        self.reader: Reader | None = None
        self.log = logging.getLogger(self.path)
        self.committer = Committer(self.committing, channel.audit, self.log)
        self._move = CommitLogMove()
        self.thread = threading.Thread(target=self.run, name=self.path, daemon=True)
        self.finished = False
        """True once the thread has ended and delivered everything that it took."""
        self._current: Member | None = None
        """Sink of the current batch."""
        self._attempts: Iterator[str] | None = None
        """Names of the sinks to try next with the current batch."""
        self._has_events = False
        """True while the current sink holds a part of the batch."""
        self._all_failed = False
        self._wait = 0.0
        """Seconds until the next round, after all sinks have failed."""
        self._assigned_time = 0.0
        """Time of the latest partition assignment, in seconds since the epoch."""
        self.turn_started = time.monotonic()
        """Time of `time.monotonic` at which the latest turn began."""

    def failing(self) -> bool:
        """Return True if the latest delivery failed; for a sink group, if all its sinks failed with a batch."""
        return self._all_failed if len(self.members) > 1 else bool(self.members[0].metrics.last_error)

    # --- start and stop

    def run(self) -> None:
        """Drain the channel until `stopping` is set, then deliver what was taken. Never raises.

        After a failure, the reader and the sinks are closed, and `work` is called again after a wait.
        """
        while not self.stopping.is_set():
            try:
                self.work()
                self.finished = True
                return
            except ANY_FAILURE as e:  # an unexpected error of one sink must not stop the others
                self._all_failed = True
                seconds = (self._current or self.members[0]).retries.failed(e)
            finally:
                self.close()
            self.stopping.wait(seconds)

    def start(self) -> None:
        """Start the thread. Raises RuntimeError if the system refuses a thread for 5 s."""
        start_thread(self.thread)

    def stop(self) -> None:
        """Set `stopping`. Does not block."""
        self.stopping.set()

    def work(self) -> None:
        """Open the sinks and the reader, deliver until `stopping` is set, and commit what is left.

        Return at once if the agent stops before the channel is open. Raises errors of the reader, and of opening or
        resetting a single sink.
        """
        if not self.channel.wait_until_open(self.stopping):
            return
        self.open()
        while not self.stopping.is_set():
            if not self.run_turn():
                self.stopping.wait(self._wait)
        if self._current is not None:
            self._flush(self._current, self.ranges)
        self._store_offsets()

    def open(self) -> None:
        """Open the sinks, move the commit log if its directory has changed, and open the reader.

        Raises Retry if the commit log may not be moved or the reader does not open, and the errors of a single sink.
        In a sink group, an error of a sink is only reported.
        """
        for member in self.members:
            try:
                member.delivery.open()
            except ANY_FAILURE as e:
                if len(self.members) == 1:
                    raise
                member.failed(e, RETRY_TEXT)
                self.processor.failed(member.name)
        self._mark_standbys(next((one for one in self._by_priority if one.delivery.is_open), None))
        if self.committing is not None and isinstance(self.channel.channel, KafkaBackedChannel):
            self._move.make(self.committing, self.channel.channel, self.group, joins=True)
        self.reader = self.channel.reader(self, group=self.group, member=self.member)
        if self.committing is not None:
            self.committing.membership = self.reader.membership

    def close(self) -> None:
        """Close the reader and the sinks, and drop everything uncommitted. Errors are only logged. Idempotent."""
        if self.reader is not None:
            try:
                self.reader.close()
            except ANY_FAILURE as e:  # the sinks have to be closed as well
                self.log.warning("closing the reader failed: %s", describe_error(e))
        self.reader, self._current, self._attempts, self._has_events = None, None, None, False
        for member in self.members:
            member.delivery.close()
        self._mark_standbys(None)
        self.ranges.clear()
        self.committer.forget()

    # --- events

    def run_turn(self) -> bool:
        """Do one turn: take records once, write them to the current sink, and commit what is due. Return True then.

        A failure of the sink also returns True: everything uncommitted is redelivered, to the next sink of a group.
        Return False if all sinks have failed with the batch; the caller waits. Raises ReaderFailed and
        CommitLogMoved.
        """
        self.turn_started = time.monotonic()
        if self._current is None and not self._choose_sink():
            self._all_failed = True
            self._mark_standbys(None)
            return False
        assert self._current is not None
        try:
            self._deliver(self._current)
        except (ReaderFailed, CommitLogMoved):
            raise
        except ANY_FAILURE as e:  # the next sink of the group gets the batch
            self._handle_failure(self._current, e)
            self._current = None
        return True

    def _choose_sink(self) -> bool:
        """Make the next sink of the attempts the current one; return False, and end the attempts, if none is left."""
        if self._attempts is None:
            self._attempts = self.processor.attempts()
        name = next(self._attempts, None)
        if name is None:
            self._attempts = None
            return False
        for member in self.members:
            if member.name == name:
                self._current = member
        return True

    def _deliver(self, member: Member) -> None:
        """Take records and write them to this sink, then flush and commit the partitions that are due.

        Without records, offsets that could not be stored are stored, and failures of idle sinks are cleared. All
        partitions are due without records in draining mode, and if the reader needs the commit of a sink with a
        commit log.
        """
        member.delivery.open()
        taken = self._take(member)
        if taken is None:
            self._store_offsets()  # again, if that failed after the latest commit
            self._clear_failure(member)
            if not self.ranges.uncommitted():
                self._reopen_failed_sinks()
        else:
            member.delivery.write(taken)
            self._has_events = bool(self.ranges.uncommitted())
        assert self.reader is not None
        is_drained = taken is None and self.draining.is_set()
        # Sinks without a commit log flush often enough for the reader.
        needs_commit = self.committing is not None and self.reader.needs_commit()
        if due := set(self.ranges) if is_drained or needs_commit else member.delivery.due_partitions():
            self._flush(member, due)
        if self._has_events and not self.ranges.uncommitted():
            self.processor.delivered(member.name)
            self._mark_standbys(member)
            self._current, self._attempts, self._has_events, self._all_failed = None, None, False, False

    def _take(self, member: Member) -> PolledBatch | None:
        """Return the next records; None after `TAKE_SECONDS`, or `IDLE_TAKE_SECONDS`, without any.

        Raises ReaderFailed for errors of the reader, and for a result that is neither None nor a PolledBatch.
        """
        assert self.reader is not None
        try:
            is_idle = not (self.ranges.uncommitted() or self.draining.is_set())
            taken: object = self.reader.take(IDLE_TAKE_SECONDS if is_idle else TAKE_SECONDS)
        except FlafkaError as e:
            raise ReaderFailed(str(e), e.after if isinstance(e, Retry) else None) from e
        if taken is None:
            member.metrics.add("BatchEmptyCount")
            return None
        if not (isinstance(taken, PolledBatch) and isinstance(taken.batch, Batch)):
            who = f"take() of {describe_method(type(self.reader), 'take')}"
            raise ReaderFailed(
                f"{who} must return None or a PolledBatch with a Batch, not {taken!r:.60}", CONTRACT_VIOLATION_SECONDS
            )
        return taken

    def _handle_failure(self, member: Member, error: BaseException) -> None:
        """Report a failure of the sink, rewind the reader to the last commit, and reset the sink.

        Everything uncommitted is redelivered. If the reset fails as well, a single sink raises that error; a sink of
        a group is closed.
        """
        self._wait = member.failed(error, FAILOVER_TEXT if len(self.members) > 1 else "")
        if self._has_events and not self.ranges.uncommitted():  # only the commit of the channel failed
            self.processor.delivered(member.name)
        else:
            self.processor.failed(member.name)
        self._has_events = False
        try:
            self._start_over(member)
        except ANY_FAILURE as e:
            if len(self.members) == 1:
                raise
            member.failed(e, FAILOVER_TEXT)
            member.delivery.close()  # drops the uncommitted events, which `_start_over` could not reset

    def _start_over(self, member: Member) -> None:
        """Drop everything uncommitted, rewind the reader to the last commit, and reset the sink.

        Raises their errors.
        """
        assert self.reader is not None
        self.reader.rewind(member.delivery.start_over())
        member.sink.reset()

    def _clear_failure(self, member: Member) -> None:
        """Clear the failure of an idle sink after `QUIET_SECONDS` without a failure or an assignment.

        In a sink group, only a failure of the reader is cleared: `_reopen_failed_sinks` tries the sinks.
        """
        if len(self.members) > 1 and not isinstance(member.retries.last, ReaderFailed):
            return
        quiet = time.time() - max(member.metrics.last_error_time, self._assigned_time) > QUIET_SECONDS
        if quiet and self.ranges and not self.ranges.uncommitted():
            member.retries.recovered()
            self._all_failed = False

    def _reopen_failed_sinks(self) -> None:
        """Close and open one failed sink of a group again if its penalty is over, and clear its failure if it opens.

        Called without events, when nothing else would show that the sink works again. No effect without a sink group.
        """
        for member in self.members if len(self.members) > 1 else ():
            has_failed = member.metrics.last_error and not isinstance(member.retries.last, ReaderFailed)
            if not has_failed or time.monotonic() < member.retry_time or not self.processor.may_try(member.name):
                continue
            member.delivery.close()
            try:
                member.delivery.open()
            except ANY_FAILURE as e:
                member.failed(e, RETRY_TEXT)
                self.processor.failed(member.name)
            else:
                member.retries.recovered()
                self.processor.delivered(member.name)
                # The next batch may go to this sink, which may have the highest priority.
                self._current, self._attempts, self._all_failed = None, None, False
            return

    def _mark_standbys(self, active: Member | None) -> None:
        """Mark all sinks of a failover group except `active` as standbys.

        None unmarks all. No effect for other groups.
        """
        for member in self._by_priority:
            waits_for = active.name if active is not None and member is not active else ""
            member.metrics.standby_reason = f"{waits_for} delivers in its place" if waits_for else ""

    # --- commits

    def _flush(self, member: Member, partitions: Collection[int]) -> None:
        """Make the uncommitted events of these partitions durable, and commit the channel.

        No effect without such events. A sink without a commit log flushes and commits all partitions. Raises the
        errors of the sink, the dead letter store, the audit and the reader.
        """
        due = {p: pending for p, pending in self.ranges.uncommitted().items() if p in partitions}
        if not due:
            return
        delivery = member.delivery
        if self.committing is not None:
            self._commit_each(delivery, due.values())
        else:
            delivery.flush()
            flushed = [*self.ranges.uncommitted().values()]  # a flush covers all partitions
            staged = [delivery.stage(pending) for pending in flushed]
            self.committer.prepare(staged, self, delivery.store_dead_letters)
            for staged_range in staged:
                self.committer.commit(staged_range)
            self._delivered(delivery, flushed)
        member.retries.recovered()

    def _commit_each(self, delivery: Delivery, due: Collection[Range]) -> None:
        """Commit the ranges in turn through the sink's commit log, then the offsets of the committed ones.

        A range with a conflict is left out. Raises the first error, after the offsets of earlier ranges are
        committed.
        """
        committed: list[Range] = []
        try:
            for pending in due:
                if self._commit(delivery, pending):
                    committed.append(pending)
        finally:
            if committed:  # after a failure of one range, the committed ones before it are not redelivered
                self._delivered(delivery, committed)

    def _commit(self, delivery: Delivery, pending: Range) -> bool:
        """Stage and commit one partition, and return True.

        Return False after a conflict: the reader is then rewound to where the commit log of the other owner ends.
        """
        try:
            staged = delivery.stage(pending)
            self.committer.prepare([staged], self, lambda: delivery.store_dead_letters(pending.assignment.partition))
            conflict = self.committer.commit(staged).reason
        except Conflict as e:  # another owner was found before the commit
            conflict = e
        if conflict is None:
            return True
        log_failure(self.log, logging.WARNING, str(conflict), conflict)
        start = self._resume(pending.assignment)
        if start.next_offset is not None:
            assert self.reader is not None
            self.reader.rewind([start])
            self.reader.commit([start])
        return False

    def _delivered(self, delivery: Delivery, ranges: Collection[Range]) -> None:
        """Record that these ranges are durable, and commit their end offsets for the group. Raises Retry."""
        delivery.committed(ranges)
        self._store_offsets()

    def _store_offsets(self) -> None:
        """Commit the kept offsets of committed ranges for the group. No effect without any. Raises Retry."""
        self.committer.store_offsets(self)

    # --- OffsetStore

    def verify(self, staged: Sequence[StagedRange]) -> None:
        """Do nothing, as brokers accept offsets of present members only."""

    def store(self, committed: Collection[Assignment]) -> None:
        """Commit these offsets through the reader, as a member of the group. Raises Retry."""
        assert self.reader is not None
        self.reader.commit(committed)

    # --- RebalanceListener

    def assigned(self, committed: Sequence[Assignment]) -> Sequence[Assignment]:
        """Begin a range for each assigned partition, and return the assignments with the offsets to start at.

        The sink's commit log decides the offset if there is one. Raises the errors of the sink.
        """
        starts = []
        for assignment in committed:
            moved = None
            if self.committing is not None and not isinstance(self.channel.channel, KafkaBackedChannel):
                moved = self.committing.move_commit_log(assignment)  # no other agent reads this channel
            starts.append(self._resume(moved or assignment))
        self._assigned_time = time.time()
        if isinstance(self.channel.channel, KafkaBackedChannel):  # other channels have a single partition
            self.log.info("has partitions %s", sorted(self.ranges))
        return starts

    def revoked(self, partitions: set[int]) -> None:
        """Deliver and commit what was taken of these partitions while they are still assigned, then drop them.

        Errors do not leave this method: what is not committed is redelivered to the next assignee. After an error,
        everything uncommitted of other partitions is redelivered as well.
        """
        failure: BaseException | None = None
        member = self._current
        if member is not None:
            try:
                self._flush(member, partitions)
            except ANY_FAILURE as e:  # the next assignee resumes at the last commit
                failure = e
        self.lost(partitions)
        if member is not None and failure is not None:  # events of other partitions may not be durable either
            self._handle_failure(member, failure)

    def lost(self, partitions: set[int]) -> None:
        """Drop the ranges of these partitions, with their uncommitted events, dead letters and offsets."""
        self.committer.forget(partitions)
        for member in self.members:
            member.delivery.lost(partitions)
        for partition in partitions & self.ranges.keys():
            del self.ranges[partition]

    def _resume(self, committed: Assignment) -> Assignment:
        """Fence earlier owners of a partition, begin its range, and return the assignment to start at."""
        if self.committing is not None:
            self.members[0].delivery.lost({committed.partition})
        start = self.committer.resume(committed)
        self.ranges[start.partition] = Range(start)
        return start


class ReaderFailed(Retry):
    """Error of the channel's reader, which is closed and opened again."""
