"""Reports of the driver to the agent, as lines of JSON on standard output, and progress of Spark's queries."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flafka.agent.monitoring.definitions import BATCH
from flafka.agent.runner.deadletters.alerts import ErrorGroups

Offsets = dict[int, int]
"""Offsets by partition."""


def report(
    sink: str,
    counts: Mapping[str, float],
    gauges: Mapping[str, float] | None = None,
    error: str | None = None,
    interceptors: Mapping[str, tuple[Mapping[str, float], str]] | None = None,
) -> None:
    """Report on a sink to the agent: `counts` are added to its metrics, and `gauges` are set.

    `sink` is the name of the sink. An `error` of None clears the sink's error. `interceptors` has counts to add and
    the latest error by name of an interceptor. Never raises for an agent that has ended.
    """
    _send(sink=sink, counts=counts, gauges=gauges or {}, error=error, interceptors=interceptors or {})


def report_rejected(path: str, causes: ErrorGroups) -> None:
    """Report error groups of new dead letters to the agent. `path` is that of the sink."""
    _send(path=path, rejected=[(cause, reason, events) for cause, (reason, events) in causes.items()])


def report_application(shown: Mapping[str, str]) -> None:
    """Report ID and web page of the application on a cluster to the agent."""
    _send(application=dict(shown))


def report_end(reason: str) -> None:
    """Report to the agent the reason why this driver ends by itself."""
    _send(end=reason)


def _send(**report: object) -> None:
    """Print one line of JSON to the agent. If the agent has ended, further output is dropped."""
    try:
        print(f"{json.dumps(report)}\n", end="", flush=True)  # one write, as several threads send
    except BrokenPipeError:  # the agent has ended; without a valid stdout, Python's own exit would fail as well
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def gauges_of(progress: Any, delivered: Mapping[int, int]) -> dict[str, float]:
    """Return the gauges of a micro-batch, from Spark's `StreamingQueryProgress`.

    `delivered` are next offsets by partition that are known from commits; the larger of these and Spark's own end
    offset counts. The lag, in records, is missing if Spark has not read the end offsets.
    """
    rate = progress.processedRowsPerSecond  # NaN or infinite for a duration of 0
    gauges: dict[str, float] = {
        BATCH.name: progress.batchDuration,
        "RecordsPerSecond": round(rate, 1) if 0 <= rate < float("inf") else 0.0,
    }
    lags = [_lag(source, delivered) for source in progress.sources]
    if None not in lags:
        gauges["Lag"] = max((lag for lag in lags if lag is not None), default=0)
    if progress.stateOperators:
        gauges["StateRows"] = sum(operator.numRowsTotal for operator in progress.stateOperators)
        gauges["StateBytes"] = sum(operator.memoryUsedBytes for operator in progress.stateOperators)
    return gauges


def end_offsets_of(progress: Any) -> Offsets:
    """Return the offsets up to which a query has read, exclusive, by partition.

    For a topic that the query reads several times, as in a join, the least offset counts.
    """
    return _least(source.endOffset for source in progress.sources)


def latest_offsets_of(progress: Any) -> Offsets:
    """Return the end offsets of the topic that the query has seen; empty if the query did not request them."""
    return _least(source.latestOffset for source in progress.sources)


def end_offsets_of_log(text: str) -> Offsets:
    """Return the offsets up to which a query has read, from an entry of its checkpoint's offset log.

    Lines of an entry: the version, settings, and one line for each source.
    """
    return _least("None" if line == "-" else line for line in text.splitlines()[2:])


def _least(sources: Iterable[str]) -> Offsets:
    """Return the smallest offset of each partition in these JSON texts of Spark."""
    ends: Offsets = {}
    for source in sources:
        for partition, end in _offsets(source).items():
            ends[partition] = min(end, ends.get(partition, end))
    return ends


def progress_listener(log: logging.Logger, sink_of: Callable[[str], Any]) -> Any:
    """Return a `StreamingQueryListener` that calls `on_progress` and `on_idle` of sinks, and logs micro-batches.

    `sink_of` returns the sink of a query by the query's name; None to ignore the query. An idle query has read all
    records.
    """
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class QueryProgressListener(StreamingQueryListener):
        """Listener whose methods are called on a thread of Spark's."""

        def __init__(self) -> None:
            self.names: dict[Any, str] = {}

        def onQueryStarted(self, event: Any) -> None:
            """Remember the name, as idle events have only the ID of a query."""
            self.names[event.id] = event.name

        def onQueryIdle(self, event: Any) -> None:
            """Call `on_idle` of the query's sink with the query's name."""
            name = self.names.get(event.id, "")
            if (sink := sink_of(name)) is not None:
                sink.on_idle(name)

        def onQueryTerminated(self, event: Any) -> None:
            """Do nothing, as the query's own thread handles its end."""

        def onQueryProgress(self, event: Any) -> None:
            """Call `on_progress` of the query's sink, and log the micro-batch at DEBUG. Errors are logged."""
            progress = event.progress
            try:
                if (sink := sink_of(progress.name)) is not None:
                    sink.on_progress(progress)
                if progress.numInputRows:
                    log.debug("%s: %s", progress.name, _line(progress))
            except Exception:  # Spark would swallow the error
                log.exception("the progress of %s cannot be reported", progress.name)

    return QueryProgressListener()


def _line(progress: Any) -> str:
    """Return the log line of a finished micro-batch: number, records, duration, rate and state."""
    gauges = gauges_of(progress, {})
    text = f"batch {progress.batchId}: {progress.numInputRows} records in {gauges[BATCH.name]:.0f} ms"
    text += f" ({gauges['RecordsPerSecond']:.0f}/s)"
    if "StateRows" in gauges:
        text += f", state {gauges['StateRows']:.0f} rows, {gauges['StateBytes'] / 1e6:.1f} MB"
    return text


def _lag(source: Any, delivered: Mapping[int, int]) -> int | None:
    """Return the lag of a source in records.

    None for a micro-batch that is repeated after a restart, for which Spark does not request the end offsets.
    """
    if not (read := _offsets(source.endOffset)):
        return 0  # another stream than a topic, which a processor has joined
    if not (latest := _offsets(source.latestOffset)):
        return None
    # The offsets that were read may include ones without records, which no commit covers.
    return sum(end - max(read.get(partition, 0), delivered.get(partition, 0)) for partition, end in latest.items())


def _offsets(text: str) -> Offsets:
    """Return offsets by partition from Spark's JSON `{"topic": {"0": 17}}`.

    Empty for "None", Spark's unknown offsets, and for streams other than topics, whose JSON has another form.
    """
    topics = json.loads(text) if text not in (None, "None") else {}
    by_topic = topics.values() if isinstance(topics, dict) else ()
    return {
        int(p): offset for partitions in by_topic if isinstance(partitions, dict) for p, offset in partitions.items()
    }
