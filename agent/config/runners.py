"""Capabilities of the runners: one table, which `agent check` enforces and the documentation shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from flafka.agent.topology import Runner
from flafka.plugins import Channel, CommittingSink, Sink, StreamingSink
from flafka.plugins.kafka.topic import KafkaBackedChannel


@dataclass(frozen=True)
class SinkBinding:
    """Class of a sink with the class of its channel."""

    sink: type[Sink | StreamingSink]
    channel: type[Channel]
    competing: bool
    """True if another sink outside its sink group takes from the same consumer group of the channel."""
    grouped: bool = False
    """True if the sink is in a sink group with several sinks."""


@dataclass(frozen=True)
class Capability:
    """Row of the table: a feature of a sink with its channel, and the runners that support it."""

    feature: str
    runners: frozenset[Runner]
    applies: Callable[[SinkBinding], bool]
    remedy: str = ""
    """Instruction to the user if a runner does not support the feature."""


BOTH: frozenset[Runner] = frozenset({"local", "spark"})
LOCAL: frozenset[Runner] = frozenset({"local"})
SPARK: frozenset[Runner] = frozenset({"spark"})


def _in_kafka(binding: SinkBinding) -> bool:
    return issubclass(binding.channel, KafkaBackedChannel)


def _commits_itself(binding: SinkBinding) -> bool:
    return issubclass(binding.sink, CommittingSink)


def _is_remote(binding: SinkBinding) -> bool:
    return issubclass(binding.sink, Sink) and binding.sink.remote


def _is_streaming(binding: SinkBinding) -> bool:
    return issubclass(binding.sink, StreamingSink)


CAPABILITIES: tuple[Capability, ...] = (
    Capability("a channel in Kafka", BOTH, _in_kafka),
    Capability(
        "a channel inside the agent (memory, file)",
        LOCAL,
        lambda binding: not _in_kafka(binding),
        "use a channel of type kafka, or runner = local",
    ),
    Capability(
        "a sink with its own commit log (hdfs)",
        BOTH,
        lambda binding: _is_remote(binding) and _commits_itself(binding),
    ),
    Capability(
        "a sink that delivers at least once (hbase, solr, elasticsearch, avro, logger; kafka on Spark)",
        BOTH,
        lambda binding: _is_remote(binding) and not _commits_itself(binding),
    ),
    Capability("a stream processor (spark)", SPARK, _is_streaming, "remove runner, or set runner = spark"),
    Capability(
        "a sink that commits in transactions (kafka, exactly once)",
        LOCAL,
        lambda binding: not _is_remote(binding) and _commits_itself(binding),
        "set runner = local, which is exactly once",
    ),
    Capability(
        "a sink that writes files on the host of the agent (file_roll)",
        LOCAL,
        lambda binding: not _is_remote(binding) and not _commits_itself(binding) and not _is_streaming(binding),
        "set runner = local, or use a sink of type hdfs",
    ),
    Capability(
        "a sink with its own consumer group, or the only sink of its channel",
        BOTH,
        lambda binding: not binding.competing,
    ),
    Capability(
        "sinks that compete for the events of one channel",
        LOCAL,
        lambda binding: binding.competing,
        "give each sink its own group, or set runner = local",
    ),
    Capability(
        "sink groups of several sinks (failover, load_balance)",
        LOCAL,
        lambda binding: binding.grouped,
        "set runner = local for all sinks of the group",
    ),
)


def unsupported_features(runner: Runner, binding: SinkBinding) -> Iterator[str]:
    """Yield a message with the remedy for each feature in `CAPABILITIES` that applies and that the runner lacks."""
    for capability in CAPABILITIES:
        if capability.applies(binding) and runner not in capability.runners:
            yield f"runner = {runner} does not support {capability.feature}: {capability.remedy}"
