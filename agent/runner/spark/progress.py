"""What the driver tells the agent of its queries: counters, gauges, failures; and a line of log a micro-batch."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flafka.agent.monitoring.definitions import BATCH
from flafka.agent.runner.deadletters.notices import Causes

Offsets = dict[int, int]
"""By partition."""


def report(
    sink: str,
    counts: Mapping[str, float],
    gauges: Mapping[str, float] | None = None,
    error: str | None = None,
    interceptors: Mapping[str, tuple[Mapping[str, float], str]] | None = None,
) -> None:
    """One line for the agent: what to add, what to set, and what failed; of interceptors counts and failures."""
    _tell(sink=sink, counts=counts, gauges=gauges or {}, error=error, interceptors=interceptors or {})


def report_rejected(path: str, causes: Causes) -> None:
    """One line for the agent: what of this sink became dead letters."""
    _tell(path=path, rejected=[(cause, reason, events) for cause, (reason, events) in causes.items()])


def report_application(shown: Mapping[str, str]) -> None:
    """One line for the agent: what is known of the application that runs on a cluster."""
    _tell(application=dict(shown))


def report_end(reason: str) -> None:
    """One line for the agent: why this driver ends by itself."""
    _tell(end=reason)


def _tell(**told: object) -> None:
    try:
        print(f"{json.dumps(told)}\n", end="", flush=True)  # in one piece: several threads tell
    except BrokenPipeError:  # the agent is gone, and this process ends: nobody is to be told, at its very end neither
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def gauges_of(progress: Any, delivered: Mapping[int, int]) -> dict[str, float]:
    """A micro-batch's figures out of Spark's `StreamingQueryProgress`, under the names of our metrics.

    `delivered` are the positions up to which events are delivered, where they are known apart from Spark.
    """
    rate = progress.processedRowsPerSecond  # not a number, or infinite, of no time
    gauges: dict[str, float] = {
        BATCH.name: progress.batchDuration,
        "RecordsPerSecond": round(rate, 1) if 0 <= rate < float("inf") else 0.0,
    }
    lags = [_behind(source, delivered) for source in progress.sources]
    if None not in lags:
        gauges["Lag"] = max((lag for lag in lags if lag is not None), default=0)
    if progress.stateOperators:
        gauges["StateRows"] = sum(operator.numRowsTotal for operator in progress.stateOperators)
        gauges["StateBytes"] = sum(operator.memoryUsedBytes for operator in progress.stateOperators)
    return gauges


def ends_of(progress: Any) -> Offsets:
    """Up to where the query has read; of several readings of one topic (a join), the one that lags."""
    return _least(source.endOffset for source in progress.sources)


def latest_of(progress: Any) -> Offsets:
    """Where the topic ended when the query last looked; empty where it did not ask."""
    return _least(source.latestOffset for source in progress.sources)


def ends_of_log(text: str) -> Offsets:
    """The same out of an entry of a checkpoint's log of offsets: a version, a line of settings, a line a source."""
    return _least("None" if line == "-" else line for line in text.splitlines()[2:])


def _least(sources: Iterable[str]) -> Offsets:
    ends: Offsets = {}
    for source in sources:
        for partition, end in _offsets(source).items():
            ends[partition] = min(end, ends.get(partition, end))
    return ends


def listener(log: logging.Logger, sink_of: Callable[[str], Any]) -> Any:
    """A `StreamingQueryListener` that hands over each progress to the sink of the query, and writes it into the log.

    `sink_of` finds it by the query's name. A query that finds nothing new is idle: it has read all there is.
    """
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class QueryProgressListener(StreamingQueryListener):
        """Called by Spark, on a thread of its own."""

        def __init__(self) -> None:
            self.names: dict[Any, str] = {}

        def onQueryStarted(self, event: Any) -> None:
            """Later, idle ones tell their id only."""
            self.names[event.id] = event.name

        def onQueryIdle(self, event: Any) -> None:
            """Nothing new."""
            name = self.names.get(event.id, "")
            if (sink := sink_of(name)) is not None:
                sink.idle(name)

        def onQueryTerminated(self, event: Any) -> None:
            """Nothing."""

        def onQueryProgress(self, event: Any) -> None:
            """A micro-batch is over."""
            progress = event.progress
            try:
                if (sink := sink_of(progress.name)) is not None:
                    sink.show(progress)
                if progress.numInputRows:
                    log.debug("%s: %s", progress.name, _line(progress))
            except Exception:  # a listener that raises is heard of nowhere else
                log.exception("the progress of %s is not known", progress.name)

    return QueryProgressListener()


def _line(progress: Any) -> str:
    gauges = gauges_of(progress, {})
    text = f"batch {progress.batchId}: {progress.numInputRows} records in {gauges[BATCH.name]:.0f} ms"
    text += f" ({gauges['RecordsPerSecond']:.0f}/s)"
    if "StateRows" in gauges:
        text += f", state {gauges['StateRows']:.0f} rows, {gauges['StateBytes'] / 1e6:.1f} MB"
    return text


def _behind(source: Any, delivered: Mapping[int, int]) -> int | None:
    """None for a micro-batch that is done once more after a restart: it does not ask what is latest."""
    if not (read := _offsets(source.endOffset)):
        return 0  # no topic: another stream that a processor has joined
    if not (latest := _offsets(source.latestOffset)):
        return None
    # What was read may end in offsets without records, which no commit covers.
    return sum(end - max(read.get(partition, 0), delivered.get(partition, 0)) for partition, end in latest.items())


def _offsets(text: str) -> Offsets:
    """Spark's `{"topic": {"0": 17}}` by partition; what it does not know is "None". Other streams than topics count
    otherwise, and have none."""
    topics = json.loads(text) if text not in (None, "None") else {}
    found = topics.values() if isinstance(topics, dict) else ()
    return {
        int(p): offset for partitions in found if isinstance(partitions, dict) for p, offset in partitions.items()
    }
