"""Jobs that the agent sends to its Spark driver, and tasks that the driver sends to its executors."""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from flafka.agent.audit.publishing import Tallies, audit_of
from flafka.agent.options import AgentOptions
from flafka.agent.runner.committer import StagedRange
from flafka.agent.runner.deadletters.letters import DeadLetter, dead_letters_of, letters_of, letters_of_records
from flafka.agent.runner.deadletters.notices import Causes, Heard
from flafka.agent.runner.delivery import Delivery, Range, Ranges, by_id, intercepted, opened
from flafka.agent.topology import ChannelSpec, SinkSpec
from flafka.plugins import (
    Assignment,
    EventId,
    Interceptor,
    Metrics,
    PolledBatch,
    Record,
    StreamingSink,
)
from flafka.plugins.kafka.topic import KafkaBackedChannel
from flafka.plugins.shared.frames import to_arrow

InterceptorCounts = dict[str, tuple[dict[str, float], str]]
"""By the interceptor's name: what it has counted, and its latest failure in words."""
MicroBatches = dict[tuple[str, int], dict[tuple[int, int], int]]
"""Numbers of events by query id and micro-batch, and within these by partition and the offset of the first record."""
QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""Local properties of Spark's tasks (StreamExecution.QUERY_ID_KEY, MicroBatchExecution.BATCH_ID_KEY)."""
KEPT_MICRO_BATCHES = 64
"""Micro-batches of each query whose numbers are kept: Spark reports the end of one while later ones are under way."""
GAVE_UP = 3
"""A driver's exit code where it ends by itself, as there is no Spark (any more): it has said why."""


@dataclass(frozen=True)
class SinkJob:
    """One sink to run on Spark: picklable."""

    sink: SinkSpec
    channel: ChannelSpec


@dataclass(frozen=True)
class Job:
    """Sinks and options of one driver."""

    agent: str
    sinks: tuple[SinkJob, ...]
    options: AgentOptions
    """The agent's own properties; those under `spark.` are for the session."""
    log_file: str
    directory: str
    """For temporary files of this driver, its JVM and its workers; goes with it. Empty: there is none."""
    configuration: str = ""

    @property
    def modules(self) -> list[str]:
        """Directories of the processors' modules."""
        made = [sink.sink.make() for sink in self._processors]
        return list(dict.fromkeys(sink.modules for sink in made if sink.modules))

    @property
    def keeps_checkpoints(self) -> bool:
        """True if a later driver resumes from this driver's checkpoints, as with processors, whose state they are."""
        return bool(self._processors)

    @property
    def _processors(self) -> list[SinkJob]:
        return [sink for sink in self.sinks if issubclass(sink.sink.cls, StreamingSink)]


@dataclass
class Result:
    """Result of one task for the records of one partition."""

    staged: StagedRange
    """Staged range; for a sink that only writes and flushes, a range that is durable already and needs no commit."""
    counts: dict[str, float] = field(default_factory=dict)
    offered: int = 0
    """Number of events and undecodable records that the sink was to take."""
    letters: list[DeadLetter] = field(default_factory=list)
    """Dead letters of what it rejected. The driver stores them."""
    interceptors: InterceptorCounts = field(default_factory=dict)


class _Task:
    """Task of an executor over the records of one Kafka partition.

    Columns of the records: partition, offset, timestamp in milliseconds, key, value, headers.
    """

    def __init__(self, job: Job, sink: SinkJob, assignments: Mapping[int, Assignment], template: Assignment) -> None:
        """`template` stands for partitions that are added later."""
        self.agent, self.options, self.job = job.agent, job.options, sink
        self.assignments, self.template = dict(assignments), template

    def polled(self, batches: Iterator[Any], channel: KafkaBackedChannel) -> Iterator[PolledBatch]:
        """The records decoded, small ones joined."""
        for batch in batches:
            if not batch.num_rows:
                continue
            partition = batch.column("partition")[0].as_py()
            assignment = self.assignments.get(partition) or self.template.of(partition=partition)
            records = _records(batch)
            while (polled := channel.decode(records, assignment)) is not None:
                yield polled


class PartitionTask(_Task):
    """Runs a sink over one partition's records on an executor: decode, intercept, write, and stage or flush."""

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """From records to one pickled Result, if any."""
        result = self.run(batches)
        values = [pickle.dumps(result)] if result is not None else []
        yield pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], ["result"])

    def run(self, batches: Iterator[Any]) -> Result | None:
        """Deliver the records of one task, all of one partition, and return its result; None without records."""
        logging.basicConfig(level=logging.INFO)  # what components say reaches the executor's log
        spec = self.job.sink
        channel: KafkaBackedChannel = self.job.channel.make()
        letters = dead_letters_of(self.agent, self.job.channel, channel, self.options)
        audited = audit_of(channel, self.options) is not None
        tallies, ranges = Tallies(), Ranges()
        delivery = Delivery(spec, letters, ranges, threading.Event(), tallies if audited else None)
        try:
            delivery.open()
            for polled in self.polled(batches, channel):
                assignment = polled.assignment
                if delivery.committing is None:  # else the driver does, before it commits
                    channel.kafka.confirm(assignment)
                ranges.setdefault(assignment.partition, Range(assignment.at(polled.offsets.start)))
                delivery.write(polled)
                if delivery.committing is None and delivery.full:
                    delivery.flush()
            pending = next(iter(ranges.values()), None)  # all records are of one partition
            return None if pending is None else _result(delivery, pending)
        finally:
            delivery.close()
            channel.close()
            letters.close()


def _result(delivery: Delivery, pending: Range) -> Result:
    if delivery.committing is None:
        delivery.flush()
    staged = delivery.stage(pending)
    letters = delivery.rejections.take()
    interceptors = _of_interceptors(delivery.interceptors)
    return Result(staged, _counts(delivery.metrics), delivery.rejections.events, letters, interceptors)


class Summing:
    """Parameter of one of Spark's accumulators: adds dicts up with a function."""

    def __init__(self, add: Callable[[Any, Any], Any]) -> None:
        self.addInPlace = add

    def zero(self, value: object) -> dict[Any, Any]:
        """Return the value before anything is added."""
        return {}


def sum_counts(one: InterceptorCounts, other: InterceptorCounts) -> InterceptorCounts:
    """Add up; of two failures the later one stays."""
    summed = dict(one)
    for name, (counts, error) in other.items():
        before, failure = one.get(name, ({}, ""))
        both = {count: before.get(count, 0) + counts.get(count, 0) for count in {**before, **counts}}
        summed[name] = both, error or failure
    return summed


def merge_events(one: MicroBatches, other: MicroBatches) -> MicroBatches:
    """Return the numbers of both, but of no more than the latest micro-batches of each query.

    A task that ran twice, and a topic that a join reads twice, count once.
    """
    merged = dict(one)
    for key, events in other.items():
        merged[key] = {**merged.get(key, {}), **events}
    latest = dict(sorted(merged))
    return {(query, n): own for (query, n), own in merged.items() if n > latest[query] - KEPT_MICRO_BATCHES}


def _micro_batch() -> tuple[str, int]:
    """Return the query and the micro-batch of this task; an empty id outside of a stream."""
    from pyspark import TaskContext

    context = TaskContext.get()
    query = context.getLocalProperty(QUERY_ID) if context is not None else None
    number = context.getLocalProperty(BATCH_ID) if context is not None else None
    return query or "", int(number or 0)


def _of_interceptors(interceptors: Iterable[Interceptor[Any]]) -> InterceptorCounts:
    return {one.name: (_counts(one.metrics), one.metrics.last_error) for one in interceptors}


def _counts(metrics: Metrics) -> dict[str, float]:
    gauges = metrics.gauges()
    return {name: count for name, count in metrics.snapshot().items() if name not in gauges}


class EventsTask(_Task):
    """Makes events of one partition's records: decode and intercept."""

    def __init__(
        self,
        job: Job,
        sink: SinkJob,
        assignments: Mapping[int, Assignment],
        template: Assignment,
        count: Callable[[InterceptorCounts], None],
        rejected: Callable[[Causes], None],
        made: Callable[[MicroBatches], None],
        *,
        keep_dead_letters: bool,
    ) -> None:
        """Callbacks of a task that ends well.

        `count` gets what interceptors counted, `rejected` what became dead letters, `made` the numbers of events.
        """
        super().__init__(job, sink, assignments, template)
        self.count, self.rejected, self.made = count, rejected, made
        self.keep_dead_letters = keep_dead_letters

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """From records to events, columns as `flafka.plugins.shared.frames.EVENTS` says."""
        logging.basicConfig(level=logging.INFO)
        channel: KafkaBackedChannel = self.job.channel.make()
        kept = dead_letters_of(self.agent, self.job.channel, channel, self.options)
        letters = Heard(kept, lambda _, causes: self.rejected(causes))
        made: dict[tuple[int, int], int] = {}
        with closing(channel), closing(letters), opened(self.job.sink.interceptors) as interceptors:
            for polled in self.polled(batches, channel):
                channel.kafka.confirm(polled.assignment)
                if polled.undecodable and self.keep_dead_letters:
                    letters.put(letters_of_records(self.job.sink.path, polled))
                rejected: dict[EventId, str] = {}
                batch = intercepted(polled.batch, interceptors, rejected=by_id(rejected))
                if rejected and self.keep_dead_letters:
                    letters.put(letters_of(self.job.sink.path, rejected, polled))
                made[polled.assignment.partition, polled.offsets.start] = len(batch)
                if len(batch):
                    yield to_arrow(batch)
            self.count(_of_interceptors(interceptors))
            self.made({_micro_batch(): made})


def _records(batch: Any) -> Iterator[Record]:
    columns = (batch.column(name).to_pylist() for name in ("offset", "timestamp", "key", "value", "headers"))
    for offset, timestamp, key, value, headers in zip(*columns, strict=True):
        yield Record(offset, timestamp, key, value, [(h["key"], h["value"]) for h in headers or ()])
