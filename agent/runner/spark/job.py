"""What the agent tells its Spark driver, and what the driver tells its executors."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from agent.runner.deadletters import DeadLetter, letters_of
from agent.topology import ChannelSpec, SinkSpec
from plugins import Channel, Claim, CommittingSink, Event, Interceptor, Receipt, Record, Rejected, Taken


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
    """For temporary files of this driver, its JVM and its workers; goes with it."""


@dataclass
class Result:
    """What one task made of one partition's records."""

    receipt: Receipt
    dead_letters: list[DeadLetter] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)


class PartitionTask:
    """Runs a sink over the records of one Kafka partition on an executor: decode, intercept, write, stage."""

    def __init__(self, job: SinkJob, claims: Mapping[int, Claim], template: Claim) -> None:
        self.job = job
        self.claims, self.template = dict(claims), template

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """From batches of (partition, offset, timestamp in ms, key, value, headers) to one pickled Result, if any."""
        result = self.run(batches)
        values = [pickle.dumps(result)] if result is not None else []
        yield pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], ["result"])

    def run(self, batches: Iterator[Any]) -> Result | None:
        """All records of one task, which are those of one partition; None where there were none."""
        spec = self.job.sink
        sink: CommittingSink = spec.make()  # type: ignore[type-arg]
        interceptors: list[Interceptor] = [i.make() for i in spec.interceptors]  # type: ignore[type-arg]
        opened: list[Any] = []
        try:
            for component in (*interceptors, sink):
                opened.append(component)
                component.open()
            return self._deliver(self._taken(batches), sink, interceptors)
        finally:
            for component in opened:
                component.close()

    def _deliver(
        self,
        takes: Iterator[tuple[Claim, Taken]],
        sink: CommittingSink,  # type: ignore[type-arg]
        interceptors: list[Interceptor],  # type: ignore[type-arg]
    ) -> Result | None:
        path = self.job.sink.path
        letters: list[DeadLetter] = []
        counts = dict.fromkeys(("EventDrainAttemptCount", "EventFilteredCount", "EventRejectedCount"), 0)
        claim: Claim | None = None
        start = end = 0
        for owner, taken in takes:
            claim = owner
            start, end = (start if end else taken.start), taken.end
            letters += [DeadLetter(path, u.id, Event(u.payload), u.reason) for u in taken.undecodable]
            batch = taken.batch
            for interceptor in interceptors:
                if len(batch):
                    batch = interceptor.intercept(batch)
            counts["EventFilteredCount"] += len(taken.batch) - len(batch)
            counts["EventDrainAttemptCount"] += len(batch)
            if len(batch):
                try:
                    sink.write(batch)
                except Rejected as e:
                    letters += letters_of(path, e.reasons, [taken.batch])
        if claim is None:
            return None
        counts["EventRejectedCount"] = len(letters)
        return Result(sink.stage(claim, start, end), letters, counts)

    def _taken(self, batches: Iterator[Any]) -> Iterator[tuple[Claim, Taken]]:
        """The records decoded, small ones joined."""
        channel: Channel = self.job.channel.make()  # type: ignore[type-arg]
        for batch in batches:
            if not batch.num_rows:
                continue
            partition = batch.column("partition")[0].as_py()
            claim = self.claims.get(partition, self.template._replace(partition=partition))
            records = _records(batch)
            while (taken := channel.decode(records, claim)) is not None:
                yield claim, taken


def _records(batch: Any) -> Iterator[Record]:
    columns = (batch.column(name).to_pylist() for name in ("offset", "timestamp", "key", "value", "headers"))
    for offset, timestamp, key, value, headers in zip(*columns, strict=True):
        yield Record(offset, timestamp, key, value, [(h["key"], h["value"]) for h in headers or ()])
