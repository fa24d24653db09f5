"""A `SparkSession` with its executors and listeners, and the chain of readers and writers that begins a query."""

from __future__ import annotations

import itertools
import pickle
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from tests.simulator.processes import Process, Signal
from tests.simulator.spark.connector import SCHEMA, Brokers
from tests.simulator.spark.failures import CONTEXT_STOPPED, Py4JJavaError, StreamingQueryException
from tests.simulator.spark.query import Query
from tests.simulator.spark.tasks import ORPHAN_SECONDS
from tests.simulator.world import World


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
        self._event_queued = Signal(made)
        driver.ended.append(self._orphan)

    @property
    def readStream(self) -> Reader:
        """Double of the member in Spark."""
        if self.stopped:
            raise Py4JJavaError(CONTEXT_STOPPED)
        return Reader(self)

    def stop(self) -> None:
        """End the context, from inside or from outside: queries fail, and nothing can be begun any more."""
        if not self.stopped:
            self.world.log("the SparkContext is stopped")
            self.stopped = True
            for query in self.queries:
                query.ends(StreamingQueryException(CONTEXT_STOPPED))
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
            self._event_queued.fire()

    def _tell(self) -> None:
        while True:
            while self._events:
                what, event = self._events.popleft()
                for listener in self._listeners:
                    getattr(listener, what)(event)
            self._event_queued.wait()

    def _executor(self) -> Process:
        executor = Process(self.world, f"executor-{next(self._numbers)}")
        executor.ended.append(self.changed.fire)
        return executor

    def executor(self, other_than: Process | None = None) -> Process:
        """The next one; new ones take the place of those that are gone."""
        self._executors = [executor if executor.alive else self._executor() for executor in self._executors]
        for _ in self._executors:
            self._turn += 1
            chosen = self._executors[self._turn % len(self._executors)]
            if chosen is not other_than and chosen.paused_until <= self.world.now:
                break
        return chosen

    def _orphan(self) -> None:
        for executor in self._executors:
            self.world.later(ORPHAN_SECONDS, executor.kill)


class Reader:
    """`DataStreamReader`, and the DataFrame it makes."""

    def __init__(self, spark: Spark) -> None:
        self.spark = spark
        self.settings: dict[str, str] = {}
        self.blob = b""

    def format(self, name: str) -> Reader:
        """Reader of the source `kafka`, the only one."""
        assert name == "kafka"
        return self

    def options(self, **settings: str) -> Reader:
        """Double of the member in Spark."""
        self.settings |= settings
        return self

    def load(self) -> Reader:
        """Double of the member in Spark."""
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
        """Double of the member in Spark."""
        return Writer(self)


class Writer:
    """`DataStreamWriter`."""

    def __init__(self, source: Reader) -> None:
        self.source = source
        self.name, self.interval = "", 0.0
        self.function: Callable[[Any, int], None] = lambda frame, number: None

    def foreachBatch(self, function: Callable[[Any, int], None]) -> Writer:
        """Double of the member in Spark."""
        self.function = function
        return self

    def queryName(self, name: str) -> Writer:
        """Double of the member in Spark."""
        self.name = name
        return self

    def option(self, name: str, value: str) -> Writer:
        """A checkpoint that is new."""
        assert name == "checkpointLocation"
        return self

    def trigger(self, *, processingTime: str) -> Writer:
        """Double of the member in Spark."""
        number, unit = processingTime.split()
        assert unit == "seconds"
        self.interval = float(number)
        return self

    def start(self) -> Query:
        """Begin."""
        query = Query(self.source, self)
        self.source.spark.queries.append(query)
        return query
