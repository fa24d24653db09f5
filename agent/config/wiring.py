"""Connections of sources and sinks to channels, and checks of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from flafka.agent.config.components import report_missing_option, trailing_comment_hint
from flafka.agent.config.diagnostics import DiagnosticCollector
from flafka.agent.config.parts import AgentProperties, ComponentProperties, drop_trailing_comment, listed_names
from flafka.agent.config.properties import Property, split_names
from flafka.agent.config.transactions import oversized_batch
from flafka.agent.topology import ChannelSpec, ComponentSpec, ConfigLocation, SinkSpec, SourceSpec
from flafka.plugins.kafka.topic import KafkaBackedChannel
from flafka.plugins.problems import suggest


class ChannelWiring:
    """Connections of the sources and sinks of one agent to its channels.

    `lines` holds the unparsed properties of each component, by path. The caller adds them before `read_channels`.
    """

    def __init__(
        self,
        agent: str,
        written: AgentProperties,
        lines: Mapping[str, Mapping[str, Property]],
        report: DiagnosticCollector,
    ) -> None:
        self._agent, self._written, self._lines, self._report = agent, written, lines, report
        self.channels: dict[str, ChannelSpec | None] = {}
        """Declared channels by name; None for one with an error of its own."""
        self.sources_of: defaultdict[str, list[str]] = defaultdict(list)
        """Paths of the sources of each channel."""
        self.sinks_of: defaultdict[tuple[str, str | None], list[tuple[str, ConfigLocation]]] = defaultdict(list)
        """Path and position of each sink, by channel and consumer group."""
        self.incomplete_kinds: set[str] = set()
        """Kinds with a component whose channels are unknown, so that a missing end cannot be detected."""
        self.group_of: dict[str, str] = {}
        """Sink group of each grouped sink, by name of the sink."""
        self._overflow_owners: dict[str, str] = {}
        """Path of the channel that overflows to disk, by the name of its overflow channel."""

    def read_channels(self, part: ComponentProperties, name: str, mistaken: str) -> tuple[str, ...]:
        """Remove the option with the channels of a source or sink, and return the declared ones among them.

        `name` is `channels` for a source, `channel` for a sink, whose several channels are an error. `mistaken` is
        the option of the other kind, which is read with an error. Undeclared channels are reported, and left out.
        """
        listed = part.take(name)
        if listed is None and (listed := part.take(mistaken)) is not None:
            message = f"a {part.kind} has the option {name!r}, not {mistaken!r}: rename it"
            self._report.error(listed.place, part.path, message)
        if listed is None:
            hint = f"add {part.path}.{name} = {' '.join(list(self.channels)[:1]) or '…'}"
            report_missing_option(part, name, hint, self._report)
            self.incomplete_kinds.add(part.kind)
            return ()
        names = listed_names(listed, self._report, part.path)
        if name == "channels":
            names = drop_trailing_comment(names, self.channels, listed, part.path, self._report)
        if not names:
            self.incomplete_kinds.add(part.kind)
        if name == "channel" and len(names) > 1:
            hint = trailing_comment_hint(listed)
            message = f"a sink drains one channel, not {len(names)}: configure one sink for each{hint}"
            self._report.error(listed.place, part.path, message)
            names = names[:1] if hint else names
        declared = tuple(channel for channel in names if channel in self.channels)
        for channel in names:
            if channel not in self.channels:
                self.incomplete_kinds.add(part.kind)
                self._report.error(listed.place, part.path, self._reason_no_channel(channel))
        return declared

    def _reason_no_channel(self, name: str) -> str:
        """Return the error for a channel that is not declared, with the likely remedy."""
        declared = list(self.channels)
        listed = self._written.lists.get("channels")
        if (
            listed is not None
            and name in split_names(listed.value)
            and name not in self._written.components["channels"]
        ):
            return f"channel {name!r} has no properties; add {self._agent}.channels.{name}.type = …"
        if name in self._written.components["channels"]:
            return f"channel {name!r} is configured but not listed: add it to {self._agent}.channels"
        remedy = f"declared channels: {', '.join(declared)}" if declared else f"add {self._agent}.channels = …"
        return f"channel {name!r} is not declared{suggest(name, declared) or f'; {remedy}'}"

    def check_ends(self, channels: list[ChannelSpec]) -> None:
        """Warn about each channel without a source or without a sink.

        A channel in Kafka needs only one end here, and an overflow channel none. No warning if a component whose
        channels are unknown may be the missing end.
        """
        drained = {name for name, _ in self.sinks_of}
        for spec in channels:
            has_source = spec.name in self.sources_of or "source" in self.incomplete_kinds
            has_sink = spec.name in drained or "sink" in self.incomplete_kinds
            in_kafka = issubclass(spec.cls, KafkaBackedChannel)
            # The other end of a Kafka channel may be in another agent.
            if (has_source and has_sink) or (in_kafka and (has_source or has_sink)):
                continue
            if spec.name in self._overflow_owners:
                continue
            missing = [
                text for has, text in ((has_source, "no source fills it"), (has_sink, "no sink drains it")) if not has
            ]
            self._report.warn(spec.place, spec.path, " and ".join(missing))

    def check_overflows(self, channels: Iterable[ChannelSpec]) -> Iterator[ChannelSpec]:
        """Yield all channels in order. Report wrong overflow channels as errors, and yield their owners without them.

        Call it once, after sources and sinks are read: the overflow channel must not be theirs.
        """
        for spec in channels:
            if spec.overflow is not None and (message := self._reason_no_overflow(spec.overflow)):
                place = self._lines[spec.path]["overflow"].place
                self._report.error(place, spec.path, f"overflow: {message}")
                spec = replace(spec, config=spec.config.model_copy(update={"overflow": None}))
            elif spec.overflow is not None:
                self._overflow_owners[spec.overflow] = spec.path
            yield spec

    def _reason_no_overflow(self, name: str) -> str:
        """Return the reason why the channel `name` cannot be an overflow channel; empty if it can."""
        if name not in self.channels:
            return self._reason_no_channel(name)
        spec = self.channels[name]
        if spec is not None and spec.cls.type_name != "file":
            return f"channel {name!r} is of type {spec.cls.type_name}, but an overflow channel must be of type file"
        if name in self._overflow_owners:
            owner = self._overflow_owners[name]
            return f"channel {name!r} is the overflow channel of {owner}: each channel needs its own"
        users = [
            *self.sources_of[name],
            *(path for key, sinks in self.sinks_of.items() if key[0] == name for path, _ in sinks),
        ]
        if users:
            return f"channel {name!r} must not be in use otherwise, but {', '.join(users)} names it as a channel"
        return ""

    def check_transactions(self, sources: list[SourceSpec], sinks: list[SinkSpec]) -> None:
        """Note each source and sink with batches larger than a transaction of its channel.

        Flume does not run these. The note is at the line with the batch size, or else with the transaction capacity.
        """
        connections: list[tuple[str, ComponentSpec, str]] = [
            ("source", source, name) for source in sources for name in source.channels
        ]
        connections += [("sink", sink, sink.channel) for sink in sinks]
        for kind, spec, name in connections:
            channel = self.channels.get(name)
            batch, reason = oversized_batch(kind, spec, channel) if channel else ("", "")
            written = self._lines[spec.path].get(batch)
            if channel and written is None:
                written = self._lines[channel.path].get("transactionCapacity")
            if reason and written:  # two defaults have no line to report
                message = f"Flume 1.11: {reason}, so that the {kind} does not run. Here: it runs"
                self._report.note(written.place, spec.path, message, differs=True)

    def check_competition(self) -> None:
        """Warn about sinks that share the events of a channel, since each may be expected to get all events.

        A sink with an own group on a channel outside Kafka is an error, as the group has no effect.
        """
        for (channel, group), sinks in self.sinks_of.items():
            names = self.competitors(channel, group)
            spec = self.channels.get(channel)
            if group is not None and spec is not None and not issubclass(spec.cls, KafkaBackedChannel):
                path, place = sinks[0]
                message = (
                    f"group {group!r} has no effect: the sinks of channel {channel} share its events; give each sink "
                    "its own channel, or use a channel of type kafka"
                )
                self._report.error(place, path, message)
            elif len(names) > 1:
                sink_names = ", ".join(names)
                message = f"{sink_names} share group {group!r} of channel {channel}: each event goes to one of them"
                if group is None:
                    in_kafka = spec is None or issubclass(spec.cls, KafkaBackedChannel)
                    message = (
                        f"{sink_names} compete for the events of channel {channel}: each event goes to one of them, "
                        "as in Flume; for each sink to get every event, give each its own "
                        f"{'group' if in_kafka else 'channel'}"
                    )
                path, place = sinks[-1]
                self._report.warn(place, path, message)

    def competitors(self, channel: str, group: str | None) -> list[str]:
        """Return the distinct names of the sinks that share this consumer group of a channel.

        A sink group counts once, under its name. A `group` of None is the channel's default.
        """
        names = [path.rpartition(".")[2] for path, _ in self.sinks_of[channel, group]]
        return list(dict.fromkeys(self.group_of.get(name, name) for name in names))
