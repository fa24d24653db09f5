"""What the agent tells its Spark driver, and what the driver tells its executors."""

from __future__ import annotations

import logging
import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from agent.monitoring.registry import GAUGES
from agent.runner.audit import audit_of
from agent.runner.deadletters import DeadLetter, dead_letters_of, letters_of, letters_of_records, to_note
from agent.runner.rejections import Rejections
from agent.topology import ChannelSpec, SinkSpec
from plugins import (
    Batch,
    Channel,
    Claim,
    CommittingSink,
    Interceptor,
    Receipt,
    Record,
    Rejected,
    StreamingSink,
    Taken,
)
from plugins.audit import Sum, add, tally
from plugins.frames import to_arrow

GAVE_UP = 3
"""A driver's exit code where it ends by itself, as there is no Spark (any more): it has said why."""


@dataclass(frozen=True)
class SinkJob:
    """One sink to run on Spark: picklable."""

    sink: SinkSpec
    channel: ChannelSpec


@dataclass(frozen=True)
class Job:
    """All sinks of one driver."""

    agent: str
    sinks: tuple[SinkJob, ...]
    options: Mapping[str, str]
    """The agent's own properties; those under `spark.` are for the session."""
    log_file: str
    directory: str
    """For temporary files of this driver, its JVM and its workers; goes with it. Empty: there is none."""

    @property
    def modules(self) -> list[str]:
        """Directories of the processors' modules."""
        made = [sink.sink.make() for sink in self.sinks if issubclass(sink.sink.cls, StreamingSink)]
        return list(dict.fromkeys(sink.modules for sink in made if sink.modules))


@dataclass
class Result:
    """What one task made of one partition's records."""

    receipt: Receipt
    """Of a sink that only writes and flushes: up to where everything is durable; nothing is staged."""
    counts: dict[str, float] = field(default_factory=dict)
    minutes: dict[int, Sum] = field(default_factory=dict)
    """For the audit."""
    offered: int = 0
    """How many events and undecodable records the sink was to take."""
    letters: list[DeadLetter] = field(default_factory=list)
    """What it rejected: kept by the driver."""


class _Task:
    """What runs on an executor over the records of one Kafka partition: (partition, offset, timestamp in ms, key,
    value, headers)."""

    def __init__(self, job: Job, sink: SinkJob, claims: Mapping[int, Claim], template: Claim) -> None:
        self.agent, self.options, self.job = job.agent, dict(job.options), sink
        self.claims, self.template = dict(claims), template

    def taken(self, batches: Iterator[Any], channel: Channel) -> Iterator[tuple[Claim, Taken]]:  # type: ignore[type-arg]
        """The records decoded, small ones joined."""
        for batch in batches:
            if not batch.num_rows:
                continue
            partition = batch.column("partition")[0].as_py()
            claim = self.claims.get(partition, self.template._replace(partition=partition))
            records = _records(batch)
            while (taken := channel.decode(records, claim)) is not None:
                yield claim, taken

    def interceptors(self) -> list[Interceptor[Any]]:
        """New ones of the sink's."""
        return [spec.make() for spec in self.job.sink.interceptors]


class PartitionTask(_Task):
    """Runs a sink over one partition's records on an executor: decode, intercept, write, and stage or flush."""

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """From records to one pickled Result, if any."""
        result = self.run(batches)
        values = [pickle.dumps(result)] if result is not None else []
        yield pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], ["result"])

    def run(self, batches: Iterator[Any]) -> Result | None:
        """All records of one task, which are those of one partition; None where there were none."""
        logging.basicConfig(level=logging.INFO)  # what components say reaches the executor's log
        spec = self.job.sink
        channel: Channel = self.job.channel.make()  # type: ignore[type-arg]
        letters = dead_letters_of(self.agent, self.job.channel, channel, self.options)
        delivery = _Delivery(spec, Rejections(letters, spec.tolerance))
        audited = audit_of(self.job.channel, channel, self.options) is not None
        minutes: dict[int, Sum] = {}
        interceptors = self.interceptors()
        opened: list[Any] = []
        claim, start, end = self.template, -1, -1
        try:
            for component in (*interceptors, delivery.sink):
                opened.append(component)
                component.open()
            for claim, taken in self.taken(batches, channel):
                start, end = taken.start if start < 0 else start, taken.end
                if delivery.committing is None:  # else the driver does, before it commits
                    channel.confirm(claim)
                delivery.take(claim, taken, interceptors)
                if audited:
                    add(minutes, tally(taken.fresh()))
            return None if start < 0 else replace(delivery.result(claim, start, end), minutes=minutes)
        finally:
            for component in opened:
                component.close()
            channel.close()
            letters.close()


class EventsTask(_Task):
    """Makes events of one partition's records: decode and intercept."""

    def __init__(
        self, job: Job, sink: SinkJob, claims: Mapping[int, Claim], template: Claim, *, keep_dead_letters: bool
    ) -> None:
        super().__init__(job, sink, claims, template)
        self.keep_dead_letters = keep_dead_letters

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """From records to events, columns as `plugins.frames.EVENTS` says."""
        logging.basicConfig(level=logging.INFO)
        channel: Channel = self.job.channel.make()  # type: ignore[type-arg]
        letters = dead_letters_of(self.agent, self.job.channel, channel, self.options)
        opened: list[Interceptor[Any]] = []
        try:
            for interceptor in self.interceptors():
                opened.append(interceptor)
                interceptor.open()
            for claim, taken in self.taken(batches, channel):
                channel.confirm(claim)
                if taken.undecodable and self.keep_dead_letters:
                    letters.put(letters_of_records(self.job.sink.path, claim, taken))
                if len(batch := intercepted(taken.batch, opened)):
                    yield to_arrow(batch)
        finally:
            for interceptor in opened:
                interceptor.close()
            channel.close()
            letters.close()


def intercepted(batch: Batch, interceptors: Iterable[Interceptor[Any]]) -> Batch:
    """What the interceptors leave of it."""
    for interceptor in interceptors:
        if len(batch):
            batch = interceptor.intercept(batch)
    return batch


class _Delivery:
    """One sink at work on one task's events."""

    def __init__(self, spec: SinkSpec, rejections: Rejections) -> None:
        self.path, self.sink, self.rejections = spec.path, spec.make(), rejections
        self.committing = self.sink if isinstance(self.sink, CommittingSink) else None
        self.counts: Counter[str] = Counter()
        self.offered = 0
        self._unflushed: list[tuple[Claim, Taken]] = []
        """The events as the channel held them, for dead letters; kept only where a flush may still reject some."""

    def take(self, claim: Claim, taken: Taken, interceptors: list[Interceptor[Any]]) -> None:
        """Intercept and write; flush a simple sink when that is due."""
        batch = intercepted(taken.batch, interceptors)
        self.counts["EventFilteredCount"] += len(taken.batch) - len(batch)
        self.counts["EventDrainAttemptCount"] += len(batch)
        self.offered += len(batch) + len(taken.undecodable)
        self.rejections.offered(len(batch) + len(taken.undecodable))
        self.rejections.add(letters_of_records(self.path, claim, taken))
        if not len(batch):
            return
        if self.committing is None:
            self._unflushed.append((claim, taken))
        try:
            self.sink.write(batch)
        except Rejected as e:
            self._reject(claim, e, taken)
        self.counts["EventDrainSuccessCount"] += len(batch)
        if sum(len(taken.batch) for _, taken in self._unflushed) >= self.sink.batch_size:
            self._flush()

    def result(self, claim: Claim, start: int, end: int) -> Result:
        """Make everything durable, and say so."""
        if self.committing is not None:
            letters = self.rejections.take()
            receipt = self.committing.stage(claim, start, end, to_note(letters))
        else:
            self._flush()
            letters = self.rejections.take()
            receipt = Receipt(claim, start, end, self.counts["EventDrainSuccessCount"], None)
        del self.counts["EventDrainSuccessCount"]  # the driver counts what is committed
        own = {name: count for name, count in self.sink.metrics.snapshot().items() if name not in GAUGES}
        counts = {**own, **self.counts}
        return Result(receipt, counts, offered=self.offered, letters=letters)

    def _flush(self) -> None:
        if self._unflushed:
            try:
                self.sink.flush()
            except Rejected as e:
                for claim, taken in self._unflushed:
                    self._reject(claim, e, taken)
        self._unflushed = []

    def _reject(self, claim: Claim, rejected: Rejected, taken: Taken) -> None:
        letters = letters_of(self.path, claim, rejected.reasons, [taken])
        self.counts["EventDrainSuccessCount"] -= len(letters)
        self.rejections.add(letters)


def _records(batch: Any) -> Iterator[Record]:
    columns = (batch.column(name).to_pylist() for name in ("offset", "timestamp", "key", "value", "headers"))
    for offset, timestamp, key, value, headers in zip(*columns, strict=True):
        yield Record(offset, timestamp, key, value, [(h["key"], h["value"]) for h in headers or ()])
