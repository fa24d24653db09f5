"""What components declare of themselves, as facts: for `agent explain` and for docs/reference alike."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from flafka.agent.config import catalogue
from flafka.agent.config.sinkgroups import OPTIONS as PROCESSORS
from flafka.agent.monitoring.definitions import of_every
from flafka.agent.options import AgentOptions, SinkErrors, as_written
from flafka.plugins import (
    CompatibilityNote,
    Component,
    Components,
    Config,
    FlafkaError,
    Interceptor,
    Metric,
    Option,
    UnknownType,
)
from flafka.plugins.problems import suggestion

KINDS = ("source", "channel", "interceptor", "sink")
PROCESSOR = "processor"
AGENT = "agent"
ALL = (*KINDS, PROCESSOR, AGENT)

REQUIRED, OWN, ERRORS = "Required", "Options", "Events that can never be delivered"


class UnknownName(FlafkaError):
    """Nothing has that name; the text suggests near ones."""


@dataclass(frozen=True)
class Fact:
    """One option."""

    name: str
    """`hdfs.rollInterval`, or `serializer.*` of one that takes all properties under its name."""
    kind: str
    required: bool
    default: str
    """Empty where there is none."""
    unit: str
    bounds: str
    text: str
    """What it is, without a full stop."""
    older: str = ""
    """A name that it had once, which is accepted too."""

    @property
    def limits(self) -> str:
        """Unit and bounds, where the default does not show the unit."""
        return ", ".join(filter(None, ["" if self.default else self.unit, self.bounds]))


@dataclass(frozen=True)
class Explained:
    """One component, or what else has options."""

    kind: str
    type: str
    guarantee: str
    """Whole sentences."""
    aliases: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    sections: Mapping[str, tuple[Fact, ...]] = field(default_factory=dict)
    """By headline, in the order to be shown: what is required, its own, and what it shares with others."""
    without_effect: Mapping[str, str] = field(default_factory=dict)
    """What is accepted from Flume's files alone, and why."""
    differences: tuple[CompatibilityNote, ...] = ()
    metrics: tuple[Metric, ...] = ()
    """Metrics of the component itself."""
    metrics_of_every: tuple[Metric, ...] = ()
    """Metrics of every component of its kind."""

    def facts(self) -> Iterator[Fact]:
        """All its options."""
        for section in self.sections.values():
            yield from section

    def fact(self, name: str) -> Fact | str:
        """The option of that name, of an older one, or under whose prefix it is; or why it has no effect. Raises
        Unknown.
        """
        facts = list(self.facts())
        for one in facts:
            start = one.name.removesuffix("*")
            if name in (one.name, start, one.older) or (one.name.endswith("*") and name.startswith(start)):
                return one
        for ignored, why in self.without_effect.items():
            if name == ignored or (ignored.endswith(".") and name.startswith(ignored)):
                return why
        near = suggestion(name, [one.name for one in facts])
        raise UnknownName(f"{self.kind} {self.type} has no option {name!r}{near}")


def fact(option: Option, older: str = "") -> Fact:
    """What an option declares."""
    name = option.name + "*" * option.is_prefix
    kind = option.kind.replace(" | ", " or ")
    text = option.description.rstrip(".")
    return Fact(name, kind, option.required, _default(option), option.unit, option.bounds, text, older)


def _default(option: Option) -> str:
    return "" if option.required or option.default in (None, "", [], {}) else as_written(option.default)


def facts(config: type[Config]) -> list[Fact]:
    """The options that have an effect, in the order of their declaration."""
    return [
        fact(one, config.deprecated_aliases.get(one.name, "")) for one in config.options() if not one.without_effect
    ]


def first_sentence(text: str) -> str:
    """Up to the first full stop or semicolon that ends a clause."""
    text = " ".join(text.split())
    ends = [at for mark in (". ", "; ", ": ") if (at := text.find(mark)) > 0]
    return text[: min(ends)] if ends else text.rstrip(".")


def guarantee(thing: type) -> str:
    """Its docstring as one paragraph."""
    return inspect.cleandoc(thing.__doc__ or "").replace("\n\n", " ").replace("\n", " ")


def notes(cls: type[Component[Any]]) -> tuple[str, ...]:
    """What holds of it besides."""
    if not issubclass(cls, Interceptor):
        return ()
    if cls.pure:
        return ("On sources and sinks.",)
    why = "an event that comes again may get another result"
    if cls.pure_with:
        return (f"On sources, and with `{cls.pure_with}` on sinks too: without it {why}.",)
    return (f"On sources only: {why}.",)


def explained(components: Components, kind: str, name: str) -> Explained:
    """What has that name, an alias or a Java class. Raises UnknownType."""
    if kind == AGENT:
        text = "The agent as a whole: directly under its name, as in a1.runner = spark."
        return Explained(kind, AGENT, text, sections=sections(AgentOptions))
    if kind == PROCESSOR:
        return _processor(name)
    try:
        cls = components.get(kind, name)
    except UnknownType as e:
        known = catalogue.find(kind, name)
        if known is not None and known.instead:
            raise UnknownName(f"Flume's {kind} {known.name} is not built: {known.instead}") from e
        if type(e) is UnknownType and not str(e).endswith("?"):
            raise UnknownName(f"{e}; `agent explain {kind}` lists those there are") from e
        raise
    config = cls.config_class.for_type(name)
    found = sections(config)
    if kind == "sink":
        found[ERRORS] = tuple(facts(SinkErrors))
    return Explained(
        *(kind, cls.type_name, guarantee(cls), cls.aliases, notes(cls), found),
        *(config.without_effect(), tuple(cls.compatibility_notes), cls.declared_metrics, of_every(kind.upper())),
    )


def _processor(name: str) -> Explained:
    found = next((one for one in PROCESSORS if one == name.lower()), None)
    if found is None:
        near = suggestion(name, [*PROCESSORS]) or f"; there are {', '.join(PROCESSORS)}"
        raise UnknownName(f"unknown sink processor {name!r}{near}")
    text = f"{PROCESSORS[found].__doc__} Each option begins with processor. under the sink group."
    return Explained(PROCESSOR, found, text, sections=sections(PROCESSORS[found]))


def sections(config: type[Config]) -> dict[str, tuple[Fact, ...]]:
    """The options that have an effect, by headline: what is required, its own, and what it shares with others."""
    found: dict[str, list[Fact]] = {REQUIRED: [], OWN: []}
    for option, one in zip((o for o in config.options() if not o.without_effect), facts(config), strict=True):
        found.setdefault(REQUIRED if one.required else option.section or OWN, []).append(one)
    return {headline: tuple(some) for headline, some in found.items() if some}


def listed(components: Components, kind: str) -> list[tuple[str, str]]:
    """The types of a kind, each with its first clause."""
    if kind == AGENT:
        return []
    if kind == PROCESSOR:
        return [(name, first_sentence(config.__doc__ or "")) for name, config in PROCESSORS.items()]
    return [(cls.type_name, first_sentence(guarantee(cls))) for cls in components.all(kind)]


def kind_named(components: Components, written: str) -> str:
    """The kind of that name, singular or plural. Raises UnknownName, which tells where a type of that name is."""
    word = written.lower()
    for kind in ALL:
        if word in (kind, f"{kind}s"):
            return kind
    for kind in (*KINDS, PROCESSOR):
        try:
            explained(components, kind, written)
        except (UnknownType, UnknownName):
            continue
        raise UnknownName(
            f"no kind of component is named {written!r}, did you mean `agent explain {kind} {written}`?"
        )
    near = suggestion(written, [*ALL]) or f"; the kinds are {', '.join(ALL)}"
    raise UnknownName(f"no kind of component is named {written!r}{near}")
