"""What only the whole agent shows about its Kafka components: loops of topics, and what a sink can guarantee."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard, cast

from flafka.agent.topology import ChannelSpec, ComponentSpec, SinkSpec, SourceSpec
from flafka.plugins import CommittingSink, Config, StreamingSink
from flafka.plugins.kafka.admin import refused_group
from flafka.plugins.kafka.config import KafkaEndConfig
from flafka.plugins.kafka.topic import KafkaBackedChannel

Warning = tuple[ComponentSpec, str]
Drains = Sequence[tuple[SinkSpec, ChannelSpec]]
"""Each sink with its channel."""
_IN_ITS_OWN = "writes to topic {}, which is that of its own channel: it would read its own events again without end"


def warnings(
    sources: Sequence[SourceSpec],
    channels: Mapping[str, ChannelSpec | None],
    sinks: Sequence[SinkSpec],
    drains: Drains,
) -> Iterator[Warning]:
    """A sentence for each loop of events."""
    for source in sources:
        for name in source.channels:
            channel = channels.get(name)
            if channel is not None:
                yield from _loop(source, channel)
            for sink in sinks:
                if sink.channel == name:
                    yield from _loop(source, sink)
    for sink, channel in drains:
        if issubclass(sink.cls, StreamingSink):
            for topic in cast(StreamingSink[Any], sink.make()).topics() & {*_topics(channel)}:
                yield sink, _IN_ITS_OWN.format(topic)


def loops(drains: Drains) -> Iterator[Warning]:
    """A sentence for each Kafka sink that would write all of its events back into its own channel."""
    for sink, channel in drains:
        if share_brokers(sink.config, channel.config):
            for topic in set(_topics(channel)) & set(sink.config.writes()):
                yield sink, _IN_ITS_OWN.format(topic)


def guarantees(drains: Drains) -> Iterator[Warning]:
    """A sentence for each Kafka sink that cannot be exactly once. In Flume none can."""
    for sink, channel in drains:
        if not isinstance(sink.config, KafkaEndConfig):
            continue
        if not isinstance(channel.config, KafkaEndConfig):
            yield (
                sink,
                f"delivers at least once: channel {channel.name} is not in Kafka, and cannot take part in Kafka's "
                "transactions",
            )
        elif not _same(sink.config, channel.config):
            yield (
                sink,
                "delivers at least once, unless its brokers are of the same cluster as those of channel "
                f"{channel.name}: a transaction cannot span two",
            )


def refused_groups(drains: Drains) -> Iterator[Warning]:
    """A sentence for each sink, or channel, whose consumer group no transaction of a Kafka sink can hold."""
    for sink, channel in drains:
        if issubclass(sink.cls, CommittingSink) and share_brokers(sink.config, channel.config):
            group = sink.group or str(getattr(channel.config, "group_id", ""))
            if why := refused_group(group):
                yield (sink, why) if sink.group else (channel, f"{why} ({sink.path} is exactly once)")


def scattered_commit_logs(drains: Drains) -> Iterator[Warning]:
    """A sentence for each sink whose commit log would be apart from that of another sink in its consumer group."""
    first: dict[tuple[str, str | None, str], tuple[SinkSpec, str]] = {}
    for sink, channel in drains:
        if issubclass(channel.cls, KafkaBackedChannel) and issubclass(sink.cls, CommittingSink):
            kind, _, place = cast(CommittingSink[Any], sink.make()).commit_log.partition(":")
            other, elsewhere = first.setdefault((channel.name, sink.group, kind), (sink, place))
            if place != elsewhere:
                yield (
                    sink,
                    f"has its commit log in {place}, and {other.name} of the same consumer group in {elsewhere}: "
                    "from the next start on one of them delivers all events and the other none; give each sink a "
                    "group of its own, so that each gets all events, or both the same path, so that they share them",
                )


def share_brokers(one: Config, other: Config) -> TypeGuard[KafkaEndConfig]:
    """Return True if both are of Kafka components that name a common broker, or none."""
    return isinstance(one, KafkaEndConfig) and isinstance(other, KafkaEndConfig) and _same(one, other)


def _topics(channel: ChannelSpec) -> list[str]:
    return channel.config.writes() if isinstance(channel.config, KafkaEndConfig) else []


def _loop(source: SourceSpec, end: ComponentSpec) -> Iterator[Warning]:
    if not (isinstance(source.config, KafkaEndConfig) and isinstance(end.config, KafkaEndConfig)):
        return
    if not _same(source.config, end.config):
        return
    for topic in end.config.writes():
        if source.config.reads(topic):
            yield (
                source,
                f"reads topic {topic}, which {end.path} writes to at the end of the same pipeline: events would "
                "circulate without end",
            )
    header = source.config.marks()
    if header is not None and header == end.config.follows():
        yield (
            source,
            f"puts the topic of an event into header {header!r}, by which {end.path} writes it back there, so that "
            "events would circulate without end: set setTopicHeader = false here, or allowTopicOverride = false "
            "there",
        )


def _same(one: KafkaEndConfig, other: KafkaEndConfig) -> bool:
    return bool(one.brokers() & other.brokers()) or one.brokers() == other.brokers()
