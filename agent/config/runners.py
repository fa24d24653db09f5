"""What each runner can deliver: one table, which `agent check` enforces and the documentation prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from agent.topology import Runner
from plugins import Channel, CommittingSink, Sink, StreamingSink


@dataclass(frozen=True)
class Delivery:
    """One sink and what it drains."""

    sink: type[Sink[Any]]
    channel: type[Channel[Any]]
    competing: bool
    """Whether another sink, not of its sink group, takes from the same consumer group of the channel."""
    grouped: bool = False
    """Whether it is in a sink group with others."""


@dataclass(frozen=True)
class Support:
    """One row of the table: a property of a delivery, and the runners that can have it."""

    what: str
    runners: frozenset[Runner]
    applies: Callable[[Delivery], bool]
    way_out: str = ""
    """What to do instead, where a runner is missing."""


BOTH: frozenset[Runner] = frozenset({"local", "spark"})
LOCAL: frozenset[Runner] = frozenset({"local"})
SPARK: frozenset[Runner] = frozenset({"spark"})


def _in_kafka(delivery: Delivery) -> bool:
    return delivery.channel.stream is not Channel.stream


def _commits(delivery: Delivery) -> bool:
    return issubclass(delivery.sink, CommittingSink)


def _streams(delivery: Delivery) -> bool:
    return issubclass(delivery.sink, StreamingSink)


TABLE: tuple[Support, ...] = (
    Support("a channel that lies in Kafka", BOTH, _in_kafka),
    Support(
        "a channel inside the agent (memory, file)",
        LOCAL,
        lambda delivery: not _in_kafka(delivery),
        "use a channel of type kafka, or runner = local",
    ),
    Support(
        "a sink that commits by itself (hdfs)", BOTH, lambda delivery: delivery.sink.remote and _commits(delivery)
    ),
    Support(
        "a sink that writes and flushes (hbase, solr, avro, logger; kafka on Spark, at least once)",
        BOTH,
        lambda delivery: delivery.sink.remote and not _commits(delivery) and not _streams(delivery),
    ),
    Support("a processor of streams (spark)", SPARK, _streams, "leave runner out, or set runner = spark"),
    Support(
        "a sink that commits in transactions (kafka, exactly once)",
        LOCAL,
        lambda delivery: not delivery.sink.remote and _commits(delivery),
        "set runner = local: it is exactly once there",
    ),
    Support(
        "a sink that writes files of the agent's own host (file_roll)",
        LOCAL,
        lambda delivery: not delivery.sink.remote and not _commits(delivery),
        "set runner = local, or use a sink of type hdfs",
    ),
    Support("a sink with a group of its own, or alone on its channel", BOTH, lambda delivery: not delivery.competing),
    Support(
        "sinks that compete for the events of one channel",
        LOCAL,
        lambda delivery: delivery.competing,
        "give each sink a group of its own, or set runner = local",
    ),
    Support(
        "sink groups of several sinks (failover, load_balance)",
        LOCAL,
        lambda delivery: delivery.grouped,
        "set runner = local on all sinks of the group",
    ),
)


def objections(runner: Runner, delivery: Delivery) -> Iterator[str]:
    """A sentence for everything that keeps this runner from running this delivery."""
    for row in TABLE:
        if row.applies(delivery) and runner not in row.runners:
            yield f"runner = {runner} does not support {row.what}: {row.way_out}"
