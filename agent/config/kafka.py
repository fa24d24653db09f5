"""Checks of Kafka components across an agent: event loops, consumer groups, commit logs, delivery guarantees."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard, cast

from flafka.agent.topology import ChannelSpec, ComponentSpec, SinkSpec, SourceSpec
from flafka.plugins import CommittingSink, Config, StreamingSink
from flafka.plugins.kafka.admin import group_id_error
from flafka.plugins.kafka.config import KafkaClientConfig
from flafka.plugins.kafka.kerberos import KafkaLogin
from flafka.plugins.kafka.topic import KafkaBackedChannel

SpecMessage = tuple[ComponentSpec, str]
"""A component, and the text of a diagnostic about it."""
SinkChannels = Sequence[tuple[SinkSpec, ChannelSpec]]
"""Each sink with its channel."""
_FEEDS_ITSELF = "writes to topic {}, which is the topic of its own channel: its events would circulate without end"


def event_loops(
    sources: Sequence[SourceSpec],
    channels: Mapping[str, ChannelSpec | None],
    sinks: Sequence[SinkSpec],
    bindings: SinkChannels,
) -> Iterator[SpecMessage]:
    """Yield a warning for each loop of events through topics: a source that reads what its channel or sinks write.

    Also for a stream processor that writes to the topic of its own channel. `channels` has None for a channel with an
    error.
    """
    for source in sources:
        for name in source.channels:
            channel = channels.get(name)
            if channel is not None:
                yield from _loops_between(source, channel)
            for sink in sinks:
                if sink.channel == name:
                    yield from _loops_between(source, sink)
    for sink, channel in bindings:
        if issubclass(sink.cls, StreamingSink):
            for topic in cast(StreamingSink[Any], sink.make()).topics() & {*_topics(channel)}:
                yield sink, _FEEDS_ITSELF.format(topic)


def self_feeding_sinks(bindings: SinkChannels) -> Iterator[SpecMessage]:
    """Yield an error for each Kafka sink that would write all events back into the topic of its own channel."""
    for sink, channel in bindings:
        if share_brokers(sink.config, channel.config):
            for topic in set(_topics(channel)) & set(sink.config.produced_topics()):
                yield sink, _FEEDS_ITSELF.format(topic)


def several_logins(specs: Iterable[ComponentSpec]) -> Iterator[SpecMessage]:
    """Yield an error for each component with another Kerberos login to Kafka than the first component that has one.

    librdkafka's clients of one process share a ticket cache: a topic would be written by the wrong principal.
    """
    first: tuple[KafkaLogin, str] | None = None
    for spec in specs:
        if not isinstance(spec.config, KafkaClientConfig):
            continue
        for prefix, login in spec.config.kerberos_logins().items():
            first = first or (login, spec.path)
            if login != first[0]:
                yield (
                    spec,
                    f"{prefix}*: Kafka's clients of one agent have one Kerberos login, and this is {login}, that of "
                    f"{first[1]} {first[0]}: use the same principal and keytab, or another agent",
                )


def at_least_once_sinks(bindings: SinkChannels) -> Iterator[SpecMessage]:
    """Yield a note for each Kafka sink whose channel is not in Kafka, or perhaps in another cluster.

    Such a sink cannot deliver exactly once.
    """
    for sink, channel in bindings:
        if not isinstance(sink.config, KafkaClientConfig):
            continue
        if not isinstance(channel.config, KafkaClientConfig):
            yield (
                sink,
                f"delivers at least once: channel {channel.name} is not in Kafka, and cannot take part in a Kafka "
                "transaction",
            )
        elif not _share_cluster(sink.config, channel.config):
            yield (
                sink,
                "delivers at least once, unless its brokers belong to the same cluster as those of channel "
                f"{channel.name}: a transaction cannot span two clusters",
            )


def invalid_groups(bindings: SinkChannels) -> Iterator[SpecMessage]:
    """Yield an error for each consumer group that Kafka does not accept in a transaction.

    Only exactly-once Kafka sinks are checked. The error is about the sink if the sink names the group, otherwise
    about the channel.
    """
    for sink, channel in bindings:
        if issubclass(sink.cls, CommittingSink) and share_brokers(sink.config, channel.config):
            group = sink.group or str(getattr(channel.config, "group_id", ""))
            if reason := group_id_error(group):
                yield (sink, reason) if sink.group else (channel, f"{reason} ({sink.path} is exactly once)")


def separate_commit_logs(bindings: SinkChannels) -> Iterator[SpecMessage]:
    """Yield a warning for each sink with a commit log in another place than the first sink of its consumer group.

    Sinks are compared if they have a commit log of the same kind and one consumer group of one Kafka channel.
    """
    logs: dict[tuple[str, str | None, str], tuple[SinkSpec, str]] = {}
    for sink, channel in bindings:
        if issubclass(channel.cls, KafkaBackedChannel) and issubclass(sink.cls, CommittingSink):
            kind, _, location = cast(CommittingSink[Any], sink.make()).commit_log.partition(":")
            other, other_location = logs.setdefault((channel.name, sink.group, kind), (sink, location))
            if location != other_location:
                yield (
                    sink,
                    f"has its commit log in {location}, and {other.name} of the same consumer group in "
                    f"{other_location}: after the next start, one of them delivers all events and the other none; "
                    "give each sink its own group, so that each gets all events, or give both the same path, so that "
                    "they share the events",
                )


def share_brokers(first: Config, second: Config) -> TypeGuard[KafkaClientConfig]:
    """Return True if both are configurations of Kafka components with a common broker, or both without brokers."""
    return (
        isinstance(first, KafkaClientConfig)
        and isinstance(second, KafkaClientConfig)
        and _share_cluster(first, second)
    )


def _topics(channel: ChannelSpec) -> list[str]:
    return channel.config.produced_topics() if isinstance(channel.config, KafkaClientConfig) else []


def _loops_between(source: SourceSpec, end: ComponentSpec) -> Iterator[SpecMessage]:
    """Yield a warning if the source reads a topic that `end`, its channel or a sink of its channel, writes to."""
    if not (isinstance(source.config, KafkaClientConfig) and isinstance(end.config, KafkaClientConfig)):
        return
    if not _share_cluster(source.config, end.config):
        return
    for topic in end.config.produced_topics():
        if source.config.consumes(topic):
            yield (
                source,
                f"reads topic {topic}, to which {end.path} of the same pipeline writes: events would circulate "
                "without end",
            )
    header = source.config.topic_header_set()
    if header is not None and header == end.config.topic_header_used():
        yield (
            source,
            f"puts the topic of an event into header {header!r}, from which {end.path} takes its topic, so that "
            "events would circulate without end: set setTopicHeader = false here, or allowTopicOverride = false for "
            "the other",
        )


def _share_cluster(first: KafkaClientConfig, second: KafkaClientConfig) -> bool:
    """Return True if both have a common broker, or the same brokers, such as none."""
    return bool(first.brokers() & second.brokers()) or first.brokers() == second.brokers()
