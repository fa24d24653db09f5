"""From a file to an agent: read, choose the agent, resolve `${…}`, build and check."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from agent.config import catalogue
from agent.config.build import Builder
from agent.config.diagnostics import Diagnostic, Mode, Report
from agent.config.flume import validate
from agent.config.properties import LISTS, Property, last_wins, parse, path_of, words
from agent.config.substitution import Filter, Resolver, Unresolved, environment_filter, external_filter
from agent.topology import AgentSpec, Place
from plugins import Components
from plugins.options import suggestion

MAX_BYTES = 16 << 20
"""A larger file is no configuration."""

MONITORING = {"flume.monitoring.type": "monitoring.type", "flume.monitoring.port": "monitoring.port"}
"""Flume's `-D` properties that are options of an agent here."""


def load(
    file: str | Path,
    agent_name: str | None = None,
    *,
    components: Components,
    mode: Mode = "normal",
    system: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> tuple[AgentSpec | None, list[Diagnostic]]:
    """The agent of that name (None: the only one in the file), and everything wrong with it, not only the first.

    The agent is None exactly if a diagnostic is an error. `system` holds `-D` properties. Nothing is started and no
    server is asked. Never raises for what stands in the file.
    """
    report = Report(mode)
    spec = None
    text = _read(Path(file), report)
    if text is not None:
        properties = last_wins(parse(text, str(file), report), report)
        name = _choose(properties, agent_name, str(file), report)
        if name is not None:
            environment = os.environ if environment is None else environment
            spec = _agent(name, properties, Path(file), report, components, system or {}, environment)
    return None if report.failed else spec, report.diagnostics()


def _read(file: Path, report: Report) -> str | None:
    place = Place(str(file), 0)
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_BYTES + 1)
    except (OSError, ValueError) as e:
        report.fatal(place, "", f"cannot be read: {getattr(e, 'strerror', None) or e}")
        return None
    if len(content) > MAX_BYTES:
        report.fatal(place, "", f"is larger than {MAX_BYTES >> 20} MiB and thus hardly a configuration")
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        # What Java reads a properties file as.
        return content.decode("latin-1")


def _choose(properties: Mapping[str, Property], wanted: str | None, file: str, report: Report) -> str | None:
    """The agent to load. An agent is a name with at least one list."""
    agents = list(
        dict.fromkeys(agent for agent, dot, key in (name.partition(".") for name in properties) if key in LISTS)
    )
    place = Place(file, 0)
    there = f"the file has: {', '.join(agents)}"
    if wanted is not None and wanted not in agents:
        there = there if agents else "the file has none"
        report.fatal(place, "", f"no agent {wanted!r}{suggestion(wanted, agents)} ({there})")
    elif not agents:
        report.fatal(
            place, "", "no agent in it: expected lines like a1.sources = s1, a1.channels = c1, a1.sinks = k1"
        )
    elif wanted is None and len(agents) > 1:
        report.fatal(place, "", f"which agent? {there}; choose with -n")
    else:
        return wanted or agents[0]
    return None


def _agent(
    name: str,
    properties: Mapping[str, Property],
    file: Path,
    report: Report,
    components: Components,
    system: Mapping[str, str],
    environment: Mapping[str, str],
) -> AgentSpec | None:
    filters: dict[str, Filter] = {}
    resolver = Resolver(
        properties, report, directory=file.parent, system=system, environment=environment, filters=filters
    )
    mine: dict[str, Property] = {}
    own = {full.partition(".")[2]: full for full in properties if full.partition(".")[0] == name}
    # Config filters first: the other properties may ask them.
    for key in sorted(own, key=lambda key: not key.startswith("configfilters")):
        prop = properties[own[key]]
        if not key.startswith("configfilters") and not filters:
            filters.update(_filters(name, mine, environment, report))
        value = resolver.resolve(prop.name)
        if value:
            mine[key] = replace(prop, value=value)
        else:
            report.warn(prop.place, path_of(prop.name), f"{prop.name} has no value; the line is ignored")
    variables = {key for key, full in own.items() if full in resolver.used and key.partition(".")[0] not in LISTS}
    _strangers(name, properties, resolver.used, report)
    for flume, option in MONITORING.items():
        if flume in system:
            mine[option] = Property(f"{name}.{option}", system[flume], Place(f"-D{flume}", 0))
    survivors = None
    if report.mode == "lenient":
        try:
            survivors = validate({prop.name: prop.value for prop in mine.values()})[0][name]
        except ValueError as e:
            report.fatal(Place(str(file), 0), name, f"Flume itself fails on it: {e}")
    builder = Builder(name, str(file), {k: v for k, v in mine.items() if k not in variables}, report, components)
    return builder.build(survivors)


def _filters(
    agent: str, properties: Mapping[str, Property], environment: Mapping[str, str], report: Report
) -> dict[str, Filter]:
    listed = properties.get("configfilters")
    made: dict[str, Filter] = {}
    for name in words(listed.value) if listed else ():
        path = f"{agent}.configfilters.{name}"
        own = {key.removeprefix(f"configfilters.{name}."): prop for key, prop in properties.items()}
        made[name] = _unusable
        assert listed is not None
        if (kind := own.get("type")) is None:
            report.error(listed.place, path, "type is missing; built are: env, external")
            continue
        flume = catalogue.find("config filter", kind.value)
        alias = flume.alias if flume else kind.value
        if alias == "env":
            made[name] = environment_filter(environment)
        elif alias == "external" and "command" in own:
            made[name] = external_filter(own["command"].value)
        elif alias == "external":
            report.error(kind.place, path, "command is required")
        elif flume:
            report.error(
                kind.place, path, f"Flume's config filter {alias!r} is not built yet; built are: env, external"
            )
        else:
            message = f"unknown config filter type {alias!r}{suggestion(alias, ['env', 'external'])}"
            report.error(kind.place, path, f"{message}; built are: env, external")
    return made


def _unusable(key: str) -> str | None:
    raise Unresolved("its config filter cannot be used")


def _strangers(agent: str, properties: Mapping[str, Property], used: set[str], report: Report) -> None:
    """Warn of lines that belong to no agent and that nothing refers to."""
    agents = {name.partition(".")[0] for name in properties if name.partition(".")[2] in LISTS}
    told = set()
    for name, prop in properties.items():
        owner, dot, _ = name.partition(".")
        if owner in agents or name in used or owner in told:
            continue
        told.add(owner)
        if not dot or not owner:
            report.warn(prop.place, "", f"{name!r} belongs to no agent and nothing refers to it")
        else:
            others = [other for other in properties if other.startswith(f"{owner}.")]
            what = "line is" if len(others) == 1 else f"{len(others)} lines are"
            near = suggestion(owner, [agent])
            report.warn(prop.place, "", f"{owner!r} lists no sources, channels or sinks; its {what} not used{near}")
