"""Reader of sink groups: `a1.sinkgroups.g1.*`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from flafka.agent.config import catalogue
from flafka.agent.config.diagnostics import DiagnosticCollector
from flafka.agent.config.parts import ComponentProperties, listed_names
from flafka.agent.config.properties import Property
from flafka.agent.topology import Policy, SinkGroupSpec, SinkProcessorKind, SinkProcessorSpec, SinkSpec
from flafka.plugins import CommittingSink, Config, option
from flafka.plugins.java.classes import is_java_class, java_class_error
from flafka.plugins.problems import suggest


class FailoverOptions(Config):
    """One sink is active; the others stand by."""

    priority: dict[str, str] = option(
        {},
        name="priority.",
        description="`processor.priority.<sink>` is a whole number, different for each sink. The sink with the "
        "highest number is active.",
    )
    longest_penalty: int = option(
        30_000,
        name="maxpenalty",
        unit="ms",
        ge=0,
        description="Maximum time without a retry of a failed sink. The time is 2 s at first; each further failure "
        "doubles it.",
    )


class LoadBalanceOptions(Config):
    """Batches are distributed over the sinks. If a sink fails, another one gets its batch."""

    selector: str = option(
        "round_robin", name="selector", description="Order of the sinks: `round_robin` or `random`."
    )
    backoff: bool = option(False, name="backoff", description="Do not retry a failed sink for a while.")
    longest_penalty: int = option(
        30_000,
        name="selector.maxTimeOut",
        unit="ms",
        ge=0,
        description="With `backoff`: maximum time without a retry of a failed sink. The time is 2 s at first; each "
        "further failure doubles it.",
    )


class DefaultOptions(Config):
    """A single sink, as without a group."""


OPTIONS: dict[SinkProcessorKind, type[Config]] = {
    "default": DefaultOptions,
    "failover": FailoverOptions,
    "load_balance": LoadBalanceOptions,
}


class SinkGroupReader:
    """Reader of one sink group.

    `sinks` are the listed sinks by name, None for one with an error of its own. `group_of` holds the sinks of the
    groups read before, with their group.
    """

    def __init__(
        self,
        part: ComponentProperties,
        sinks: Mapping[str, SinkSpec | None],
        group_of: Mapping[str, str],
        report: DiagnosticCollector,
    ) -> None:
        self.part, self._sinks, self._group_of, self._report = part, sinks, group_of, report
        self.names: tuple[str, ...] = ()
        """Sinks of the group that are declared."""

    def read(self) -> SinkGroupSpec | None:
        """Return the group; None if it is not usable, with the error reported.

        None also for load balancing of exactly-once sinks, with a warning: these sinks run without the group. For
        failover, sinks with an error in their priority are left out.
        """
        part, report = self.part, self._report
        listed = part.take("sinks")
        if listed is None:
            self._report_error(part, f"sinks is missing; add {part.path}.sinks = k1 k2")
        self.names = self._members(listed)
        kind = self._kind()
        options = part.take_all("processor.")
        for name, prop in part.properties.items():
            known = ["sinks", "processor.type"]
            near = suggest(name, known)
            report_at = report.warn if near else report.note
            report_at(prop.place, part.path, f"unknown option {name!r}{near} (ignored)")
        if kind is None or listed is None or not listed.resolved:
            return None
        if not self.names:
            self._report_error(listed, "none of its sinks can run: correct the sinks, or remove the group")
            return None
        processor = self._processor(kind, options)
        if kind == "default" and len(self.names) > 1:
            message = f"the processor 'default' is for one sink, not for {len(self.names)}, which Flume does not run"
            self._report_error(listed, f"{message}; choose failover or load_balance, or remove the group")
        if kind == "load_balance" and len(self.names) == 1:
            message = "the processor 'load_balance' is for several sinks: Flume does not run it with one"
            self._report_error(listed, f"{message}; list more sinks, or remove the group")
        if not self._are_compatible(listed, kind):
            self.names = ()
            return None
        if processor is None:
            return None
        used = tuple(name for name in self.names if kind != "failover" or name in processor.priorities)
        return SinkGroupSpec(part.name, part.path, part.place, used, processor)

    def _members(self, listed: Property | None) -> tuple[str, ...]:
        """Return the sinks in the list that are declared and in no other group.

        Each other name is reported as an error.
        """
        members = []
        for name in listed_names(listed, self._report, self.part.path):
            assert listed is not None
            if (other := self._group_of.get(name)) is not None:
                message = f"sink {name!r} is already in group {other!r}: a sink can be in one group only"
                self._report.error(listed.place, self.part.path, message)
            elif name in self._sinks:
                members.append(name)
            else:
                declared = list(self._sinks)
                agent = self.part.path.partition(".")[0]
                remedy = f"declared sinks: {', '.join(declared)}" if declared else f"add {agent}.sinks = …"
                message = f"sink {name!r} is not declared{suggest(name, declared) or f'; {remedy}'}"
                self._report.error(listed.place, self.part.path, message)
        return tuple(members)

    def _kind(self) -> SinkProcessorKind | None:
        """Remove the type and return the processor's kind; None, after an error, if it is missing or unknown."""
        written = self.part.take("processor.type")
        if written is None:
            message = "processor.type is missing, without which Flume does not run the sinks of the group; choose "
            self._report_error(self.part, f"{message}failover, load_balance or default")
            return None
        if flume := catalogue.find_type("sink processor", written.value):
            return cast(SinkProcessorKind, flume.alias)
        if written.resolved:
            near = suggest(written.value, list(OPTIONS)) or f"; available types: {', '.join(OPTIONS)}"
            message = f"unknown sink processor {written.value!r}{near}"
            self._report_error(
                written,
                java_class_error("sink processor", written.value) if is_java_class(written.value) else message,
            )
        return None

    def _processor(self, kind: SinkProcessorKind, options: Mapping[str, Property]) -> SinkProcessorSpec | None:
        """Return the processor with its options; None, with an error reported, if an option is wrong."""
        config = self._options(kind, options)
        if config is None:
            return None
        if isinstance(config, FailoverOptions):
            priorities = self._priorities(config.priority, options)
            return SinkProcessorSpec(kind, priorities, max_penalty_seconds=config.longest_penalty / 1000)
        if isinstance(config, LoadBalanceOptions):
            policy = config.selector.lower()
            if policy not in ("round_robin", "random"):
                near = suggest(policy, ["round_robin", "random"])
                message = f"processor.selector must be round_robin or random, not {config.selector!r}{near}"
                if is_java_class(config.selector):
                    message = java_class_error("selector of a load_balance processor", config.selector)
                self._report_error(options["selector"], message)
                return None
            # Flume treats 0 as not set.
            longest_penalty_seconds = (config.longest_penalty or 30_000) / 1000
            return SinkProcessorSpec(kind, {}, cast(Policy, policy), config.backoff, longest_penalty_seconds)
        return SinkProcessorSpec(kind)

    def _options(self, kind: SinkProcessorKind, options: Mapping[str, Property]) -> Config | None:
        """Return the parsed options. A wrong one is reported and gets its default; an unknown one is a warning."""
        texts = {name: prop.value for name, prop in options.items()}
        config, problems = OPTIONS[kind].parse(texts)
        for problem in problems:
            prop, name = options[problem.option], f"processor.{problem.option}"
            if problem.is_unknown_option:
                message = problem.message.replace(repr(problem.option), repr(name))
                self._report.warn(prop.place, self.part.path, f"{message} (ignored)")
                continue
            if prop.resolved:
                message = f"{name} {problem.message}"
                self._report.error(prop.place, self.part.path, message)
            del texts[problem.option]
        return config or OPTIONS[kind].parse(texts)[0]

    def _priorities(self, written: Mapping[str, str], options: Mapping[str, Property]) -> dict[str, int]:
        """Return distinct priorities by sink, and report wrong, missing and duplicate ones.

        A missing or wrong one is assigned as in Flume: -1, -2 and so on, in the order of Java's hash table. A sink
        whose priority another sink has is left out.
        """
        report, path = self._report, self.part.path
        for name in written:
            if name not in self.names:
                message = (
                    f"processor.priority.{name}: the group has no sink {name!r}{suggest(name, list(self.names))}"
                )
                report.warn(options[f"priority.{name}"].place, path, f"{message} (ignored)")
        sink_by_priority: dict[int, str] = {}
        assigned = 0
        # Flume assigns missing priorities, and drops duplicates, in the order of its hash table.
        for name in java_order(self.names):
            line = options.get(f"priority.{name}")
            place = line.place if line else self.part.place
            number = _parse_java_int(line.value) if line else None
            if number is None:
                assigned -= 1
                number = assigned
                if line:
                    message = f"processor.priority.{name} must be a whole number, not {line.value!r}"
                    report.error(place, path, message)
                else:
                    message = (
                        f"processor.priority.{name} is missing, and {assigned} as in Flume, which counts down in "
                    )
                    message += "the order of a hash table; set it: the sink with the highest priority is active"
                    report.warn(place, path, message)
            if number in sink_by_priority:
                message = f"sinks {sink_by_priority[number]!r} and {name!r} have the same priority, {number}: Flume "
                message += "never uses the second; give each sink a different one"
                report.error(place, path, message)
            else:
                sink_by_priority[number] = name
        return {name: number for number, name in sink_by_priority.items()}

    def _are_compatible(self, listed: Property, kind: SinkProcessorKind) -> bool:
        """Return False, after a warning, if exactly-once sinks of a load-balancing group run without it instead.

        Return True otherwise. Sinks with different channels or consumer groups, and failover with an exactly-once
        sink, are errors in the report.
        """
        sinks = {name: sink for name in self.names if (sink := self._sinks[name]) is not None}
        for requirement, values in (
            ("drain one channel", {name: sink.channel for name, sink in sinks.items()}),
            ("have one consumer group", {name: sink.group or "of the channel" for name, sink in sinks.items()}),
        ):
            if len(set(values.values())) > 1:
                settings = ", ".join(f"{name} {value}" for name, value in values.items())
                message = f"the sinks of a group must {requirement}, not several ({settings})"
                message += ": remove the group, or split it"
                self._report.error(listed.place, self.part.path, message)

        committing = next(
            (s for s in sinks.values() if issubclass(s.cls, CommittingSink) and not s.cls.at_least_once), None
        )
        if committing and len(sinks) > 1 and kind == "load_balance":
            message = (
                f"{committing.name} ({committing.cls.type_name}) is exactly once by its own commit log, so the group "
                "is ignored: its sinks share the events, each exactly once"
            )
            self._report.warn(listed.place, self.part.path, message, differs=True)
            return False
        if committing and len(sinks) > 1:
            message = (
                f"{committing.name} ({committing.cls.type_name}) is exactly once by its own commit log, which has no "
                "deliveries of another sink of the group: remove the group, and its sinks share the events, each "
                "exactly once (for failover between NameNodes, write the nameservice in hdfs.path)"
            )
            self._report.error(listed.place, self.part.path, message)
        return True

    def _report_error(self, part: Property | ComponentProperties, message: str) -> None:
        self._report.error(part.place, self.part.path, message)


def java_order(names: Iterable[str]) -> list[str]:
    """Return the distinct names in the iteration order of a java.util.HashSet with these names."""
    distinct = list(dict.fromkeys(names))
    capacity = 16
    while capacity * 0.75 < len(distinct):
        capacity *= 2
    return sorted(distinct, key=lambda name: _spread(name) & (capacity - 1))


def _spread(name: str) -> int:
    """Return java.util.HashMap's hash of a text: String.hashCode, upper half folded into the lower."""
    code = 0
    units = name.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    return code ^ code >> 16


def _parse_java_int(text: str) -> int | None:
    """Return the number as Java's Integer.parseInt does; None if that raises."""
    try:
        number = int(text) if text.lstrip("+-").isdigit() else None
    except ValueError:
        return None
    return number if number is not None and -(2**31) <= number < 2**31 else None
