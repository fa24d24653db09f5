"""Which sources and sinks are joined to which channels, and what is wrong with that."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from flafka.agent.config.components import comment_behind, missing
from flafka.agent.config.diagnostics import DiagnosticCollector
from flafka.agent.config.parts import AgentProperties, ComponentProperties, names_in, without_remark
from flafka.agent.config.properties import Property, words
from flafka.agent.config.transactions import larger_than_transaction
from flafka.agent.topology import ChannelSpec, ComponentSpec, Place, SinkSpec, SourceSpec
from flafka.plugins.kafka.topic import KafkaBackedChannel
from flafka.plugins.problems import suggestion


class Joins:
    """Of one agent. `lines` has the properties of each of its components, by path, before that one is read here."""

    def __init__(
        self,
        agent: str,
        written: AgentProperties,
        lines: Mapping[str, Mapping[str, Property]],
        report: DiagnosticCollector,
    ) -> None:
        self._agent, self._written, self._lines, self._report = agent, written, lines, report
        self.channels: dict[str, ChannelSpec | None] = {}
        """The channels that can be named; None for one that is declared and wrong itself."""
        self.fills: defaultdict[str, list[str]] = defaultdict(list)
        """By channel: the paths of its sources."""
        self.drains: defaultdict[tuple[str, str | None], list[tuple[str, Place]]] = defaultdict(list)
        """By channel and consumer group: the paths of its sinks."""
        self.unjoined: set[str] = set()
        """Kinds of which one component's channel is not known: nothing can be said about who is missing."""
        self.grouped: dict[str, str] = {}
        """The sink group of each sink that is in one."""
        self._overflows: dict[str, str] = {}
        """By channel that holds an overflow: the path of the one whose it is."""

    def read(self, part: ComponentProperties, name: str, mistaken: str) -> tuple[str, ...]:
        """The channels a source or sink is joined to, of those there are."""
        listed = part.take(name)
        if listed is None and (listed := part.take(mistaken)) is not None:
            message = f"a {part.kind} has {name!r}, not {mistaken!r}"
            self._report.error(listed.place, part.path, message)
        if listed is None:
            hint = {"channels": "which channels does it fill?", "channel": "which channel does it drain?"}[name]
            hint += f" Add {part.path}.{name} = {' '.join(list(self.channels)[:1]) or '…'}"
            missing(part, name, hint, self._report)
            self.unjoined.add(part.kind)
            return ()
        names = names_in(listed, self._report, part.path)
        if name == "channels":
            names = without_remark(names, self.channels, listed, part.path, self._report)
        if not names:
            self.unjoined.add(part.kind)
        if name == "channel" and len(names) > 1:
            behind = comment_behind(listed)
            message = f"a sink drains one channel, not {len(names)}: make one sink for each{behind}"
            self._report.error(listed.place, part.path, message)
            names = names[:1] if behind else names
        there = tuple(channel for channel in names if channel in self.channels)
        for channel in names:
            if channel not in self.channels:
                self.unjoined.add(part.kind)
                self._report.error(listed.place, part.path, self._no_channel(channel))
        return there

    def _no_channel(self, name: str) -> str:
        declared = list(self.channels)
        listed = self._written.lists.get("channels")
        if listed is not None and name in words(listed.value) and name not in self._written.components["channels"]:
            return f"channel {name!r} has no properties; add {self._agent}.channels.{name}.type = …"
        if name in self._written.components["channels"]:
            return f"channel {name!r} is configured but not listed in {self._agent}.channels"
        there = f"write one that is: {', '.join(declared)}" if declared else f"add {self._agent}.channels = …"
        return f"channel {name!r} is not declared{suggestion(name, declared) or f'; {there}'}"

    def check_ends(self, channels: list[ChannelSpec]) -> None:
        """Report which channels nothing fills or nothing drains."""
        drained = {name for name, _ in self.drains}
        for spec in channels:
            fills = spec.name in self.fills or "source" in self.unjoined
            drains = spec.name in drained or "sink" in self.unjoined
            in_kafka = issubclass(spec.cls, KafkaBackedChannel)
            if (fills and drains) or (in_kafka and (fills or drains)):  # in Kafka its other end may be elsewhere
                continue
            if spec.name in self._overflows:
                continue
            missing = [
                text for has, text in ((fills, "no source fills it"), (drains, "no sink drains it")) if not has
            ]
            self._report.warn(spec.place, spec.path, " and ".join(missing))

    def with_overflows(self, channels: Iterable[ChannelSpec]) -> Iterator[ChannelSpec]:
        """Without the overflows that cannot be used."""
        for spec in channels:
            if spec.overflow is not None and (message := self._no_overflow(spec.overflow)):
                place = self._lines[spec.path]["overflow"].place
                self._report.error(place, spec.path, f"overflow: {message}")
                spec = replace(spec, config=spec.config.model_copy(update={"overflow": None}))
            elif spec.overflow is not None:
                self._overflows[spec.overflow] = spec.path
            yield spec

    def _no_overflow(self, name: str) -> str:
        """Why that channel cannot hold the overflow of another one; empty where it can."""
        if name not in self.channels:
            return self._no_channel(name)
        spec = self.channels[name]
        if spec is not None and spec.cls.type_name != "file":
            return f"channel {name!r} is of type {spec.cls.type_name}, and an overflow needs one of type file"
        if name in self._overflows:
            return f"channel {name!r} is that of {self._overflows[name]} already: each needs its own"
        users = [
            *self.fills[name],
            *(path for one, ends in self.drains.items() if one[0] == name for path, _ in ends),
        ]
        if users:
            return f"channel {name!r} must be used by nothing else, and {', '.join(users)} names it as a channel"
        return ""

    def check_transactions(self, sources: list[SourceSpec], sinks: list[SinkSpec]) -> None:
        """Note each source and sink that Flume does not run, as its batches exceed a transaction of its channel."""
        joins: list[tuple[str, ComponentSpec, str]] = [
            ("source", one, name) for one in sources for name in one.channels
        ]
        joins += [("sink", one, one.channel) for one in sinks]
        for kind, spec, name in joins:
            channel = self.channels.get(name)
            batch, reason = larger_than_transaction(kind, spec, channel) if channel else ("", "")
            written = self._lines[spec.path].get(batch)
            if channel and written is None:
                written = self._lines[channel.path].get("transactionCapacity")
            if reason and written:  # of defaults alone there is no line to name
                message = f"Flume 1.11: {reason}, so that the {kind} does not run. Here: it runs"
                self._report.note(written.place, spec.path, message, differs=True)

    def check_competition(self) -> None:
        """Say which sinks share the events of a channel, where each might have been meant to get all of them."""
        for (channel, group), sinks in self.drains.items():
            names = self.competitors(channel, group)
            spec = self.channels.get(channel)
            if group is not None and spec is not None and not issubclass(spec.cls, KafkaBackedChannel):
                path, place = sinks[0]
                message = (
                    f"group {group!r} has no effect: the sinks of channel {channel} share its events; give each a "
                    "channel of its own, or use a channel of type kafka"
                )
                self._report.error(place, path, message)
            elif len(names) > 1:
                they = ", ".join(names)
                message = f"{they} share group {group!r} of channel {channel}: each event goes to one of them"
                if group is None:
                    in_kafka = spec is None or issubclass(spec.cls, KafkaBackedChannel)
                    message = (
                        f"{they} compete for the events of channel {channel}: each event goes to one of them, as in "
                        "Flume; if all of them are to get every event, give each a "
                        f"{'group' if in_kafka else 'channel'} of its own"
                    )
                path, place = sinks[-1]
                self._report.warn(place, path, message)

    def competitors(self, channel: str, group: str | None) -> list[str]:
        """The sinks that share a consumer group, and sink groups, by name."""
        names = [path.rpartition(".")[2] for path, _ in self.drains[channel, group]]
        return list(dict.fromkeys(self.grouped.get(name, name) for name in names))
