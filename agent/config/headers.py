"""Check for headers that a sink or selector needs, and that no part of the configuration sets."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from flafka.agent.topology import ChannelSpec, ComponentSpec, SinkSpec, SourceSpec
from flafka.plugins import StreamingSink
from flafka.plugins.kafka.config import KafkaClientConfig
from flafka.plugins.kafka.topic import KafkaBackedChannel
from flafka.plugins.problems import suggest

TIMESTAMP = "timestamp"


class MissingHeader(NamedTuple):
    """Header that a component needs and nothing sets."""

    spec: ComponentSpec
    option: str
    message: str
    is_certain: bool
    """True if every event will be rejected: nothing else fills the channel, and no event has the header."""


def missing_headers(
    sources: Sequence[SourceSpec],
    channels: Sequence[ChannelSpec],
    sinks: Sequence[SinkSpec],
    unread: Collection[str] = (),
    unknown: Collection[str] = (),
) -> Iterator[MissingHeader]:
    """Yield each header that a selector or sink needs, and that no component before it sets.

    Components that senders or a plugin may give any header are skipped, and so are the paths in `unread`. So are
    sinks of the channels in `unknown`, sinks whose channel gets events from a sink, and stream processors.
    """
    for source in (source for source in sources if source.path not in unread):
        header = source.selector.header
        known = _set_by([source], ())
        if header and known is not None and header not in known:
            message = f"needs header {header!r}, which nothing sets{_hint(header, known)}"
            yield MissingHeader(source, "selector.header", message, is_certain=False)
    for sink in sinks:
        channel = next((spec for spec in channels if spec.name == sink.channel), None)
        filling = [source for source in sources if sink.channel in source.channels]
        if sink.channel in unknown or any(spec.path in unread for spec in (sink, *filling)):
            continue
        if channel is None or not filling or issubclass(sink.cls, StreamingSink) or _fed_by_sinks(channel, sinks):
            continue
        known = _set_by(filling, sink.interceptors)
        in_kafka = issubclass(channel.cls, KafkaBackedChannel)
        for option, headers in sink.make().uses_headers().items():
            if TIMESTAMP in headers:
                yield from _missing_timestamps(sink, option, filling, is_only_filler=not in_kafka)
            if known is not None:
                known |= {"key"} if in_kafka else set()
                for header in sorted(headers - known - {TIMESTAMP}):
                    yield MissingHeader(
                        sink,
                        option,
                        f"names header {header!r}, which nothing in this configuration sets{_hint(header, known)}",
                        False,
                    )


def _missing_timestamps(
    sink: SinkSpec, option: str, filling: list[SourceSpec], *, is_only_filler: bool
) -> Iterator[MissingHeader]:
    """Yield one MissingHeader if the events of at least one of the sources `filling` have no timestamp.

    It is certain if all lack one and `is_only_filler` is True: nothing else fills the channel.
    """
    known = {source.path: _set_by([source], sink.interceptors) for source in filling}
    lacking = [path for path, headers in known.items() if headers is not None and TIMESTAMP not in headers]
    if not lacking:
        return
    all_lack = len(lacking) == len(filling)
    who = "nothing sets" if all_lack else f"events of {' and '.join(lacking)} do not have"
    sources = (" or " if all_lack else " and ").join(lacking)
    local = ", or set hdfs.useLocalTimeStamp = true" if option.startswith("hdfs.") else ""
    message = f"needs the time of an event, header {TIMESTAMP!r}, which {who}: add an interceptor of type timestamp"
    yield MissingHeader(sink, option, f"{message} to {sources}{local}", is_only_filler and all_lack)


def _set_by(sources: Sequence[SourceSpec], interceptors: Sequence[ComponentSpec]) -> set[str] | None:
    """Return the headers that events may have after these sources with their interceptors, and after `interceptors`.

    None if it may be any header.
    """
    headers: set[str] = set()
    for spec in (
        *sources,
        *(interceptor for source in sources for interceptor in source.interceptors),
        *interceptors,
    ):
        names = spec.make().sets_headers()
        if names is None:
            return None
        headers.update(names)
    return headers


def _fed_by_sinks(channel: ChannelSpec, sinks: Sequence[SinkSpec]) -> bool:
    """Return True if one of the sinks may write to the topic of the channel."""
    if not isinstance(channel.config, KafkaClientConfig):
        return False
    topics = set(channel.config.produced_topics())
    for sink in sinks:
        if issubclass(sink.cls, StreamingSink):
            written = sink.make().topics()
        else:
            written = sink.config.produced_topics() if isinstance(sink.config, KafkaClientConfig) else ()
        if topics & set(written):
            return True
    return False


def _hint(header: str, known: set[str]) -> str:
    """Return the end of the message: a header of similar spelling, or else the known headers and a remedy."""
    available = f" (headers that are set: {', '.join(sorted(known))})" if known else ""
    return suggest(header, sorted(known)) or f"{available}; add an interceptor such as static or regex_extractor"
