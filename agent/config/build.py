"""Builder of an agent from resolved properties: reads the components, connects them, and reports all mistakes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar, cast

from flafka.agent.config import headers, kafka, storage
from flafka.agent.config.components import ComponentReader, hide_secrets
from flafka.agent.config.diagnostics import DiagnosticCollector
from flafka.agent.config.parts import (
    ComponentProperties,
    Groups,
    configured_components,
    drop_trailing_comment,
    group_properties,
    listed_names,
)
from flafka.agent.config.paths import absolute_paths
from flafka.agent.config.properties import Property, split_names
from flafka.agent.config.runners import SinkBinding, unsupported_features
from flafka.agent.config.selectors import SelectorReader
from flafka.agent.config.sinkgroups import SinkGroupReader
from flafka.agent.config.wiring import ChannelWiring
from flafka.agent.onyarn import hadoop_configuration
from flafka.agent.options import YARN, AgentOptions, SinkErrors
from flafka.agent.topology import (
    AgentSpec,
    ChannelSpec,
    ComponentSpec,
    ConfigLocation,
    Runner,
    SinkGroupSpec,
    SinkSpec,
    SourceSpec,
    Tolerance,
)
from flafka.plugins import (
    Channel,
    CommittingSink,
    Components,
    FlafkaError,
    Interceptor,
    Sink,
    StreamingSink,
)
from flafka.plugins.kafka.config import KafkaClientConfig
from flafka.plugins.problems import suggest

KINDS = {"sources": "source", "channels": "channel", "sinks": "sink", "sinkgroups": "sink group"}
_GROUP_OPTIONS = ("group", "kafka.consumer.group.id", "groupId")
"""Options for a consumer group: of a sink, of a channel, and of a channel in Flume's oldest versions."""
_TOPIC_OPTIONS = ("kafka.topic", "topic")
_LOGIN_OPTIONS = tuple(
    f"kafka.{client}.{name}"
    for client in ("producer", "consumer")
    for name in ("sasl.kerberos.principal", "sasl.jaas.config")
)

Spec = TypeVar("Spec", bound=ComponentSpec)


class Builder:
    """Builder of one agent, for a single use. `properties` are resolved, not empty, and without the agent's name."""

    def __init__(
        self,
        agent: str,
        file: str,
        properties: Mapping[str, Property],
        report: DiagnosticCollector,
        components: Components,
    ) -> None:
        self.agent, self.file, self.report = agent, file, report
        self.reader = ComponentReader(components, report)
        self.written = group_properties(agent, properties, report)
        places = [prop.place for prop in self.written.lists.values()]
        self.place = min(places, key=lambda place: place.line, default=ConfigLocation(file, 0))
        self.unread: set[str] = set()
        """Paths of components that might set any header: invalid sources, and owners of an invalid interceptor."""
        self.invalid_sinks: list[SinkSpec] = []
        """Sinks with invalid values, without these values."""
        self.runner_places: dict[str, ConfigLocation] = {}
        self.lines: dict[str, dict[str, Property]] = {}
        """Unparsed properties of each source, channel and sink, by path."""
        self.wiring = ChannelWiring(agent, self.written, self.lines, report)

    def build(self) -> AgentSpec:
        """Return the agent without the parts that cannot be built, and report every mistake. Call it once."""
        lists, options = self.written.lists, self._options()
        if "channels" not in lists:
            self.report.error(
                self.place, self.agent, f"the agent has no channels: add {self.agent}.channels = <names>"
            )
        if "sources" not in lists and "sinks" not in lists:
            self.report.error(
                self.place,
                self.agent,
                f"the agent has no sources and no sinks: add {self.agent}.sources = <names>, {self.agent}.sinks = "
                "<names>",
            )
        channels = _without_none(map(self._channel, self._listed("channels")))
        self.wiring.channels |= {spec.name: spec for spec in channels}
        sources = _without_none(map(self._source, self._listed("sources")))
        runner = options.runner
        sinks = _without_none(self._sink(part, runner) for part in self._listed("sinks"))
        channels = list(self.wiring.check_overflows(channels))
        self.wiring.channels |= {spec.name: spec for spec in channels}
        self.wiring.check_transactions(sources, sinks)
        groups = self._sink_groups(sinks)
        sinks = _with_at_least_once_forms(sinks, groups)
        bindings = [(sink, channel) for sink in sinks if (channel := self.wiring.channels.get(sink.channel))]
        self._check_headers(sources, channels, [*sinks, *self.invalid_sinks])
        self._check_runners(bindings, groups)
        self._check_master(sinks, options.spark_master)
        self._report_errors(storage.unreachable_from_executors(sinks, options.spark_master))
        self.wiring.check_competition()
        self._report_errors(storage.shared_resources([*sources, *channels, *sinks]))
        for spec, message in kafka.event_loops(sources, self.wiring.channels, sinks, bindings):
            self.report.warn(spec.place, spec.path, message)
        for names, errors in (
            (_GROUP_OPTIONS, kafka.invalid_groups(bindings)),
            (_TOPIC_OPTIONS, kafka.self_feeding_sinks(bindings)),
            (_LOGIN_OPTIONS, kafka.several_logins([*channels, *sources, *sinks])),
        ):
            for spec, message in errors:
                written = self.lines[spec.path]
                prop = next((written[name] for name in names if name in written), None)
                self.report.error(prop.place if prop else spec.place, spec.path, message)
        for spec, message in (*storage.volatile_channels(bindings), *kafka.separate_commit_logs(bindings)):
            self.report.warn(spec.place, spec.path, message, differs=True)
        for spec, message in kafka.at_least_once_sinks(bindings):
            self.report.note(spec.place, spec.path, message)
        self._check_audit(channels)
        self.wiring.check_ends(channels)
        if not (sources or sinks or self.report.has_errors):
            self.report.error(self.place, self.agent, "none of the sources and sinks can run")
        places = {name: prop.place for name, prop in self.written.options.items()}
        return AgentSpec(
            self.agent, self.file, tuple(sources), tuple(channels), tuple(sinks), groups, options, places
        )

    # --- components

    def _listed(self, kind: str) -> Iterator[ComponentProperties]:
        """Return an iterator of the components of a kind such as "sinks" that are both listed and configured."""
        listed, groups, path = self.written.lists.get(kind), self.written.components[kind], f"{self.agent}.{kind}"
        names = drop_trailing_comment(listed_names(listed, self.report, path), groups, listed, path, self.report)
        if kind == "channels":
            self.wiring.channels = dict.fromkeys(name for name in names if name in groups)
        if not groups.keys() >= set(names):
            self.wiring.incomplete_kinds.add(KINDS[kind])
        return configured_components(KINDS[kind], names, listed, groups, path, self.report)

    def _channel(self, part: ComponentProperties) -> ChannelSpec | None:
        """Return the channel; None, with an error reported, if it is not usable."""
        self.lines[part.path] = dict(part.properties)
        return _extend(ChannelSpec, self.reader.read(part))

    def _source(self, part: ComponentProperties) -> SourceSpec | None:
        """Return the source with its selector and interceptors; None, with an error reported, if it is not usable."""
        self.lines[part.path] = dict(part.properties)
        names = self.wiring.read_channels(part, "channels", "channel")
        written = part.take("interceptors"), part.take_all("interceptors.")
        selector = part.take_all("selector.")
        base = self.reader.read(part)
        interceptors = self._interceptors(part, *written)
        chosen = SelectorReader(part, selector, names, self.report).read()
        if not names:
            return None
        for name in names:
            self.wiring.sources_of[name].append(part.path)
        if base is None:
            self.unread.add(part.path)
        return _extend(SourceSpec, base, channels=names, interceptors=interceptors, selector=chosen)

    def _sink(self, part: ComponentProperties, default: Runner) -> SinkSpec | None:
        """Return the sink with its interceptors; None, with an error reported, if it is not usable.

        `default` is the agent's runner. A stream processor without an own runner runs on Spark.
        """
        self.lines[part.path] = dict(part.properties)
        names = self.wiring.read_channels(part, "channel", "channels")
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
        if not names:
            return None
        own_group = group.value if group else None
        for name in names:
            self.wiring.sinks_of[name, own_group].append((part.path, part.place))
        own = {"interceptors": interceptors, "group": own_group, "runner": runner, "tolerance": tolerance}
        own["channel"] = names[0]
        if base is None and (invalid := _extend(SinkSpec, self.reader.drafts.get(part.path), **own)):
            self.invalid_sinks.append(invalid)
        return _extend(SinkSpec, base, **own)

    def _tolerance(self, part: ComponentProperties) -> Tolerance:
        """Remove the options under `errors.` and return the tolerance.

        A wrong option is reported as an error; the default is returned then.
        """
        written = {option.name: prop for option in SinkErrors.options() if (prop := part.take(option.name))}
        config, problems = SinkErrors.parse({name: prop.value for name, prop in written.items()})
        for problem in problems:
            if (prop := written[problem.option]).resolved:
                message = f"{problem.option} {problem.message}"
                self.report.error(prop.place, part.path, message)
        return Tolerance(config.tolerance, config.window) if config else Tolerance()

    def _interceptors(
        self, owner: ComponentProperties, listed: Property | None, properties: Mapping[str, Property]
    ) -> tuple[ComponentSpec, ...]:
        """Return the usable interceptors in the order of the list. Report wrong ones, and impure ones of a sink."""
        path = f"{owner.path}.interceptors"
        groups: Groups = {}
        for key, prop in properties.items():
            name, _, own = key.partition(".")
            if name and own:
                groups.setdefault(name, {})[own] = prop
            else:
                message = f"{prop.name} is ignored: it is not of the form {path}.<name>.<option>"
                self.report.warn(prop.place, owner.path, message)
        interceptors = []
        names = listed_names(listed, self.report, path, duplicate_note=": Flume runs it twice; here it runs once")
        if any(name not in groups for name in names):
            self.unread.add(owner.path)
        for part in configured_components("interceptor", names, listed, groups, path, self.report):
            spec = self.reader.read(part)
            if spec is None:
                self.unread.add(owner.path)
                continue
            interceptors.append(spec)
            if owner.kind == "sink" and not cast(Interceptor[Any], spec.make()).pure:
                option = cast("type[Interceptor[Any]]", spec.cls).pure_with
                message = (
                    f"{spec.cls.type_name} may give a redelivered event another result: move it to the source"
                    f"{f', or set {option}' if option else ''}"
                )
                self.report.error(part.place, part.path, message)
        return tuple(interceptors)

    def _runner(self, part: ComponentProperties, default: Runner) -> Runner:
        """Remove the option `runner` and return its value; `default` if it is missing or wrong, which is reported."""
        written = part.take("runner")
        for name, prop in part.take_all("runner.").items():
            # Flume's documentation shows options such as `runner.type`, which no version of Flume reads.
            self.report.warn(prop.place, part.path, f"unknown option {'runner.' + name!r} (ignored)")
        agent_wide = self.written.options.get("runner")
        self.runner_places[part.path] = next((p.place for p in (written, agent_wide) if p), part.place)
        if written is None or written.value in ("local", "spark"):
            return cast(Runner, written.value) if written else default
        if not written.resolved:
            return default
        near = suggest(written.value, ["local", "spark"])
        message = f"runner must be 'local' or 'spark', not {written.value!r}{near}"
        self.report.error(written.place, part.path, message)
        return default

    def _sink_groups(self, sinks: list[SinkSpec]) -> tuple[SinkGroupSpec, ...]:
        """Return the usable sink groups, and record the group of each grouped sink."""
        known: dict[str, SinkSpec | None] = dict.fromkeys(
            split_names(listed.value) if (listed := self.written.lists.get("sinks")) else ()
        )
        known |= {sink.name: sink for sink in sinks}
        groups = []
        for part in self._listed("sinkgroups"):
            reader = SinkGroupReader(part, known, self.wiring.group_of, self.report)
            group = reader.read()
            self.wiring.group_of |= dict.fromkeys(reader.names, part.name)
            if group:
                groups.append(group)
        return tuple(group for group in groups if group.sinks)

    def _options(self) -> AgentOptions:
        """Return the agent's own options; the defaults if one is wrong. Each problem is reported as an error."""
        texts = {name: prop.value for name, prop in self.written.options.items()}
        texts |= absolute_paths(self.agent, AgentOptions.options(), self.written.options, self.report)
        hide_secrets(AgentOptions, self.written.options, self.report)
        config, problems = AgentOptions.parse(texts)
        for problem in problems:
            prop = self.written.options.pop(problem.option, None)
            message = problem.message if problem.is_unknown_option else f"{problem.option} {problem.message}"
            if prop is None or prop.resolved:
                self.report.error(prop.place if prop else self.place, self.agent, message)
        for warning in config.warnings() if config is not None else ():
            place = prop.place if (prop := self.written.options.get(warning.option)) else self.place
            self.report.missing_library(place, self.agent, f"{warning.option} {warning.message}")
        return config or AgentOptions()

    # --- checks across components

    def _check_headers(self, sources: list[SourceSpec], channels: list[ChannelSpec], sinks: list[SinkSpec]) -> None:
        """Report headers that nothing sets: an error if every event will be rejected, else a warning."""
        unknown = {name for name, paths in self.wiring.sources_of.items() if self.unread.intersection(paths)}
        for missing in headers.missing_headers(sources, channels, sinks, self.unread, unknown):
            prop = self.lines[missing.spec.path].get(missing.option)
            place, message = prop.place if prop else missing.spec.place, f"{missing.option} {missing.message}"
            if missing.is_certain:
                self.report.error(place, missing.spec.path, message)
            else:
                self.report.warn(place, missing.spec.path, message)

    def _check_audit(self, channels: Iterable[ChannelSpec]) -> None:
        """Warn about `audit.topic` without a channel in Kafka."""
        topic = self.written.options.get("audit.topic")
        if topic is not None and not any(isinstance(channel.config, KafkaClientConfig) for channel in channels):
            message = "audit.topic has no effect: only channels in Kafka are audited, and the agent has none"
            self.report.warn(topic.place, self.agent, message)

    def _report_errors(self, errors: Iterable[kafka.SpecMessage]) -> None:
        """Report each message as an error of its component."""
        for spec, message in errors:
            self.report.error(spec.place, spec.path, message)

    def _check_runners(self, bindings: kafka.SinkChannels, groups: tuple[SinkGroupSpec, ...]) -> None:
        """Report, as errors, the features of sinks that their runners do not support."""
        grouped = _grouped_sinks(groups)
        for spec, channel in bindings:
            binding = SinkBinding(
                cast(type[Sink | StreamingSink], spec.cls),
                cast(type[Channel], channel.cls),
                competing=len(self.wiring.competitors(spec.channel, spec.group)) > 1,
                grouped=spec.name in grouped,
            )
            for message in unsupported_features(spec.runner, binding):
                self.report.error(self.runner_places[spec.path], spec.path, message)

    def _check_master(self, sinks: list[SinkSpec], master: str) -> None:
        """Report, as an error, a missing configuration of Hadoop if sinks run on YARN."""
        on_spark = [spec for spec in sinks if spec.runner == "spark"]
        if master != YARN or not on_spark:
            return
        try:
            hadoop_configuration()
        except FlafkaError as e:
            place = self.written.options["spark.master"].place
            self.report.error(place, self.agent, str(e))


def _without_none(specs: Iterable[Spec | None]) -> list[Spec]:
    return [spec for spec in specs if spec is not None]


def _extend(cls: type[Spec], base: ComponentSpec | None, **more: Any) -> Spec | None:
    """Return a spec of class `cls` with the fields of `base` and `more`; None if `base` is None."""
    return cls(**{field.name: getattr(base, field.name) for field in fields(base)}, **more) if base else None


def _with_at_least_once_forms(sinks: list[SinkSpec], groups: tuple[SinkGroupSpec, ...]) -> list[SinkSpec]:
    """Return the sinks; some with the at-least-once form of their class, which has no commit log.

    These are sinks in groups of several sinks, and sinks on Spark that are not `remote`, if they have such a form.
    """
    grouped = _grouped_sinks(groups)
    at_least_once = {
        spec.name: spec.cls.at_least_once
        for spec in sinks
        if issubclass(spec.cls, CommittingSink)
        and spec.cls.at_least_once is not None
        and (spec.name in grouped or (spec.runner == "spark" and not spec.cls.remote))
    }
    return [replace(spec, cls=at_least_once.get(spec.name, spec.cls)) for spec in sinks]


def _grouped_sinks(groups: tuple[SinkGroupSpec, ...]) -> set[str]:
    """Return the names of all sinks that are in a group of at least two sinks."""
    return {name for group in groups if len(group.sinks) > 1 for name in group.sinks}
