"""Declarations of the metrics that are not a component's own: Flume's, by kind of component, and the runner's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from flafka.plugins import Metric
from flafka.plugins.kafka.metrics import RECORDS_LOST, TOPIC_RECREATED

KINDS = ("SOURCE", "CHANNEL", "INTERCEPTOR", "SINK", "ROUTE")
"""Kinds of components in `/metrics`. A route is a pair of a source and a channel: `ROUTE.s1.c1`."""
EVERY = "every"
UNUSED = "Always 0: a name that dashboards for Flume expect."

RECEIVED = Metric("EventReceivedCount", "counter", "events", "Events that came into the component.")
FILTERED = Metric("EventFilteredCount", "counter", "events", "Events that interceptors dropped.")
REJECTED = Metric("EventRejectedCount", "counter", "events", "Events that became dead letters.", "prometheus")
UP = Metric("Up", "gauge", "", "1 while the latest attempt succeeded, and 0 otherwise.", "prometheus")
"""Gauge that Prometheus gets for every component, but not for routes."""

BATCH = Metric(
    *("BatchMilliseconds", "gauge", "milliseconds"),
    "Time that the latest batch took: of a source until stored, of a sink until delivered, otherwise one call.",
    "known",
)
"""Duration of the latest batch that came to a good end.

Of a source: from the arrival of the batch until all required channels held it, retries included. Of an interceptor
and of a channel: one call. Of a sink: from the take of its first event until all events were durable. A sink that
waits until a file is full shows that wait. On Spark: a micro-batch with its interceptors, from its start to its
commit.
"""

SOURCE = (
    Metric("AppendAcceptedCount", "counter", "requests", "Requests with one event that were stored."),
    Metric("AppendBatchAcceptedCount", "counter", "batches", "Batches that all required channels have stored."),
    Metric("AppendBatchReceivedCount", "counter", "batches", "Batches that the source has passed on."),
    Metric("AppendReceivedCount", "counter", "requests", "Requests with one event that came in."),
    Metric("ChannelWriteFail", "counter", "attempts", "Failed attempts to store a batch in the channels."),
    Metric("EventAcceptedCount", "counter", "events", "Events that all required channels have stored."),
    Metric("EventReadFail", "counter", "", "Events, requests, connections or files that the source could not read."),
    RECEIVED,
    Metric("GenericProcessingFail", "counter", "", UNUSED),
    Metric("OpenConnectionCount", "gauge", "connections", "Connections that are open now."),
)
CHANNEL = (
    Metric("ChannelCapacity", "gauge", "events", "Most events that the channel holds; 0 of a channel in Kafka."),
    Metric(
        *("ChannelFillPercentage", "gauge", "percent"),
        "Part of the capacity that is in use; at 100 the sources of the channel wait.",
    ),
    Metric(
        *("ChannelSize", "gauge", "events"),
        "Events in the channel that are not delivered; 0 of a channel in Kafka, whose sinks have a lag.",
    ),
    Metric("EventPutAttemptCount", "counter", "events", "Events that were to be stored in the channel."),
    Metric("EventPutSuccessCount", "counter", "events", "Events that the channel has stored."),
    Metric("EventTakeAttemptCount", "counter", "events", "Events that sinks took; 0 of a channel in Kafka."),
    Metric(
        *("EventTakeSuccessCount", "counter", "events"),
        "Events that sinks have delivered; of a channel in Kafka, events that sinks took.",
    ),
)
SINK = (
    Metric("BatchCompleteCount", "counter", "batches", "Batches that the sink has delivered."),
    Metric("BatchEmptyCount", "counter", "attempts", "Attempts to take events from a channel that had none."),
    Metric("BatchUnderflowCount", "counter", "batches", UNUSED),
    Metric("ChannelReadFail", "counter", "", UNUSED),
    Metric("ConnectionClosedCount", "counter", "", "Connections or files that the sink has closed."),
    Metric("ConnectionCreatedCount", "counter", "", "Connections or files that the sink has opened."),
    Metric("ConnectionFailedCount", "counter", "attempts", "Failed attempts to connect, or to commit files."),
    Metric("EventDrainAttemptCount", "counter", "events", "Events that were to be delivered."),
    Metric("EventDrainSuccessCount", "counter", "events", "Events that the sink has delivered."),
    Metric("EventWriteFail", "counter", "", UNUSED),
)

FAILURES = (
    Metric("FailureCount", "counter", "failures", "Failed attempts, each of which was repeated.", "known"),
    Metric("RetryAttempt", "gauge", "attempts", "Failed attempts since the component last worked.", "known"),
    Metric("RetryTime", "gauge", "milliseconds", "Time of the next attempt, since the Unix epoch.", "known"),
)
DISK = Metric(
    *("DiskFreeBytes", "gauge", "bytes"),
    "Free space where the component keeps files; of several disks, on the one that has least.",
    "known",
)
ROUTED = (
    Metric(
        *("EventUnroutedCount", "counter", "events"),
        "Events that were dropped because the selector has no channel for them.",
        "known",
    ),
    Metric("OptionalChannelFail", "counter", "batches", "Batches that an optional channel did not take.", "known"),
    Metric(
        *("OptionalEventDropCount", "counter", "events"),
        "Events that were dropped because an optional channel did not take them.",
        "known",
    ),
    Metric(
        *("UnacknowledgedSeconds", "gauge", "seconds"),
        "Time that the oldest batch of the source has waited to be stored.",
        "known",
    ),
)
LAG = (
    Metric(
        *("Lag", "gauge", "events"),
        "Events of the channel that are not delivered; records, if the channel is in Kafka and each holds many.",
        "known",
    ),
    Metric("LagSeconds", "gauge", "seconds", "Age of the oldest event that the sink has not delivered.", "known"),
)
KAFKA_LAG = (
    Metric("Backlog", "gauge", "records", "Lag of the sink, under its former name.", "known"),
    Metric(
        *("RetentionSecondsLeft", "gauge", "seconds"),
        "Time until Kafka deletes the oldest event that the sink has not delivered.",
        "known",
    ),
)
CLUSTER = (
    Metric("BrokersDown", "gauge", "brokers", "Brokers that do not accept connections.", "known"),
    Metric(
        *("UnderReplicatedPartitions", "gauge", "partitions"),
        "Partitions of the topic that lack in-sync replicas.",
        "known",
    ),
    Metric("OfflinePartitions", "gauge", "partitions", "Partitions of the topic that have no leader.", "known"),
)
OVERFLOW = (
    Metric("Overflowing", "gauge", "", "1 while the channel puts events into its overflow, and 0 otherwise."),
    Metric("OverflowSize", "gauge", "events", "Events in the overflow of the channel."),
    Metric("OverflowEventCount", "counter", "events", "Events that went into the overflow."),
    Metric("OverflowForwardedCount", "counter", "events", "Events of the overflow that are in the channel now."),
    Metric("OverflowRepeatedCount", "counter", "events", "Events of the overflow that may be in the channel twice."),
)
SPARK = (
    Metric("DriverRestartCount", "counter", "restarts", "Restarts of the Spark driver.", "known"),
    Metric("RecordsPerSecond", "gauge", "records per second", "Rate of the latest micro-batch.", "known"),
    Metric("StateRows", "gauge", "rows", "Rows in the state of the Spark query.", "known"),
    Metric("StateBytes", "gauge", "bytes", "Memory that the state of the Spark query takes.", "known"),
    TOPIC_RECREATED,
    RECORDS_LOST,
)


@dataclass(frozen=True)
class Group:
    """Metrics that components of one kind have without declaring them."""

    kind: str
    """One of `KINDS`."""
    where: str
    """Components that have them: `EVERY`, or in words."""
    metrics: tuple[Metric, ...]


GROUPS = (
    Group("SOURCE", EVERY, (*SOURCE, REJECTED, replace(FILTERED, shown="known"), *ROUTED, BATCH, *FAILURES)),
    Group("SOURCE", "with files", (DISK,)),
    Group("CHANNEL", EVERY, (*CHANNEL, BATCH, *FAILURES)),
    Group("CHANNEL", "with files", (DISK,)),
    Group("CHANNEL", "`kafka`", CLUSTER),
    Group("CHANNEL", "with `overflow`", OVERFLOW),
    Group("INTERCEPTOR", EVERY, (RECEIVED, FILTERED, replace(REJECTED, shown="known"), BATCH)),
    Group("SINK", EVERY, (*SINK, REJECTED, replace(FILTERED, shown="known"), *LAG, BATCH, *FAILURES)),
    Group("SINK", "with files", (DISK,)),
    Group("SINK", "on a channel `kafka`", KAFKA_LAG),
    Group("SINK", "on Spark", SPARK),
    Group(
        *("ROUTE", EVERY),
        (Metric("EventRoutedCount", "counter", "events", "Events that the source has put into the channel."),),
    ),
)


def of_every(kind: str) -> tuple[Metric, ...]:
    """Return the metrics that every component of a kind has."""
    return next(group.metrics for group in GROUPS if (group.kind, group.where) == (kind, EVERY))


def of_some(kind: str) -> Mapping[str, Metric]:
    """Return all metrics that a component of a kind may have without declaring them, by name."""
    return {metric.name: metric for group in GROUPS if group.kind == kind for metric in group.metrics}


def family(name: str, kind: str) -> str:
    """Return the name of a metric family in Prometheus; `kind` is `counter` or `gauge`."""
    return f"flafka_{_snake(name if kind == 'gauge' else name.removesuffix('Count'))}"


def series(metric: Metric) -> str:
    """Return the name of the series in Prometheus."""
    return family(metric.name, metric.kind) + "_total" * (metric.kind == "counter")


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
