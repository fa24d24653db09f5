"""Streaming query of one sink on Spark: executors deliver events, the driver commits."""

from __future__ import annotations

import json
import logging
import pickle
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from flafka.agent.audit.publishing import audit_of
from flafka.agent.options import AgentOptions
from flafka.agent.runner.commitlogmove import CommitLogMove
from flafka.agent.runner.committer import Committer, StagedRange
from flafka.agent.runner.deadletters.rejections import Rejections
from flafka.agent.runner.retries import log_failure
from flafka.agent.runner.spark.job import Job, PartitionTask, Result, SinkJob
from flafka.agent.runner.spark.progress import Offsets, gauges_of, latest_offsets_of, report
from flafka.plugins import (
    Assignment,
    AtLeastOnceSink,
    CommittingSink,
    Conflict,
    FlafkaError,
    KafkaStream,
    Retry,
    Sink,
)
from flafka.plugins.kafka.offsets import (
    OffsetMetadata,
    RecordsLost,
    fencing_reason,
    missing_offset_warning,
    recreated_error,
)
from flafka.plugins.kafka.properties import java_properties
from flafka.plugins.kafka.topic import KafkaBackedChannel

log = logging.getLogger("spark")

CHECK_SECONDS = 10.0
"""Interval of the checks that the group was not reset, and that the topic was neither recreated nor truncated."""
SET_BACK_SECONDS = 10.0
"""Change of a clock that is set back, up to which the delay of the next micro-batch is accepted."""


class Query:
    """Streaming query of one sink. Only this object commits, on threads of the driver."""

    def __init__(self, job: Job, sink: SinkJob, rejections: Rejections, move: CommitLogMove) -> None:
        """Make sink and channel, which stay closed until `run`.

        `rejections` and `move` are shared by all consecutive queries of this sink.
        """
        self.agent, self.job, self.options = job, sink, job.options
        self.rejections, self._move = rejections, move
        self.sink: Sink = sink.sink.make()
        self.sink.member = sink.sink.path
        self.committing = self.sink if isinstance(self.sink, CommittingSink) else None
        self.channel: KafkaBackedChannel = sink.channel.make()
        self.audit = audit_of(self.channel, job.options)
        self.assignments: dict[int, Assignment] = {}
        """Assignments with the next offsets, by partition."""
        self._counted: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.committer = Committer(self.committing, self.audit, log)
        self._latest: Offsets = {}
        """End offset of each partition, as Spark last reported it."""
        self._loss_reported = False
        self._stopping, self._micro_batch_ended = threading.Event(), threading.Event()

    def run(self, spark: Any, stopping: threading.Event) -> None:
        """Run the query until `stopping` is set and the current micro-batch has ended.

        Raises the error that ended the query, or Retry if the clock was set back. If records are lost or the topic
        was recreated, raises that error instead of Spark's.
        """
        directory = tempfile.mkdtemp(prefix="flafka-checkpoint-")
        self._stopping = stopping
        try:
            self.channel.open()
            if self.audit is not None:
                self.audit.open()
            if self.committing is not None:
                self.committing.open()
            self._resume()
            query, clock, checked = self._start(spark, directory), ClockMonitor(), time.monotonic()
            try:
                while not query.awaitTermination(0.2):
                    clock.check()
                    if time.monotonic() - checked > CHECK_SECONDS:
                        with suppress(Retry):  # brokers that do not answer
                            self._check_truncations()
                        checked = time.monotonic()
                    # A query with lag starts the next micro-batch at once, so its trigger always looks active.
                    if stopping.is_set() and (
                        self._micro_batch_ended.is_set() or not query.status["isTriggerActive"]
                    ):
                        break
            finally:
                query.stop()
        except Exception as e:
            if self.assignments and not isinstance(e, FlafkaError):
                with suppress(Retry):  # Spark's error may be a consequence of lost records
                    self._check_records()
            raise
        finally:
            if self.committing is not None:
                self.committing.close()
            if self.audit is not None:
                self.audit.close()
            self.channel.close()
            shutil.rmtree(directory, ignore_errors=True)

    def _resume(self) -> None:
        """Fence earlier owners, and set `assignments` to the offsets at which the query starts.

        Their generations are committed for the group. Raises the channel's errors about these offsets, and the sink's
        errors.
        """
        for refusal in self.channel.kafka.blocking_errors(self.job.sink.group, {}):
            raise refusal
        if self.committing is not None:
            self._move.make(self.committing, self.channel, self.job.sink.group, joins=False)
        begun: list[Assignment] = []
        for committed in self.channel.kafka.committed(self.job.sink.group):
            if isinstance(self.sink, AtLeastOnceSink):
                self.sink.recover(committed)
            start = self.committer.resume(committed)
            if start.next_offset is None:
                start = self._oldest(start)
            self.assignments[start.partition] = start
            if start.generation != committed.generation or committed.next_offset is None:
                begun.append(start)
            elif start.next_offset != committed.next_offset:  # an earlier query ended between the two commits
                self.committer.committed(start)
        if begun:  # the next owner of a partition finds this sink's commit log by the metadata of the offset
            self.channel.kafka.commit_offsets(begun)
        self._store_offsets()
        self._check_records()

    def _oldest(self, assignment: Assignment) -> Assignment:
        """Return the assignment with its next offset set to the first record that the partition has now.

        The given assignment has no offset. Log a warning if retention has removed earlier records. Spark's own start,
        the first record at its first read, would hide records that retention removes until then.
        """
        start = assignment.with_offset(self._low_watermarks.get(assignment.partition, 0))
        if start.next_offset:
            log.warning("%s", missing_offset_warning(start))
        return start

    @cached_property
    def _low_watermarks(self) -> Mapping[int, int]:
        """Offset of the first record of each partition, read once."""
        return self.channel.kafka.beginning_offsets()

    def _start(self, spark: Any, checkpoint: str) -> Any:
        """Start Spark's query, with its checkpoint in the directory `checkpoint`, and return its `StreamingQuery`."""
        stream = self.channel.kafka.stream(self.job.sink.group)
        records = read_topic(spark, stream, self.next_offsets(), max_records(self.channel, self.options))
        template = next(iter(self.assignments.values())).replace(epoch=0)
        task = PartitionTask(self.agent, self.job, self.assignments, template)
        return (
            records.mapInArrow(task, "result binary")
            .writeStream.foreachBatch(self._commit)
            .queryName(self.job.sink.path)
            .option("checkpointLocation", Path(checkpoint).as_uri())
            .trigger(processingTime=f"{self.options.spark_trigger_interval} seconds")
            .start()
        )

    def _check_ownership(self) -> None:
        """Raise Conflict if the query has to be restarted.

        Reasons are a recreated topic, a group reset, and a commit log of another sink in place of this sink's. If a
        commit of an earlier epoch or of a deleted topic came late, this query's offset is committed again.
        """
        undone = set[int]()
        for committed in self.channel.kafka.committed(self.job.sink.group):
            own = self.assignments.get(committed.partition)
            if own is None:
                continue
            if committed.topic_partition.topic_id != own.topic_partition.topic_id:
                raise Conflict(self._topic_recreated(own))
            if why := fencing_reason(own, OffsetMetadata.of(committed)):
                raise Conflict(why)
            if committed.generation.epoch < own.generation.epoch or committed.next_offset is None:
                undone.add(own.partition)
        with self._lock, suppress(Retry):  # such as a group with members
            if undone:
                self.channel.kafka.restore_offsets([self.assignments[partition] for partition in undone])

    def _check_truncations(self) -> None:
        """Raise RecordsLost if brokers have lost a record that this query has delivered.

        Spark does not notice the loss once new records have taken the lost offsets. Records that retention has
        removed are ignored, as executors may have read them. Raises the errors of `_check_ownership`, too.
        """
        with self._lock:
            unstored = self.committer.unstored
            known = [one for one in self.assignments.values() if one.partition not in unstored]
        self._refuse(error for error in self._refusals(known) if isinstance(error, RecordsLost))

    def _check_records(self) -> None:
        """Raise FlafkaError if the brokers do not have the next records.

        A loss by brokers is stored with the group's offset. Otherwise Spark would skip records once new ones have
        taken the lost offsets. Errors of `_check_ownership` take precedence, so that no user is advised to skip
        records of a recreated topic.
        """
        self._refuse(self._refusals([*self.assignments.values()]))

    def _refusals(self, starts: Collection[Assignment]) -> Sequence[FlafkaError]:
        """Return the errors of the channel that make these offsets unreadable.

        Raises the errors of `_check_ownership`.
        """
        refusals = self.channel.kafka.blocking_errors(self.job.sink.group, starts)
        self._check_ownership()
        return refusals

    def _refuse(self, refusals: Iterable[FlafkaError]) -> None:
        """Store the first of these errors with the group's offset, and raise it. Return if there is none."""
        for error in refusals:
            with suppress(Retry, Conflict):  # the next query finds the error again
                self.channel.kafka.store_error(error)
            raise error

    def _topic_recreated(self, assignment: Assignment) -> str:
        """Return the error text for a topic that was recreated, with the number of lost records if it is known.

        The first call reports that number to the agent.
        """
        expected = self.next_offsets()
        known = {p: end for p, end in self._latest.items() if p in expected}
        lost = sum(max(0, end - expected[p]) for p, end in known.items())
        if not self._loss_reported:
            self._loss_reported = True
            report(self.job.sink.name, {"TopicRecreatedCount": 1, "RecordLostCount": lost})
        return recreated_error(assignment, lost, len(self.assignments) - len(known))

    def next_offsets(self) -> Mapping[int, int]:
        """Return the next offset to deliver of each partition, which is 0 if it is not known. Thread-safe."""
        # A copy first: the committing thread may add a partition meanwhile.
        return {one.partition: one.next_offset or 0 for one in [*self.assignments.values()]}

    def on_progress(self, progress: Any) -> None:
        """Report the gauges of a finished micro-batch, such as its lag, to the agent."""
        self._latest |= latest_offsets_of(progress)
        report(self.job.sink.name, {}, gauges_of(progress, self.next_offsets()))

    def on_idle(self, _: str) -> None:
        """Store offsets that could not be stored before, and report a lag of 0, as there are no new records."""
        with suppress(Conflict):  # the periodic check of `run` finds it
            self._store_offsets()
        report(self.job.sink.name, {}, {"Lag": 0})

    def _commit(self, frame: Any, _: int) -> None:
        """Commit one micro-batch, partition by partition, then the group's offsets. `frame` has pickled results.

        Events of a sink without a commit log are visible since the flush on an executor. Raises Conflict if another
        owner has committed, and FlafkaError if records were delivered twice.
        """
        results: list[Result] = [pickle.loads(row.result) for row in frame.collect()]  # noqa: S301  # from own executors
        self._refuse_new_partitions(results)
        self.committer.prepare([result.staged for result in results], self, lambda: self._store_dead_letters(results))
        for result in results:
            receipt = result.staged.receipt
            own = self.assignments.get(receipt.assignment.partition, receipt.assignment)
            if receipt.offsets.start < (own.next_offset or 0):
                span = f"{receipt.offsets.start}–{own.next_offset}"
                raise FlafkaError(f"records {span} of partition {own.partition} were delivered twice")
            if (conflict := self.committer.commit(result.staged).reason) is not None:
                raise conflict
            with self._lock:
                self.assignments[own.partition] = own.with_offset(receipt.offsets.end, receipt.last_record)
            counts = {**Counter(result.counts) + self._own_counts()}
            counts |= {"EventDrainSuccessCount": receipt.events, "BatchCompleteCount": 1}
            report(self.job.sink.name, counts, interceptors=result.interceptors)
        self.rejections.committed({result.staged.receipt.assignment.partition for result in results})
        self._store_offsets()
        if self._stopping.is_set():
            self._micro_batch_ended.set()

    def _refuse_new_partitions(self, results: Iterable[Result]) -> None:
        """Raise Retry if results are of partitions that the sink's commit log has not resumed yet.

        The restarted query resumes them. A sink without a commit log needs no resume.
        """
        added = {result.staged.receipt.assignment.partition for result in results} - self.assignments.keys()
        if added and self.committing is not None:
            raise Retry(f"{self.job.sink.path}: partitions {sorted(added)} are new: restarting the query")

    def _store_dead_letters(self, results: Sequence[Result]) -> None:
        """Store the dead letters of a micro-batch, and report their number.

        Raises Retry if too many events were rejected, or the store does not take them.
        """
        self.rejections.start_over()
        self.rejections.add_offered(sum(result.offered for result in results))
        self.rejections.add(dead_letter for result in results for dead_letter in result.dead_letters)
        if rejected := self.rejections.store():
            report(self.job.sink.name, {"EventRejectedCount": rejected})

    def _store_offsets(self) -> None:
        """Store the offsets of committed ranges, including earlier ones.

        Retry is only logged, and a later call repeats it. Deliveries do not depend on stored offsets while this
        process lives. A group that still has members, as after an agent was killed, gets its offsets later. Raises
        Conflict if the group was reset.
        """
        with self._lock:
            try:
                self.committer.store_offsets(self)
            except Retry as e:
                log_failure(log, logging.INFO, str(e), e)

    # --- OffsetStore

    def verify(self, staged: Sequence[StagedRange]) -> None:
        """Raise Conflict if the group was reset or the topic recreated, before a commit.

        For sinks without a commit log, only the topic is checked.
        """
        if self.committing is not None:
            self._check_ownership()
        else:
            self.channel.kafka.confirm_topic_id(staged[0].receipt.assignment)

    def store(self, committed: Collection[Assignment]) -> None:
        """Commit these offsets without membership in the group. Raises Retry while it has members, and Conflict."""
        self.channel.kafka.commit_offsets(committed)

    def _own_counts(self) -> Counter[str]:
        """Return the counts of the sink's instance on the driver, such as commits, since the previous call."""
        now = Counter(self.committing.metrics.snapshot() if self.committing is not None else {})
        new, self._counted = now - self._counted, now
        return new


class ClockMonitor:
    """Monitor of the host's clock, on which Spark's triggers depend.

    A clock that is set back by an hour delays the next micro-batch by an hour.
    """

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def check(self) -> None:
        """Raise Retry if the clock was set back by more than `SET_BACK_SECONDS` since the creation of this object.

        A restarted query goes by the new time.
        """
        if (back := self._offset - (time.time() - time.monotonic())) > SET_BACK_SECONDS:
            raise Retry(f"the machine's clock was set back by {back:.0f} s: the query is restarted")


def max_records(channel: KafkaBackedChannel, options: AgentOptions) -> str:
    """Return the maximum number of records in a micro-batch, as text: the option `spark_max_records`, or a default.

    The default is smaller for a channel with a batch of events in each record: the maximum bounds throughput, too.
    """
    return str(options.spark_max_records or (20_000 if channel.holds_batches else 500_000))


def read_topic(spark: Any, stream: KafkaStream, starts: Mapping[int, int | None], most: str) -> Any:
    """Return a channel's records as a streaming DataFrame, without records of aborted transactions.

    `starts` has inclusive offsets by partition; None is the earliest one. `most` is the maximum number of records in
    a micro-batch. Columns: partition, offset, timestamp in milliseconds, key, value, headers.
    """
    earliest = -2
    offsets = {str(p): earliest if offset is None else offset for p, offset in starts.items()}
    reader = spark.readStream.format("kafka").options(
        **{f"kafka.{name}": value for name, value in java_properties(stream.client).items()},
        **{
            "kafka.bootstrap.servers": stream.bootstrap_servers,
            "kafka.isolation.level": "read_committed",
            "subscribe": stream.topic,
            "startingOffsets": json.dumps({stream.topic: offsets}),
            "includeHeaders": "true",
            "failOnDataLoss": "true",
            "maxOffsetsPerTrigger": most,
        },
    )
    return reader.load().selectExpr(
        "partition", "offset", "unix_millis(timestamp) AS timestamp", "key", "value", "headers"
    )
