"""One sink's stream on Spark: executors deliver, the driver commits."""

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
from flafka.agent.runner.committer import Committer, StagedRange
from flafka.agent.runner.deadletters.rejections import Rejections
from flafka.agent.runner.moving import CommitLogMove
from flafka.agent.runner.retries import log_failure
from flafka.agent.runner.spark.job import Job, PartitionTask, Result, SinkJob
from flafka.agent.runner.spark.progress import Offsets, gauges_of, latest_of, report
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
from flafka.plugins.kafka.offsets import OffsetMetadata, RecordsLost, begins_late, made_again, overtaken
from flafka.plugins.kafka.properties import java_properties
from flafka.plugins.kafka.topic import KafkaBackedChannel

log = logging.getLogger("spark")

LOOK_SECONDS = 10.0
"""Interval in seconds at which a query checks that its group and its topic are those that it began with."""
SET_BACK_SECONDS = 10.0
"""A clock that is set back by less delays a micro-batch by as much."""


class Query:
    """One sink's stream: its commits happen here, and here only."""

    def __init__(self, job: Job, sink: SinkJob, rejections: Rejections, move: CommitLogMove) -> None:
        """`rejections` and `move` belong to all queries of this sink, one after the other."""
        self.agent, self.job, self.options = job, sink, job.options
        self.rejections, self._move = rejections, move
        self.sink: Sink = sink.sink.make()
        self.committing = self.sink if isinstance(self.sink, CommittingSink) else None
        self.channel: KafkaBackedChannel = sink.channel.make()
        self.audit = audit_of(self.channel, job.options)
        self.assignments: dict[int, Assignment] = {}
        """By partition: what comes next."""
        self._counted: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.committer = Committer(self.committing, self.audit, log)
        self._latest: Offsets = {}
        """End offset of each partition, as Spark last reported it."""
        self._told_lost = False
        self._stopping, self._over = threading.Event(), threading.Event()

    def run(self, spark: Any, stopping: threading.Event) -> None:
        """Stream until stopping; raises what made the stream fail."""
        directory = tempfile.mkdtemp(prefix="flafka-checkpoint-")
        self._stopping = stopping
        try:
            self.channel.open()
            if self.audit is not None:
                self.audit.open()
            if self.committing is not None:
                self.committing.open()
            self._resume()
            query, clock, looked = self._start(spark, directory), Clock(), time.monotonic()
            try:
                while not query.awaitTermination(0.2):
                    clock.look()
                    if time.monotonic() - looked > LOOK_SECONDS:
                        with suppress(Retry):  # no broker answers
                            self._look_for_truncations()
                        looked = time.monotonic()
                    # One that is behind begins the next micro-batch at once: it is never seen at rest.
                    if stopping.is_set() and (self._over.is_set() or not query.status["isTriggerActive"]):
                        break
            finally:
                query.stop()
        except Exception as e:
            if self.assignments and not isinstance(e, FlafkaError):
                with suppress(Retry):  # what Spark sees of it need not say why
                    self._look_for_records()
            raise
        finally:
            if self.committing is not None:
                self.committing.close()
            if self.audit is not None:
                self.audit.close()
            self.channel.close()
            shutil.rmtree(directory, ignore_errors=True)

    def _resume(self) -> None:
        for refusal in self.channel.kafka.refusals(self.job.sink.group, {}):
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
            elif start.next_offset != committed.next_offset:  # it ended between the two commits
                self.committer.committed(start)
        if begun:  # whoever has a partition next has to know of this sink's commit log
            self.channel.kafka.commit_offsets(begun)
        self._store_offsets()
        self._look_for_records()

    def _oldest(self, assignment: Assignment) -> Assignment:
        """Return the start of a partition in which the group has no offset: its first record. From there on, and not
        from whatever is the first one later, it is read, so that what retention removes meanwhile is missed.
        """
        start = assignment.at(self._low_watermarks.get(assignment.partition, 0))
        if start.next_offset:
            log.warning("%s", begins_late(start))
        return start

    @cached_property
    def _low_watermarks(self) -> Mapping[int, int]:
        return self.channel.kafka.starts()

    def _start(self, spark: Any, checkpoint: str) -> Any:
        stream = self.channel.kafka.stream(self.job.sink.group)
        records = read_topic(spark, stream, self.expected(), most_records(self.channel, self.options))
        template = next(iter(self.assignments.values())).of(epoch=0)
        task = PartitionTask(self.agent, self.job, self.assignments, template)
        return (
            records.mapInArrow(task, "result binary")
            .writeStream.foreachBatch(self._commit)
            .queryName(self.job.sink.path)
            .option("checkpointLocation", Path(checkpoint).as_uri())
            .trigger(processingTime=f"{self.options.spark_trigger_interval} seconds")
            .start()
        )

    def _look(self) -> None:
        """Raise Conflict if the topic was recreated, the group was reset, or another sink's commit log has replaced
        this sink's: the query has to be restarted.

        If a commit of an earlier epoch or of a deleted topic came late, this query's offset is committed again.
        """
        undone = set[int]()
        for committed in self.channel.kafka.committed(self.job.sink.group):
            ours = self.assignments.get(committed.partition)
            if ours is None:
                continue
            if committed.topic_partition.topic_id != ours.topic_partition.topic_id:
                raise Conflict(self._made_again(ours))
            if why := overtaken(ours, OffsetMetadata.of(committed)):
                raise Conflict(why)
            if committed.generation.epoch < ours.generation.epoch or committed.next_offset is None:
                undone.add(ours.partition)
        with self._lock, suppress(Retry):  # as where the group has members
            if undone:
                self.channel.kafka.restore([self.assignments[partition] for partition in undone])

    def _look_for_truncations(self) -> None:
        """Raise RecordsLost where brokers have lost a record that this query has delivered, besides what `_look`
        raises: Spark does not notice it once new records have taken the lost offsets.

        What retention has removed is no matter here: executors may have read it.
        """
        with self._lock:
            unstored = self.committer.unstored
            known = [one for one in self.assignments.values() if one.partition not in unstored]
        self._refuse(error for error in self._refusals(known) if isinstance(error, RecordsLost))

    def _look_for_records(self) -> None:
        """Raise FlafkaError, with the way out, if the brokers do not have the records that come next.

        A loss by brokers is kept with the group's offset: otherwise Spark would skip records once new ones have
        taken the lost offsets. An error of `_look` takes precedence: no record of a recreated topic may be given up.
        """
        self._refuse(self._refusals([*self.assignments.values()]))

    def _refusals(self, starts: Collection[Assignment]) -> Sequence[FlafkaError]:
        """Return the errors of the channel for these offsets. Raises what `_look` raises."""
        refusals = self.channel.kafka.refusals(self.job.sink.group, starts)
        self._look()
        return refusals

    def _refuse(self, refusals: Iterable[FlafkaError]) -> None:
        """Raise the first of these errors, which is kept with the group's offset."""
        for error in refusals:
            with suppress(Retry, Conflict):  # the next attempt finds it again
                self.channel.kafka.refuse(error)
            raise error

    def _made_again(self, assignment: Assignment) -> str:
        """Return the error text for a topic that was recreated; the first call counts the loss."""
        expected = self.expected()
        known = {p: end for p, end in self._latest.items() if p in expected}
        left = sum(max(0, end - expected[p]) for p, end in known.items())
        if not self._told_lost:
            self._told_lost = True
            report(self.job.sink.name, {"TopicRecreatedCount": 1, "RecordLostCount": left})
        return made_again(assignment, left, len(self.assignments) - len(known))

    def expected(self) -> Mapping[int, int]:
        """Return the next offset of each partition."""
        return {one.partition: one.next_offset or 0 for one in [*self.assignments.values()]}  # others may add some

    def show(self, progress: Any) -> None:
        """Set the gauges: a micro-batch is over."""
        self._latest |= latest_of(progress)
        report(self.job.sink.name, {}, gauges_of(progress, self.expected()))

    def idle(self, _: str) -> None:
        """There is nothing new."""
        with suppress(Conflict):  # the query's own look will find it
            self._store_offsets()
        report(self.job.sink.name, {}, {"Lag": 0})

    def _commit(self, frame: Any, _: int) -> None:
        """Make one micro-batch visible, partition by partition, then move the group along.

        What a simple sink's task flushed is visible already: there the group's offset is the only record.
        """
        results: list[Result] = [pickle.loads(row.result) for row in frame.collect()]  # noqa: S301  # our executors'
        self._refuse_new(results)
        self.committer.prepare([result.staged for result in results], self, lambda: self._store_dead_letters(results))
        for result in results:
            receipt = result.staged.receipt
            ours = self.assignments.get(receipt.assignment.partition, receipt.assignment)
            if receipt.offsets.start < (ours.next_offset or 0):
                span = f"{receipt.offsets.start}–{ours.next_offset}"
                raise FlafkaError(f"records {span} of partition {ours.partition} were delivered twice")
            if (conflict := self.committer.commit(result.staged).reason) is not None:
                raise conflict
            with self._lock:
                self.assignments[ours.partition] = ours.at(receipt.offsets.end, receipt.last_record)
            counts = {**Counter(result.counts) + self._own_counts()}
            counts |= {"EventDrainSuccessCount": receipt.events, "BatchCompleteCount": 1}
            report(self.job.sink.name, counts, interceptors=result.interceptors)
        self.rejections.committed({result.staged.receipt.assignment.partition for result in results})
        self._store_offsets()
        if self._stopping.is_set():
            self._over.set()

    def _refuse_new(self, results: Iterable[Result]) -> None:
        """Raise Retry for partitions that were added, which a sink with a commit log has to resume first."""
        added = {result.staged.receipt.assignment.partition for result in results} - self.assignments.keys()
        if added and self.committing is not None:
            raise Retry(f"{self.job.sink.path}: partitions {sorted(added)} are new: taking them over")

    def _store_dead_letters(self, results: Sequence[Result]) -> None:
        """Store what was rejected. Raises Retry where that is too much."""
        self.rejections.start_over()
        self.rejections.offered(sum(result.offered for result in results))
        self.rejections.add(letter for result in results for letter in result.letters)
        if rejected := self.rejections.store():
            report(self.job.sink.name, {"EventRejectedCount": rejected})

    def _store_offsets(self) -> None:
        """Store offsets, with those that could not be stored before.

        Deliveries do not depend on stored offsets while this process lives. The offsets of a group that still has
        members, as after an agent was killed, are stored later.
        """
        with self._lock:
            try:
                self.committer.store_offsets(self)
            except Retry as e:
                log_failure(log, logging.INFO, str(e), e)

    # --- OffsetStore

    def verify(self, staged: Sequence[StagedRange]) -> None:
        """Look at the group before a commit; for sinks without a commit log, at the topic alone."""
        if self.committing is not None:
            self._look()
        else:
            self.channel.kafka.confirm(staged[0].receipt.assignment)

    def store(self, committed: Collection[Assignment]) -> None:
        """Commit them without membership."""
        self.channel.kafka.commit_offsets(committed)

    def _own_counts(self) -> Counter[str]:
        """Return what the sink has counted on the driver since the previous call."""
        now = Counter(self.committing.metrics.snapshot() if self.committing is not None else {})
        new, self._counted = now - self._counted, now
        return new


class Clock:
    """The machine's, which Spark's triggers go by: set back by an hour, it holds them up for an hour."""

    def __init__(self) -> None:
        self._ahead = time.time() - time.monotonic()

    def look(self) -> None:
        """Raises Retry where it was set back: a query that is begun anew goes by the new time."""
        if (back := self._ahead - (time.time() - time.monotonic())) > SET_BACK_SECONDS:
            raise Retry(f"the machine's clock was set back by {back:.0f} s: the query is started again")


def most_records(channel: KafkaBackedChannel, options: AgentOptions) -> str:
    """Return the maximum number of records in a micro-batch, as text.

    The maximum bounds throughput, too: records of one event each need a larger maximum than records of thousands.
    """
    return str(options.spark_max_records or (20_000 if channel.holds_batches else 500_000))


def read_topic(spark: Any, stream: KafkaStream, starts: Mapping[int, int | None], most: str) -> Any:
    """The channel's records from these offsets on (None: from the earliest), as a DataFrame: partition, offset,
    timestamp in ms, key, value, headers."""
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
