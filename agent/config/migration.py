"""Migration of a Flume configuration: a verdict on each line, and a new configuration with explicit settings."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from flafka.agent.config.diagnostics import Diagnostic, DiagnosticCollector, Severity
from flafka.agent.config.load import chosen_agent, encoding_of, load_partially
from flafka.agent.config.properties import LINE_PATTERN, Property, agent_names, component_path, parse
from flafka.agent.flumechannel.importing import describe_undelivered
from flafka.agent.topology import AgentSpec
from flafka.plugins import Components, ConnectivityWarning

Verdict = Literal["needs porting", "differs", "runs"]

COMMENT_PREFIX = "agent migrate: "
"""Start of each comment in the new configuration."""
_COMMENT_WIDTH = 100
_BOM = "\ufeff"
_NOT_IN_NAMES = re.compile(r"[\\:=\s#!]")
_CONTINUED = re.compile(r"(?<!\\)(?:\\\\)*\\$")


def _needs_porting(diagnostic: Diagnostic) -> bool:
    """Return True for an error that is a mistake of the file, and not a missing library of this host."""
    return diagnostic.severity == "error" and not diagnostic.is_library_missing


@dataclass(frozen=True)
class MigratedLine:
    """Property of the old file with its diagnostics, or the diagnostics about the whole file."""

    number: int
    """Number of its first line, from 1; 0 for the whole file."""
    name: str
    """Full name of the property; empty for the whole file."""
    diagnostics: tuple[Diagnostic, ...] = ()
    replacement: tuple[str, ...] | None = None
    """Lines that replace it in the new configuration; None if it stays unchanged."""

    @property
    def verdict(self) -> Verdict:
        """Verdict on the line: "needs porting" after an error, else "differs" or "runs".

        A line differs if Flume behaves differently with it.
        """
        if any(map(_needs_porting, self.diagnostics)):
            return "needs porting"
        return "differs" if any(diagnostic.differs for diagnostic in self.diagnostics) else "runs"

    def reasons(self) -> list[Diagnostic]:
        """Return the diagnostics of the line that are errors of the file, or name a difference from Flume."""
        return [diagnostic for diagnostic in self.diagnostics if _needs_porting(diagnostic) or diagnostic.differs]

    def notes(self) -> list[Diagnostic]:
        """Return the diagnostics of the line that are not in `reasons`."""
        reasons = self.reasons()
        return [diagnostic for diagnostic in self.diagnostics if diagnostic not in reasons]


@dataclass(frozen=True)
class Migration:
    """Result of a migration."""

    agent: str | None
    """Name of the migrated agent; None if none can be chosen."""
    agents: list[str]
    """Names of all agents in the file."""
    lines: list[MigratedLine]
    content: bytes | None
    """New configuration, encoded; None if the file cannot be read."""

    def lines_with(self, verdict: Verdict) -> list[MigratedLine]:
        """Return the lines with this verdict."""
        return [line for line in self.lines if line.verdict == verdict]

    @property
    def is_complete(self) -> bool:
        """True if an agent was chosen and no line needs porting."""
        return self.agent is not None and not self.lines_with("needs porting")


def migrate(
    file: Path,
    agent_name: str | None,
    *,
    components: Components,
    system: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Migration:
    """Return the migration of the agent of that name (None: the only one in the file). Connects to no server.

    Undelivered events of a Flume channel on this host are reported at the `type` line of the channel.

    The new configuration keeps the comments and the order of the old one. A line that differs is replaced, below a
    comment with the reason and a comment with the old line. A line that needs porting gets a comment with the reason.
    Idempotent: migrating the new configuration replaces nothing. A file that cannot be read gives a result with
    `content` None. Writes nothing.
    """
    report = DiagnosticCollector("normal")
    spec = load_partially(file, agent_name, report, components=components, system=system, environment=environment)
    agent = chosen_agent(file, agent_name)
    by_line: dict[int, list[Diagnostic]] = {}
    for diagnostic in (*report.diagnostics(notes=True), *_undelivered_events(spec)):
        number = diagnostic.place.line if diagnostic.place.file == str(file) else 0
        by_line.setdefault(number, []).append(diagnostic)
    lines = [MigratedLine(0, "", tuple(by_line.get(0, ())))] if by_line.get(0) else []
    try:
        content = file.read_bytes()
    except OSError:
        return Migration(agent, [], lines, None)
    encoding = encoding_of(content)
    text = content.decode(encoding)
    properties = parse(text, str(file), DiagnosticCollector("normal"))
    agents = agent_names(prop.name for prop in properties)
    other_agents = set(agents) - {agent}
    names = {prop.name for prop in properties}
    for diagnostic in _non_ascii_values(text.removeprefix(_BOM), properties) if encoding == "utf-8" else ():
        by_line.setdefault(diagnostic.place.line, []).append(diagnostic)
    for prop in properties:
        if prop.name.partition(".")[0] not in other_agents:
            line = MigratedLine(prop.place.line, prop.name, tuple(by_line.pop(prop.place.line, ())))
            lines.append(replace(line, replacement=_replacement(line, prop, names)))
    # Lines that do not parse as a property.
    for number, diagnostics in by_line.items():
        if number and any(diagnostic.severity == "error" for diagnostic in diagnostics):
            lines.append(MigratedLine(number, "", tuple(diagnostics)))
    lines.sort(key=lambda line: line.number)
    new = _rewrite(text, lines).encode(encoding, "backslashreplace") if agent else None
    return Migration(agent, agents, lines, new)


def _non_ascii_values(text: str, properties: Iterable[Property]) -> Iterator[Diagnostic]:
    """Yield a note for each property with characters that Flume, which reads ISO 8859-1, decodes differently."""
    lines = LINE_PATTERN.findall(text)
    for prop in properties:
        end = prop.place.line
        while end < len(lines) and _CONTINUED.search(lines[end - 1].rstrip("\r\n")):
            end += 1
        if not "".join(lines[prop.place.line - 1 : end]).isascii():
            message = (
                "Flume: the file is read as ISO 8859-1, so that `ß` in UTF-8 becomes two other characters. Here: as "
                "UTF-8; write `\\u00df` for the same character in both"
            )
            yield Diagnostic("note", prop.place, component_path(prop.name), message, differs=True)


def _undelivered_events(spec: AgentSpec | None) -> Iterator[Diagnostic]:
    """Yield a warning or error for each Flume channel on this host with undelivered or unreadable events.

    Empty if `spec` is None.
    """
    for channel in spec.channels if spec is not None else ():
        command = f"agent migrate --import-channel {channel.name} FILE"
        for sentence in describe_undelivered(channel.make(), command):
            severity: Severity = "warning" if isinstance(sentence, ConnectivityWarning) else "error"
            yield Diagnostic(severity, channel.place, channel.path, sentence, differs=True)


def _replacement(line: MigratedLine, prop: Property, names: set[str]) -> tuple[str, ...] | None:
    """Return the lines with the explicit settings that replace this line; None if the line stays.

    A line stays if it runs or needs porting, has a `${…}`, or if another line already sets one of these properties.
    `names` are all properties of the file.
    """
    replacements = [d.replacement for d in line.diagnostics if d.replacement is not None]
    if line.verdict != "differs" or not replacements:
        return None
    pairs = dict(pair for pairs in replacements for pair in pairs)
    # The value of a `${…}` may be a secret, or change. Of two lines for one property, the last one wins.
    if pairs and ("${" in prop.value or any(name in names and name != prop.name for name in pairs)):
        return None
    return tuple(f"{_NOT_IN_NAMES.sub(_escape, name)} = {_escape(value)}" for name, value in pairs.items())


def _escape(text: str | re.Match[str]) -> str:
    """Return a text, or a match of one character, escaped for a properties file."""
    if isinstance(text, re.Match):
        return f"\\{text[0]}"
    return text.replace("\\", "\\\\").replace("\r", "\\r").replace("\n", "\\n")


def _rewrite(text: str, lines: Iterable[MigratedLine]) -> str:
    """Return `text` with the replaced lines, and with new comments above lines that need porting."""
    changed = {line.number: line for line in lines if line.replacement is not None or line.verdict == "needs porting"}
    old: list[str] = LINE_PATTERN.findall(text.removeprefix(_BOM))
    new: list[str] = [_BOM] if text.startswith(_BOM) else []
    start = 0
    while start < len(old):
        line = changed.get(start + 1)
        end = start + 1
        if line is None:
            new.append(old[start])
            start = end
            continue
        while end < len(old) and _CONTINUED.search(old[end - 1].rstrip("\r\n")):
            end += 1
        ending = re.sub(r"[^\r\n]", "", old[start]) or "\n"
        indent = old[start][: len(old[start]) - len(old[start].lstrip(" \t\f"))]
        needs_porting = line.verdict == "needs porting"
        comment = [f"{indent}{text}{ending}" for text in _comment(line, "needs porting: " if needs_porting else "")]
        if needs_porting:
            if new[-len(comment) :] != comment:
                new += comment
            new += old[start:end]
        else:
            assert line.replacement is not None
            new += comment
            replaced = [text.removeprefix(indent).rstrip("\r\n") for text in old[start:end]]
            new += [f"{indent}# {text}{ending}" for text in replaced]
            new += [f"{indent}{text}{ending}" for text in line.replacement]
        start = end
    return "".join(new)


def _comment(line: MigratedLine, verdict: str) -> list[str]:
    """Return the wrapped comment lines with the reasons for a line, beginning with `COMMENT_PREFIX` and `verdict`."""
    comment: list[str] = []
    for message in dict.fromkeys(reason.message for reason in line.reasons()):
        comment += textwrap.wrap(
            message,
            _COMMENT_WIDTH,
            initial_indent=f"# {COMMENT_PREFIX}{verdict}",
            subsequent_indent="#   ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return comment
