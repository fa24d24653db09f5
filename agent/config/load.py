"""Loader of an agent from a file: reads, chooses the agent, resolves `${…}`, builds and checks."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from flafka.agent.config.build import Builder
from flafka.agent.config.components import is_secret_name
from flafka.agent.config.diagnostics import Diagnostic, DiagnosticCollector, Mode
from flafka.agent.config.filters import config_filters
from flafka.agent.config.parts import AGENT_KEYS
from flafka.agent.config.properties import Property, agent_names, component_path, last_wins, parse
from flafka.agent.config.substitution import Filter, Resolver
from flafka.agent.topology import AgentSpec, ConfigLocation
from flafka.plugins import Components
from flafka.plugins.problems import suggest

MAX_FILE_BYTES = 16 << 20
"""Maximum size of a configuration file."""

_URL_PASSWORD = re.compile(r"://[^/@\s:]*:([^/@\s]+)@")
MONITORING = {"flume.monitoring.type": "monitoring.type", "flume.monitoring.port": "monitoring.port"}
"""Options of an agent that Flume sets by `-D`, by name of the `-D` property."""


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
    """Return the agent of that name (None: the only one in the file), and its diagnostics in the order of the lines.

    The agent is None if the file has an error. A library that is not installed is an error in the diagnostics, and
    the agent is returned. Properties in the files `more` override earlier ones. `mode` "strict" makes warnings
    errors. `system` holds `-D` properties; `environment` None stands for that of this process. `notes` includes notes
    in the diagnostics. Starts nothing and connects to no server. Never raises for the content of a file.
    """
    report = DiagnosticCollector(mode)
    spec = load_partially(
        file, agent_name, report, more=more, components=components, system=system, environment=environment
    )
    return None if report.has_errors else spec, report.diagnostics(notes=notes)


def load_partially(
    file: str | Path,
    agent_name: str | None,
    report: DiagnosticCollector,
    *,
    more: Sequence[Path] = (),
    components: Components,
    system: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> AgentSpec | None:
    """Return the agent without the parts that cannot be built, and add the diagnostics to `report`.

    None if no agent can be chosen, or a file cannot be read. Arguments are as for `load`.
    """
    for fault in components.faults:
        report.warn(ConfigLocation(fault.file, fault.line), "", fault.message)
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
    """Return the name of the agent that `load` reads, even if it has errors.

    None if a name is unknown or missing, or the file cannot be read.
    """
    report = DiagnosticCollector("normal")
    texts = {str(path): _read(path, report) for path in (file, *more)}
    lines = [prop for path, text in texts.items() if text is not None for prop in parse(text, path, report)]
    return _choose(last_wins(lines, report), agent_name, str(file), report)


def _read(file: Path, report: DiagnosticCollector) -> str | None:
    """Return the text of a file; None, with an error reported, if it cannot be read or is too large."""
    place = ConfigLocation(str(file), 0)
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as e:
        report.error(place, "", f"cannot be read: {getattr(e, 'strerror', None) or e}")
        return None
    if len(content) > MAX_FILE_BYTES:
        report.error(place, "", f"is larger than {MAX_FILE_BYTES >> 20} MiB, the maximum size of a configuration")
        return None
    return content.decode(encoding_of(content))


def encoding_of(content: bytes) -> str:
    """Return the encoding of a configuration: "utf-8" if it decodes so, else "latin-1", as in Java."""
    try:
        content.decode()
    except UnicodeDecodeError:
        return "latin-1"
    return "utf-8"


def _choose(
    properties: Mapping[str, Property], wanted: str | None, file: str, report: DiagnosticCollector
) -> str | None:
    """Return the agent `wanted`, or the only one; None, with an error reported, if there is no such agent."""
    agents = agent_names(properties)
    place = ConfigLocation(file, 0)
    available = f"agents in the file: {', '.join(agents)}"
    if wanted is not None and wanted not in agents:
        available = available if agents else "the file has no agents"
        report.error(place, "", f"no agent {wanted!r}{suggest(wanted, agents)} ({available})")
    elif not agents:
        report.error(
            place, "", "the file has no agent: add lines such as a1.sources = s1, a1.channels = c1, a1.sinks = k1"
        )
    elif wanted is None and len(agents) > 1:
        report.error(place, "", f"the file has several agents: choose one with -n ({', '.join(agents)})")
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
    """Return the agent `name`: resolve its properties, report unused lines, and build it."""
    filters: dict[str, Filter] = {}
    resolver = Resolver(
        properties, report, directory=file.parent, system=system, environment=environment, filters=filters
    )
    own = {full.partition(".")[2]: full for full in properties if full.partition(".")[0] == name}

    def resolved(*, of_filters: bool) -> dict[str, Property]:
        chosen = {key: full for key, full in own.items() if key.startswith("configfilters") == of_filters}
        return {key: resolver.resolve(full) for key, full in chosen.items()}

    filter_properties = resolved(of_filters=True)
    filters.update(config_filters(name, filter_properties, environment, report))
    own_properties = {**filter_properties, **resolved(of_filters=False)}
    for key, prop in list(own_properties.items()):
        if prop.name in resolver.used and key.partition(".")[0] not in AGENT_KEYS:
            del own_properties[key]  # a variable, which other properties refer to
        elif not prop.value:
            del own_properties[key]
            path = component_path(prop.name)
            report.note(prop.place, path, f"{prop.name.removeprefix(f'{path}.')} is ignored: it has no value")
    _report_unused_lines(name, properties, resolver.used, report)
    for prop in own_properties.values():  # also of components that are not built, and of sink groups
        if is_secret_name(prop.name.removeprefix(f"{component_path(prop.name)}.")):
            report.hide_secret(prop.value, "****")
        for password in _URL_PASSWORD.findall(prop.value):
            report.hide_secret(password, "****")
    for flume, option in MONITORING.items():
        if flume in system:
            own_properties[option] = Property(f"{name}.{option}", system[flume], ConfigLocation(f"-D{flume}", 0))
    builder = Builder(name, str(file), own_properties, report, components)
    written = {prop.name: prop.value for prop in own_properties.values()}
    spec = builder.build()
    redact = report.redactor()  # before, not all secrets are known
    return replace(spec, more=more, paths=report.paths, shown={key: redact(value) for key, value in written.items()})


def _report_unused_lines(
    agent: str, properties: Mapping[str, Property], used: set[str], report: DiagnosticCollector
) -> None:
    """Report lines that belong to no agent, and that no expression refers to, once for each first word.

    It is a warning if the word resembles the name of the agent, else a note.
    """
    agents = agent_names(properties)
    lines = Counter(name.partition(".")[0] for name in properties)
    reported = set()
    for name, prop in properties.items():
        owner, dot, _ = name.partition(".")
        if owner in agents or name in used or owner in reported:
            continue
        reported.add(owner)
        if not dot or not owner:
            report.note(
                prop.place, "", f"{name!r} is ignored: it belongs to no agent, and no expression refers to it"
            )
        else:
            subject = "line is" if lines[owner] == 1 else f"{lines[owner]} lines are"
            near = suggest(owner, [agent])
            report_at = report.warn if near else report.note
            report_at(prop.place, "", f"{owner!r} lists no sources, channels or sinks; its {subject} ignored{near}")
