"""`./dev docs`: writes docs/components.md from what the components themselves declare."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from agent.config.runners import TABLE
from agent.config.sinkgroups import OPTIONS as PROCESSORS
from agent.options import AgentOptions, SinkErrors
from plugins import Component, Components, Config

TARGET = Path(__file__).parent / "components.md"
KINDS = ("source", "channel", "interceptor", "sink")


def main() -> None:
    """Write the page."""
    TARGET.write_text(page())


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
    parts = [f"### `{cls.type_name}`", inspect.cleandoc(cls.__doc__ or "").replace("\n\n", " ").replace("\n", " ")]
    if cls.aliases:
        parts.append("Also: " + ", ".join(f"`{alias}`" for alias in cls.aliases))
    if kind == "interceptor":
        pure = getattr(cls, "pure", True)
        parts.append(
            "On sources and sinks." if pure else "On sources only: it gives an event another value each time."
        )
    parts += options(cls.config_class)
    for alias in cls.aliases:
        if (other := cls.config_class.for_type(alias)) is not cls.config_class:
            parts += [f"With the type `{alias}`, {differences(cls.config_class, other)}.", *apart(other)]
    return parts


def options(config: type[Config]) -> list[str]:
    """A table of the options that have an effect, and what else is accepted."""
    rows = [
        f"| `{o.name}{'*' if o.is_prefix else ''}` | {o.kind.replace(' | ', ' or ')} | {default(o)} | {text(o)} |"
        for o in config.options()
        if not o.ignored
    ]
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
    known = {o.name: o.default for o in ours.options()}
    changed = [o for o in other.options() if not o.ignored and o.default != known[o.name]]
    defaults = [f"the default of `{o.name}` is {default(o)}" for o in changed if not o.required]
    return ", ".join([*(f"`{o.name}` is required" for o in changed if o.required), *defaults])


def default(option: Any) -> str:
    """How a default is shown."""
    if option.required:
        return "**required**"
    if option.default in (None, "", [], {}):
        return ""
    value = option.default
    shown = (
        str(value).lower() if isinstance(value, bool) else " ".join(value) if isinstance(value, list) else str(value)
    )
    return f"`{shown}`" + (f" {option.unit}" if option.unit else "")


def text(option: Any) -> str:
    """What an option means, with its unit and bounds."""
    limits = ", ".join(
        filter(None, [option.unit if option.required or option.default is None else "", option.bounds])
    )
    description = option.description.rstrip(".").replace("|", "\\|")
    return description + (f" ({limits})" if limits else "")


def runners() -> list[str]:
    """The table that `agent check` enforces."""
    rows = [
        f"| {row.what} | {'yes' if 'local' in row.runners else 'no'} | {'yes' if 'spark' in row.runners else 'no'} |"
        for row in TABLE
    ]
    return ["\n".join(["| | local | spark |", "|---|---|---|", *rows])]


if __name__ == "__main__":
    main()
