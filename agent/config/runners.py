"""What each runner can deliver: one table, which `agent check` enforces and the documentation prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from flafka.agent.topology import Runner
from flafka.plugins import Channel, CommittingSink, Sink, StreamingSink
from flafka.plugins.kafka.topic import KafkaBackedChannel


@dataclass(frozen=True)
class SinkBinding:
    """One sink and the channel that it drains."""

    sink: type[Sink | StreamingSink]
    channel: type[Channel]
    competing: bool
    """Whether another sink, not of its sink group, takes from the same consumer group of the channel."""
    grouped: bool = False
    """Whether it is in a sink group with others."""


@dataclass(frozen=True)
class Support:
    """One row of the table: a property of a sink with its channel, and the runners that have it."""

    what: str
    runners: frozenset[Runner]
    applies: Callable[[SinkBinding], bool]
    way_out: str = ""
    """What to do instead, where a runner is missing."""


BOTH: frozenset[Runner] = frozenset({"local", "spark"})
LOCAL: frozenset[Runner] = frozenset({"local"})
SPARK: frozenset[Runner] = frozenset({"spark"})


def _in_kafka(drain: SinkBinding) -> bool:
    return issubclass(drain.channel, KafkaBackedChannel)


def _commits(drain: SinkBinding) -> bool:
    return issubclass(drain.sink, CommittingSink)


def _remote(drain: SinkBinding) -> bool:
    return issubclass(drain.sink, Sink) and drain.sink.remote


def _streams(drain: SinkBinding) -> bool:
    return issubclass(drain.sink, StreamingSink)


TABLE: tuple[Support, ...] = (
    Support("a channel that lies in Kafka", BOTH, _in_kafka),
    Support(
        "a channel inside the agent (memory, file)",
        LOCAL,
        lambda drain: not _in_kafka(drain),
        "use a channel of type kafka, or runner = local",
    ),
    Support("a sink that commits by itself (hdfs)", BOTH, lambda drain: _remote(drain) and _commits(drain)),
    Support(
        "a sink that writes and flushes (hbase, solr, elasticsearch, avro, logger; kafka on Spark, at least once)",
        BOTH,
        lambda drain: _remote(drain) and not _commits(drain),
    ),
    Support("a processor of streams (spark)", SPARK, _streams, "leave runner out, or set runner = spark"),
    Support(
        "a sink that commits in transactions (kafka, exactly once)",
        LOCAL,
        lambda drain: not _remote(drain) and _commits(drain),
        "set runner = local: it is exactly once there",
    ),
    Support(
        "a sink that writes files of the agent's own host (file_roll)",
        LOCAL,
        lambda drain: not _remote(drain) and not _commits(drain) and not _streams(drain),
        "set runner = local, or use a sink of type hdfs",
    ),
    Support("a sink with a group of its own, or alone on its channel", BOTH, lambda drain: not drain.competing),
    Support(
        "sinks that compete for the events of one channel",
        LOCAL,
        lambda drain: drain.competing,
        "give each sink a group of its own, or set runner = local",
    ),
    Support(
        "sink groups of several sinks (failover, load_balance)",
        LOCAL,
        lambda drain: drain.grouped,
        "set runner = local on all sinks of the group",
    ),
)


def objections(runner: Runner, drain: SinkBinding) -> Iterator[str]:
    """A sentence for everything that keeps this runner from running this sink."""
    for row in TABLE:
        if row.applies(drain) and runner not in row.runners:
            yield f"runner = {runner} does not support {row.what}: {row.way_out}"
