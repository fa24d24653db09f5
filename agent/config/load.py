"""From a file to an agent: read, choose the agent, resolve `${…}`, build and check."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from flafka.agent.config.build import Builder
from flafka.agent.config.diagnostics import Diagnostic, DiagnosticCollector, Mode
from flafka.agent.config.filters import config_filters
from flafka.agent.config.parts import AGENT_WORDS
from flafka.agent.config.properties import Property, agents_in, last_wins, parse, path_of
from flafka.agent.config.substitution import Filter, Resolver
from flafka.agent.topology import AgentSpec, Place
from flafka.plugins import Components
from flafka.plugins.problems import suggestion

MAX_BYTES = 16 << 20
"""A larger file is no configuration."""

MONITORING = {"flume.monitoring.type": "monitoring.type", "flume.monitoring.port": "monitoring.port"}
"""Flume's `-D` properties that are options of an agent here."""


def load(
    file: str | Path,
    agent_name: str | None = None,
    *,
    more: Sequence[Path] = (),
    components: Components,
    mode: Mode = "normal",
    system: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    notes: bool = False,
) -> tuple[AgentSpec | None, list[Diagnostic]]:
    """Return the agent of that name (None: the only one in the file), and everything wrong with it.

    `more` are files read after it, as if they stood in it: what they set again wins. The agent is None exactly if a
    diagnostic is an error. `system` holds `-D` properties. With `notes`, notes are among the diagnostics. Nothing
    is started and no server is asked. Never raises for the content of a file.
    """
    report = DiagnosticCollector(mode)
    spec = load_part(
        file, agent_name, report, more=more, components=components, system=system, environment=environment
    )
    return None if report.failed else spec, report.diagnostics(notes=notes)


def load_part(
    file: str | Path,
    agent_name: str | None,
    report: DiagnosticCollector,
    *,
    more: Sequence[Path] = (),
    components: Components,
    system: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> AgentSpec | None:
    """Return the agent as far as it can be built, as `load` reads it, and add everything wrong with it to `report`.

    None if no agent can be chosen, or a file cannot be read.
    """
    for fault in components.faults:
        report.warn(Place(fault.file, fault.line), "", fault.message)
    texts = {str(path): _read(path, report) for path in (Path(file), *more)}
    lines = [prop for path, text in texts.items() if text is not None for prop in parse(text, path, report)]
    if None in texts.values():
        return None
    properties = last_wins(lines, report)
    name = _choose(properties, agent_name, str(file), report)
    if name is None:
        return None
    environment = os.environ if environment is None else environment
    later = tuple(map(str, more))
    return _agent(name, properties, Path(file), report, components, system or {}, environment, later)


def chosen_agent(file: Path, agent_name: str | None, more: Sequence[Path] = ()) -> str | None:
    """The name of the agent that `load` reads, whatever is wrong with it; None where none can be chosen."""
    report = DiagnosticCollector("normal")
    texts = {str(path): _read(path, report) for path in (file, *more)}
    lines = [prop for path, text in texts.items() if text is not None for prop in parse(text, path, report)]
    return _choose(last_wins(lines, report), agent_name, str(file), report)


def _read(file: Path, report: DiagnosticCollector) -> str | None:
    place = Place(str(file), 0)
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_BYTES + 1)
    except (OSError, ValueError) as e:
        report.error(place, "", f"cannot be read: {getattr(e, 'strerror', None) or e}")
        return None
    if len(content) > MAX_BYTES:
        report.error(place, "", f"is larger than {MAX_BYTES >> 20} MiB, the largest that a configuration may be")
        return None
    return content.decode(encoding_of(content))


def encoding_of(content: bytes) -> str:
    """Return the encoding of a configuration: UTF-8, or else the one of Java's properties files."""
    try:
        content.decode()
    except UnicodeDecodeError:
        return "latin-1"
    return "utf-8"


def _choose(
    properties: Mapping[str, Property], wanted: str | None, file: str, report: DiagnosticCollector
) -> str | None:
    agents = agents_in(properties)
    place = Place(file, 0)
    there = f"the file has: {', '.join(agents)}"
    if wanted is not None and wanted not in agents:
        there = there if agents else "the file has none"
        report.error(place, "", f"no agent {wanted!r}{suggestion(wanted, agents)} ({there})")
    elif not agents:
        report.error(
            place, "", "no agent in it: expected lines like a1.sources = s1, a1.channels = c1, a1.sinks = k1"
        )
    elif wanted is None and len(agents) > 1:
        report.error(place, "", f"which agent? {there}; choose with -n")
    else:
        return wanted or agents[0]
    return None


def _agent(
    name: str,
    properties: Mapping[str, Property],
    file: Path,
    report: DiagnosticCollector,
    components: Components,
    system: Mapping[str, str],
    environment: Mapping[str, str],
    more: tuple[str, ...],
) -> AgentSpec:
    filters: dict[str, Filter] = {}
    resolver = Resolver(
        properties, report, directory=file.parent, system=system, environment=environment, filters=filters
    )
    own = {full.partition(".")[2]: full for full in properties if full.partition(".")[0] == name}

    def resolved(*, of_filters: bool) -> dict[str, Property]:
        chosen = {key: full for key, full in own.items() if key.startswith("configfilters") == of_filters}
        return {key: resolver.resolve(full) for key, full in chosen.items()}

    asked = resolved(of_filters=True)
    filters.update(config_filters(name, asked, environment, report))
    mine = {**asked, **resolved(of_filters=False)}
    for key, prop in list(mine.items()):
        if prop.name in resolver.used and key.partition(".")[0] not in AGENT_WORDS:
            del mine[key]  # a variable: others refer to it
        elif not prop.value:
            del mine[key]
            path = path_of(prop.name)
            report.note(prop.place, path, f"{prop.name.removeprefix(f'{path}.')} has no value; the line is ignored")
    _strangers(name, properties, resolver.used, report)
    for flume, option in MONITORING.items():
        if flume in system:
            mine[option] = Property(f"{name}.{option}", system[flume], Place(f"-D{flume}", 0))
    builder = Builder(name, str(file), mine, report, components)
    written = {prop.name: prop.value for prop in mine.values()}
    spec = builder.build()
    clean = report.cleaner()  # all secrets are known only now
    return replace(spec, more=more, paths=report.paths, shown={key: clean(value) for key, value in written.items()})


def _strangers(agent: str, properties: Mapping[str, Property], used: set[str], report: DiagnosticCollector) -> None:
    """Tell of lines that belong to no agent and that nothing refers to."""
    agents = agents_in(properties)
    lines = Counter(name.partition(".")[0] for name in properties)
    told = set()
    for name, prop in properties.items():
        owner, dot, _ = name.partition(".")
        if owner in agents or name in used or owner in told:
            continue
        told.add(owner)
        if not dot or not owner:
            report.note(prop.place, "", f"{name!r} belongs to no agent and nothing refers to it")
        else:
            what = "line is" if lines[owner] == 1 else f"{lines[owner]} lines are"
            near = suggestion(owner, [agent])
            tell = report.warn if near else report.note
            tell(prop.place, "", f"{owner!r} lists no sources, channels or sinks; its {what} not used{near}")
