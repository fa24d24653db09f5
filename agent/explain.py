"""Descriptions of components and options for `agent explain` and docs/reference, made of their declarations."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from flafka.agent.config import catalogue
from flafka.agent.config.sinkgroups import OPTIONS as PROCESSORS
from flafka.agent.monitoring.definitions import common_metrics
from flafka.agent.options import AgentOptions, SinkErrors, format_option_value
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
from flafka.plugins.problems import suggest

KINDS = ("source", "channel", "interceptor", "sink")
PROCESSOR = "processor"
AGENT = "agent"
ALL_KINDS = (*KINDS, PROCESSOR, AGENT)

REQUIRED, OWN, ERRORS = "Required", "Options", "Events that can never be delivered"


class UnknownName(FlafkaError):
    """Unknown kind, type or option; the message suggests similar names."""


@dataclass(frozen=True)
class OptionDescription:
    """Description of one option."""

    name: str
    """`hdfs.rollInterval`, or `serializer.*` of an option that takes all properties with its prefix."""
    kind: str
    required: bool
    default: str
    """Empty if there is no default."""
    unit: str
    bounds: str
    text: str
    """Description without the final full stop."""
    older: str = ""
    """Deprecated alias; empty if there is none."""

    @property
    def limits(self) -> str:
        """Bounds of the value, preceded by the unit if there is no default that shows the unit."""
        return ", ".join(filter(None, ["" if self.default else self.unit, self.bounds]))


@dataclass(frozen=True)
class ComponentDescription:
    """Description of a component, a sink processor or the agent."""

    kind: str
    type: str
    guarantee: str
    """Docstring of the class, as one paragraph."""
    aliases: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    sections: Mapping[str, tuple[OptionDescription, ...]] = field(default_factory=dict)
    """Headline → options, in the order of display: required, own, then shared ones."""
    without_effect: Mapping[str, str] = field(default_factory=dict)
    """Options without effect, accepted from Flume's files → the reason."""
    differences: tuple[CompatibilityNote, ...] = ()
    metrics: tuple[Metric, ...] = ()
    """Metrics of the component itself."""
    metrics_of_every: tuple[Metric, ...] = ()
    """Metrics of every component of its kind."""

    def options(self) -> Iterator[OptionDescription]:
        """Yield the options of all sections in the order of display."""
        for section in self.sections.values():
            yield from section

    def option(self, name: str) -> OptionDescription | str:
        """Return the option with this name, deprecated alias or prefix.

        For an option without effect, return the reason instead, as text. Raises UnknownName.
        """
        options = list(self.options())
        for option in options:
            prefix = option.name.removesuffix("*")
            if name in (option.name, prefix, option.older) or (option.name.endswith("*") and name.startswith(prefix)):
                return option
        for without_effect, reason in self.without_effect.items():
            if name == without_effect or (without_effect.endswith(".") and name.startswith(without_effect)):
                return reason
        hint = suggest(name, [option.name for option in options])
        raise UnknownName(f"{self.kind} {self.type} has no option {name!r}{hint}")


def describe_option(option: Option, older: str = "") -> OptionDescription:
    """Return the description of an option; `older` is its deprecated alias."""
    name = option.name + "*" * option.is_prefix
    kind = option.kind.replace(" | ", " or ")
    text = option.description.rstrip(".")
    return OptionDescription(
        name, kind, option.is_required, _default(option), option.unit, option.bounds, text, older
    )


def _default(option: Option) -> str:
    """Return the default as a configuration spells it; empty if there is none."""
    return "" if option.is_required or option.default in (None, "", [], {}) else format_option_value(option.default)


def describe_options(config: type[Config]) -> list[OptionDescription]:
    """Return the options that have an effect, in the order of their declaration."""
    return [
        describe_option(option, config.deprecated_aliases.get(option.name, ""))
        for option in config.options()
        if not option.without_effect
    ]


def first_sentence(text: str) -> str:
    """Return the text up to its first full stop, semicolon or colon, without this mark."""
    text = " ".join(text.split())
    ends = [end for mark in (". ", "; ", ": ") if (end := text.find(mark)) > 0]
    return text[: min(ends)] if ends else text.rstrip(".")


def guarantee(cls: type) -> str:
    """Return the docstring of a class as one paragraph; empty without a docstring."""
    return inspect.cleandoc(cls.__doc__ or "").replace("\n\n", " ").replace("\n", " ")


def notes(cls: type[Component[Any]]) -> tuple[str, ...]:
    """Return a sentence on whether an interceptor may be used on sinks; empty for other components."""
    if not issubclass(cls, Interceptor):
        return ()
    if cls.pure:
        return ("On sources and sinks.",)
    reason = "a redelivered event may get another result"
    if cls.pure_with:
        return (f"On sources, and with `{cls.pure_with}` on sinks too: without it {reason}.",)
    return (f"On sources only: {reason}.",)


def describe_component(components: Components, kind: str, name: str) -> ComponentDescription:
    """Return the description of a type by its name, an alias or a Java class. Raises UnknownType or UnknownName."""
    if kind == AGENT:
        text = "Options of the agent, directly below its name, as in a1.runner = spark."
        return ComponentDescription(kind, AGENT, text, sections=sections(AgentOptions))
    if kind == PROCESSOR:
        return _processor(name)
    try:
        cls = components.get(kind, name)
    except UnknownType as e:
        known = catalogue.find_type(kind, name)
        if known is not None and known.alternative:
            raise UnknownName(f"Flume's {kind} {known.name} is not built: {known.alternative}") from e
        if type(e) is UnknownType and not str(e).endswith("?"):
            raise UnknownName(f"{e}; `agent explain {kind}` lists all") from e
        raise
    config = cls.config_class.for_type(name)
    options = sections(config)
    if kind == "sink":
        options[ERRORS] = tuple(describe_options(SinkErrors))
    return ComponentDescription(
        *(kind, cls.type_name, guarantee(cls), cls.aliases, notes(cls), options),
        *(
            config.list_options_without_effect(),
            tuple(cls.compatibility_notes),
            cls.declared_metrics,
            common_metrics(kind.upper()),
        ),
    )


def _processor(name: str) -> ComponentDescription:
    """Return the description of a sink processor. Raises UnknownName."""
    kind = next((kind for kind in PROCESSORS if kind == name.lower()), None)
    if kind is None:
        hint = suggest(name, [*PROCESSORS]) or f"; there are {', '.join(PROCESSORS)}"
        raise UnknownName(f"unknown sink processor {name!r}{hint}")
    text = f"{PROCESSORS[kind].__doc__} Each option begins with processor. under the sink group."
    return ComponentDescription(PROCESSOR, kind, text, sections=sections(PROCESSORS[kind]))


def sections(config: type[Config]) -> dict[str, tuple[OptionDescription, ...]]:
    """Return the options that have an effect by headline: required, own, then shared ones."""
    by_headline: dict[str, list[OptionDescription]] = {REQUIRED: [], OWN: []}
    with_effect = (option for option in config.options() if not option.without_effect)
    for option, description in zip(with_effect, describe_options(config), strict=True):
        headline = REQUIRED if description.required else option.section or OWN
        by_headline.setdefault(headline, []).append(description)
    return {headline: tuple(descriptions) for headline, descriptions in by_headline.items() if descriptions}


def list_types(components: Components, kind: str) -> list[tuple[str, str]]:
    """Return name and first clause of the guarantee of each type of a kind; empty for the kind `agent`."""
    if kind == AGENT:
        return []
    if kind == PROCESSOR:
        return [(name, first_sentence(config.__doc__ or "")) for name, config in PROCESSORS.items()]
    return [(cls.type_name, first_sentence(guarantee(cls))) for cls in components.all(kind)]


def resolve_kind(components: Components, name: str) -> str:
    """Return the kind of a name in singular or plural. Raises UnknownName, with a hint if `name` is a type."""
    word = name.lower()
    for kind in ALL_KINDS:
        if word in (kind, f"{kind}s"):
            return kind
    for kind in (*KINDS, PROCESSOR):
        try:
            describe_component(components, kind, name)
        except (UnknownType, UnknownName):
            continue
        raise UnknownName(f"no kind of component is named {name!r}, did you mean `agent explain {kind} {name}`?")
    hint = suggest(name, [*ALL_KINDS]) or f"; the kinds are {', '.join(ALL_KINDS)}"
    raise UnknownName(f"no kind of component is named {name!r}{hint}")
