"""The tasks of a micro-batch, as Spark schedules them: attempts on executors that fail and are tried again, each of
which may be running still when another one has taken its place.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from tests.simulator.faults import Kind
from tests.simulator.processes import Process
from tests.simulator.spark.connector import batch_of
from tests.simulator.spark.failures import (
    CONTEXT_STOPPED,
    JavaError,
    Py4JJavaError,
    Stopped,
    data_loss,
    failure_of_task,
)
from tests.simulator.world import World, world

if TYPE_CHECKING:
    from tests.simulator.spark.query import Query

TASK_SECONDS = 0.02
HEARTBEAT_SECONDS = 45.0
"""An executor that was not heard of for so long is given up; it may live."""
POLL_SECONDS = 120.0
"""Time that an executor waits for missing records."""
ORPHAN_SECONDS = 2.0
"""Executors outlive their driver, and tasks their query, by so long."""
ROWS_PER_BATCH = 10_000
"""Largest number of rows of an Arrow batch."""


class Range(NamedTuple):
    """Records of one task."""

    partition: int
    start: int
    end: int


@dataclass
class Attempt:
    """One of a task's."""

    task: Task
    executor: Process
    last_heartbeat: float
    over: bool = False


@dataclass
class Task:
    """One partition's part of a micro-batch."""

    number: int
    range: Range
    failures: int = 0
    attempts: list[Attempt] = field(default_factory=list)
    rows: list[bytes] | None = None

    @property
    def running(self) -> list[Attempt]:
        """Attempts that may bring a result."""
        return [attempt for attempt in self.attempts if not attempt.over]


class Job:
    """The tasks of a micro-batch; its function gets it as a DataFrame."""

    def __init__(self, query: Query, ranges: list[Range]) -> None:
        self.query, self.spark = query, query.spark
        self.ranges = ranges
        self.cancelled = False
        self._failure = ""
        self._changed = query.spark.changed
        self._tasks: list[Task] = []

    def collect(self) -> list[Any]:
        """The tasks' rows, once all are there. Each call runs the tasks."""
        here = world()
        self._tasks = [Task(number, offset_range) for number, offset_range in enumerate(self.ranges)]
        self.query.job = self
        try:
            for task in self._tasks:
                self._launch(task)
            while any(task.rows is None for task in self._tasks):
                if self.cancelled or self.query.stopping:
                    raise Stopped
                if self._failure or self.spark.stopped:
                    raise Py4JJavaError(
                        "An error occurred while calling o1.collectToPython.\n: "
                        f"org.apache.spark.SparkException: {self._failure or CONTEXT_STOPPED}"
                    )
                self._changed.wait(HEARTBEAT_SECONDS / 4)
                self._give_up(here)
        finally:
            self.query.job = None
        return [SimpleNamespace(result=row) for task in self._tasks for row in task.rows or ()]

    def cancel(self) -> None:
        """Give the task up: its result is ignored."""
        self.cancelled = True
        self._changed.fire()
        for task in self._tasks:
            for attempt in task.running:
                attempt.over = True
                world().later(ORPHAN_SECONDS, attempt.executor.kill)

    def _launch(self, task: Task) -> None:
        other = task.attempts[-1].executor if task.attempts else None
        executor = self.spark.executor(other)
        attempt = Attempt(task, executor, world().now)
        task.attempts.append(attempt)
        executor.spawn(lambda: self._attempt(attempt), f"task {self.query.name} {task.range.partition}")

    def _give_up(self, here: World) -> None:
        """Attempts whose executors are gone, or not heard of."""
        for task in self._tasks:
            for attempt in task.running:
                executor = attempt.executor
                if not executor.alive:
                    self._fails(attempt, "Python worker exited unexpectedly (crashed)")
                elif executor.paused_until <= here.now:
                    attempt.last_heartbeat = here.now
                elif here.now - attempt.last_heartbeat > HEARTBEAT_SECONDS:
                    self._fails(attempt, "ExecutorLostFailure: Executor heartbeat timed out")

    def _fails(self, attempt: Attempt, text: str) -> None:
        task = attempt.task
        if attempt.over or task.rows is not None or self.cancelled or not self.spark.driver.alive:
            return
        attempt.over = True
        task.failures += 1
        self._changed.fire()
        if task.failures >= self.spark.max_failures:
            times = f"failed {task.failures} times, most recent failure: Lost task {task.number}.{task.failures - 1}"
            self._failure = f"Job aborted due to stage failure: Task {task.number} in stage 0.0 {times}: {text}"
        elif not task.running:
            self._launch(task)

    def _attempt(self, attempt: Attempt) -> None:
        """On an executor."""
        here, task = world(), attempt.task
        fault = here.call("spark.task", Kind.LOST, Kind.UNANSWERED, Kind.LATE, Kind.DOUBLED, seconds=TASK_SECONDS)
        kind = fault.kind if fault is not None else Kind.WELL
        if kind is Kind.DOUBLED and not attempt.over and self.spark.driver.alive:
            self._launch(task)  # a speculative one, beside it
        elif kind in (Kind.LOST, Kind.LATE):
            self._fails(attempt, "ExecutorLostFailure: Remote RPC client disassociated")
            if kind is Kind.LOST or fault is None:
                return
            here.sleep(fault.seconds)  # it lives and continues
        try:
            rows = self._work(task.range)
        except Exception as e:
            self._fails(attempt, failure_of_task(e))
            return
        here.answered(fault)
        if kind is Kind.UNANSWERED:
            self._fails(attempt, "ExecutorLostFailure: Remote RPC client disassociated")
        elif not attempt.over and task.rows is None:
            attempt.over = True
            task.rows = rows
            self._changed.fire()

    def _work(self, read: Range) -> list[bytes]:
        function = pickle.loads(self.query.blob)
        return [
            row
            for batch in function(iter(self._read(read)))
            for row in batch.column("result").to_pylist()
            if row is not None
        ]

    def _read(self, read: Range) -> list[pa.RecordBatch]:
        here, brokers, topic = world(), self.spark.brokers, self.query.topic
        partition, start, end = read
        deadline = here.now + POLL_SECONDS
        while True:
            known = brokers.end_offset(topic, partition)
            if known is not None and not brokers.low_watermark(topic, partition) <= start <= known:
                raise JavaError(data_loss(f"Cannot fetch offset {start} of {topic}-{partition}."))
            if known is not None and end <= known:
                break
            if here.now >= deadline:
                raise JavaError(f"java.util.concurrent.TimeoutException: Cannot fetch record for offset {start}")
            here.sleep(1)
        records = brokers.read(topic, partition, start, end)
        return [
            batch_of(partition, records[first : first + ROWS_PER_BATCH])
            for first in range(0, len(records), ROWS_PER_BATCH)
        ]
