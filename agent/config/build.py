"""From resolved properties to an agent: its components read, their ends joined, everything wrong reported."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar, cast

from agent.config import headers, kafka, storage
from agent.config.components import Reader, comment_behind, missing
from agent.config.diagnostics import Report
from agent.config.flume import Survivors, too_much_at_once
from agent.config.parts import Groups, Part, names_in, parts, sort, unfinished, without_remark
from agent.config.properties import Property, words
from agent.config.runners import Drain, objections
from agent.config.selectors import SelectorReader
from agent.config.sinkgroups import SinkGroupReader
from agent.hadoop import hadoop_configuration
from agent.options import YARN, AgentOptions, SinkErrors
from agent.topology import (
    AgentSpec,
    ChannelSpec,
    ComponentSpec,
    Place,
    Runner,
    SinkGroupSpec,
    SinkSpec,
    SourceSpec,
    Tolerance,
)
from plugins import (
    Channel,
    CommittingSink,
    Components,
    FlafkaError,
    Interceptor,
    KafkaBackedChannel,
    Sink,
    StreamingSink,
)
from plugins.options import suggestion
from plugins.shared.kafkaclient import KafkaEndConfig

KINDS = {"sources": "source", "channels": "channel", "sinks": "sink", "sinkgroups": "sink group"}

Spec = TypeVar("Spec", bound=ComponentSpec)


class Builder:
    """Builds one agent, once. `properties` are the agent's own, without its name, resolved and not empty."""

    def __init__(
        self, agent: str, file: str, properties: Mapping[str, Property], report: Report, components: Components
    ) -> None:
        self.agent, self.file, self.report = agent, file, report
        self.reader = Reader(components, report)
        self.written = sort(agent, properties, report)
        places = [prop.place for prop in self.written.lists.values()]
        self.place = min(places, key=lambda place: place.line, default=Place(file, 0))
        self.channels: dict[str, ChannelSpec | None] = {}
        """The channels that can be named; None for one that is declared and wrong itself."""
        self.fills: defaultdict[str, list[str]] = defaultdict(list)
        self.drains: defaultdict[tuple[str, str | None], list[tuple[str, Place]]] = defaultdict(list)
        self.unjoined: set[str] = set()
        """Kinds of which one component's channel is not known: nothing can be said about who is missing."""
        self.unread: set[str] = set()
        """Paths of sources and sinks with an interceptor that cannot be read, and might set any header."""
        self.overflows: dict[str, str] = {}
        """By channel that holds an overflow: the path of the one whose it is."""
        self.runner_places: dict[str, Place] = {}
        self.grouped: dict[str, str] = {}
        """The sink group of each sink that is in one."""
        self.lines: dict[str, dict[str, Property]] = {}
        """By path of sources, channels and sinks: their properties as they are written."""

    def build(self, survivors: Survivors | None) -> AgentSpec | None:
        """The agent, as far as it can be built. `survivors` limits it to what Flume itself would run."""
        lists, options = self.written.lists, self._options()
        if "channels" not in lists:
            self.report.fatal(self.place, self.agent, f"it has no channels: expected {self.agent}.channels = <names>")
        if "sources" not in lists and "sinks" not in lists:
            self.report.fatal(
                self.place,
                self.agent,
                f"it has no sources and no sinks: expected {self.agent}.sources = <names>, {self.agent}.sinks = "
                f"<names>",
            )
        allowed: dict[str, list[str]] = vars(survivors) if survivors else {}
        channels = self._running(map(self._channel, self._listed("channels")), allowed.get("channels"))
        self.channels |= {spec.name: spec for spec in channels}
        sources = self._running(map(self._source, self._listed("sources")), allowed.get("sources"))
        runner = options.runner
        sinks = self._running((self._sink(part, runner) for part in self._listed("sinks")), allowed.get("sinks"))
        channels = list(self._with_overflows(channels))
        self.channels |= {spec.name: spec for spec in channels}
        if self.report.mode == "lenient":
            self._check_transactions(sources, sinks)
            sources, sinks = self._running(sources, None), self._running(sinks, None)
        groups = self._sink_groups(sinks, allowed.get("sinkgroups"))
        sinks = _in_their_places(self._running(sinks, None), groups)
        self._check_headers(sources, channels, sinks)
        self._check_runners(sinks, groups)
        self._check_master(sinks, options.spark_master)
        self._check_storage(storage.out_of_reach(sinks, options.spark_master))
        groups, sinks = self._left(groups), self._running(sinks, None)
        self._check_competition()
        self._check_storage(storage.shared([*sources, *channels, *sinks]))
        for spec, message in kafka.warnings(sources, self.channels, sinks):
            self.report.warn(spec.place, spec.path, message)
        for spec, message in kafka.guarantees(self.channels, sinks):
            self.report.note(spec.place, spec.path, message)
        self._check_audit(channels)
        channels = self._check_ends(channels, sources, sinks)
        if self.report.mode == "lenient" and not (channels and (sources or sinks)):
            self.report.fatal(self.place, self.agent, "nothing is left that could run")
        places = {name: prop.place for name, prop in self.written.options.items()}
        return AgentSpec(
            self.agent, self.file, tuple(sources), tuple(channels), tuple(sinks), groups, options, places
        )

    # --- parts

    def _listed(self, kind: str) -> Iterator[Part]:
        listed, groups, path = self.written.lists.get(kind), self.written.components[kind], f"{self.agent}.{kind}"
        names = without_remark(names_in(listed, self.report, path), groups, listed, path, self.report)
        if kind == "channels" and self.report.mode != "lenient":
            self.channels = dict.fromkeys(name for name in names if name in groups)
        if not groups.keys() >= set(names):
            self.unjoined.add(KINDS[kind])
        return parts(KINDS[kind], names, listed, groups, path, self.report)

    def _channel(self, part: Part) -> ChannelSpec | None:
        self.lines[part.path] = dict(part.properties)
        return _extended(ChannelSpec, self.reader.read(part))

    def _source(self, part: Part) -> SourceSpec | None:
        self.lines[part.path] = dict(part.properties)
        names = self._joined(part, "channels", "channel")
        written = part.take("interceptors"), part.take_all("interceptors.")
        selector = part.take_all("selector.")
        base = self.reader.read(part)
        interceptors = self._interceptors(part, *written)
        chosen = SelectorReader(part, selector, names, self.report).read()
        if self.report.dropped(part.path) or not names:
            return None
        for name in names:
            self.fills[name].append(part.path)
        return _extended(SourceSpec, base, channels=names, interceptors=interceptors, selector=chosen)

    def _sink(self, part: Part, default: Runner) -> SinkSpec | None:
        self.lines[part.path] = dict(part.properties)
        names = self._joined(part, "channel", "channels")
        written = part.take("interceptors"), part.take_all("interceptors.")
        if written[0]:
            message = "Flume: a sink has no interceptors, and these lines have no effect. Here: they run"
            self.report.note(written[0].place, part.path, message, differs=True)
        group = part.take("group")
        tolerance = self._tolerance(part)
        stated = "runner" in part.properties
        runner = self._runner(part, default)
        base = self.reader.read(part)
        if base is not None and not stated and issubclass(base.cls, StreamingSink):
            runner = "spark"
        interceptors = self._interceptors(part, *written)
        if self.report.dropped(part.path) or not names:
            return None
        own_group = group.value if group else None
        for name in names:
            self.drains[name, own_group].append((part.path, part.place))
        own = {"interceptors": interceptors, "group": own_group, "runner": runner, "tolerance": tolerance}
        return _extended(SinkSpec, base, channel=names[0], **own)

    def _tolerance(self, part: Part) -> Tolerance:
        written = {option.name: prop for option in SinkErrors.options() if (prop := part.take(option.name))}
        config, problems = SinkErrors.parse({name: prop.value for name, prop in written.items()})
        for problem in problems:
            if not unfinished(prop := written[problem.option], self.report):
                message = f"{problem.option} {problem.message}"
                self.report.error(prop.place, part.path, message, drops=part.path)
        return Tolerance(config.tolerance, config.window) if config else Tolerance()

    def _joined(self, part: Part, name: str, mistaken: str) -> tuple[str, ...]:
        """The channels a source or sink is joined to, of those there are."""
        listed = part.take(name)
        if listed is None and (listed := part.take(mistaken)) is not None:
            message = f"a {part.kind} has {name!r}, not {mistaken!r}"
            self.report.error(listed.place, part.path, message, drops=part.path)
        if listed is None:
            hint = {"channels": "which channels does it fill?", "channel": "which channel does it drain?"}[name]
            hint += f" Add {part.path}.{name} = {' '.join(list(self.channels)[:1]) or '…'}"
            missing(part, name, hint, self.report)
            self.unjoined.add(part.kind)
            return ()
        names = names_in(listed, self.report, part.path)
        if name == "channels":
            names = without_remark(names, self.channels, listed, part.path, self.report)
        if not names:
            self.unjoined.add(part.kind)
        if name == "channel" and len(names) > 1:
            behind = comment_behind(listed)
            message = f"a sink drains one channel, not {len(names)}: make one sink for each{behind}"
            self.report.error(listed.place, part.path, message, drops=part.path)
            names = names[:1] if behind else names
        there = tuple(channel for channel in names if channel in self.channels)
        consequence = {"otherwise": "it fills the others"} if there else {"drops": part.path}
        for channel in names:
            if channel not in self.channels:
                self.unjoined.add(part.kind)
                self.report.error(listed.place, part.path, self._no_channel(channel), **consequence)
        return there

    def _no_channel(self, name: str) -> str:
        declared = list(self.channels)
        if self.report.dropped(f"{self.agent}.channels.{name}"):
            return f"channel {name!r} is dropped"
        listed = self.written.lists.get("channels")
        if listed is not None and name in words(listed.value) and name not in self.written.components["channels"]:
            return f"channel {name!r} has no properties; add {self.agent}.channels.{name}.type = …"
        if name in self.written.components["channels"]:
            return f"channel {name!r} is configured but not listed in {self.agent}.channels"
        near = suggestion(name, declared) or f" (declared: {', '.join(declared) or 'none'})"
        return f"channel {name!r} is not declared{near}"

    def _interceptors(
        self, owner: Part, listed: Property | None, properties: Mapping[str, Property]
    ) -> tuple[ComponentSpec, ...]:
        path = f"{owner.path}.interceptors"
        groups: Groups = {}
        for key, prop in properties.items():
            name, _, own = key.partition(".")
            if name and own:
                groups.setdefault(name, {})[own] = prop
            else:
                message = f"{prop.name} is not understood; expected {path}.<name>.<option> (ignored)"
                self.report.warn(prop.place, owner.path, message)
        found = []
        names = names_in(listed, self.report, path, twice=": Flume runs it twice; here it runs once")
        if any(name not in groups for name in names):
            self.unread.add(owner.path)
        for part in parts("interceptor", names, listed, groups, path, self.report, owner.path):
            spec = self.reader.read(part)
            if spec is None:
                self.unread.add(owner.path)
                continue
            found.append(spec)
            if owner.kind == "sink" and not cast(Interceptor[Any], spec.make()).pure:
                option = cast("type[Interceptor[Any]]", spec.cls).pure_with
                message = (
                    f"{spec.cls.type_name} may give an event another result when it comes again, and a sink may get "
                    f"an event twice: put it on the source{f', or set {option}' if option else ''}"
                )
                self.report.error(part.place, part.path, message, drops=owner.path)
        return tuple(found)

    def _runner(self, part: Part, default: Runner) -> Runner:
        written = part.take("runner")
        for name, prop in part.take_all("runner.").items():
            # Flume's documentation shows `runner.type` and the like; no version reads them.
            self.report.warn(prop.place, part.path, f"unknown option {'runner.' + name!r} (ignored)")
        agent_wide = self.written.options.get("runner")
        self.runner_places[part.path] = next((p.place for p in (written, agent_wide) if p), part.place)
        if written is None or written.value in ("local", "spark"):
            return cast(Runner, written.value) if written else default
        if unfinished(written, self.report):
            return default
        near = suggestion(written.value, ["local", "spark"])
        message = f"runner must be 'local' or 'spark', not {written.value!r}{near}"
        self.report.error(written.place, part.path, message, drops=part.path)
        return default

    def _sink_groups(self, sinks: list[SinkSpec], allowed: list[str] | None) -> tuple[SinkGroupSpec, ...]:
        known: dict[str, SinkSpec | None] = {}
        if self.report.mode != "lenient":
            known = dict.fromkeys(words(listed.value) if (listed := self.written.lists.get("sinks")) else ())
        known |= {sink.name: sink for sink in sinks}
        groups = []
        for part in self._listed("sinkgroups"):
            reader = SinkGroupReader(part, known, self.grouped, self.report)
            group = reader.read()
            self.grouped |= dict.fromkeys(reader.names, part.name)
            if group and (allowed is None or group.name in allowed):
                groups.append(group)
        return self._left(tuple(groups))

    def _left(self, groups: tuple[SinkGroupSpec, ...]) -> tuple[SinkGroupSpec, ...]:
        """Without the groups, and the sinks in them, that `lenient` drops."""
        there = [
            replace(g, sinks=tuple(n for n in g.sinks if not self.report.dropped(f"{self.agent}.sinks.{n}")))
            for g in groups
            if not self.report.dropped(g.path)
        ]
        return tuple(group for group in there if group.sinks)

    def _options(self) -> AgentOptions:
        texts = {name: prop.value for name, prop in self.written.options.items()}
        config, problems = AgentOptions.parse(texts)
        for problem in problems:
            prop = self.written.options.pop(problem.option, None)
            message = problem.message if problem.unknown else f"{problem.option} {problem.message}"
            if not (prop and unfinished(prop, self.report)):
                self.report.error(prop.place if prop else self.place, self.agent, message)
        return config or AgentOptions()

    # --- the whole

    def _check_headers(self, sources: list[SourceSpec], channels: list[ChannelSpec], sinks: list[SinkSpec]) -> None:
        for found in headers.missing(sources, channels, sinks, self.unread):
            prop = self.lines[found.spec.path].get(found.option)
            place, message = prop.place if prop else found.spec.place, f"{found.option} {found.message}"
            if found.certain:
                self.report.error(place, found.spec.path, message, otherwise="each event is rejected")
            else:
                self.report.warn(place, found.spec.path, message)

    def _check_audit(self, channels: Iterable[ChannelSpec]) -> None:
        topic = self.written.options.get("audit.topic")
        if topic is not None and not any(isinstance(channel.config, KafkaEndConfig) for channel in channels):
            message = "audit.topic has no effect: only channels in Kafka are audited, and it has none"
            self.report.warn(topic.place, self.agent, message)

    def _running(self, specs: Iterable[Spec | None], names: list[str] | None) -> list[Spec]:
        """Without those that could not be built, and those that `lenient` drops."""
        built = [spec for spec in specs if spec is not None]
        for spec in built:
            if names is not None and spec.name not in names and not self.report.dropped(spec.path):
                self.report.error(spec.place, spec.path, "Flume's own check refuses it", drops=spec.path)
        return [spec for spec in built if not self.report.dropped(spec.path)]

    def _check_ends(
        self, channels: list[ChannelSpec], sources: list[SourceSpec], sinks: list[SinkSpec]
    ) -> list[ChannelSpec]:
        """The channels to run; what is missing at one is reported. Flume drops one that nothing is joined to."""
        joined = {name for source in sources for name in source.channels} | {sink.channel for sink in sinks}
        joined |= set(self.overflows)
        drained = {name for name, _ in self.drains}
        for spec in channels:
            fills = spec.name in self.fills or "source" in self.unjoined
            drains = spec.name in drained or "sink" in self.unjoined
            in_kafka = issubclass(spec.cls, KafkaBackedChannel)
            if (fills and drains) or (in_kafka and (fills or drains)):  # in Kafka its other end may be elsewhere
                continue
            if spec.name in self.overflows:
                continue
            missing = [
                text for has, text in ((fills, "no source fills it"), (drains, "no sink drains it")) if not has
            ]
            self.report.warn(spec.place, spec.path, " and ".join(missing))
        return channels if self.report.mode != "lenient" else [spec for spec in channels if spec.name in joined]

    def _with_overflows(self, channels: Iterable[ChannelSpec]) -> Iterator[ChannelSpec]:
        """Without the overflows that cannot be used."""
        for spec in channels:
            if spec.overflow is not None and (message := self._no_overflow(spec.overflow.channel)):
                place = self.lines[spec.path]["overflow"].place
                self.report.error(place, spec.path, f"overflow: {message}", otherwise="it has no overflow")
                spec = replace(spec, config=spec.config.model_copy(update={"overflow": None}))
            elif spec.overflow is not None:
                self.overflows[spec.overflow.channel] = spec.path
            yield spec

    def _no_overflow(self, name: str) -> str:
        """Why that channel cannot hold the overflow of another one; empty where it can."""
        if name not in self.channels:
            return self._no_channel(name)
        spec = self.channels[name]
        if spec is not None and spec.cls.type_name != "file":
            return f"channel {name!r} is of type {spec.cls.type_name}, and an overflow needs one of type file"
        if name in self.overflows:
            return f"channel {name!r} is that of {self.overflows[name]} already: each needs its own"
        users = [
            *self.fills[name],
            *(path for one, ends in self.drains.items() if one[0] == name for path, _ in ends),
        ]
        if users:
            return f"channel {name!r} must be used by nothing else, and {', '.join(users)} names it as a channel"
        return ""

    def _check_storage(self, found: Iterable[storage.Error]) -> None:
        for spec, message in found:
            self.report.error(spec.place, spec.path, message, drops=spec.path)

    def _check_transactions(self, sources: list[SourceSpec], sinks: list[SinkSpec]) -> None:
        """Flume drops what moves more events at once than a transaction of its channel holds; here that works."""
        joins: list[tuple[str, ComponentSpec, str]] = [
            ("source", one, name) for one in sources for name in one.channels
        ]
        joins += [("sink", one, one.channel) for one in sinks]
        for kind, spec, name in joins:
            channel = self.channels.get(name)
            if channel and (message := too_much_at_once(kind, spec, channel)):
                self.report.error(spec.place, spec.path, message, drops=spec.path)

    def _check_competition(self) -> None:
        for (channel, group), sinks in self.drains.items():
            names = self._competitors(channel, group)
            spec = self.channels.get(channel)
            if group is not None and spec is not None and not issubclass(spec.cls, KafkaBackedChannel):
                path, place = sinks[0]
                message = (
                    f"group {group!r} has no effect: the sinks of channel {channel} share its events; give each a "
                    "channel of its own, or use a channel of type kafka"
                )
                self.report.error(place, path, message)
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
                self.report.warn(place, path, message)

    def _check_runners(self, sinks: list[SinkSpec], groups: tuple[SinkGroupSpec, ...]) -> None:
        grouped = _grouped(groups)
        for spec in sinks:
            if (channel := self.channels.get(spec.channel)) is None:
                continue
            drain = Drain(
                cast(type[Sink | StreamingSink], spec.cls),
                cast(type[Channel], channel.cls),
                competing=len(self._competitors(spec.channel, spec.group)) > 1,
                grouped=spec.name in grouped,
            )
            for objection in objections(spec.runner, drain):
                self.report.error(self.runner_places[spec.path], spec.path, objection, drops=spec.path)

    def _check_master(self, sinks: list[SinkSpec], master: str) -> None:
        """What says where YARN is comes from the environment."""
        on_spark = [spec for spec in sinks if spec.runner == "spark"]
        if master != YARN or not on_spark:
            return
        try:
            hadoop_configuration()
        except FlafkaError as e:
            place = self.written.options["spark.master"].place
            for spec in on_spark if self.report.mode == "lenient" else on_spark[:1]:
                self.report.error(place, self.agent, str(e), drops=spec.path)

    def _competitors(self, channel: str, group: str | None) -> list[str]:
        """The sinks that share a consumer group, and sink groups, by name."""
        paths = [path for path, _ in self.drains[channel, group] if not self.report.dropped(path)]
        names = [path.rpartition(".")[2] for path in paths]
        together = {n: g for n, g in self.grouped.items() if not self.report.dropped(f"{self.agent}.sinkgroups.{g}")}
        return list(dict.fromkeys(together.get(name, name) for name in names))


def _extended(cls: type[Spec], base: ComponentSpec | None, **more: Any) -> Spec | None:
    """A spec of that kind with the fields of `base`."""
    return cls(**{field.name: getattr(base, field.name) for field in fields(base)}, **more) if base else None


def _in_their_places(sinks: list[SinkSpec], groups: tuple[SinkGroupSpec, ...]) -> list[SinkSpec]:
    """With the plain forms of those that cannot commit by themselves where they are to run."""
    grouped = _grouped(groups)
    plain = {
        spec.name: spec.cls.plain
        for spec in sinks
        if issubclass(spec.cls, CommittingSink)
        and spec.cls.plain is not None
        and (spec.name in grouped or (spec.runner == "spark" and not spec.cls.remote))
    }
    return [replace(spec, cls=plain.get(spec.name, spec.cls)) for spec in sinks]


def _grouped(groups: tuple[SinkGroupSpec, ...]) -> set[str]:
    """The sinks that are in a group with others."""
    return {name for group in groups if len(group.sinks) > 1 for name in group.sinks}
