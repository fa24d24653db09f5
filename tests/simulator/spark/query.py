"""Model of `StreamingQuery`, which plans micro-batches and calls the driver's function.

The function runs on a thread of the driver's process, as with MicroBatchExecution and a trigger of processing time.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING

from tests.simulator.faults import Kind
from tests.simulator.processes import Signal
from tests.simulator.spark.connector import EARLIEST
from tests.simulator.spark.failures import Stopped, StreamingQueryException, data_loss, failure_of_function
from tests.simulator.spark.tasks import Job, Range
from tests.simulator.world import World, world

if TYPE_CHECKING:
    from tests.simulator.spark.session import Reader, Writer

OFFSETS_SECONDS = 0.01
IDLE_SECONDS = 1.0
"""Between two tellings that there is nothing new, as our sessions are set."""
LOOKS_SECONDS = 5.0
"""Interval at which a thread that awaits the end of a query polls."""
LONGEST_IDLE_SECONDS = 10.0
"""A query that finds nothing new, again and again, is spared triggers for so long."""


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
        self._last_idle_report = float("-inf")
        self._wake, self._over = Signal(world()), Signal(world())
        self.spark.tell("onQueryStarted", SimpleNamespace(id=self.id, name=self.name))
        self._thread = self.spark.driver.spawn(self._run, f"stream {self.name}")

    @property
    def isActive(self) -> bool:
        """Double of the member in Spark."""
        return not self.ended

    def exception(self) -> StreamingQueryException | None:
        """Double of the member in Spark."""
        return self._error

    def awaitTermination(self, seconds: float) -> bool:
        """Return True if the query has ended; raises its error."""
        if not self.ended:
            self._over.idle(seconds, LOOKS_SECONDS)
        if self._error is not None:
            raise self._error
        return self.ended

    def stop(self) -> None:
        """Stop the query and wait for its function. Running tasks are interrupted and may continue for a while."""
        self.stopping = True
        self._wake.fire()
        if self.job is not None:
            self.job.cancel()
        if not self._thread.done:
            self._thread.finished.wait()

    def ends(self, error: StreamingQueryException | None) -> None:
        """End the query."""
        if not self.ended:
            self.ended, self._error = True, error
            self.status["isTriggerActive"] = False
            self._over.fire()

    # --- the loop

    def _run(self) -> None:
        here = world()
        try:
            self._loop(here)
        except Stopped:
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
            if idle and here.now - self._last_idle_report >= IDLE_SECONDS:
                self._last_idle_report = here.now
                self.spark.tell("onQueryIdle", SimpleNamespace(id=self.id))
            self.status["isTriggerActive"] = False
            if not self.stopping and (delay := max(next_one - here.wall(), 0.01)) > 0:
                self._wake.wait(delay)

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
        except Stopped:
            raise
        except Exception as e:
            raise self._failed(failure_of_function(e)) from None
        if self.ended:
            return
        rows, seconds = sum(r.end - r.start for r in ranges), world().wall() - began
        self._last_idle_report = world().now
        progress = SimpleNamespace(
            id=self.id,
            name=self.name,
            batchId=number,
            batchDuration=int(seconds * 1000),
            numInputRows=rows,
            processedRowsPerSecond=rows / seconds if seconds > 0 else 0.0,
            sources=[SimpleNamespace(endOffset=self._offsets_json(end), latestOffset=self._offsets_json(latest))],
            stateOperators=[],
        )
        self.spark.tell("onQueryProgress", SimpleNamespace(progress=progress))

    def _offsets_json(self, offsets: Mapping[int, int]) -> str:
        return json.dumps({self.topic: {str(partition): offset for partition, offset in offsets.items()}})

    def _ranges(self, start: dict[int, int], end: Mapping[int, int]) -> list[Range]:
        if missing := start.keys() - end.keys():
            raise self._lost(f"Partitions {missing} of topic {self.topic} are gone.")
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
        return self._failed(data_loss(text))

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
