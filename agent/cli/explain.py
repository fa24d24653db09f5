"""`agent explain`."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator
from dataclasses import asdict

import click

from flafka.agent.cli.output import json_option, show_json
from flafka.agent.explain import (
    AGENT,
    ALL_KINDS,
    PROCESSOR,
    ComponentDescription,
    OptionDescription,
    describe_component,
    list_types,
    resolve_kind,
)
from flafka.plugins import Components, Metric

MAX_COLUMNS = 100
EXAMPLES = {"source": "s1", "channel": "c1", "interceptor": "i1", "sink": "k1"}


@click.command()
@click.argument("kind", required=False)
@click.argument("type_name", metavar="[TYPE]", required=False)
@click.argument("option", required=False)
@json_option
def explain(kind: str | None, type_name: str | None, option: str | None, as_json: bool) -> None:
    """Describe components, their guarantees and their options.

    \b
    agent explain                              all kinds and types.
    agent explain sink                         all sinks.
    agent explain sink hdfs                    one type, with its options.
    agent explain sink hdfs hdfs.rollInterval  one option.
    agent explain agent                        options of the agent.

    TYPE may be a Java class of Flume. Installed plugins are included.
    """
    components = Components()
    if kind is None:
        _list(components, ALL_KINDS, as_json)
        return
    kind = resolve_kind(components, kind)
    if kind == AGENT and option is None:
        option, type_name = type_name, AGENT
    if type_name is None:
        _list(components, (kind,), as_json)
        return
    component = describe_component(components, kind, type_name)
    if option is None:
        if as_json:
            show_json(asdict(component))
        else:
            click.echo("\n".join(component_lines(component, _width())))
        return
    described = component.option(option)
    if as_json:
        without_effect = {"name": option, "without_effect": described}
        about = asdict(described) if isinstance(described, OptionDescription) else without_effect
        show_json({"kind": kind, "type": component.type, **about})
    elif isinstance(described, OptionDescription):
        click.echo("\n".join(_option_page(component, described, _width())))
    else:
        click.echo(f"{option} is accepted from Flume's files, without effect: {described}")


def _width() -> int:
    return min(shutil.get_terminal_size((MAX_COLUMNS, 24)).columns, MAX_COLUMNS)


def _list(components: Components, kinds: tuple[str, ...], as_json: bool) -> None:
    """Print the types of these kinds, each with a sentence."""
    types_by_kind = {kind: list_types(components, kind) for kind in kinds}
    if as_json:
        rows = {kind: [{"type": name, "text": text} for name, text in types] for kind, types in types_by_kind.items()}
        show_json(rows)
        return
    width, longest = _width(), max((len(name) for types in types_by_kind.values() for name, _ in types), default=0)
    for kind, types in types_by_kind.items():
        if kind == AGENT:
            click.secho("agent", bold=True, nl=False)
            click.echo("  options of the agent: agent explain agent")
            continue
        click.secho(f"{kind}s" + " of sink groups" * (kind == PROCESSOR), bold=True)
        for name, clause in types:
            columns = max(width - longest - 4, 20)
            click.echo(f"  {name.ljust(longest)}  {textwrap.shorten(clause, columns, placeholder=' …')}".rstrip())


def component_lines(component: ComponentDescription, width: int) -> list[str]:
    """Return the description of a component as styled lines of at most `width` columns, if words fit."""
    lines = [click.style(f"{component.kind} {component.type}" if component.kind != AGENT else AGENT, bold=True), ""]
    lines += textwrap.wrap(component.guarantee, width)
    for note in component.notes:
        lines += textwrap.wrap(note, width)
    if component.aliases:
        lines += ["", *textwrap.wrap(f"Also: {', '.join(component.aliases)}", width, break_on_hyphens=False)]
    for headline, options in component.sections.items():
        lines += ["", click.style(headline, bold=True)]
        for option in options:
            lines += _option_lines(option, width)
    if not component.sections:
        lines += ["", "No options."]
    if component.differences:
        lines += ["", click.style("Differences from Flume", bold=True)]
        for difference in component.differences:
            lines += _indented(str(difference), width)
    if component.metrics_of_every:
        lines += ["", click.style("Metrics", bold=True)]
        for metric in component.metrics:
            lines += _metric_lines(metric, width)
        names = ", ".join(metric.name for metric in component.metrics_of_every)
        lines += _indented(f"Of every {component.kind}: {names}.", width)
    if component.without_effect:
        lines += ["", click.style("Accepted from Flume's files, without effect", bold=True)]
        for name, reason in component.without_effect.items():
            lines += _indented(f"{name}{'*' * name.endswith('.')}: {reason}", width)
    return lines


def _option_lines(option: OptionDescription, width: int) -> Iterator[str]:
    """Yield the lines for one option in the page of its component."""
    head = f"{option.name}  {_value_text(option)}"
    first, *more = textwrap.wrap(head, width, initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False)
    yield first.replace(option.name, click.style(option.name, fg="cyan"), 1)
    yield from more
    yield from textwrap.wrap(f"{option.text}.", width, initial_indent="      ", subsequent_indent="      ")


def _metric_lines(metric: Metric, width: int) -> Iterator[str]:
    yield f"  {click.style(metric.name, fg='cyan')}  {', '.join(filter(None, (metric.kind, metric.unit)))}"
    yield from textwrap.wrap(metric.help, width, initial_indent="      ", subsequent_indent="      ")


def _indented(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="    ")


def _value_text(option: OptionDescription) -> str:
    """Return type, default and bounds of an option: `integer, default 30 s, ≥ 0`."""
    default = f"default {option.default} {option.unit}".rstrip() if option.default else ""
    return ", ".join(filter(None, [option.kind, default, option.limits]))


def _option_page(component: ComponentDescription, option: OptionDescription, width: int) -> Iterator[str]:
    """Yield the lines of the page of one option, with an example."""
    owner = f" of {component.kind} {component.type}" if component.kind != AGENT else ""
    yield click.style(option.name, bold=True) + owner
    yield _value_text(option) + ", required" * option.required
    if option.older:
        yield f"Deprecated alias: {option.older}"
    yield ""
    yield from textwrap.wrap(f"{option.text}.", width)
    yield ""
    name, value = option.name.replace("*", "NAME"), option.default or "…"
    prefixes = {
        AGENT: "a1.",
        PROCESSOR: "a1.sinkgroups.g1.processor.",
        "interceptor": "a1.sources.s1.interceptors.i1.",
        **{kind: f"a1.{kind}s.{EXAMPLES[kind]}." for kind in ("source", "channel", "sink")},
    }
    yield f"{prefixes[component.kind]}{name} = {value}"
