"""What only the whole agent shows about its Kafka components: loops of topics, and what a sink can guarantee."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from agent.topology import ChannelSpec, ComponentSpec, SinkSpec, SourceSpec
from plugins import Config, StreamingSink
from plugins.shared.kafkaclient import KafkaEndConfig

Warning = tuple[ComponentSpec, str]
_IN_ITS_OWN = "writes to topic {}, which is that of its own channel: it would read its own events again without end"


def warnings(
    sources: Sequence[SourceSpec], channels: Mapping[str, ChannelSpec | None], sinks: Sequence[SinkSpec]
) -> Iterator[Warning]:
    """A sentence for each loop, and for each Kafka sink that cannot be exactly once."""
    for source in sources:
        for name in source.channels:
            channel = channels.get(name)
            if channel is not None:
                yield from _loop(source, channel)
            for sink in sinks:
                if sink.channel == name:
                    yield from _loop(source, sink)
    for sink in sinks:
        channel = channels.get(sink.channel)
        if channel is not None and issubclass(sink.cls, StreamingSink):
            for topic in cast(StreamingSink[Any], sink.make()).topics() & {*_topics(channel)}:
                yield sink, _IN_ITS_OWN.format(topic)
        if channel is not None and isinstance(sink.config, KafkaEndConfig):
            for message in _guarantee(sink.config, channel.name, channel.config):
                yield sink, message


def _guarantee(sink: KafkaEndConfig, name: str, channel: Config) -> Iterator[str]:
    if not isinstance(channel, KafkaEndConfig):
        yield f"delivers at least once: channel {name} is not in Kafka, and cannot take part in Kafka's transactions"
    elif not _same(sink, channel):
        yield (
            f"delivers at least once, unless its brokers are of the same cluster as those of channel {name}: a "
            "transaction cannot span two"
        )
    else:
        for topic in set(channel.writes()) & set(sink.writes()):
            yield _IN_ITS_OWN.format(topic)


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
