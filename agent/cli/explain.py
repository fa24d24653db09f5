"""`agent explain`."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator
from dataclasses import asdict

import click

from flafka.agent.cli.output import json_option, show_json
from flafka.agent.explain import AGENT, ALL, PROCESSOR, Explained, Fact, explained, kind_named, listed
from flafka.plugins import Components, Metric

WIDEST = 100
EXAMPLES = {"source": "s1", "channel": "c1", "interceptor": "i1", "sink": "k1"}


@click.command()
@click.argument("kind", required=False)
@click.argument("type_name", metavar="[TYPE]", required=False)
@click.argument("option", required=False)
@json_option
def explain(kind: str | None, type_name: str | None, option: str | None, as_json: bool) -> None:
    """Say what components do, what they guarantee, and what their options mean.

    \b
    agent explain                              what there is
    agent explain sink                         the sinks
    agent explain sink hdfs                    one, with its options
    agent explain sink hdfs hdfs.rollInterval  one option
    agent explain agent                        the options of the agent as a whole

    TYPE may be a class name of Flume's. Installed plugins are among them.
    """
    components = Components()
    if kind is None:
        _list(components, ALL, as_json)
        return
    kind = kind_named(components, kind)
    if kind == AGENT and option is None:
        option, type_name = type_name, AGENT
    if type_name is None:
        _list(components, (kind,), as_json)
        return
    found = explained(components, kind, type_name)
    if option is None:
        if as_json:
            show_json(asdict(found))
        else:
            click.echo("\n".join(text(found, _width())))
        return
    fact = found.fact(option)
    if as_json:
        about = asdict(fact) if isinstance(fact, Fact) else {"name": option, "without_effect": fact}
        show_json({"kind": kind, "type": found.type, **about})
    elif isinstance(fact, Fact):
        click.echo("\n".join(_one(found, fact, _width())))
    else:
        click.echo(f"{option} is accepted from Flume's files, without effect: {fact}")


def _width() -> int:
    return min(shutil.get_terminal_size((WIDEST, 24)).columns, WIDEST)


def _list(components: Components, kinds: tuple[str, ...], as_json: bool) -> None:
    found = {kind: listed(components, kind) for kind in kinds}
    if as_json:
        named = {
            kind: [dict(zip(("type", "text"), one, strict=True)) for one in types] for kind, types in found.items()
        }
        show_json(named)
        return
    width, longest = _width(), max((len(name) for types in found.values() for name, _ in types), default=0)
    for kind, types in found.items():
        if kind == AGENT:
            click.secho("agent", bold=True, nl=False)
            click.echo("  its options as a whole: agent explain agent")
            continue
        click.secho(f"{kind}s" + " of sink groups" * (kind == PROCESSOR), bold=True)
        for name, clause in types:
            room = max(width - longest - 4, 20)
            click.echo(f"  {name.ljust(longest)}  {textwrap.shorten(clause, room, placeholder=' …')}".rstrip())


def text(found: Explained, width: int) -> list[str]:
    """All of one component."""
    lines = [click.style(f"{found.kind} {found.type}" if found.kind != AGENT else AGENT, bold=True), ""]
    lines += textwrap.wrap(found.guarantee, width)
    for note in found.notes:
        lines += textwrap.wrap(note, width)
    if found.aliases:
        lines += ["", *textwrap.wrap(f"Also: {', '.join(found.aliases)}", width, break_on_hyphens=False)]
    for headline, facts in found.sections.items():
        lines += ["", click.style(headline, bold=True)]
        for fact in facts:
            lines += _fact(fact, width)
    if not found.sections:
        lines += ["", "No options."]
    if found.differences:
        lines += ["", click.style("Otherwise than Flume's", bold=True)]
        for one in found.differences:
            lines += _indented(str(one), width)
    if found.metrics_of_every:
        lines += ["", click.style("Metrics", bold=True)]
        for metric in found.metrics:
            lines += _metric(metric, width)
        names = ", ".join(metric.name for metric in found.metrics_of_every)
        lines += _indented(f"Of every {found.kind}: {names}.", width)
    if found.without_effect:
        lines += ["", click.style("Accepted from Flume's files, without effect", bold=True)]
        for name, why in found.without_effect.items():
            lines += _indented(f"{name}{'*' * name.endswith('.')}: {why}", width)
    return lines


def _fact(fact: Fact, width: int) -> Iterator[str]:
    head = f"{fact.name}  {_kind(fact)}"
    first, *more = textwrap.wrap(head, width, initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False)
    yield first.replace(fact.name, click.style(fact.name, fg="cyan"), 1)
    yield from more
    yield from textwrap.wrap(f"{fact.text}.", width, initial_indent="      ", subsequent_indent="      ")


def _metric(metric: Metric, width: int) -> Iterator[str]:
    yield f"  {click.style(metric.name, fg='cyan')}  {', '.join(filter(None, (metric.kind, metric.unit)))}"
    yield from textwrap.wrap(metric.help, width, initial_indent="      ", subsequent_indent="      ")


def _indented(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="    ")


def _kind(fact: Fact) -> str:
    """`integer, default 30 s, ≥ 0`."""
    default = f"default {fact.default} {fact.unit}".rstrip() if fact.default else ""
    return ", ".join(filter(None, [fact.kind, default, fact.limits]))


def _one(found: Explained, fact: Fact, width: int) -> Iterator[str]:
    yield click.style(fact.name, bold=True) + (f" of {found.kind} {found.type}" if found.kind != AGENT else "")
    yield _kind(fact) + ", required" * fact.required
    if fact.older:
        yield f"Older name: {fact.older}"
    yield ""
    yield from textwrap.wrap(f"{fact.text}.", width)
    yield ""
    name, value = fact.name.replace("*", "NAME"), fact.default or "…"
    starts = {
        AGENT: "a1.",
        PROCESSOR: "a1.sinkgroups.g1.processor.",
        "interceptor": "a1.sources.s1.interceptors.i1.",
        **{kind: f"a1.{kind}s.{EXAMPLES[kind]}." for kind in ("source", "channel", "sink")},
    }
    yield f"{starts[found.kind]}{name} = {value}"
