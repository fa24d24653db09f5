"""Parser of Flume's configuration files: Java properties, with the line of each property."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import IO, cast

import javaproperties

from flafka.agent.config.diagnostics import DiagnosticCollector
from flafka.agent.topology import ConfigLocation

JAVA_BLANKS = "".join(map(chr, range(0x21)))
"""Characters that Java's String.trim removes."""

LISTS = ("sources", "channels", "sinks", "sinkgroups", "configfilters")
"""Lists of an agent: `<agent>.<list> = <names>`, with `<agent>.<list>.<name>.<option> = <value>`."""

_SURROGATE = re.compile("[\ud800-\udfff]")
LINE_PATTERN = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
"""Line of a text, including its line end."""


@dataclass(frozen=True, slots=True)
class Property:
    """Property of a configuration; name and value are trimmed as by Flume."""

    name: str
    value: str
    place: ConfigLocation
    resolved: bool = True
    """False if the value contains a `${…}` without a value, which has been reported."""


class _LineReader:
    """Reader of a text for the parser, which counts the lines."""

    def __init__(self, text: str) -> None:
        self._lines = iter(LINE_PATTERN.findall(text))
        self.number = 0

    def readline(self) -> str:
        """Return the next line with its line end; empty at the end of the text."""
        line: str = next(self._lines, "")
        self.number += bool(line)
        return line


def parse(text: str, file: str, report: DiagnosticCollector) -> list[Property]:
    """Return all properties of a text in the order of their lines, duplicates included. `file` is for messages.

    A line with an invalid `\\u` escape is an error in `report`, and left out.
    """
    lines = _LineReader(text.removeprefix("\ufeff"))
    properties = []
    while True:
        start = lines.number
        try:
            for element in javaproperties.parse(cast(IO[str], lines)):
                start, first = lines.number, start + 1
                if isinstance(element, javaproperties.KeyValue):
                    place = ConfigLocation(file, first)
                    if _SURROGATE.search(element.key + element.value):
                        report.error(
                            place, "", "a \\u escape is half of a surrogate pair: write both halves, or the character"
                        )
                    else:
                        properties.append(
                            Property(element.key.strip(JAVA_BLANKS), element.value.strip(JAVA_BLANKS), place)
                        )
            return properties
        except javaproperties.InvalidUEscapeError as e:
            # The parser cannot continue after an error. A new parser starts on the next line, to report all errors.
            message = f"{e.escape} is not a character: \\u needs four hexadecimal digits; write a backslash as \\\\"
            report.error(ConfigLocation(file, start + 1), "", message)


def agent_names(names: Iterable[str]) -> list[str]:
    """Return the distinct agents among the names of properties, in their order.

    An agent has at least one of `LISTS`.
    """
    return list(dict.fromkeys(agent for agent, _, key in (name.partition(".") for name in names) if key in LISTS))


def last_wins(properties: Sequence[Property], report: DiagnosticCollector) -> dict[str, Property]:
    """Return the properties by name. The last duplicate wins, as in Java.

    A duplicate within one file is a warning, or a note for a line of no agent. A duplicate in a later file is not
    reported.
    """
    agents = set(agent_names(prop.name for prop in properties))
    by_name: dict[str, Property] = {}
    for prop in properties:
        earlier = by_name.pop(prop.name, None)
        if earlier is not None and earlier.place.file == prop.place.file:
            message = f"{prop.name} is already set on line {earlier.place.line}; this line wins"
            # A line that belongs to no agent is most often text of another kind.
            report_at = report.warn if prop.name.partition(".")[0] in agents else report.note
            report_at(prop.place, "", message)
        by_name[prop.name] = prop
    return by_name


def component_path(name: str) -> str:
    """Return the owner of a property: `a1.sinks.k1` for `a1.sinks.k1.hdfs.path`, `a1` for `a1.runner`."""
    agent, _, rest = name.partition(".")
    kind, _, rest = rest.partition(".")
    component, dot, _ = rest.partition(".")
    return f"{agent}.{kind}.{component}" if dot and kind in LISTS else agent


def split_names(text: str) -> list[str]:
    """Return the names of a list, split as Flume does, on white space only."""
    return re.findall(r"[^ \t\n\x0b\f\r]+", text)
