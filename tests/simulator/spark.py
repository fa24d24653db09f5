"""A model of Spark's Structured Streaming, as far as the driver's queries use it.

A query reads offsets, plans a micro-batch and calls the driver's function on a thread of the driver's process. Its
tasks run on executors, processes of their own: they get pickled copies, fail and are tried again, and may be running
still when another attempt has taken their place.
"""

from __future__ import annotations

import itertools
import json
import math
import pickle
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from tests.simulator.world import Kind, Process, Signal, World, world

OFFSETS_SECONDS, TASK_SECONDS = 0.01, 0.02
HEARTBEAT_SECONDS = 45.0
"""An executor that was not heard of for so long is given up; it may live."""
POLL_SECONDS = 120.0
"""So long an executor waits for records that should be there."""
ORPHAN_SECONDS = 2.0
"""Executors outlive their driver, and tasks their query, by so long."""
IDLE_SECONDS = 1.0
"""Between two tellings that there is nothing new, as our sessions are set."""
LOOKS_SECONDS = 5.0
"""Who waits for the end of a query again and again looks around only so often."""
LONGEST_IDLE_SECONDS = 10.0
"""A query that finds nothing new, again and again, is spared triggers for so long."""
ROWS_PER_BATCH = 10_000
"""Of Arrow."""
EARLIEST = -2

SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)


class Record(Protocol):
    """What a consumer sees of one."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]


class Brokers(Protocol):
    """What Spark asks of Kafka, always by the topic's name, as a reader of what is committed."""

    def partitions(self, topic: str) -> Sequence[int]:
        """None where there is no such topic."""

    def low_watermark(self, topic: str, partition: int) -> int:
        """The first offset there is; 0 where there is no such partition."""

    def end_offset(self, topic: str, partition: int) -> int | None:
        """The last stable offset; None where there is no such partition."""

    def read(self, topic: str, partition: int, start: int, end: int) -> Sequence[Record]:
        """What there is from `start` up to, not including, `end`."""


class Topics:
    """`Brokers`, of the model of Kafka; without markers and what was aborted."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster

    def partitions(self, topic: str) -> Sequence[int]:
        return range(self.cluster.count(topic))

    def low_watermark(self, topic: str, partition: int) -> int:
        found = self.cluster.partition(topic, partition)
        return found.low if found is not None else 0

    def end_offset(self, topic: str, partition: int) -> int | None:
        found = self.cluster.partition(topic, partition)
        return found.stable if found is not None else None

    def read(self, topic: str, partition: int, start: int, end: int) -> Sequence[Record]:
        found = self.cluster.partition(topic, partition).visible(start, read_committed=True)
        return list(itertools.takewhile(lambda entry: entry.offset < end, found))


class StreamingQueryException(Exception):
    """A query failed; its text holds all that went before, in Python and in Java."""


class Py4JJavaError(Exception):
    """Java failed at what Python asked for."""


Py4JJavaError.__module__ = "py4j.protocol"


class Spark:
    """A session: what a driver's queries get as `spark`."""

    version = "4.2.1"

    def __init__(
        self,
        made: World,
        brokers: Brokers,
        *,
        driver: Process,
        executors: int = 2,
        max_failures: int = 4,
        master: str = "spark://model:7077",
    ) -> None:
        """`max_failures`: a task that has failed so often fails its query. Where all runs in the driver, it is 1."""
        self.world, self.brokers, self.driver = made, brokers, driver
        self.max_failures = max_failures
        self.queries: list[Query] = []
        self.stopped = False
        self.streams = SimpleNamespace(addListener=self._add_listener)
        infos = SimpleNamespace(getExecutorInfos=lambda: [driver, *self._executors])
        context = SimpleNamespace(isStopped=lambda: self.stopped, statusTracker=lambda: infos)
        self.sparkContext = SimpleNamespace(master=master, _jsc=SimpleNamespace(sc=lambda: context))
        self.changed = Signal(made)
        """Fired when something has become of a task or an executor."""
        self._numbers = made.models.setdefault("executors", itertools.count(1))
        self._executors = [self._executor() for _ in range(executors)]
        self._turn = -1
        self._listeners: list[Any] = []
        self._events: deque[tuple[str, Any]] = deque()
        self._told = Signal(made)
        driver.ended.append(self._orphan)

    @property
    def readStream(self) -> Reader:
        """As Spark has it."""
        if self.stopped:
            raise Py4JJavaError(_STOPPED)
        return Reader(self)

    def stop(self) -> None:
        """End the context, from inside or from outside: queries fail, and nothing can be begun any more."""
        if not self.stopped:
            self.world.told("the SparkContext is stopped")
            self.stopped = True
            for query in self.queries:
                query.ends(StreamingQueryException(_STOPPED))
            self._orphan()

    # --- within

    def _add_listener(self, listener: Any) -> None:
        if not self._listeners:
            self.driver.spawn(self._tell, "listeners")
        self._listeners.append(listener)

    def tell(self, what: str, event: Any) -> None:
        """Have listeners hear of it, on their own thread."""
        if self._listeners:
            self._events.append((what, event))
            self._told.fire()

    def _tell(self) -> None:
        while True:
            while self._events:
                what, event = self._events.popleft()
                for listener in self._listeners:
                    getattr(listener, what)(event)
            self._told.wait()

    def _executor(self) -> Process:
        executor = Process(self.world, f"executor-{next(self._numbers)}")
        executor.ended.append(self.changed.fire)
        return executor

    def executor(self, other_than: Process | None = None) -> Process:
        """The next one; new ones take the place of those that are gone."""
        self._executors = [one if one.alive else self._executor() for one in self._executors]
        for _ in self._executors:
            self._turn += 1
            chosen = self._executors[self._turn % len(self._executors)]
            if chosen is not other_than and chosen.paused_until <= self.world.now:
                break
        return chosen

    def _orphan(self) -> None:
        for executor in self._executors:
            self.world.later(ORPHAN_SECONDS, executor.kill)


_STOPPED = (
    "An error occurred while calling o1.readStream.\n: java.lang.IllegalStateException: "
    "Cannot call methods on a stopped SparkContext."
)


class Reader:
    """`DataStreamReader`, and the DataFrame it makes."""

    def __init__(self, spark: Spark) -> None:
        self.spark = spark
        self.settings: dict[str, str] = {}
        self.blob = b""

    def format(self, name: str) -> Reader:
        """Of Kafka alone."""
        assert name == "kafka"
        return self

    def options(self, **settings: str) -> Reader:
        """As Spark has it."""
        self.settings |= settings
        return self

    def load(self) -> Reader:
        """As Spark has it."""
        return self

    def selectExpr(self, *columns: str) -> Reader:
        """The columns of `SCHEMA`."""
        assert [column.split()[-1] for column in columns] == SCHEMA.names
        return self

    def mapInArrow(self, task: Callable[[Iterator[Any]], Iterator[Any]], schema: str) -> Reader:
        """Run this on executors."""
        assert schema == "result binary"
        self.blob = pickle.dumps(task)
        return self

    @property
    def writeStream(self) -> Writer:
        """As Spark has it."""
        return Writer(self)


class Writer:
    """`DataStreamWriter`."""

    def __init__(self, source: Reader) -> None:
        self.source = source
        self.name, self.interval = "", 0.0
        self.function: Callable[[Any, int], None] = lambda frame, number: None

    def foreachBatch(self, function: Callable[[Any, int], None]) -> Writer:
        """As Spark has it."""
        self.function = function
        return self

    def queryName(self, name: str) -> Writer:
        """As Spark has it."""
        self.name = name
        return self

    def option(self, name: str, value: str) -> Writer:
        """A checkpoint that is new."""
        assert name == "checkpointLocation"
        return self

    def trigger(self, *, processingTime: str) -> Writer:
        """As Spark has it."""
        number, unit = processingTime.split()
        assert unit == "seconds"
        self.interval = float(number)
        return self

    def start(self) -> Query:
        """Begin."""
        query = Query(self.source, self)
        self.source.spark.queries.append(query)
        return query


class Range(NamedTuple):
    """What one task reads."""

    partition: int
    start: int
    end: int


class Query:
    """`StreamingQuery`."""

    def __init__(self, source: Reader, writer: Writer) -> None:
        self.spark, self.name, self.id = source.spark, writer.name, f"id-{len(source.spark.queries)}"
        settings = source.settings
        self.topic = settings["subscribe"]
        self.most = int(settings["maxOffsetsPerTrigger"])
        assert settings["failOnDataLoss"] == "true"
        assert settings["kafka.isolation.level"] == "read_committed"
        self.starting = {int(p): o for p, o in json.loads(settings["startingOffsets"])[self.topic].items()}
        self.function, self.interval, self.blob = writer.function, writer.interval, source.blob
        self.status = {"message": "", "isDataAvailable": False, "isTriggerActive": False}
        self.batches = 0
        self.job: Job | None = None
        self.stopping = False
        self.ended = False
        self._error: StreamingQueryException | None = None
        self._idle_told = float("-inf")
        self._wake, self._over = Signal(world()), Signal(world())
        self.spark.tell("onQueryStarted", SimpleNamespace(id=self.id, name=self.name))
        self._thread = self.spark.driver.spawn(self._run, f"stream {self.name}")

    @property
    def isActive(self) -> bool:
        """As Spark has it."""
        return not self.ended

    def exception(self) -> StreamingQueryException | None:
        """As Spark has it."""
        return self._error

    def awaitTermination(self, seconds: float) -> bool:
        """Whether it has ended; raises what it ended with."""
        if not self.ended:
            self._over.idle(seconds, LOOKS_SECONDS)
        if self._error is not None:
            raise self._error
        return self.ended

    def stop(self) -> None:
        """End it; returns when its function is done. Tasks under way are told to end, and may go on for a while."""
        self.stopping = True
        self._wake.fire()
        if self.job is not None:
            self.job.cancel()
        if not self._thread.done:
            self._thread.finished.wait()

    def ends(self, error: StreamingQueryException | None) -> None:
        """It is over."""
        if not self.ended:
            self.ended, self._error = True, error
            self.status["isTriggerActive"] = False
            self._over.fire()

    # --- the loop

    def _run(self) -> None:
        here = world()
        try:
            self._loop(here)
        except _Stopped:
            self.ends(None)
        except StreamingQueryException as e:
            self.ends(None if self.stopping else e)
        else:
            self.ends(None)

    def _loop(self, here: World) -> None:
        position: dict[int, int] = {}
        idle = 0.0
        while not self.stopping and not self.ended:
            self.status["isTriggerActive"] = True
            began = here.wall()
            next_one = (began // self.interval + 1) * self.interval if self.interval else began
            latest = self._latest()
            if not self.batches:
                position = self._initial(latest)
            end = limited(position, latest, self.most)
            # The first one comes in any case: there is no earlier one that it could be the same as.
            if end != position or not self.batches:
                self._batch(position, end, latest, began)
                position, idle = end, 0.0
            else:
                idle = min(2 * idle + self.interval, LONGEST_IDLE_SECONDS)
                next_one += idle // self.interval * self.interval - self.interval if self.interval else 0.0
            if idle and here.now - self._idle_told >= IDLE_SECONDS:
                self._idle_told = here.now
                self.spark.tell("onQueryIdle", SimpleNamespace(id=self.id))
            self.status["isTriggerActive"] = False
            if not self.stopping and (left := max(next_one - here.wall(), 0.01)) > 0:
                self._wake.wait(left)

    def _latest(self) -> dict[int, int]:
        fault = world().call("spark.offsets", Kind.REFUSED, seconds=OFFSETS_SECONDS)
        if fault is not None and fault.kind is Kind.REFUSED:
            raise self._failed("org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node")
        brokers, topic = self.spark.brokers, self.topic
        latest = {partition: brokers.end_offset(topic, partition) or 0 for partition in brokers.partitions(topic)}
        if not latest:
            raise self._failed("UnknownTopicOrPartitionException: This server does not host this topic-partition.")
        world().answered(fault)
        return latest

    def _initial(self, latest: Mapping[int, int]) -> dict[int, int]:
        if latest.keys() != self.starting.keys():
            raise self._failed(
                "java.lang.AssertionError: assertion failed: If startingOffsets contains specific offsets, you must "
                f"specify all TopicPartitions. Specified: {set(self.starting)} Assigned: {set(latest)}"
            )
        earliest = self.spark.brokers.low_watermark
        return {
            partition: earliest(self.topic, partition) if offset == EARLIEST else offset
            for partition, offset in self.starting.items()
        }

    def _batch(self, start: dict[int, int], end: dict[int, int], latest: Mapping[int, int], began: float) -> None:
        number, self.batches = self.batches, self.batches + 1
        ranges = self._ranges(start, end)
        frame = Job(self, ranges)
        try:
            self.function(frame, number)
        except _Stopped:
            raise
        except Exception as e:
            raise self._failed(_proxied(e)) from None
        if self.ended:
            return
        rows, seconds = sum(r.end - r.start for r in ranges), world().wall() - began
        self._idle_told = world().now
        progress = SimpleNamespace(
            id=self.id,
            name=self.name,
            batchId=number,
            batchDuration=int(seconds * 1000),
            numInputRows=rows,
            processedRowsPerSecond=rows / seconds if seconds > 0 else 0.0,
            sources=[SimpleNamespace(endOffset=self._told(end), latestOffset=self._told(latest))],
            stateOperators=[],
        )
        self.spark.tell("onQueryProgress", SimpleNamespace(progress=progress))

    def _told(self, offsets: Mapping[int, int]) -> str:
        return json.dumps({self.topic: {str(partition): offset for partition, offset in offsets.items()}})

    def _ranges(self, start: dict[int, int], end: Mapping[int, int]) -> list[Range]:
        if gone := start.keys() - end.keys():
            raise self._lost(f"Partitions {gone} of topic {self.topic} are gone.")
        ranges = []
        for partition, until in end.items():
            begin = start.get(partition)
            if begin is None:
                begin = self.spark.brokers.low_watermark(self.topic, partition)
                if begin:
                    raise self._lost(f"Added partition {partition} starts from {begin} instead of 0.")
            if until < begin:
                raise self._lost(f"Partition {self.topic}-{partition}'s offset was changed from {begin} to {until}.")
            if until > begin:
                ranges.append(Range(partition, begin, until))
        return ranges

    def _lost(self, text: str) -> StreamingQueryException:
        return self._failed(_loss(text))

    def _failed(self, text: str) -> StreamingQueryException:
        return StreamingQueryException(
            f"[STREAM_FAILED] Query [id = {self.id}] terminated with exception: {text} SQLSTATE: XXKST"
        )


def limited(start: Mapping[int, int], latest: Mapping[int, int], most: int) -> dict[int, int]:
    """Up to where a micro-batch of about so many records reads; Spark divides them by what each partition has."""
    sizes = {p: end - start.get(p, 0) for p, end in latest.items() if end > start.get(p, 0)}
    total = sum(sizes.values())
    ends = dict(latest)
    for partition, size in sizes.items():
        share = most * (size / total)
        share = math.ceil(share) if share < 1 else math.floor(share)
        ends[partition] = min(latest[partition], start.get(partition, 0) + share)
    return ends


class _Stopped(Exception):
    """The query is stopped within its function."""


@dataclass
class Attempt:
    """One of a task's."""

    task: Task
    executor: Process
    heard: float
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
        self._tasks = [Task(number, one) for number, one in enumerate(self.ranges)]
        self.query.job = self
        try:
            for task in self._tasks:
                self._launch(task)
            while any(task.rows is None for task in self._tasks):
                if self.cancelled or self.query.stopping:
                    raise _Stopped
                if self._failure or self.spark.stopped:
                    raise Py4JJavaError(
                        "An error occurred while calling o1.collectToPython.\n: "
                        f"org.apache.spark.SparkException: {self._failure or _STOPPED}"
                    )
                self._changed.wait(HEARTBEAT_SECONDS / 4)
                self._give_up(here)
        finally:
            self.query.job = None
        return [SimpleNamespace(result=row) for task in self._tasks for row in task.rows or ()]

    def cancel(self) -> None:
        """Nobody waits for it any more."""
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
                    attempt.heard = here.now
                elif here.now - attempt.heard > HEARTBEAT_SECONDS:
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
            here.sleep(fault.seconds)  # it lives, and goes on
        try:
            rows = self._work(task.range)
        except Exception as e:
            self._fails(attempt, _python(e))
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
                raise _JavaError(_loss(f"Cannot fetch offset {start} of {topic}-{partition}."))
            if known is not None and end <= known:
                break
            if here.now >= deadline:
                raise _JavaError(f"java.util.concurrent.TimeoutException: Cannot fetch record for offset {start}")
            here.sleep(1)
        records = brokers.read(topic, partition, start, end)
        return [
            batch_of(partition, records[at : at + ROWS_PER_BATCH]) for at in range(0, len(records), ROWS_PER_BATCH)
        ]


def batch_of(partition: int, records: Sequence[Record]) -> pa.RecordBatch:
    """As the connector makes it."""
    columns: list[Any] = [
        [partition] * len(records),
        [record.offset for record in records],
        [record.timestamp for record in records],
        [record.key for record in records],
        [record.value for record in records],
        [[{"key": name, "value": value} for name, value in record.headers or ()] or None for record in records],
    ]
    arrays = [pa.array(column, kind.type) for column, kind in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


class _JavaError(Exception):
    """What an executor's Java raises, in its own words."""


def _loss(text: str) -> str:
    return (
        f"[KAFKA_DATA_LOSS] {text} Some data may have been lost because they are not available in Kafka any more; "
        "either the data was aged out by Kafka or the topic may have been deleted before all the data in the topic "
        "was processed. If you don't want your streaming query to fail on such cases, set the source option "
        "failOnDataLoss to false."
    )


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error))


def _python(error: Exception) -> str:
    """A task's failure, as Java tells it."""
    if isinstance(error, _JavaError):
        return str(error)
    return (
        "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
        f'  File "worker.py", line 1, in process\n{_trace(error)}\n\tat org.apache.spark.api.python.PythonRunner\n'
    )


def _proxied(error: Exception) -> str:
    """A failure of the driver's function, as Java tells it."""
    return (
        "An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):\n"
        f'  File "py4j/clientserver.py", line 644, in _call_proxy\n{_trace(error)}'
    )
