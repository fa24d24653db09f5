"""Generator of reference pages, of tables in other pages, and of the documentation site: `./dev docs`.

The site is in build/site. Neither its build nor its pages need the network. Every warning of Sphinx is an error: a
dead link, a missing anchor, a page outside the navigation.
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
from bench.frame import results as kept_results
from bench.frame.costs import predictions as kept_predictions
from bench.frame.report import short_number
from docs.wrap import wrap
from flafka.agent import explain
from flafka.agent.cli import main as cli
from flafka.agent.config import catalogue
from flafka.agent.config.runners import CAPABILITIES
from flafka.agent.config.sinkgroups import OPTIONS as PROCESSORS
from flafka.agent.monitoring import definitions, problemkinds
from flafka.agent.monitoring.definitions import UP
from flafka.agent.options import AgentOptions, SinkErrors
from flafka.agent.sizing import read_costs
from flafka.plugins import CompatibilityNote, Component, Components, Config, Metric, UnknownType
from flafka.plugins.java.classes import FAMILIES
from flafka.plugins.kafka.rights import Role

DOCS = Path(__file__).parent
REFERENCE = DOCS / "reference"
SAMPLES = DOCS / "samples"
SITE = DOCS.parent / "build" / "site"
KINDS = explain.KINDS
GENERATED_NOTE = (
    "This page is made by `./dev docs` from what the components declare; `agent explain` prints the same."
)

INTRODUCTIONS = {
    "source": "A source receives events and puts them into one or more channels.",
    "channel": "A channel keeps events until every sink that drains it has delivered them.",
    "interceptor": "An interceptor changes, drops or marks events, on a source before the channels or on a sink "
    "behind its channel: `a1.sources.s1.interceptors = i1 i2`. They act in that order.",
    "sink": "A sink drains one channel and delivers its events.",
}


def main() -> None:
    """Write the pages and build the site; exit with code 1 after a warning."""
    REFERENCE.mkdir(exist_ok=True)
    expected_pages = reference_pages()
    for name, text in expected_pages.items():
        (REFERENCE / name).write_text(text, "utf-8")
    for file in REFERENCE.glob("*.md"):
        if file.name not in expected_pages:
            file.unlink()
    for page, make_tables in FILLED_PAGES.items():
        page.write_text(fill_tables(page.read_text("utf-8"), make_tables()), "utf-8")
    warnings = build_site(SITE)
    if warnings:
        sys.exit(f"{warnings}docs: {len(warnings.splitlines())} lines of errors")
    print(f"{SITE / 'index.html'}")


# --- the site


def build_site(target: Path) -> str:
    """Build the site into a directory, and return the warnings, one per line."""
    from sphinx.application import Sphinx
    from sphinx.util.docutils import docutils_namespace, patch_docutils

    warnings = io.StringIO()
    with patch_docutils(str(DOCS)), docutils_namespace():
        app = Sphinx(DOCS, DOCS, target, target / ".doctrees", "html", status=None, warning=warnings, freshenv=True)
        app.build(force_all=True)
    return re.sub(r"\x1b\[[0-9;]*m", "", warnings.getvalue())


# --- the reference


def reference_pages() -> dict[str, str]:
    """Return the pages of reference/ by name."""
    components = Components()
    made = {f"{kind}s.md": kind_page(kind, components) for kind in KINDS}
    made["sinks.md"] = made["sinks.md"].rstrip() + "\n\n" + join_paragraphs(every_sink())
    made["sink-groups.md"] = join_paragraphs(sink_groups())
    made["agent.md"] = join_paragraphs(whole_agent())
    made["metrics.md"] = join_paragraphs(every_metric(components))
    return made


def join_paragraphs(parts: Iterable[str]) -> str:
    """Return paragraphs as one text."""
    return "\n\n".join(parts) + "\n"


def kind_page(kind: str, components: Components) -> str:
    """Return the page of all components of a kind."""
    parts = [f"# {kind.capitalize()}s", f"{INTRODUCTIONS[kind]} {GENERATED_NOTE}"]
    classes = list(components.all(kind))
    rows = [
        f"| [`{cls.type_name}`](#{slug(cls.type_name)}) | {explain.first_sentence(explain.guarantee(cls))} |"
        for cls in classes
    ]
    parts.append("\n".join(["| type | |", "|---|---|", *rows]))
    for cls in classes:
        parts += component(kind, cls)
    return join_paragraphs(parts)


def slug(heading: str) -> str:
    """Return the anchor of a heading, as on GitHub and on the site."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def component(kind: str, cls: type[Component[Any]]) -> list[str]:
    """Return the section of a component: guarantee, sample, aliases, options and metrics."""
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
            parts += [
                f"With the type `{alias}`, {default_differences(cls.config_class, other)}.",
                *other_names(other),
            ]
    return parts


def sample(kind: str, name: str) -> list[str]:
    """Return the sample configuration of a component, which tests complete, check and run."""
    file = SAMPLES / f"{kind}-{name}.conf"
    assert file.exists(), f"{kind} {name} needs a sample: docs/samples/{file.name}"
    parts = [f"```properties\n{file.read_text('utf-8').rstrip()}\n```"]
    for other in sorted(SAMPLES.glob(f"{kind}-{name}.*")):
        if other != file:
            note = f"<!-- from: {other.relative_to(DOCS.parent)} -->"
            parts.append(f"{note}\n```text\n{other.read_text('utf-8').rstrip()}\n```")
    return parts


def every_sink() -> list[str]:
    """Return the section of options of all sinks."""
    return [
        "## Options of every sink",
        "Besides its own options: `a1.sinks.k1.errors.tolerance = 10`. "
        "[Dead letters](../dead-letters.md#when-nearly-everything-is-rejected) explains them.",
        *options(SinkErrors),
    ]


def sink_groups() -> Iterator[str]:
    """Yield the page of sink groups."""
    yield "# Sink groups"
    yield (
        "The sinks of a group drain one channel, each batch by one of them, at least once. The group's processor "
        f"selects it. {GENERATED_NOTE}"
    )
    for name, config in PROCESSORS.items():
        if name != "default":
            yield from (f"## `{name}`", str(config.__doc__), *sample("processor", name))
            yield "Each option begins with `processor.`: `a1.sinkgroups.g1.processor.backoff = true`."
            yield from options(config)
    yield "The processor `default` is for a single sink."


def whole_agent() -> Iterator[str]:
    """Yield the page of the agent's own options."""
    yield "# The agent as a whole"
    yield f"These options stand directly under the agent's name: `a1.runner = spark`. {GENERATED_NOTE}"
    yield "```properties\na1.runner = spark\na1.spark.triggerInterval = 30\na1.monitoring.port = 14242\n```"
    yield from options(AgentOptions)
    yield "## What each runner supports"
    yield "[Two runners](../concepts.md#two-runners) describes them. `agent check` enforces this table."
    yield from runners()


def every_metric(components: Components) -> Iterator[str]:
    """Yield the page of metrics."""
    yield "# Metrics"
    yield (
        "Flume's JSON on `/metrics` and Prometheus on `/metrics/prometheus` have these metrics. In Prometheus each "
        "has the labels `agent`, `kind` and `name`, the last for the name of the component. "
        "[Operations](../operations.md#metrics-to-watch) lists the figures to watch. "
        "This page is made by `./dev docs` from what components declare; `agent explain` prints the metrics of one."
    )
    yield (
        "A metric that is shown *from the start* is 0 until it has a value; any other is absent until then. A metric "
        "of a plugin that does not declare it is shown, too, once it has a value."
    )
    yield (
        f"Prometheus also has the gauge `{definitions.series_name(UP)}` of each component: "
        f"{UP.help[0].lower()}{UP.help[1:]} In JSON each component also has `Type`, `StartTime` (milliseconds since "
        "the Unix epoch), `StopTime` (always 0) and, after a failure, `LastError`."
    )
    for kind in (*KINDS, "route"):
        yield f"## {kind.capitalize()}s"
        if kind == "route":
            yield "A route is a pair of a source and a channel: `ROUTE.s1.c1`."
        yield metrics(kind, components)


def metrics(kind: str, components: Components) -> str:
    """Return the table of the metrics of a kind of components: common metrics first, then the others by name."""
    shown_by_metric: dict[Metric, dict[str, str]] = {}
    for group in definitions.GROUPS:
        for metric in group.metrics if group.kind == kind.upper() else ():
            shown_by_metric.setdefault(replace(metric, shown="always"), {})[group.condition] = metric.shown
    common = len(shown_by_metric)
    for cls in components.all(kind) if kind in KINDS else ():
        for metric in cls.declared_metrics:
            shown_by_metric.setdefault(replace(metric, shown="always"), {})[f"`{cls.type_name}`"] = metric.shown
    rows = [*shown_by_metric.items()]
    rows[common:] = sorted(rows[common:], key=lambda row: row[0].name)
    heads = ("metric", "in Prometheus", "kind", "unit", "", "from the start", "components")
    return table(
        heads,
        (
            (
                f"`{metric.name}`",
                f"`{definitions.series_name(metric)}`",
                metric.kind,
                metric.unit,
                metric.help,
                shown_from_start(shown),
                ", ".join(shown),
            )
            for metric, shown in rows
        ),
    )


def shown_from_start(shown: Mapping[str, str]) -> str:
    """Return the components whose metric is shown from the start. `shown`: `Metric.shown` by component."""
    if len({*shown.values()}) > 1:
        return ", ".join(components for components, value in shown.items() if value == "always")
    return {"always": "yes", "prometheus": "in Prometheus", "known": ""}[next(iter(shown.values()))]


def options(config: type[Config]) -> list[str]:
    """Return tables of the options, required ones first, and paragraphs of deprecated and ineffective ones."""
    shared = explain.sections(config)
    own = (*shared.pop(explain.REQUIRED, ()), *shared.pop(explain.OWN, ()))
    parts = [option_table(own)] if own else []
    for headline, descriptions in shared.items():
        parts += [f"**{headline}**", option_table(descriptions)]
    return [*(parts or ["It has no options."]), *other_names(config)]


def option_table(descriptions: Iterable[explain.OptionDescription]) -> str:
    """Return a table of options."""
    rows = [f"| `{each.name}` | {each.kind} | {default(each)} | {text(each)} |" for each in descriptions]
    return "\n".join(["| option | kind | default | |", "|---|---|---|---|", *rows])


def other_names(config: type[Config]) -> list[str]:
    """Return paragraphs of the deprecated aliases and of the options without effect."""
    parts = []
    if config.deprecated_aliases:
        renamed = ", ".join(f"`{older}` (now `{newer}`)" for newer, older in config.deprecated_aliases.items())
        parts.append(f"Deprecated aliases: {renamed}.")
    if without := config.list_options_without_effect():
        names = {name + "*" * name.endswith("."): why for name, why in without.items()}
        reasons = {why: ", ".join(f"`{name}`" for name in names if names[name] == why) for why in names.values()}
        listed = "; ".join(f"{names} ({why})" for why, names in reasons.items())
        parts.append(f"Accepted from Flume's files, without effect: {listed}.")
    return parts


def default_differences(ours: type[Config], other: type[Config]) -> str:
    """Return the differences of defaults between two configuration classes of a component."""
    defaults_of_ours = {o.name: o.default for o in ours.options()}
    different = [o for o in other.options() if not o.without_effect and o.default != defaults_of_ours[o.name]]
    required = [f"`{o.name}` is required" for o in different if o.is_required]
    optional = [o for o in different if not o.is_required]
    defaults = [f"the default of `{o.name}` is {default(explain.describe_option(o))}" for o in optional]
    return ", ".join([*required, *defaults])


def default(described: explain.OptionDescription) -> str:
    """Return the text of a default."""
    if described.required:
        return "**required**"
    return f"`{described.default}` {described.unit}".rstrip() if described.default else ""


def text(described: explain.OptionDescription) -> str:
    """Return the description of an option, with its bounds."""
    limits = re.sub(r"matches (\S+)", r"matches `\1`", described.limits)
    return (described.text + (f" ({limits})" if limits else "")).replace("|", "\\|")


def runners() -> list[str]:
    """Return the table of runners that `agent check` enforces."""
    rows = [
        f"| {row.feature} | "
        + " | ".join("yes" if name in row.runners else "no" for name in ("local", "spark"))
        + " |"
        for row in CAPABILITIES
    ]
    return ["\n".join(["| | local | spark |", "|---|---|---|", *rows])]


# --- tables in handwritten pages


def fill_tables(text: str, tables: Mapping[str, str]) -> str:
    """Return a page with current tables between their comments. Each has to occur exactly once."""
    for name, rows in tables.items():
        between = re.compile(rf"(<!-- {name}: .*? -->\n).*?(<!-- end -->)", re.DOTALL)
        text, count = between.subn(lambda match, rows=rows: f"{match[1]}\n{rows}\n\n{match[2]}", text)
        assert count == 1, f"the table {name} has no comments, or several pairs"
    return text


def problem_sections() -> dict[str, str]:
    """Return the sections of the kinds of problems."""
    return {"problems": wrap(problemkinds.markdown())}


def command_tables() -> dict[str, str]:
    """Return the table of commands."""
    return {"commands": table(("command", ""), commands(cli, "agent"))}


def commands(group: click.Group, path: str) -> Iterator[tuple[str, ...]]:
    """Yield each command with the first paragraph of its help; of a group, its own commands."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
        else:
            first = " ".join((command.help or "").split("\n\n")[0].split())
            yield (f"`{path} {name}`", first.replace("|", "\\|"))


def migration_tables() -> dict[str, str]:
    """Return the tables of the migration guide."""
    components = Components()
    return {
        "differences": table(("", "Flume", "Flafka"), compatibility_rows(components)),
        "classes": table(
            ("Java classes", "what takes their place"), ((family.examples, family.replacement) for family in FAMILIES)
        ),
        "unbuilt": table(("Flume's", "what to write instead"), alternative_rows(components)),
    }


def table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table in Markdown."""
    lines = [heads, ("---",) * len(heads), *rows]
    return (
        "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
        .replace("| --- ", "|---")
        .replace("--- |", "---|")
    )


def compatibility_rows(components: Components) -> Iterator[tuple[str, ...]]:
    """Yield the compatibility notes, each with all its components."""
    named: dict[CompatibilityNote, list[str]] = {}
    for kind in KINDS:
        for cls in components.all(kind):
            name = f"{kind} `{cls.type_name}`"
            for note in cls.compatibility_notes:
                named.setdefault(note, []).append(name)
    for note, names in named.items():
        bold = "**" if note.is_common else ""
        flume, here = (text.replace("|", "\\|") for text in (note.flume, note.here))
        yield (", ".join(names), f"{bold}{flume}{bold}", here)


def alternative_rows(components: Components) -> Iterator[tuple[str, ...]]:
    """Yield Flume's types that are not built in, and their alternatives."""
    for kind, types in catalogue.FLUME_TYPES.items():
        for flume_type in types:
            if not flume_type.alternative:
                continue
            try:
                components.get(kind, flume_type.java)
            except (UnknownType, KeyError):
                yield (f"{kind} `{flume_type.name}`", flume_type.alternative)


DECISIVE = (
    ("intake", "syslog TCP to Kafka channel", "rsyslog → omkafka"),
    ("intake", "syslog TCP to Kafka channel", "bare confluent-kafka"),
    ("intake", "the same, format = flume", "the same, with linger and lz4"),
    ("taildir", "files to Kafka channel, from the start", "rsyslog → omkafka"),
    ("hdfs", "channel to HDFS, text", "bare consumer and upload"),
    ("hdfs", "channel to HDFS, Parquet", "bare consumer and upload"),
    ("spark", "channel, mask, text on Spark", "plain Structured Streaming"),
    ("spark", "channel, mask, Parquet on Spark", "plain Structured Streaming"),
    ("stores", "channel to HBase", "bare consumer and happybase"),
    ("stores", "channel to Solr", "bare consumer and pysolr"),
    ("latency", "source to channel at 10 %", "rsyslog → omkafka"),
    ("start", "start to listening", "Apache Flume → KafkaChannel"),
)
"""Benchmark, measure and peer of the rows that docs/performance.md shows."""


def decisive_tables() -> dict[str, str]:
    """Return the table of decisive benchmark rows, without CPU time of brokers and late percentiles."""
    units = ("events/s", "µs CPU/event", "ms, p50", "ms, p99", "s")
    columns = ("benchmark", "measure", "unit", "Flafka", "peer", "peer is", "ratio")
    chosen = (
        row
        for row in kept_results.table_rows(kept_results.load_results())
        if (row[0].strip("`"), row[1], row[5]) in DECISIVE and row[2] in units
    )
    return {"decisive": table(columns, chosen), "curves": curves(), "predictions": predictions()}


def curves() -> str:
    """Return the picture of the curves, or a sentence until they have been measured."""
    if not (kept_results.PICTURES / "bench-curves.svg").exists():
        return "They are not measured yet."
    return "![Curves of costs by rate, connections, files, header names and partitions](pictures/bench-curves.svg)"


def predictions() -> str:
    """Return the table of measured and predicted cores, or a sentence until they have been measured."""
    rows = [
        (load, unit, *map(short_number, (measured, predicted)), f"{predicted / measured - 1:+.0%}")
        for load, unit, measured, predicted in kept_predictions(kept_results.load_results(), read_costs())
    ]
    columns = ("load", "", "measured", "predicted", "error")
    return table(columns, rows) if rows else "They are not measured yet."


def measurement_tables() -> dict[str, str]:
    """Return the results of all benchmarks with their pictures."""
    results = kept_results.load_results()
    columns = ("benchmark", "measure", "unit", "Flafka", "peer", "peer is", "ratio")
    pictures = [
        f"![Bars of the results of {result['name']}](../docs/pictures/bench-{result['name']}.svg)"
        for result in results
    ]
    return {
        "measured": "\n\n".join(
            [
                table(("benchmarks", "machine"), kept_results.machines(results)),
                table(columns, kept_results.table_rows(results)),
                *pictures,
            ]
        )
    }


def rights_tables() -> dict[str, str]:
    """Make the table of the rights that the agent's user needs on a Kafka cluster with ACLs."""
    return {"rights": table(("on", "rights", "for", "of use"), rights())}


def rights() -> Iterator[tuple[str, ...]]:
    """Yield each resource with the operations that roles of Kafka clients need on it, and the purposes of these.

    Components come first, and commands last.
    """
    purposes: dict[tuple[str, tuple[str, ...]], dict[str, None]] = {}
    optional: dict[tuple[str, tuple[str, ...]], dict[str, None]] = {}
    for role in sorted(roles(), key=lambda role: (role.purpose.startswith("`agent "), role.purpose)):
        for access in role.access:
            line = access.resource, access.operations
            purposes.setdefault(line, {})[role.purpose] = None
            texts = (f"`{operation}`; without it, {effect}" for operation, effect in access.optional)
            optional.setdefault(line, {}).update(dict.fromkeys(texts))
    for (resource, operations), names in purposes.items():
        named = ", ".join(f"`{name}`" for name in operations if name != "Create")
        create = "`Create` unless it exists" if "Create" in operations else ""
        both = ", and ".join(filter(None, (named, create)))
        yield resource, both, ", ".join(names), ", ".join(optional[resource, operations])


def roles() -> list[Role]:
    """Return the roles that the project's modules declare."""
    result: dict[Role, None] = {}
    for info in pkgutil.walk_packages(flafka.__path__, "flafka."):
        if not info.name.endswith("__main__"):
            module = importlib.import_module(info.name)
            result |= {value: None for value in vars(module).values() if isinstance(value, Role)}
    return [*result]


FILLED_PAGES = {
    DOCS / "production.md": rights_tables,
    DOCS / "failures.md": problem_sections,
    DOCS / "performance.md": decisive_tables,
    DOCS.parent / "bench/NOTES.md": measurement_tables,
    DOCS / "migrating-from-flume.md": migration_tables,
    DOCS / "command-line.md": command_tables,
}
"""Page → function that returns its tables."""


if __name__ == "__main__":
    main()
