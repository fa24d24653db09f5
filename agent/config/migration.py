"""What becomes of each line of a Flume configuration here, and the configuration that says what happens."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from flafka.agent.config.diagnostics import Diagnostic, DiagnosticCollector, Severity
from flafka.agent.config.load import chosen_agent, encoding_of, load_part
from flafka.agent.config.properties import LINE, Property, agents_in, parse, path_of
from flafka.agent.flumechannel.importing import foreseen
from flafka.agent.topology import AgentSpec
from flafka.plugins import Components, ConnectivityWarning

Verdict = Literal["needs porting", "differs", "runs"]

MARK = "agent migrate: "
"""How the comments begin that are written."""
_WIDTH = 100
_BOM = "\ufeff"
_NOT_IN_NAMES = re.compile(r"[\\:=\s#!]")
_CONTINUES = re.compile(r"(?<!\\)(?:\\\\)*\\$")


def _needs_porting(one: Diagnostic) -> bool:
    return one.severity == "error" and not one.uninstalled


@dataclass(frozen=True)
class Line:
    """One property of the file, or what is found about the file as a whole."""

    number: int
    """Of its first line; 0: the file as a whole."""
    name: str
    """Of the property; empty for the file as a whole."""
    found: tuple[Diagnostic, ...] = ()
    written: tuple[str, ...] | None = None
    """The lines that stand in its place in the new configuration; None: it stays as it is."""

    @property
    def verdict(self) -> Verdict:
        """What becomes of it."""
        if any(_needs_porting(one) for one in self.found):
            return "needs porting"
        return "differs" if any(one.differs for one in self.found) else "runs"

    def reasons(self) -> list[Diagnostic]:
        """What makes it need porting, or differ."""
        return [one for one in self.found if _needs_porting(one) or one.differs]

    def notes(self) -> list[Diagnostic]:
        """What else there is to know of it."""
        return [one for one in self.found if one not in self.reasons()]


@dataclass(frozen=True)
class Migration:
    """A configuration, line by line."""

    agent: str | None
    """The agent that it is about; None where none can be chosen."""
    agents: list[str]
    """All that stand in the file."""
    lines: list[Line]
    content: bytes | None
    """The new configuration; None where the file cannot be read."""

    def of(self, verdict: Verdict) -> list[Line]:
        """The lines of that verdict."""
        return [line for line in self.lines if line.verdict == verdict]

    @property
    def ok(self) -> bool:
        """Whether nothing needs porting."""
        return self.agent is not None and not self.of("needs porting")


def migrate(
    file: Path,
    agent_name: str | None,
    *,
    components: Components,
    system: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Migration:
    """What becomes of each line about the agent of that name (None: the only one in the file). Asks no server.

    What a Flume on this host has left for a channel is found with the line of the channel's type.

    Of the new configuration: its comments and the order of its lines are those of the old one. A line that says
    something else than what happens here is replaced, below a comment that says why and the line as it was. Above one
    that needs porting stands a comment that says so. What was replaced once is not replaced again.
    """
    report = DiagnosticCollector("normal")
    spec = load_part(file, agent_name, report, components=components, system=system, environment=environment)
    agent = chosen_agent(file, agent_name)
    about: dict[int, list[Diagnostic]] = {}
    for one in (*report.diagnostics(notes=True), *_left(spec)):
        about.setdefault(one.place.line if one.place.file == str(file) else 0, []).append(one)
    lines = [Line(0, "", tuple(about.get(0, ())))] if about.get(0) else []
    try:
        content = file.read_bytes()
    except OSError:
        return Migration(agent, [], lines, None)
    encoding = encoding_of(content)
    text = content.decode(encoding)
    properties = parse(text, str(file), DiagnosticCollector("normal"))
    agents = agents_in(prop.name for prop in properties)
    others = set(agents) - {agent}
    names = {prop.name for prop in properties}
    for one in _beyond_ascii(text.removeprefix(_BOM), properties) if encoding == "utf-8" else ():
        about.setdefault(one.place.line, []).append(one)
    for prop in properties:
        if prop.name.partition(".")[0] not in others:
            line = Line(prop.place.line, prop.name, tuple(about.pop(prop.place.line, ())))
            lines.append(replace(line, written=_instead(line, prop, names)))
    # What cannot be read as a property at all.
    for number, ones in about.items():
        if number and any(one.severity == "error" for one in ones):
            lines.append(Line(number, "", tuple(ones)))
    lines.sort(key=lambda line: line.number)
    new = _rewritten(text, lines).encode(encoding, "backslashreplace") if agent else None
    return Migration(agent, agents, lines, new)


def _beyond_ascii(text: str, properties: Iterable[Property]) -> Iterator[Diagnostic]:
    """Properties that Flume reads as others, as it does not take files for UTF-8."""
    lines = LINE.findall(text)
    for prop in properties:
        end = prop.place.line
        while end < len(lines) and _CONTINUES.search(lines[end - 1].rstrip("\r\n")):
            end += 1
        if not "".join(lines[prop.place.line - 1 : end]).isascii():
            message = (
                "Flume: the file is read as ISO 8859-1, whatever it is, so that `ß` is two other characters; both "
                "read `\\u00df` alike. Here: as UTF-8"
            )
            yield Diagnostic("note", prop.place, path_of(prop.name), message, differs=True)


def _left(spec: AgentSpec | None) -> Iterator[Diagnostic]:
    for channel in spec.channels if spec is not None else ():
        command = f"agent migrate --import-channel {channel.name} FILE"
        for sentence in foreseen(channel.make(), command):
            severity: Severity = "warning" if isinstance(sentence, ConnectivityWarning) else "error"
            yield Diagnostic(severity, channel.place, channel.path, sentence, differs=True)


def _instead(line: Line, prop: Property, names: set[str]) -> tuple[str, ...] | None:
    """What says in place of this line what happens here; None where it is to stay."""
    instead = [one.instead for one in line.found if one.instead is not None]
    if line.verdict != "differs" or not instead:
        return None
    pairs = dict(pair for pairs in instead for pair in pairs)
    # What a `${…}` gives may be a secret, or another thing tomorrow; and of two lines with one name the last counts.
    if pairs and ("${" in prop.value or any(name in names and name != prop.name for name in pairs)):
        return None
    return tuple(f"{_NOT_IN_NAMES.sub(_escaped, name)} = {_escaped(value)}" for name, value in pairs.items())


def _escaped(text: str | re.Match[str]) -> str:
    if isinstance(text, re.Match):
        return f"\\{text[0]}"
    return text.replace("\\", "\\\\").replace("\r", "\\r").replace("\n", "\\n")


def _rewritten(text: str, lines: Iterable[Line]) -> str:
    concerned = {line.number: line for line in lines if line.written is not None or line.verdict == "needs porting"}
    old: list[str] = LINE.findall(text.removeprefix(_BOM))
    new: list[str] = [_BOM] if text.startswith(_BOM) else []
    at = 0
    while at < len(old):
        line = concerned.get(at + 1)
        end = at + 1
        if line is None:
            new.append(old[at])
            at = end
            continue
        while end < len(old) and _CONTINUES.search(old[end - 1].rstrip("\r\n")):
            end += 1
        ending = re.sub(r"[^\r\n]", "", old[at]) or "\n"
        indent = old[at][: len(old[at]) - len(old[at].lstrip(" \t\f"))]
        ported = line.verdict == "needs porting"
        comment = [f"{indent}{one}{ending}" for one in _comment(line, "needs porting: " if ported else "")]
        if ported:
            if new[-len(comment) :] != comment:
                new += comment
            new += old[at:end]
        else:
            assert line.written is not None
            new += comment
            lines_before = [one.removeprefix(indent).rstrip("\r\n") for one in old[at:end]]
            new += [f"{indent}# {one}{ending}" for one in lines_before]
            new += [f"{indent}{one}{ending}" for one in line.written]
        at = end
    return "".join(new)


def _comment(line: Line, what: str) -> list[str]:
    done: list[str] = []
    for message in dict.fromkeys(one.message for one in line.reasons()):
        done += textwrap.wrap(
            message,
            _WIDTH,
            initial_indent=f"# {MARK}{what}",
            subsequent_indent="#   ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return done
