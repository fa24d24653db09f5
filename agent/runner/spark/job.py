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
from flafka.agent.runner.deadletters.alerts import AlertingStore, ErrorGroups
from flafka.agent.runner.deadletters.store import (
    DeadLetter,
    dead_letter_store,
    rejected_dead_letters,
    undecodable_dead_letters,
)
from flafka.agent.runner.delivery import Delivery, Range, Ranges, collect_reasons, intercept, open_interceptors
from flafka.agent.runner.kafkalogin import log_in_to_kafka
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
from flafka.plugins.dataframe import to_arrow
from flafka.plugins.kafka.topic import KafkaBackedChannel

InterceptorCounts = dict[str, tuple[dict[str, float], str]]
"""Counts of interceptors, and their latest errors, by name of the interceptor."""
MicroBatches = dict[tuple[str, int], dict[tuple[int, int], int]]
"""Numbers of events by query ID and micro-batch, and within these by partition and offset of the first record."""
QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""Local properties of Spark's tasks (StreamExecution.QUERY_ID_KEY, MicroBatchExecution.BATCH_ID_KEY)."""
KEPT_MICRO_BATCHES = 64
"""Number of micro-batches of each query that are kept, as Spark reports the end of one during later ones."""
NO_SPARK_EXIT_CODE = 3
"""Exit code of a driver without a SparkContext, which has reported the reason to the agent."""


@dataclass(frozen=True)
class SinkJob:
    """Sink to run on Spark, with its channel. Picklable."""

    sink: SinkSpec
    channel: ChannelSpec


@dataclass(frozen=True)
class Job:
    """Sinks and options of one driver. Picklable."""

    agent: str
    sinks: tuple[SinkJob, ...]
    options: AgentOptions
    """Properties of the agent; those under `spark.` are for the session."""
    log_file: str
    directory: str
    """Scratch directory of this driver, its JVM and its workers; empty without one."""
    configuration: str = ""
    """Path of the agent's configuration file."""

    @property
    def modules(self) -> list[str]:
        """Directories of the processors' modules, without duplicates."""
        sinks = [job.sink.make() for job in self._processors]
        return list(dict.fromkeys(sink.module_directory for sink in sinks if sink.module_directory))

    @property
    def keeps_checkpoints(self) -> bool:
        """True if a sink is a processor, whose state is in its checkpoint, from which a later driver resumes."""
        return bool(self._processors)

    @property
    def _processors(self) -> list[SinkJob]:
        return [sink for sink in self.sinks if issubclass(sink.sink.cls, StreamingSink)]


@dataclass
class Result:
    """Result of one task for the records of one partition."""

    staged: StagedRange
    """Staged range; for a sink without a commit log, a flushed range."""
    counts: dict[str, float] = field(default_factory=dict)
    """Counts of the sink."""
    offered: int = 0
    """Number of events and undecodable records that the sink was to take."""
    dead_letters: list[DeadLetter] = field(default_factory=list)
    """Dead letters of rejected events, for the driver to store."""
    interceptors: InterceptorCounts = field(default_factory=dict)


class _Task:
    """Task of an executor over the records of one Kafka partition.

    Columns of the records: partition, offset, timestamp in milliseconds, key, value, headers.
    """

    def __init__(self, job: Job, sink: SinkJob, assignments: Mapping[int, Assignment], template: Assignment) -> None:
        """`assignments` are the known partitions of the group. `template` is for partitions that are added later.

        The task replaces the partition number in `template`.
        """
        self.agent, self.options, self.job = job.agent, job.options, sink
        self.assignments, self.template = dict(assignments), template

    def polled(self, batches: Iterator[Any], channel: KafkaBackedChannel) -> Iterator[PolledBatch]:
        """Yield the records, decoded into batches of events, each from one or several records. Columns are as above.

        Records of partitions without an assignment get one from the template.
        """
        for batch in batches:
            if not batch.num_rows:
                continue
            partition = batch.column("partition")[0].as_py()
            assignment = self.assignments.get(partition) or self.template.replace(partition=partition)
            records = _records(batch)
            while (polled := channel.decode(records, assignment)) is not None:
                yield polled


class PartitionTask(_Task):
    """Delivery of one partition's records to a sink on an executor: decode, intercept, write, and stage or flush."""

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield one Arrow batch with one row, the pickled Result in column `result`, or no row without records."""
        result = self.run(batches)
        values = [pickle.dumps(result)] if result is not None else []
        yield pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], ["result"])

    def run(self, batches: Iterator[Any]) -> Result | None:
        """Deliver the records of one task, all of one partition, and return its result; None without records.

        A sink with a commit log stages its events, which the driver commits. Any other sink has flushed them at the
        return. Dead letters are in the result. Raises the errors of the sink.
        """
        logging.basicConfig(level=logging.INFO)  # logs of components go into the executor's log
        spec = self.job.sink
        log_in_to_kafka((self.job.channel, spec))
        channel: KafkaBackedChannel = self.job.channel.make()
        store = dead_letter_store(self.agent, self.job.channel, channel, self.options)
        is_audited = audit_of(channel, self.options) is not None
        tallies, ranges = Tallies(), Ranges()
        delivery = Delivery(spec, store, ranges, threading.Event(), tallies if is_audited else None)
        try:
            delivery.open()
            for polled in self.polled(batches, channel):
                assignment = polled.assignment
                if delivery.committing is None:  # with a commit log, the driver confirms the topic before commits
                    channel.kafka.confirm_topic_id(assignment)
                ranges.setdefault(assignment.partition, Range(assignment.with_offset(polled.offsets.start)))
                delivery.write(polled)
                if delivery.committing is None and delivery.is_full:
                    delivery.flush()
            pending = next(iter(ranges.values()), None)  # the only one, as all records are of one partition
            return None if pending is None else _result(delivery, pending)
        finally:
            delivery.close()
            channel.close()
            store.close()


def _result(delivery: Delivery, pending: Range) -> Result:
    """Flush a sink without a commit log, stage the range, and return it with counts and dead letters."""
    if delivery.committing is None:
        delivery.flush()
    staged = delivery.stage(pending)
    dead_letters = delivery.rejections.take_all()
    interceptors = _interceptor_counts(delivery.interceptors)
    return Result(staged, _counts(delivery.metrics), delivery.rejections.events, dead_letters, interceptors)


class DictAccumulator:
    """Parameter of a Spark accumulator (`AccumulatorParam`) whose values are dicts, merged by a function."""

    def __init__(self, add: Callable[[Any, Any], Any]) -> None:
        self.addInPlace = add

    def zero(self, value: object) -> dict[Any, Any]:
        """Return the initial value, an empty dict."""
        return {}


def sum_counts(first: InterceptorCounts, second: InterceptorCounts) -> InterceptorCounts:
    """Return the sums of both, by interceptor and count, with the error of `second`, or else that of `first`."""
    summed = dict(first)
    for name, (counts, error) in second.items():
        before, earlier_error = first.get(name, ({}, ""))
        sums = {count: before.get(count, 0) + counts.get(count, 0) for count in {**before, **counts}}
        summed[name] = sums, error or earlier_error
    return summed


def merge_events(first: MicroBatches, second: MicroBatches) -> MicroBatches:
    """Return the numbers of both; for the same query, micro-batch and first record, the number of `second`.

    A task that ran twice, and a topic that a join reads twice, thus count once. Only the latest `KEPT_MICRO_BATCHES`
    micro-batches of each query are kept.
    """
    merged = dict(first)
    for key, events in second.items():
        merged[key] = {**merged.get(key, {}), **events}
    latest = dict(sorted(merged))
    return {(query, n): own for (query, n), own in merged.items() if n > latest[query] - KEPT_MICRO_BATCHES}


def _micro_batch() -> tuple[str, int]:
    """Return the query ID and the micro-batch number of this Spark task; "" and 0 outside of a streaming query."""
    from pyspark import TaskContext

    context = TaskContext.get()
    query = context.getLocalProperty(QUERY_ID) if context is not None else None
    number = context.getLocalProperty(BATCH_ID) if context is not None else None
    return query or "", int(number or 0)


def _interceptor_counts(interceptors: Iterable[Interceptor[Any]]) -> InterceptorCounts:
    """Return counts and latest error of each interceptor by its name."""
    return {
        interceptor.name: (_counts(interceptor.metrics), interceptor.metrics.last_error)
        for interceptor in interceptors
    }


def _counts(metrics: Metrics) -> dict[str, float]:
    """Return the counters of these metrics, without their gauges."""
    gauges = metrics.gauges()
    return {name: count for name, count in metrics.snapshot().items() if name not in gauges}


class EventsTask(_Task):
    """Conversion of one partition's records into events for a processor: decode and intercept."""

    def __init__(
        self,
        job: Job,
        sink: SinkJob,
        assignments: Mapping[int, Assignment],
        template: Assignment,
        count: Callable[[InterceptorCounts], None],
        rejected: Callable[[ErrorGroups], None],
        made: Callable[[MicroBatches], None],
        *,
        keep_dead_letters: bool,
    ) -> None:
        """Keep the callbacks of a task: `count` for interceptors, `rejected` for error groups, `made` for events.

        `rejected` is called at each stored dead letter, `count` and `made` once at the end of the task.
        `keep_dead_letters` False drops dead letters, as for a preview.
        """
        super().__init__(job, sink, assignments, template)
        self.count, self.rejected, self.made = count, rejected, made
        self.keep_dead_letters = keep_dead_letters

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the events of the records as Arrow batches, with the columns of `flafka.plugins.dataframe.EVENTS`.

        Dead letters are stored at once. Raises Conflict if the topic was recreated, and the errors of interceptors.
        """
        logging.basicConfig(level=logging.INFO)
        log_in_to_kafka((self.job.channel, self.job.sink))
        channel: KafkaBackedChannel = self.job.channel.make()
        store = AlertingStore(
            dead_letter_store(self.agent, self.job.channel, channel, self.options),
            lambda _, groups: self.rejected(groups),
        )
        made: dict[tuple[int, int], int] = {}
        with closing(channel), closing(store), open_interceptors(self.job.sink.interceptors) as interceptors:
            for polled in self.polled(batches, channel):
                channel.kafka.confirm_topic_id(polled.assignment)
                if polled.undecodable and self.keep_dead_letters:
                    store.put(undecodable_dead_letters(self.job.sink.path, polled))
                rejected: dict[EventId, str] = {}
                batch = intercept(polled.batch, interceptors, rejected=collect_reasons(rejected))
                if rejected and self.keep_dead_letters:
                    store.put(rejected_dead_letters(self.job.sink.path, rejected, polled))
                made[polled.assignment.partition, polled.offsets.start] = len(batch)
                if len(batch):
                    yield to_arrow(batch)
            self.count(_interceptor_counts(interceptors))
            self.made({_micro_batch(): made})


def _records(batch: Any) -> Iterator[Record]:
    columns = (batch.column(name).to_pylist() for name in ("offset", "timestamp", "key", "value", "headers"))
    for offset, timestamp, key, value, headers in zip(*columns, strict=True):
        yield Record(offset, timestamp, key, value, [(h["key"], h["value"]) for h in headers or ()])
