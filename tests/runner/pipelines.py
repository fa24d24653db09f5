"""Sinks that keep their events in memory, exactly once or not, with channels and dead letters for them."""

from collections.abc import Iterator
from typing import ClassVar

from flafka.plugins import (
    Batch,
    CommittingSink,
    Config,
    Conflict,
    Event,
    Receipt,
    Rejected,
    Sink,
)


class Store(Sink[Config]):
    """Sink that keeps flushed events; a test can make it fail."""

    type_name = "store"
    flush_interval = 0.05
    script: Iterator[Exception | None] = iter(())

    def __init__(self, config, name=""):
        super().__init__(config, name)
        self.written: list[bytes] = []
        self.durable: list[bytes] = []

    def write(self, batch):
        failure = next(self.script, None)
        if isinstance(failure, Exception) and not isinstance(failure, Rejected):
            raise failure
        rejected = {batch.id(row): "not wanted" for row, event in enumerate(batch) if event.body == b"bad"}
        self.written += [event.body for event in batch if event.body != b"bad"]
        if rejected:
            raise Rejected(rejected)

    def flush(self):
        self.durable += self.written
        self.written.clear()

    def reset(self):
        self.written.clear()


class Record(CommittingSink[Config]):
    """Exactly-once sink in memory: its commit log outlives the instance, as on HDFS."""

    type_name = "record"
    commits: ClassVar[dict[int, tuple[int, list[bytes]]]]
    failures: ClassVar[list[Exception]]

    def __init__(self, config, name=""):
        super().__init__(config, name)
        self.written: list[bytes] = []

    def resume(self, committed):
        return committed.with_offset(max((end for end, _ in self.commits.values()), default=committed.next_offset))

    def write(self, batch):
        self.partition = batch.origin.partition
        self.written += batch.bodies.to_pylist()

    def due_partitions(self):
        return {self.partition} if self.written else set()

    def stage(self, assignment, offsets):
        return Receipt(assignment, offsets, len(self.written), list(self.written))

    def commit(self, receipt):
        if receipt.offsets.start in self.commits:
            raise Conflict("someone was here before")
        self.commits[receipt.offsets.start] = (receipt.offsets.end, receipt.staged)
        self.written.clear()
        if self.failures:
            raise self.failures.pop()

    def reset(self, partition=None):
        self.written.clear()


class MemoryDeadLetters(list):
    def put(self, letters):
        self.extend(letters)

    def close(self):
        pass


def put(channel, *bodies: bytes) -> None:
    channel.put(Batch.of([Event(body) for body in bodies]))
