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
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from flafka.agent.audit.publishing import audit_of
from flafka.agent.options import AgentOptions
from flafka.agent.runner.deadletters.rejections import Rejections
from flafka.agent.runner.moving import CommitLogMove
from flafka.agent.runner.retries import log_failure
from flafka.agent.runner.spark.job import Job, PartitionTask, Result, SinkJob
from flafka.agent.runner.spark.progress import Offsets, gauges_of, latest_of, report
from flafka.plugins import (
    CommittingSink,
    Conflict,
    FlafkaError,
    KafkaBackedChannel,
    KafkaStream,
    LastRecord,
    PartitionClaim,
    PlainSink,
    Retry,
    Sink,
)
from flafka.plugins.kafka.offsets import OffsetMetadata, RecordsLost, begins_late, made_again, overtaken
from flafka.plugins.kafka.properties import java_properties

log = logging.getLogger("spark")

LOOK_SECONDS = 10.0
"""So often a query looks whether its group and its topic are still those that it began with."""
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
        self.expected: dict[int, int] = {}
        self.claims: dict[int, PartitionClaim] = {}
        self._last: dict[int, LastRecord] = {}
        """By partition: the record before the position in `expected`, as far as it is known."""
        self._counted: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._unrecorded: dict[PartitionClaim, int] = {}
        self._latest: Offsets = {}
        """Where the topic ended when Spark last looked."""
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
            if self.claims and not isinstance(e, FlafkaError):
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
        for refusal in self.channel.refusals(self.job.sink.group, {}):
            raise refusal
        if self.committing is not None:
            self._move.make(self.committing, self.channel, self.job.sink.group, joins=False)
        positions = self.channel.positions(self.job.sink.group)
        begun: dict[PartitionClaim, int] = {}
        fresh = []
        for claim, committed in positions.items():
            if self.committing is not None:
                found = self.committing.resume(claim, committed)
                claim, committed = found.claim, found.position
                self._last[claim.partition] = found.last
            else:
                if isinstance(self.sink, PlainSink):
                    self.sink.take_over(claim)
                claim = claim._replace(record="")
            self.claims[claim.partition] = claim
            if committed is None:
                fresh.append(claim)
                continue
            if (recorded := positions.get(claim)) is None:
                begun[claim] = committed
            elif committed != recorded:  # it ended between the two commits
                self._unrecorded[claim] = committed
            self.expected[claim.partition] = committed
        if fresh:
            oldest = self._oldest(fresh)
            begun |= oldest
            self.expected |= {claim.partition: start for claim, start in oldest.items()}
        if begun:  # whoever has a partition next has to know of this sink's record
            self.channel.record(begun)
        self._record({})
        self._look_for_records()

    def _oldest(self, claims: Iterable[PartitionClaim]) -> dict[PartitionClaim, int]:
        """The first records of partitions in which the group has no position. From there on, and not from whatever is
        the first one later, they are read, so that what retention removes meanwhile is missed.
        """
        oldest = self.channel.starts()
        starts = {claim: oldest.get(claim.partition, 0) for claim in claims}
        for claim, start in starts.items():
            if start:
                log.warning("%s", begins_late(claim, start))
        return starts

    def _start(self, spark: Any, checkpoint: str) -> Any:
        stream = self.channel.stream(self.job.sink.group)
        records = read_topic(spark, stream, self.expected, most_records(self.channel, self.options))
        template = next(iter(self.claims.values()))._replace(epoch=0)
        task = PartitionTask(self.agent, self.job, self.claims, template)
        return (
            records.mapInArrow(task, "result binary")
            .writeStream.foreachBatch(self._commit)
            .queryName(self.job.sink.path)
            .option("checkpointLocation", Path(checkpoint).as_uri())
            .trigger(processingTime=f"{self.options.spark_trigger_interval} seconds")
            .start()
        )

    def _look(self) -> None:
        """Raises Conflict where the topic was made again, the group was reset, or another sink's record has taken the
        place of this one's: the query has to begin anew.

        Where a commit of an earlier epoch or of a deleted topic came late, this query's position is committed again.
        """
        earlier = []
        for found, position in self.channel.positions(self.job.sink.group).items():
            ours = self.claims.get(found.partition)
            if ours is None:
                continue
            if found.topic_id != ours.topic_id:
                raise Conflict(self._made_again(ours))
            if why := overtaken(ours, OffsetMetadata.of(found)):
                raise Conflict(why)
            if found.epoch < ours.epoch or position is None:
                earlier.append(ours)
        with self._lock, suppress(Retry):  # as where the group has members
            known = {claim: self.expected[claim.partition] for claim in earlier if claim.partition in self.expected}
            if known:
                self.channel.restore(known)

    def _look_for_truncations(self) -> None:
        """Raise RecordsLost where brokers have lost a record that this query has delivered, besides what `_look`
        raises: Spark does not notice it once new records have taken the lost offsets.

        What retention has removed is no matter here: executors may have read it.
        """
        with self._lock:
            known = {p: offset for p, offset in self.expected.items() if self.claims[p] not in self._unrecorded}
            positions, last = {self.claims[p]: offset for p, offset in known.items()}, dict(self._last)
        self._refuse(error for error in self._refusals(positions, last) if isinstance(error, RecordsLost))

    def _look_for_records(self) -> None:
        """Raises FlafkaError, with the way out, where the brokers do not have the records that come next.

        A loss by brokers is kept with the group's offset: Spark would go on by itself, past records, once new ones
        have taken the lost offsets. Raises what `_look` raises where that is no business of this query's any more: no
        record of a topic made again is to be given up.
        """
        positions = {self.claims[partition]: offset for partition, offset in self.expected.items()}
        self._refuse(self._refusals(positions, self._last))

    def _refusals(
        self, positions: Mapping[PartitionClaim, int], last: Mapping[int, LastRecord]
    ) -> Sequence[FlafkaError]:
        """Return the errors of the channel for these positions. Raises what `_look` raises."""
        refusals = self.channel.refusals(self.job.sink.group, positions, last)
        self._look()
        return refusals

    def _refuse(self, refusals: Iterable[FlafkaError]) -> None:
        """Raise the first of these errors, which is kept with the group's offset."""
        for error in refusals:
            with suppress(Retry, Conflict):  # the next attempt finds it again
                self.channel.refuse(error)
            raise error

    def _made_again(self, claim: PartitionClaim) -> str:
        """What to say where another topic has the claim's name now; and it is counted."""
        known = {p: end for p, end in self._latest.items() if p in self.expected}
        left = sum(max(0, end - self.expected[p]) for p, end in known.items())
        if not self._told_lost:
            self._told_lost = True
            report(self.job.sink.name, {"TopicRecreatedCount": 1, "RecordLostCount": left})
        return made_again(claim, left, len(self.claims) - len(known))

    def show(self, progress: Any) -> None:
        """Set the gauges: a micro-batch is over."""
        self._latest |= latest_of(progress)
        report(self.job.sink.name, {}, gauges_of(progress, self.expected))

    def idle(self, _: str) -> None:
        """There is nothing new."""
        with suppress(Conflict):  # the query's own look will find it
            self._record({})
        report(self.job.sink.name, {}, {"Lag": 0})

    def _commit(self, frame: Any, _: int) -> None:
        """Make one micro-batch visible, partition by partition, then move the group along.

        What a simple sink's task flushed is visible already: there the group's position is the only record.
        """
        results: list[Result] = [pickle.loads(row.result) for row in frame.collect()]  # noqa: S301  # our executors'
        claims = [result.receipt.claim for result in results]
        added = {claim.partition: claim for claim in claims if claim.partition not in self.claims}
        if self.committing is None:
            self.claims |= added
        elif added:  # its own record of them has to be looked at first
            raise Retry(f"{self.job.sink.path}: partitions {sorted(added)} are new: taking them over")
        if results and self.committing is not None:
            self._look()
        elif results:
            self.channel.confirm(results[0].receipt.claim)
        self._judge(results)
        if rejected := self.rejections.store():
            report(self.job.sink.name, {"EventRejectedCount": rejected})
        ends: dict[PartitionClaim, int] = {}
        if self.audit is not None:
            self.audit.taken((r.receipt.claim, r.receipt.start, r.receipt.end, r.minutes) for r in results)
        for result in results:
            receipt = result.receipt
            partition = receipt.claim.partition
            expected = self.expected.get(partition)
            if expected is not None and receipt.start < expected:
                raise FlafkaError(f"records {receipt.start}–{expected} of partition {partition} were delivered twice")
            if self.committing is not None:
                self.committing.commit(receipt)
            with self._lock:
                self.expected[partition] = ends[receipt.claim] = receipt.end
                self._last[partition] = receipt.last
            counts = {**Counter(result.counts) + self._own_counts()}
            counts |= {"EventDrainSuccessCount": receipt.events, "BatchCompleteCount": 1}
            report(self.job.sink.name, counts, interceptors=result.interceptors)
        self.rejections.committed({result.receipt.claim.partition for result in results})
        self._record(ends)
        if self._stopping.is_set():
            self._over.set()

    def _record(self, ends: Mapping[PartitionClaim, int]) -> None:
        """Tell the group, and what it could not be told before.

        Nothing that is delivered depends on it while this process lives. A group that has members yet, as those of an
        agent that was killed, is told later.
        """
        with self._lock:
            self._unrecorded |= ends
            try:
                if self._unrecorded:
                    ended = {claim.partition: end for claim, end in self._unrecorded.items()}
                    last = {p: one for p, one in self._last.items() if ended.get(p) == self.expected.get(p)}
                    self.channel.record(self._unrecorded, last)
                    self._unrecorded = {}
            except Retry as e:
                log_failure(log, logging.INFO, str(e), e)

    def _judge(self, results: list[Result]) -> None:
        """Raises Retry where too many events were rejected."""
        self.rejections.start_over()
        self.rejections.offered(sum(result.offered for result in results))
        self.rejections.add(letter for result in results for letter in result.letters)

    def _own_counts(self) -> Counter[str]:
        """What the sink has counted here, on the driver, since the last time."""
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
    """How many records a micro-batch has at most.

    It bounds throughput, too: a record of one event has to come in larger numbers than one of thousands.
    """
    return str(options.spark_max_records or (20_000 if channel.holds_batches else 500_000))


def read_topic(spark: Any, stream: KafkaStream, positions: Mapping[int, int | None], most: str) -> Any:
    """The channel's records from these positions on (None: from the earliest), as a DataFrame: partition, offset,
    timestamp in ms, key, value, headers."""
    earliest = -2
    offsets = {str(p): earliest if offset is None else offset for p, offset in positions.items()}
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
