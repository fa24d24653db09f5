"""Drains a channel into a sink, or into the sinks of a group: whose turn it is, and what comes of a failure."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterator, Sequence

from flafka.agent.audit.publishing import Tallies
from flafka.agent.runner.committer import Committer, StagedRange
from flafka.agent.runner.deadletters.letters import DeadLetters
from flafka.agent.runner.delivery import Delivery, Range, Ranges
from flafka.agent.runner.held import Held
from flafka.agent.runner.local.channels import ChannelRunner
from flafka.agent.runner.local.sinkprocessors import sink_processor_of
from flafka.agent.runner.moving import CommitLogMove
from flafka.agent.runner.retries import LONGEST_WAIT_SECONDS, QUIET_SECONDS, Retries, log_failure, told
from flafka.agent.topology import SinkGroupSpec, SinkSpec
from flafka.plugins import Assignment, Batch, Conflict, FlafkaError, PolledBatch, Reader, Retry
from flafka.plugins.errors import ANY_FAILURE, CONTRACT_VIOLATION_SECONDS, CommitLogMoved
from flafka.plugins.installed import described_method
from flafka.plugins.kafka.topic import KafkaBackedChannel
from flafka.plugins.threads import start_thread

TAKE_SECONDS = 0.1
ROUND_SECONDS = 5.0
"""The longest wait, as in Flume, before the sinks of a group are asked again when none of them worked."""
ANOTHER = "another sink of the group gets the batch"
LATER = "tried again when it is its turn"


class Member:
    """One of the runner's sinks: its delivery, and how it fares."""

    def __init__(self, delivery: Delivery, longest: float) -> None:
        self.delivery = delivery
        self.name, self.path = delivery.spec.name, delivery.path
        self.sink, self.metrics = delivery.sink, delivery.metrics
        self.retries = Retries(delivery.path, delivery.metrics, longest=longest)
        self.again = 0.0
        """Time of `time.monotonic` at which it may be tried again without an event."""

    def failed(self, error: BaseException, then: str = "") -> float:
        """Show a failure, and return the seconds until the next attempt."""
        seconds = self.retries.failed(error, then=then)
        self.again = time.monotonic() + seconds
        return seconds


class SinkRunner:
    """One reader of a channel and the sinks that get what it reads: the `RebalanceListener` of its partitions.

    A batch consists of the records between two commits of the channel. The processor chooses the sink of a batch. A
    sink that fails is failing until it works again, and its batch is taken again for another sink. The sinks share
    the records that are taken and not committed.
    """

    def __init__(
        self,
        sinks: Sequence[SinkSpec],
        channel: ChannelRunner,
        letters: DeadLetters,
        member: str,
        group: SinkGroupSpec | None = None,
    ) -> None:
        """`member` names the reader across restarts; `group` is that of the sinks, where they are several."""
        self.path = group.path if group is not None else sinks[0].path
        self.channel, self.member, self.group = channel, member, sinks[0].group
        self.stopping = threading.Event()
        self.draining = threading.Event()
        """Set when no more events are to come: whatever is taken then is delivered without waiting for more."""
        self.ranges = Ranges()
        tallies = Tallies() if channel.audit is not None else None
        longest = LONGEST_WAIT_SECONDS if group is None else ROUND_SECONDS
        self.members = tuple(
            Member(Delivery(spec, letters, self.ranges, self.stopping, tallies), longest) for spec in sinks
        )
        if not isinstance(channel.channel, KafkaBackedChannel):  # the watch asks the brokers for that of the others
            held = Held(channel.metrics)
            for member_of_group in self.members:
                member_of_group.metrics.set_function("Lag", held.events)
                member_of_group.metrics.set_function("LagSeconds", held.seconds)
        else:
            servers = channel.channel.kafka.stream(None).bootstrap_servers
            for member_of_group in self.members:
                own = getattr(member_of_group.sink.config, "bootstrap_servers", None) or servers
                member_of_group.retries.brokers = {"group": servers, "topic": own}
        spec = group.processor if group is not None else None
        priorities = spec.priorities if spec is not None and spec.kind == "failover" else {}
        self._by_priority = sorted((one for one in self.members if priorities), key=lambda m: -priorities[m.name])
        """Sinks of a failover group, the one that comes first at the beginning; otherwise empty."""
        self.processor = sink_processor_of(group.processor if group else None, [spec.name for spec in sinks])
        self.committing = self.members[0].delivery.committing
        """The sink, where it has a commit record of its own; it is the only one then."""
        self.reader: Reader | None = None
        self.log = logging.getLogger(self.path)
        self.committer = Committer(self.committing, channel.audit, self.log)
        self._move = CommitLogMove()
        self.thread = threading.Thread(target=self.run, name=self.path, daemon=True)
        self.finished = False
        """True once the thread has ended and delivered all that it took."""
        self._current: Member | None = None
        """Sink of the present batch."""
        self._attempts: Iterator[str] | None = None
        """Sinks to try next with the present batch."""
        self._busy = False
        """True while the current sink holds a part of the batch."""
        self._all_failed = False
        self._wait = 0.0
        """Seconds until the next try when no sink is left to be tried now."""
        self._assigned_time = 0.0
        """Time of the latest partition assignment, in seconds since the epoch; sinks fail at it only from then on."""
        self.turned = time.monotonic()
        """Time of `time.monotonic` at which the latest turn began."""

    def failing(self) -> bool:
        """Return True if the latest delivery failed; of a group, with all of its sinks."""
        return self._all_failed if len(self.members) > 1 else bool(self.members[0].metrics.last_error)

    # --- life

    def run(self) -> None:
        """Drain the channel until stopping is set, then deliver what was taken; a reader that fails is made anew."""
        while not self.stopping.is_set():
            try:
                self.work()
                self.finished = True
                return
            except ANY_FAILURE as e:  # whatever it is, it must not take other sinks down
                self._all_failed = True
                seconds = (self._current or self.members[0]).retries.failed(e)
            finally:
                self.close()
            self.stopping.wait(seconds)

    def start(self) -> None:
        """Start the thread."""
        start_thread(self.thread)

    def work(self) -> None:
        """Open the sinks and the reader, and use them until stopping is set."""
        if not self.channel.wait_until_open(self.stopping):
            return
        self.open()
        while not self.stopping.is_set():
            if not self.turn():
                self.stopping.wait(self._wait)
        if self._current is not None:
            self._flush(self._current, self.ranges)
        self._tell()

    def open(self) -> None:
        """Open what can be opened of a group, or the one sink, and join the channel's group. Raises Retry."""
        for member in self.members:
            try:
                member.delivery.open()
            except ANY_FAILURE as e:
                if len(self.members) == 1:
                    raise
                member.failed(e, LATER)
                self.processor.failed(member.name)
        self._show_standbys(next((one for one in self._by_priority if one.delivery.is_open), None))
        if self.committing is not None and isinstance(self.channel.channel, KafkaBackedChannel):
            self._move.make(self.committing, self.channel.channel, self.group, joins=True)
        self.reader = self.channel.reader(self, group=self.group, member=self.member)
        if self.committing is not None:
            self.committing.membership = self.reader.membership

    def close(self) -> None:
        """Release the reader and the sinks."""
        if self.reader is not None:
            try:
                self.reader.close()
            except ANY_FAILURE as e:  # the sinks are to be closed all the same
                self.log.warning("closing the reader failed: %s", told(e))
        self.reader, self._current, self._attempts, self._busy = None, None, None, False
        for member in self.members:
            member.delivery.close()
        self._show_standbys(None)
        self.ranges.clear()
        self.committer.forget()

    # --- events

    def turn(self) -> bool:
        """Take once for the sink whose turn it is, and flush what is due. False where no sink is left for now."""
        self.turned = time.monotonic()
        if self._current is None and not self._choose():
            self._all_failed = True
            self._show_standbys(None)
            return False
        assert self._current is not None
        try:
            self._step(self._current)
        except (ReaderFailed, CommitLogMoved):
            raise
        except ANY_FAILURE as e:  # the next one gets it
            self._failed(self._current, e)
            self._current = None
        return True

    def _choose(self) -> bool:
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

    def _step(self, member: Member) -> None:
        member.delivery.open()
        taken = self._take(member)
        if taken is None:
            self._tell()  # where that failed after the latest commit, and nothing came since
            self._forget_failure(member)
            if not self.ranges.waiting():
                self._try_failed_ones()
        else:
            member.delivery.write(taken)
            self._busy = bool(self.ranges.waiting())
        assert self.reader is not None
        nothing_more = taken is None and self.draining.is_set()
        pressed = self.committing is not None and self.reader.needs_commit()  # others flush soon anyway
        if due := set(self.ranges) if nothing_more or pressed else member.delivery.due():
            self._flush(member, due)
        if self._busy and not self.ranges.waiting():
            self.processor.delivered(member.name)
            self._show_standbys(member)
            self._current, self._attempts, self._busy, self._all_failed = None, None, False, False

    def _take(self, member: Member) -> PolledBatch | None:
        """The next records, or None after a while without any. Raises ReaderFailed."""
        assert self.reader is not None
        try:
            taken: object = self.reader.take(TAKE_SECONDS)
        except FlafkaError as e:
            raise ReaderFailed(str(e), e.after if isinstance(e, Retry) else None) from e
        if taken is None:
            member.metrics.add("BatchEmptyCount")
            return None
        if not (isinstance(taken, PolledBatch) and isinstance(taken.batch, Batch)):
            who = f"take() of {described_method(type(self.reader), 'take')}"
            raise ReaderFailed(
                f"{who} must return None or a PolledBatch with a Batch, not {taken!r:.60}", CONTRACT_VIOLATION_SECONDS
            )
        return taken

    def _failed(self, member: Member, error: BaseException) -> None:
        """Drop everything that is not committed: it is taken again, for whoever gets it then."""
        self._wait = member.failed(error, ANOTHER if len(self.members) > 1 else "")
        if self._busy and not self.ranges.waiting():  # it did its part: the channel did not take the commit
            self.processor.delivered(member.name)
        else:
            self.processor.failed(member.name)
        self._busy = False
        try:
            self._start_over(member)
        except ANY_FAILURE as e:
            if len(self.members) == 1:
                raise
            member.failed(e, ANOTHER)
            member.delivery.close()  # what it still holds goes with it

    def _start_over(self, member: Member) -> None:
        assert self.reader is not None
        self.reader.rewind(member.delivery.start_over())
        member.sink.reset()

    def _forget_failure(self, member: Member) -> None:
        """Clear a failure of an idle sink after `QUIET_SECONDS`; of a group's sinks, only a failure of the reader."""
        if len(self.members) > 1 and not isinstance(member.retries.last, ReaderFailed):
            return
        quiet = time.time() - max(member.metrics.last_error_time, self._assigned_time) > QUIET_SECONDS
        if quiet and self.ranges and not self.ranges.waiting():
            member.retries.recovered()
            self._all_failed = False

    def _try_failed_ones(self) -> None:
        """Open failed sinks of a group again after their penalty: while no event comes, nothing else would show that
        they work.
        """
        for member in self.members if len(self.members) > 1 else ():
            failed = member.metrics.last_error and not isinstance(member.retries.last, ReaderFailed)
            if not failed or time.monotonic() < member.again or not self.processor.may_try(member.name):
                continue
            member.delivery.close()
            try:
                member.delivery.open()
            except ANY_FAILURE as e:
                member.failed(e, LATER)
                self.processor.failed(member.name)
            else:
                member.retries.recovered()
                self.processor.delivered(member.name)
                self._current, self._attempts, self._all_failed = None, None, False  # it may come first again
            return

    def _show_standbys(self, active: Member | None) -> None:
        """Mark all sinks of a failover group but the active one as standbys; none where no sink is active."""
        for member in self._by_priority:
            waits_for = active.name if active is not None and member is not active else ""
            member.metrics.standby = f"{waits_for} delivers in its place" if waits_for else ""

    # --- making durable, and committing the channel

    def _flush(self, member: Member, partitions: Collection[int]) -> None:
        """Make what that sink has of these partitions durable, and commit the channel."""
        due = {p: pending for p, pending in self.ranges.waiting().items() if p in partitions}
        if not due:
            return
        delivery = member.delivery
        if self.committing is not None:
            self._commit_each(delivery, due.values())
        else:
            delivery.flush()
            flushed = [*self.ranges.waiting().values()]  # a flush covers all of them
            staged = [delivery.stage(pending) for pending in flushed]
            self.committer.prepare(staged, self, delivery.store_dead_letters)
            for one in staged:
                self.committer.commit(one)
            self._delivered(delivery, flushed)
        member.retries.recovered()

    def _commit_each(self, delivery: Delivery, due: Collection[Range]) -> None:
        committed: list[Range] = []
        try:
            for pending in due:
                if self._commit(delivery, pending):
                    committed.append(pending)
        finally:
            if committed:  # when one of them fails, those before it are not taken again
                self._delivered(delivery, committed)

    def _commit(self, delivery: Delivery, pending: Range) -> bool:
        """Stage and commit one partition; where it is not committed go on where the other owner left off."""
        try:
            staged = delivery.stage(pending)
            self.committer.prepare([staged], self, lambda: delivery.store_dead_letters(pending.assignment.partition))
            conflict = self.committer.commit(staged).reason
        except Conflict as e:  # another owner was seen before the commit
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
        """Commit the channel: what was taken of these is durable."""
        delivery.committed(ranges)
        self._tell()

    def _tell(self) -> None:
        self.committer.store_offsets(self)

    # --- OffsetStore

    def verify(self, staged: Sequence[StagedRange]) -> None:
        """Do nothing: the brokers take offsets of members only."""

    def store(self, committed: Collection[Assignment]) -> None:
        """Commit them as a member of the group."""
        assert self.reader is not None
        self.reader.commit(committed)

    # --- RebalanceListener

    def assigned(self, committed: Sequence[Assignment]) -> Sequence[Assignment]:
        """Take partitions over, from the sink's own commit log where it keeps one."""
        starts = []
        for one in committed:
            moved = None
            if self.committing is not None and not isinstance(self.channel.channel, KafkaBackedChannel):
                moved = self.committing.move_commit_log(one)  # no other agent reads this channel
            starts.append(self._resume(moved or one))
        self._assigned_time = time.time()
        if isinstance(self.channel.channel, KafkaBackedChannel):  # others have one, which says nothing
            self.log.info("has partitions %s", sorted(self.ranges))
        return starts

    def revoked(self, partitions: set[int]) -> None:
        """Deliver what was taken of them while they are still ours."""
        failure: BaseException | None = None
        member = self._current
        if member is not None:
            try:
                self._flush(member, partitions)
            except ANY_FAILURE as e:  # the next owner takes it again from the last commit
                failure = e
        self.lost(partitions)
        if member is not None and failure is not None:  # what it holds of other partitions is in doubt as well
            self._failed(member, failure)

    def lost(self, partitions: set[int]) -> None:
        """Drop what is held of them."""
        self.committer.forget(partitions)
        for member in self.members:
            member.delivery.lost(partitions)
        for partition in partitions & self.ranges.keys():
            del self.ranges[partition]

    def _resume(self, committed: Assignment) -> Assignment:
        if self.committing is not None:
            self.members[0].delivery.lost({committed.partition})
        start = self.committer.resume(committed)
        self.ranges[start.partition] = Range(start)
        return start


class ReaderFailed(Retry):
    """The channel's consumer cannot go on and is made anew."""
