"""Declarations of the metrics that components do not declare themselves: Flume's, by kind, and the runner's."""

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
CERTIFICATE = Metric(
    *("CertificateSecondsLeft", "gauge", "seconds"), "Time until the certificate of the source or the agent expires."
)
"""Gauge of the monitoring server with TLS. Sources with TLS declare it themselves."""

BATCH = Metric(
    *("BatchMilliseconds", "gauge", "milliseconds"),
    "Time that the latest batch took: of a source until stored, of a sink until delivered, otherwise one call.",
    "known",
)
"""Duration of the latest successful batch.

- Source: from the arrival of the batch until all required channels have stored it, including retries.
- Interceptor, channel: one call.
- Sink: from the take of the first event until all events are durable, including the wait for a full file.
- On Spark: a micro-batch with its interceptors, from its start to its commit.
"""

LATENCY = (
    Metric(
        *("LatencyP50Milliseconds", "gauge", "milliseconds"),
        "Median latency of recent batches: of a source from receipt until stored, of a sink from arrival until "
        "delivered.",
        "known",
    ),
    Metric(
        *("LatencyP99Milliseconds", "gauge", "milliseconds"),
        "99th percentile of the latency of the batches of the last one to two minutes.",
        "known",
    ),
)
"""Quantiles of the latency of a source or a sink in the agent's process; unknown without a batch in that time."""
RECEIVED_BYTES = Metric("ReceivedBytesCount", "counter", "bytes", "Bytes of events that came in.", "known")
TAKEN_BYTES = Metric("TakenBytesCount", "counter", "bytes", "Bytes of events that the sink was given.", "known")

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
    Metric("ChannelCapacity", "gauge", "events", "Maximum number of events in the channel; 0 of a channel in Kafka."),
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
    Metric("FailureCount", "counter", "failures", "Failed attempts; each is retried.", "known"),
    Metric("RetryAttempt", "gauge", "attempts", "Failed attempts since the latest success.", "known"),
    Metric("RetryTime", "gauge", "milliseconds", "Time of the next attempt, since the Unix epoch.", "known"),
)
DISK = Metric(
    *("DiskFreeBytes", "gauge", "bytes"),
    "Free space on the disk with the files of the component; the minimum of several disks.",
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
    Metric("Backlog", "gauge", "records", "Deprecated alias of `Lag`.", "known"),
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
        "Partitions of the topic with too few in-sync replicas.",
        "known",
    ),
    Metric("OfflinePartitions", "gauge", "partitions", "Partitions of the topic without a leader.", "known"),
)
OVERFLOW = (
    Metric("Overflowing", "gauge", "", "1 while the channel writes events to its disk overflow, and 0 otherwise."),
    Metric("OverflowSize", "gauge", "events", "Events in the disk overflow of the channel."),
    Metric("OverflowEventCount", "counter", "events", "Events that were written to the disk overflow."),
    Metric(
        "OverflowForwardedCount", "counter", "events", "Events that were moved from the disk overflow to the channel."
    ),
    Metric(
        "OverflowRepeatedCount", "counter", "events", "Events of the disk overflow that may be in the channel twice."
    ),
)
SPARK = (
    Metric("DriverRestartCount", "counter", "restarts", "Restarts of the Spark driver.", "known"),
    Metric("RecordsPerSecond", "gauge", "records per second", "Rate of the latest micro-batch.", "known"),
    Metric("StateRows", "gauge", "rows", "Rows in the state of the Spark query.", "known"),
    Metric("StateBytes", "gauge", "bytes", "Memory in use by the state of the Spark query.", "known"),
    TOPIC_RECREATED,
    RECORDS_LOST,
)


@dataclass(frozen=True)
class MetricGroup:
    """Metrics that components of one kind have without declaring them."""

    kind: str
    """One of `KINDS`."""
    condition: str
    """Components with these metrics: `EVERY`, or a phrase such as `on Spark`."""
    metrics: tuple[Metric, ...]


GROUPS = (
    MetricGroup(
        "SOURCE",
        EVERY,
        (*SOURCE, REJECTED, replace(FILTERED, shown="known"), *ROUTED, BATCH, *LATENCY, RECEIVED_BYTES, *FAILURES),
    ),
    MetricGroup("SOURCE", "with files", (DISK,)),
    MetricGroup("CHANNEL", EVERY, (*CHANNEL, BATCH, *FAILURES)),
    MetricGroup("CHANNEL", "with files", (DISK,)),
    MetricGroup("CHANNEL", "`kafka`", CLUSTER),
    MetricGroup("CHANNEL", "with `overflow`", OVERFLOW),
    MetricGroup("INTERCEPTOR", EVERY, (RECEIVED, FILTERED, replace(REJECTED, shown="known"), BATCH)),
    MetricGroup(
        "SINK",
        EVERY,
        (*SINK, REJECTED, replace(FILTERED, shown="known"), *LAG, BATCH, *LATENCY, TAKEN_BYTES, *FAILURES),
    ),
    MetricGroup("SINK", "with files", (DISK,)),
    MetricGroup("SINK", "on a channel `kafka`", KAFKA_LAG),
    MetricGroup("SINK", "on Spark", SPARK),
    MetricGroup(
        *("ROUTE", EVERY),
        (Metric("EventRoutedCount", "counter", "events", "Events that the source has put into the channel."),),
    ),
)


def common_metrics(kind: str) -> tuple[Metric, ...]:
    """Return the metrics that every component of a kind, such as "SINK", has."""
    return next(group.metrics for group in GROUPS if (group.kind, group.condition) == (kind, EVERY))


def undeclared_metrics(kind: str) -> Mapping[str, Metric]:
    """Return name → metric of all metrics that a component of a kind may have without declaring them."""
    return {metric.name: metric for group in GROUPS if group.kind == kind for metric in group.metrics}


def family_name(name: str, kind: str) -> str:
    """Return the name of a metric family in Prometheus, `flafka_event_accepted`. `kind` is `counter` or `gauge`."""
    return f"flafka_{_snake(name if kind == 'gauge' else name.removesuffix('Count'))}"


def series_name(metric: Metric) -> str:
    """Return the name of a metric's time series in Prometheus: the family name, with `_total` for a counter."""
    return family_name(metric.name, metric.kind) + "_total" * (metric.kind == "counter")


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
