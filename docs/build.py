"""`./dev docs`: writes the pages that are made of what components declare, and builds the site from docs/.

The site is in build/site, and needs no network to be made or to be read. Whatever Sphinx warns of (a dead link, an
anchor that is missing, a page outside of the navigation) is an error.
"""

from __future__ import annotations

import importlib
import io
import pkgutil
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

import flafka
from bench.frame import kept
from flafka.agent import explain
from flafka.agent.cli import main as cli
from flafka.agent.config import catalogue
from flafka.agent.config.runners import TABLE
from flafka.agent.config.sinkgroups import OPTIONS as PROCESSORS
from flafka.agent.monitoring import definitions
from flafka.agent.monitoring.definitions import UP
from flafka.agent.options import AgentOptions, SinkErrors
from flafka.plugins import CompatibilityNote, Component, Components, Config, Metric, UnknownType
from flafka.plugins.kafka.clients import Role
from flafka.plugins.shared.javaclass import FAMILIES

DOCS = Path(__file__).parent
REFERENCE = DOCS / "reference"
SAMPLES = DOCS / "samples"
SITE = DOCS.parent / "build" / "site"
KINDS = explain.KINDS
MADE = "This page is made by `./dev docs` from what the components declare; `agent explain` prints the same."

INTRODUCTIONS = {
    "source": "A source takes events in and puts them into one or more channels.",
    "channel": "A channel keeps events until every sink that drains it has delivered them.",
    "interceptor": "An interceptor changes, drops or marks events, on a source before the channels or on a sink "
    "behind its channel: `a1.sources.s1.interceptors = i1 i2`. They act in that order.",
    "sink": "A sink drains one channel and delivers its events.",
}


def main() -> None:
    """Write the pages, and build the site. Exit code 1 if anything is wrong with it."""
    REFERENCE.mkdir(exist_ok=True)
    wanted = pages()
    for name, text in wanted.items():
        (REFERENCE / name).write_text(text, "utf-8")
    for there in REFERENCE.glob("*.md"):
        if there.name not in wanted:
            there.unlink()
    for page, made in FILLED.items():
        page.write_text(filled(page.read_text("utf-8"), made()), "utf-8")
    warnings = site(SITE)
    if warnings:
        sys.exit(f"{warnings}docs: {len(warnings.splitlines())} lines of errors")
    print(f"{SITE / 'index.html'}")


# --- the site


def site(target: Path) -> str:
    """Build the site in that directory; what is wrong with it, a line each."""
    from sphinx.application import Sphinx
    from sphinx.util.docutils import docutils_namespace, patch_docutils

    warnings = io.StringIO()
    with patch_docutils(str(DOCS)), docutils_namespace():
        made = Sphinx(DOCS, DOCS, target, target / ".doctrees", "html", status=None, warning=warnings, freshenv=True)
        made.build(force_all=True)
    return re.sub(r"\x1b\[[0-9;]*m", "", warnings.getvalue())


# --- the reference


def pages() -> dict[str, str]:
    """The pages of reference/, by name."""
    components = Components()
    made = {f"{kind}s.md": kind_page(kind, components) for kind in KINDS}
    made["sinks.md"] = made["sinks.md"].rstrip() + "\n\n" + joined(every_sink())
    made["sink-groups.md"] = joined(sink_groups())
    made["agent.md"] = joined(whole_agent())
    made["metrics.md"] = joined(every_metric(components))
    return made


def joined(parts: Iterable[str]) -> str:
    """Paragraphs as a text."""
    return "\n\n".join(parts) + "\n"


def kind_page(kind: str, components: Components) -> str:
    """All components of a kind."""
    parts = [f"# {kind.capitalize()}s", f"{INTRODUCTIONS[kind]} {MADE}"]
    classes = list(components.all(kind))
    rows = [
        f"| [`{cls.type_name}`](#{slug(cls.type_name)}) | {explain.first_sentence(explain.guarantee(cls))} |"
        for cls in classes
    ]
    parts.append("\n".join(["| type | |", "|---|---|", *rows]))
    for cls in classes:
        parts += component(kind, cls)
    return joined(parts)


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub and the site make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def component(kind: str, cls: type[Component[Any]]) -> list[str]:
    """One component: its guarantee, a sample, its other names, its options."""
    parts = [f"## `{cls.type_name}`", explain.guarantee(cls)]
    parts += explain.notes(cls)
    parts += sample(kind, cls.type_name)
    if cls.aliases:
        parts.append("Other names: " + ", ".join(f"`{alias}`" for alias in cls.aliases) + ".")
    parts += options(cls.config_class)
    if cls.declared_metrics:
        names = ", ".join(f"`{metric.name}`" for metric in cls.declared_metrics)
        parts.append(f"Metrics of its own: {names} ([what they mean](metrics.md#{kind}s)).")
    for alias in cls.aliases:
        if (other := cls.config_class.for_type(alias)) is not cls.config_class:
            parts += [f"With the type `{alias}`, {differences(cls.config_class, other)}.", *apart(other)]
    return parts


def sample(kind: str, name: str) -> list[str]:
    """Lines of a configuration with this component; tests complete, check and run them."""
    file = SAMPLES / f"{kind}-{name}.conf"
    assert file.exists(), f"{kind} {name} needs a sample: docs/samples/{file.name}"
    parts = [f"```properties\n{file.read_text('utf-8').rstrip()}\n```"]
    for other in sorted(SAMPLES.glob(f"{kind}-{name}.*")):
        if other != file:
            note = f"<!-- from: {other.relative_to(DOCS.parent)} -->"
            parts.append(f"{note}\n```text\n{other.read_text('utf-8').rstrip()}\n```")
    return parts


def every_sink() -> list[str]:
    """Options that all sinks have."""
    return [
        "## Options of every sink",
        "Besides its own options: `a1.sinks.k1.errors.tolerance = 10`. "
        "[Dead letters](../dead-letters.md#when-nearly-everything-is-rejected) says what they are for.",
        *options(SinkErrors),
    ]


def sink_groups() -> Iterator[str]:
    """The page of sink groups."""
    yield "# Sink groups"
    yield (
        "The sinks of a group drain one channel, each batch by one of them, at least once. The group's processor "
        f"says by which. {MADE}"
    )
    for name, config in PROCESSORS.items():
        if name != "default":
            yield from (f"## `{name}`", str(config.__doc__), *sample("processor", name))
            yield "Each option begins with `processor.`: `a1.sinkgroups.g1.processor.backoff = true`."
            yield from options(config)
    yield "The processor `default` is for a single sink."


def whole_agent() -> Iterator[str]:
    """The page of what is not one component's."""
    yield "# The agent as a whole"
    yield f"These options stand directly under the agent's name: `a1.runner = spark`. {MADE}"
    yield "```properties\na1.runner = spark\na1.spark.triggerInterval = 30\na1.monitoring.port = 14242\n```"
    yield from options(AgentOptions)
    yield "## What each runner supports"
    yield "[Two runners](../concepts.md#two-runners) says what they are. `agent check` enforces this table."
    yield from runners()


def every_metric(components: Components) -> Iterator[str]:
    """The page of metrics."""
    yield "# Metrics"
    yield (
        "Flume's JSON on `/metrics` and Prometheus on `/metrics/prometheus` have these metrics. In Prometheus each "
        "has the labels `agent`, `kind` and `name`, the last for the name of the component. "
        "[Operations](../operations.md#what-an-agent-serves) says which figures to watch. "
        "This page is made by `./dev docs` from what components declare; `agent explain` prints the metrics of one."
    )
    yield (
        "A metric that is shown *from the start* is 0 until it has a value; any other is absent until then. A metric "
        "of a plugin that does not declare it is shown, too, once it has a value."
    )
    yield (
        f"Prometheus also has the gauge `{definitions.series(UP)}` of each component: "
        f"{UP.help[0].lower()}{UP.help[1:]} In JSON each component also has `Type`, `StartTime` (milliseconds since "
        "the Unix epoch), `StopTime` (always 0) and, after a failure, `LastError`."
    )
    for kind in (*KINDS, "route"):
        yield f"## {kind.capitalize()}s"
        if kind == "route":
            yield "A route is a pair of a source and a channel: `ROUTE.s1.c1`."
        yield metrics(kind, components)


def metrics(kind: str, components: Components) -> str:
    """A table of the metrics that components of a kind may have: metrics of all of them first, then by name."""
    where: dict[Metric, dict[str, str]] = {}
    for group in definitions.GROUPS:
        for metric in group.metrics if group.kind == kind.upper() else ():
            where.setdefault(replace(metric, shown="always"), {})[group.where] = metric.shown
    of_all = len(where)
    for cls in components.all(kind) if kind in KINDS else ():
        for metric in cls.declared_metrics:
            where.setdefault(replace(metric, shown="always"), {})[f"`{cls.type_name}`"] = metric.shown
    rows = [*where.items()]
    rows[of_all:] = sorted(rows[of_all:], key=lambda row: row[0].name)
    heads = ("metric", "in Prometheus", "kind", "unit", "", "from the start", "components")
    return table(
        heads,
        (
            (f"`{one.name}`", f"`{definitions.series(one)}`", one.kind, one.unit, one.help, since(of), ", ".join(of))
            for one, of in rows
        ),
    )


def since(shown: Mapping[str, str]) -> str:
    """Components with which a metric is shown from the start; `shown` is `Metric.shown` by component."""
    if len({*shown.values()}) > 1:
        return ", ".join(of for of, one in shown.items() if one == "always")
    return {"always": "yes", "prometheus": "in Prometheus", "known": ""}[next(iter(shown.values()))]


def options(config: type[Config]) -> list[str]:
    """Tables of the options that have an effect, those that are required first, and what else is accepted."""
    shared = explain.sections(config)
    own = (*shared.pop(explain.REQUIRED, ()), *shared.pop(explain.OWN, ()))
    parts = [facts(own)] if own else []
    for headline, some in shared.items():
        parts += [f"**{headline}**", facts(some)]
    return [*(parts or ["It has no options."]), *apart(config)]


def facts(some: Iterable[explain.Fact]) -> str:
    """A table of options."""
    rows = [f"| `{one.name}` | {one.kind} | {default(one)} | {text(one)} |" for one in some]
    return "\n".join(["| option | kind | default | |", "|---|---|---|---|", *rows])


def apart(config: type[Config]) -> list[str]:
    """Older names of options, and options without effect."""
    parts = []
    if config.deprecated_aliases:
        renamed = ", ".join(f"`{older}` (now `{newer}`)" for newer, older in config.deprecated_aliases.items())
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
    found = [o for o in other.options() if not o.without_effect and o.default != known[o.name]]
    required = [f"`{o.name}` is required" for o in found if o.required]
    defaults = [f"the default of `{o.name}` is {default(explain.fact(o))}" for o in found if not o.required]
    return ", ".join([*required, *defaults])


def default(fact: explain.Fact) -> str:
    """How a default is shown."""
    if fact.required:
        return "**required**"
    return f"`{fact.default}` {fact.unit}".rstrip() if fact.default else ""


def text(fact: explain.Fact) -> str:
    """What an option means, with its unit and bounds."""
    limits = re.sub(r"matches (\S+)", r"matches `\1`", fact.limits)
    return (fact.text + (f" ({limits})" if limits else "")).replace("|", "\\|")


def runners() -> list[str]:
    """The table that `agent check` enforces."""
    rows = [
        f"| {row.what} | {'yes' if 'local' in row.runners else 'no'} | {'yes' if 'spark' in row.runners else 'no'} |"
        for row in TABLE
    ]
    return ["\n".join(["| | local | spark |", "|---|---|---|", *rows])]


# --- tables within pages that are written by hand


def filled(text: str, tables: Mapping[str, str]) -> str:
    """The page `text`, with these tables as they are now, each between its two comments."""
    for name, rows in tables.items():
        between = re.compile(rf"(<!-- {name}: .*? -->\n).*?(<!-- end -->)", re.DOTALL)
        text, count = between.subn(lambda match, rows=rows: f"{match[1]}\n{rows}\n\n{match[2]}", text)
        assert count == 1, f"the table {name} has no place, or several"
    return text


def of_commands() -> dict[str, str]:
    """What there is on the command line."""
    return {"commands": table(("command", ""), commands(cli, "agent"))}


def commands(group: click.Group, path: str) -> Iterator[tuple[str, ...]]:
    """Each command with the first sentence of its help; of a group, its own."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
        else:
            first = " ".join((command.help or "").split("\n\n")[0].split())
            yield (f"`{path} {name}`", first.replace("|", "\\|"))


def of_differences() -> dict[str, str]:
    """What those who come from Flume have to know."""
    components = Components()
    return {
        "differences": table(("", "Flume", "Flafka"), otherwise(components)),
        "classes": table(
            ("Java classes", "what takes their place"), ((one.examples, one.instead) for one in FAMILIES)
        ),
        "unbuilt": table(("Flume's", "what to write instead"), unbuilt(components)),
    }


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
    named: dict[CompatibilityNote, list[str]] = {}
    for kind in KINDS:
        for cls in components.all(kind):
            name = f"{kind} `{cls.type_name}`"
            for one in cls.compatibility_notes:
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


def of_measurements() -> dict[str, str]:
    """What the benchmarks that are kept found, with their pictures."""
    results = kept.results()
    columns = ("benchmark", "measure", "unit", "Flafka", "peer", "peer is", "ratio")
    pictures = [f"![Bars of the results of {one['name']}](pictures/bench-{one['name']}.svg)" for one in results]
    return {
        "measured": "\n\n".join(
            [table(("benchmarks", "machine"), kept.machines(results)), table(columns, kept.rows(results)), *pictures]
        )
    }


def of_rights() -> dict[str, str]:
    """Make the table of the rights that the agent's user needs on a Kafka cluster with ACLs."""
    return {"rights": table(("on", "rights", "for"), rights())}


def rights() -> Iterator[tuple[str, ...]]:
    """Yield each resource with the operations and purposes of all roles of Kafka clients."""
    operations: dict[str, dict[str, None]] = {}
    purposes: dict[str, dict[str, None]] = {}
    for role in roles():
        for access in role.access:
            operations.setdefault(access.resource, {}).update(dict.fromkeys(access.operations))
            purposes.setdefault(access.resource, {})[role.purpose] = None
    for resource in sorted(operations, key=lambda one: -len(purposes[one])):
        named = [f"`{name}`" for name in ("Read", "Write", "Describe") if name in operations[resource]]
        create = ", and `Create` unless it exists" if "Create" in operations[resource] else ""
        yield resource, ", ".join(named) + create, ", ".join(purposes[resource])


def roles() -> list[Role]:
    """Return the roles that the project's modules declare."""
    found: dict[Role, None] = {}
    for info in pkgutil.walk_packages(flafka.__path__, "flafka."):
        if not info.name.endswith("__main__"):
            module = importlib.import_module(info.name)
            found |= {one: None for one in vars(module).values() if isinstance(one, Role)}
    return [*found]


FILLED = {
    DOCS / "production.md": of_rights,
    DOCS / "performance.md": of_measurements,
    DOCS / "migrating-from-flume.md": of_differences,
    DOCS / "command-line.md": of_commands,
}
"""Pages with tables, and what makes those."""


if __name__ == "__main__":
    main()
