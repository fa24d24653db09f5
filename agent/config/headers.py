"""Headers that sinks and selectors go by, and that nothing in the configuration sets."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from flafka.agent.topology import ChannelSpec, ComponentSpec, SinkSpec, SourceSpec
from flafka.plugins import StreamingSink
from flafka.plugins.kafka.config import KafkaEndConfig
from flafka.plugins.kafka.topic import KafkaBackedChannel
from flafka.plugins.problems import suggestion

TIME = "timestamp"


class Missing(NamedTuple):
    """One header that is needed and set by nothing."""

    spec: ComponentSpec
    option: str
    message: str
    certain: bool
    """Whether it cannot work: nothing else fills the channel, and without this header every event is rejected."""


def missing(
    sources: Sequence[SourceSpec],
    channels: Sequence[ChannelSpec],
    sinks: Sequence[SinkSpec],
    unread: Collection[str] = (),
) -> Iterator[Missing]:
    """All of them. Where senders, or a plugin, may set any header, nothing can be said; nor of those in `unread`."""
    for source in (one for one in sources if one.path not in unread):
        header = source.selector.header
        known = _set_by([source], ())
        if header and known is not None and header not in known:
            message = f"goes by header {header!r}, which nothing sets{_near(header, known)}"
            yield Missing(source, "selector.header", message, certain=False)
    for sink in sinks:
        channel = next((one for one in channels if one.name == sink.channel), None)
        filling = [source for source in sources if sink.channel in source.channels]
        if any(one.path in unread for one in (sink, *filling)):
            continue
        if channel is None or not filling or issubclass(sink.cls, StreamingSink) or _fed_by_sinks(channel, sinks):
            continue
        known = _set_by(filling, sink.interceptors)
        in_kafka = issubclass(channel.cls, KafkaBackedChannel)
        for option, headers in sink.make().uses_headers().items():
            if TIME in headers:
                yield from _without_time(sink, option, filling, certain=not in_kafka)
            if known is not None:
                known |= {"key"} if in_kafka else set()
                for header in sorted(headers - known - {TIME}):
                    yield Missing(
                        sink,
                        option,
                        f"names header {header!r}, which nothing in this configuration sets{_near(header, known)}",
                        False,
                    )


def _without_time(sink: SinkSpec, option: str, filling: list[SourceSpec], *, certain: bool) -> Iterator[Missing]:
    """Whether events of all these sources, or of some, have no time."""
    known = {source.path: _set_by([source], sink.interceptors) for source in filling}
    lacking = [path for path, found in known.items() if found is not None and TIME not in found]
    if not lacking:
        return
    all_of_them = len(lacking) == len(filling)
    who = "nothing sets" if all_of_them else f"events of {' and '.join(lacking)} do not have"
    sources = (" or " if all_of_them else " and ").join(lacking)
    local = ", or set hdfs.useLocalTimeStamp = true" if option.startswith("hdfs.") else ""
    message = f"needs an event's time, its header {TIME!r}, which {who}: add an interceptor of type timestamp"
    yield Missing(sink, option, f"{message} to {sources}{local}", certain and all_of_them)


def _set_by(sources: Sequence[SourceSpec], interceptors: Sequence[ComponentSpec]) -> set[str] | None:
    """Headers that events of these sources may have; None: any."""
    found: set[str] = set()
    for spec in (*sources, *(one for source in sources for one in source.interceptors), *interceptors):
        names = spec.make().sets_headers()
        if names is None:
            return None
        found.update(names)
    return found


def _fed_by_sinks(channel: ChannelSpec, sinks: Sequence[SinkSpec]) -> bool:
    """Whether a sink may write into the channel's topic, too."""
    if not isinstance(channel.config, KafkaEndConfig):
        return False
    topics = set(channel.config.writes())
    for sink in sinks:
        if issubclass(sink.cls, StreamingSink):
            written = sink.make().topics()
        else:
            written = sink.config.writes() if isinstance(sink.config, KafkaEndConfig) else ()
        if topics & set(written):
            return True
    return False


def _near(header: str, known: set[str]) -> str:
    there = f" (set are: {', '.join(sorted(known))})" if known else ""
    return suggestion(header, sorted(known)) or f"{there}; an interceptor such as static or regex_extractor sets one"
