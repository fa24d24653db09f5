"""Sink groups: `a1.sinkgroups.g1.*`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from flafka.agent.config import catalogue
from flafka.agent.config.diagnostics import DiagnosticCollector
from flafka.agent.config.parts import ComponentProperties, names_in
from flafka.agent.config.properties import Property
from flafka.agent.topology import Policy, SinkGroupSpec, SinkProcessorKind, SinkProcessorSpec, SinkSpec
from flafka.plugins import CommittingSink, Config, option
from flafka.plugins.problems import suggestion
from flafka.plugins.shared.javaclass import cannot_run, is_java_class


class FailoverOptions(Config):
    """One sink works, the others stand by."""

    priority: dict[str, str] = option(
        {},
        name="priority.",
        description="`processor.priority.<sink>` is a whole number, a different one for each sink. The sink with the "
        "highest number works.",
    )
    longest_penalty: int = option(
        30_000,
        name="maxpenalty",
        unit="ms",
        ge=0,
        description="Maximum time for which a sink that failed is not tried. It is 2 s at first, and doubles with "
        "each failure.",
    )


class LoadBalanceOptions(Config):
    """Batches go to the sinks in turn; one that fails passes its batch on."""

    selector: str = option(
        "round_robin", name="selector", description="Order of the sinks: `round_robin` or `random`."
    )
    backoff: bool = option(False, name="backoff", description="Do not try a sink that failed for a while.")
    longest_penalty: int = option(
        30_000,
        name="selector.maxTimeOut",
        unit="ms",
        ge=0,
        description="With `backoff`: maximum time for which a sink that failed is not tried. It is 2 s at first, "
        "and doubles with each failure.",
    )


class DefaultOptions(Config):
    """One sink, as if there were no group."""


OPTIONS: dict[SinkProcessorKind, type[Config]] = {
    "default": DefaultOptions,
    "failover": FailoverOptions,
    "load_balance": LoadBalanceOptions,
}


class SinkGroupReader:
    """Reads one sink group.

    `sinks` are those that run, by name, None for one that is wrong itself; `taken` the sinks of the groups before,
    with the group.
    """

    def __init__(
        self,
        part: ComponentProperties,
        sinks: Mapping[str, SinkSpec | None],
        taken: Mapping[str, str],
        report: DiagnosticCollector,
    ) -> None:
        self.part, self._sinks, self._taken, self._report = part, sinks, taken, report
        self.names: tuple[str, ...] = ()
        """Those of its sinks that there are."""

    def read(self) -> SinkGroupSpec | None:
        """The group; None where it is wrong, which is reported."""
        part, report = self.part, self._report
        listed = part.take("sinks")
        if listed is None:
            self._wrong(part, "sinks is missing; which sinks are in it? (sinks = k1 k2)")
        self.names = self._members(listed)
        kind = self._kind()
        options = part.take_all("processor.")
        for name, prop in part.properties.items():
            known = ["sinks", "processor.type"]
            near = suggestion(name, known)
            tell = report.warn if near else report.note
            tell(prop.place, part.path, f"unknown option {name!r}{near} (ignored)")
        if kind is None or listed is None or not listed.resolved:
            return None
        if not self.names:
            self._wrong(listed, "none of its sinks is there")
            return None
        processor = self._processor(kind, options)
        if kind == "default" and len(self.names) > 1:
            message = f"the processor 'default' is for one sink, not for {len(self.names)}: Flume then runs none of "
            self._wrong(listed, f"{message}them; choose failover or load_balance, or leave the group out")
        if kind == "load_balance" and len(self.names) == 1:
            message = "the processor 'load_balance' is for several sinks: Flume does not run a single one"
            self._wrong(listed, f"{message}; list more, or leave the group out")
        if not self._can_be_together(listed, kind):
            self.names = ()
            return None
        if processor is None:
            return None
        used = tuple(name for name in self.names if kind != "failover" or name in processor.priorities)
        return SinkGroupSpec(part.name, part.path, part.place, used, processor)

    def _members(self, listed: Property | None) -> tuple[str, ...]:
        found = []
        for name in names_in(listed, self._report, self.part.path):
            assert listed is not None
            if (other := self._taken.get(name)) is not None:
                message = f"sink {name!r} is in group {other!r} already: a sink is in one group"
                self._report.error(listed.place, self.part.path, message)
            elif name in self._sinks:
                found.append(name)
            else:
                declared = list(self._sinks)
                agent = self.part.path.partition(".")[0]
                there = f"write one that is: {', '.join(declared)}" if declared else f"add {agent}.sinks = …"
                message = f"sink {name!r} is not declared{suggestion(name, declared) or f'; {there}'}"
                self._report.error(listed.place, self.part.path, message)
        return tuple(found)

    def _kind(self) -> SinkProcessorKind | None:
        written = self.part.take("processor.type")
        if written is None:
            message = "processor.type is missing: Flume then runs none of the group's sinks; choose failover, "
            self._wrong(self.part, f"{message}load_balance or default")
            return None
        if flume := catalogue.find("sink processor", written.value):
            return cast(SinkProcessorKind, flume.alias)
        if written.resolved:
            near = suggestion(written.value, list(OPTIONS)) or f"; built are: {', '.join(OPTIONS)}"
            message = f"unknown sink processor {written.value!r}{near}"
            java = is_java_class(written.value)
            self._wrong(written, cannot_run("sink processor", written.value) if java else message)
        return None

    def _processor(self, kind: SinkProcessorKind, options: Mapping[str, Property]) -> SinkProcessorSpec | None:
        config = self._options(kind, options)
        if config is None:
            return None
        if isinstance(config, FailoverOptions):
            priorities = self._priorities(config.priority, options)
            return SinkProcessorSpec(kind, priorities, longest_penalty=config.longest_penalty / 1000)
        if isinstance(config, LoadBalanceOptions):
            policy = config.selector.lower()
            if policy not in ("round_robin", "random"):
                near = suggestion(policy, ["round_robin", "random"])
                message = f"processor.selector must be round_robin or random, not {config.selector!r}{near}"
                if is_java_class(config.selector):
                    message = cannot_run("selector of a load_balance processor", config.selector)
                self._wrong(options["selector"], message)
                return None
            # Flume takes 0 as not set.
            longest = (config.longest_penalty or 30_000) / 1000
            return SinkProcessorSpec(kind, {}, cast(Policy, policy), config.backoff, longest)
        return SinkProcessorSpec(kind)

    def _options(self, kind: SinkProcessorKind, options: Mapping[str, Property]) -> Config | None:
        texts = {name: prop.value for name, prop in options.items()}
        config, problems = OPTIONS[kind].parse(texts)
        for problem in problems:
            prop, name = options[problem.option], f"processor.{problem.option}"
            if problem.unknown:
                message = problem.message.replace(repr(problem.option), repr(name))
                self._report.warn(prop.place, self.part.path, f"{message} (ignored)")
                continue
            if prop.resolved:
                message = f"{name} {problem.message}"
                self._report.error(prop.place, self.part.path, message)
            del texts[problem.option]
        return config or OPTIONS[kind].parse(texts)[0]

    def _priorities(self, written: Mapping[str, str], options: Mapping[str, Property]) -> dict[str, int]:
        """By sink, no two alike. Those that are missing are given as Flume does."""
        report, path = self._report, self.part.path
        for name in written:
            if name not in self.names:
                message = f"processor.priority.{name}: the group has no such sink{suggestion(name, list(self.names))}"
                report.warn(options[f"priority.{name}"].place, path, f"{message} (ignored)")
        found: dict[int, str] = {}
        given = 0
        # Without a priority, or with one that is there already, it matters in which order Flume sees the sinks.
        for name in java_order(self.names):
            line = options.get(f"priority.{name}")
            place = line.place if line else self.part.place
            number = _whole_number(line.value) if line else None
            if number is None:
                given -= 1
                number = given
                if line:
                    message = f"processor.priority.{name} must be a whole number, not {line.value!r}"
                    report.error(place, path, message)
                else:
                    message = f"processor.priority.{name} is missing, and {given} as in Flume, which counts down in "
                    message += "the order of a hash table; the sink with the highest number works"
                    report.warn(place, path, message)
            if number in found:
                message = f"sinks {found[number]!r} and {name!r} have the same priority, {number}: Flume never uses "
                message += "the second; give each one of its own"
                report.error(place, path, message)
            else:
                found[number] = name
        return {name: number for number, name in found.items()}

    def _can_be_together(self, listed: Property, kind: SinkProcessorKind) -> bool:
        """Whether its sinks can share one reader; False where they share its events without one."""
        sinks = {name: sink for name in self.names if (sink := self._sinks[name]) is not None}
        for what, values in (
            ("drain one channel", {name: sink.channel for name, sink in sinks.items()}),
            ("have one consumer group", {name: sink.group or "of the channel" for name, sink in sinks.items()}),
        ):
            if len(set(values.values())) > 1:
                they = ", ".join(f"{name} {value}" for name, value in values.items())
                message = (
                    f"the sinks of a group {what}, not several ({they}): leave the group out, or make one for each"
                )
                self._report.error(listed.place, self.part.path, message)

        commits = next(
            (s for s in sinks.values() if issubclass(s.cls, CommittingSink) and not s.cls.at_least_once), None
        )
        if commits and len(sinks) > 1 and kind == "load_balance":
            message = (
                f"{commits.name} ({commits.cls.type_name}) is exactly once by a commit record of its own, so the "
                "group is left out: its sinks share the events, each exactly once"
            )
            self._report.warn(listed.place, self.part.path, message, differs=True)
            return False
        if commits and len(sinks) > 1:
            message = (
                f"{commits.name} ({commits.cls.type_name}) is exactly once by a commit record of its own, which "
                "cannot say what another sink of the group has delivered: leave the group out, and its sinks share "
                "the events, each exactly once (fail-over between NameNodes: name the nameservice in hdfs.path)"
            )
            self._report.error(listed.place, self.part.path, message)
        return True

    def _wrong(self, where: Property | ComponentProperties, message: str) -> None:
        self._report.error(where.place, self.part.path, message)


def java_order(names: Iterable[str]) -> list[str]:
    """Return distinct names in the order of a java.util.HashSet that they were added to one by one."""
    distinct = list(dict.fromkeys(names))
    capacity = 16
    while capacity * 0.75 < len(distinct):
        capacity *= 2
    return sorted(distinct, key=lambda name: _spread(name) & (capacity - 1))


def _spread(name: str) -> int:
    """Return java.util.HashMap's hash of a text: Java's own, its upper half folded into the lower."""
    code = 0
    units = name.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    return code ^ code >> 16


def _whole_number(text: str) -> int | None:
    """As Java's Integer.parseInt reads it."""
    try:
        number = int(text) if text.lstrip("+-").isdigit() else None
    except ValueError:
        return None
    return number if number is not None and -(2**31) <= number < 2**31 else None
