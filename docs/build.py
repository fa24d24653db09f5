"""`./dev docs`: writes docs/components.md, and tables of other pages, from what the components themselves declare."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from agent import explain
from agent.config import catalogue
from agent.config.runners import TABLE
from agent.config.sinkgroups import OPTIONS as PROCESSORS
from agent.options import AgentOptions, SinkErrors
from plugins import Component, Components, Config, Difference, UnknownType
from plugins.shared.javaclass import FAMILIES

TARGET = Path(__file__).parent / "components.md"
MIGRATING = Path(__file__).parent / "migrating-from-flume.md"
KINDS = explain.KINDS


def main() -> None:
    """Write the pages."""
    TARGET.write_text(page())
    MIGRATING.write_text(migrating(MIGRATING.read_text()))


def migrating(text: str) -> str:
    """The page for those who come from Flume, `text`, with its tables as the components have them now."""
    components = Components()
    tables = {
        "differences": table(("", "Flume", "Flafka"), otherwise(components)),
        "classes": table(
            ("Java classes", "what takes their place"), ((one.examples, one.instead) for one in FAMILIES)
        ),
        "unbuilt": table(("Flume's", "what to write instead"), unbuilt(components)),
    }
    for name, rows in tables.items():
        between = re.compile(rf"(<!-- {name}: .*? -->\n).*?(<!-- end -->)", re.DOTALL)
        text, count = between.subn(lambda match, rows=rows: f"{match[1]}\n{rows}\n\n{match[2]}", text)
        assert count == 1, f"{name} has no place in {MIGRATING.name}"
    return text


def table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A table in Markdown."""
    lines = [heads, ("---",) * len(heads), *rows]
    return (
        "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
        .replace("| --- ", "|---")
        .replace("--- |", "---|")
    )


def otherwise(components: Components) -> Iterator[tuple[str, ...]]:
    """What components do otherwise than Flume's, each with all that do so."""
    named: dict[Difference, list[str]] = {}
    for kind in KINDS:
        for cls in components.all(kind):
            name = f"{kind} `{cls.type_name}`"
            for one in cls.differences:
                named.setdefault(one, []).append(name)
    for one, names in named.items():
        told = "**" if one.seen else ""
        flume, here = (text.replace("|", "\\|") for text in (one.flume, one.here))
        yield (", ".join(names), f"{told}{flume}{told}", here)


def unbuilt(components: Components) -> Iterator[tuple[str, ...]]:
    """Flume's types that are not here, and what takes their place."""
    for kind, types in catalogue.FLUME.items():
        for one in types:
            if not one.instead:
                continue
            try:
                components.get(kind, one.java)
            except (UnknownType, KeyError):
                yield (f"{kind} `{one.name}`", one.instead)


def page() -> str:
    """The whole page."""
    parts = [
        "# Components",
        "Made by `./dev docs` from the components themselves. A name in Flume's files works too.",
    ]
    components = Components()
    for kind in KINDS:
        parts.append(f"## {kind.capitalize()}s")
        for cls in components.all(kind):
            parts += component(kind, cls)
    parts += [
        "## Every sink",
        "Besides its own options: `a1.sinks.k1.errors.tolerance = 10`.",
        *options(SinkErrors),
    ]
    parts += [
        "## Sink groups",
        "`a1.sinkgroups = g1`, `a1.sinkgroups.g1.sinks = k1 k2`, `a1.sinkgroups.g1.processor.type = failover`; the "
        "sinks drain one channel, each batch by one of them, at least once. `default` is for a single sink.",
    ]
    for name, config in PROCESSORS.items():
        if name != "default":
            parts += [f"### `{name}`", f"{config.__doc__} Each begins with `processor.`.", *options(config)]
    parts += [
        "## The agent as a whole",
        "Directly under the agent's name: `a1.runner = spark`.",
        *options(AgentOptions),
    ]
    parts += ["## What each runner supports", *runners()]
    return "\n\n".join(parts) + "\n"


def component(kind: str, cls: type[Component[Any]]) -> list[str]:
    """One component: its guarantee, its other names, its options."""
    parts = [f"### `{cls.type_name}`", explain.guarantee(cls)]
    if cls.aliases:
        parts.append("Also: " + ", ".join(f"`{alias}`" for alias in cls.aliases))
    parts += explain.notes(kind, cls)
    parts += options(cls.config_class)
    for alias in cls.aliases:
        if (other := cls.config_class.for_type(alias)) is not cls.config_class:
            parts += [f"With the type `{alias}`, {differences(cls.config_class, other)}.", *apart(other)]
    return parts


def options(config: type[Config]) -> list[str]:
    """A table of the options that have an effect, and what else is accepted."""
    rows = [f"| `{one.name}` | {one.kind} | {default(one)} | {text(one)} |" for one in explain.facts(config)]
    parts = ["\n".join(["| option | kind | default | |", "|---|---|---|---|", *rows])] if rows else ["No options."]
    return parts + apart(config)


def apart(config: type[Config]) -> list[str]:
    """Older names of options, and options without effect."""
    parts = []
    if config.older:
        renamed = ", ".join(f"`{older}` (now `{newer}`)" for newer, older in config.older.items())
        parts.append(f"Older names that are accepted: {renamed}.")
    if without := config.without_effect():
        names = {name + "*" * name.endswith("."): why for name, why in without.items()}
        reasons = {why: ", ".join(f"`{name}`" for name in names if names[name] == why) for why in names.values()}
        listed = "; ".join(f"{names} ({why})" for why, names in reasons.items())
        parts.append(f"Accepted from Flume's files, without effect: {listed}.")
    return parts


def differences(ours: type[Config], other: type[Config]) -> str:
    """Which defaults another configuration of a component has."""
    required, others = explain.changed(ours, other)
    defaults = [f"the default of `{o.name}` is {default(explain.fact(o))}" for o in others]
    return ", ".join([*(f"`{name}` is required" for name in required), *defaults])


def default(fact: explain.Fact) -> str:
    """How a default is shown."""
    if fact.required:
        return "**required**"
    return f"`{fact.default}` {fact.unit}".rstrip() if fact.default else ""


def text(fact: explain.Fact) -> str:
    """What an option means, with its unit and bounds."""
    description = fact.text.replace("|", "\\|")
    return description + (f" ({fact.limits})" if fact.limits else "")


def runners() -> list[str]:
    """The table that `agent check` enforces."""
    rows = [
        f"| {row.what} | {'yes' if 'local' in row.runners else 'no'} | {'yes' if 'spark' in row.runners else 'no'} |"
        for row in TABLE
    ]
    return ["\n".join(["| | local | spark |", "|---|---|---|", *rows])]


if __name__ == "__main__":
    main()
