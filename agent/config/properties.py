"""The grammar of Flume's files: Java properties, with the line of each property."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import IO, cast

import javaproperties

from flafka.agent.config.diagnostics import DiagnosticCollector
from flafka.agent.topology import Place

BLANKS = "".join(map(chr, range(0x21)))
"""What Java trims off a text."""

LISTS = ("sources", "channels", "sinks", "sinkgroups", "configfilters")
"""The lists an agent may have: `<agent>.<list> = <names>`, and `<agent>.<list>.<name>.<option> = <value>`."""

_HALF = re.compile("[\ud800-\udfff]")
LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
"""A line of a text, with its end."""


@dataclass(frozen=True, slots=True)
class Property:
    """One property, name and value trimmed as Flume trims them."""

    name: str
    value: str
    place: Place
    resolved: bool = True
    """False where the value still holds a `${…}` that has been reported."""


class _Lines:
    """A text as the parser reads it, counting."""

    def __init__(self, text: str) -> None:
        self._lines = iter(LINE.findall(text))
        self.number = 0

    def readline(self) -> str:
        line: str = next(self._lines, "")
        self.number += bool(line)
        return line


def parse(text: str, file: str, report: DiagnosticCollector) -> list[Property]:
    """All properties of a text, duplicates included, in the order of their lines; `file` is how places call it."""
    lines = _Lines(text.removeprefix("\ufeff"))
    properties = []
    while True:
        start = lines.number
        try:
            for element in javaproperties.parse(cast(IO[str], lines)):
                start, first = lines.number, start + 1
                if isinstance(element, javaproperties.KeyValue):
                    place = Place(file, first)
                    if _HALF.search(element.key + element.value):
                        report.error(place, "", "half of a surrogate pair is not a character")
                    else:
                        properties.append(Property(element.key.strip(BLANKS), element.value.strip(BLANKS), place))
            return properties
        except javaproperties.InvalidUEscapeError as e:
            # The parser stops here for good; a new one goes on with the next line, so that all errors are told.
            problem = f"{e.escape} is not a character: after \\u come four hexadecimal digits; a backslash is \\\\"
            report.error(Place(file, start + 1), "", problem)


def agents_in(names: Iterable[str]) -> list[str]:
    """The agents that properties of these names are about. An agent is a name with at least one list."""
    return list(dict.fromkeys(agent for agent, _, key in (name.partition(".") for name in names) if key in LISTS))


def last_wins(properties: Sequence[Property], report: DiagnosticCollector) -> dict[str, Property]:
    """By name; of several with one name the last, as Java has it, which is told where both are in one file."""
    agents = set(agents_in(prop.name for prop in properties))
    by_name: dict[str, Property] = {}
    for prop in properties:
        earlier = by_name.pop(prop.name, None)
        if earlier is not None and earlier.place.file == prop.place.file:
            message = f"{prop.name} was set on line {earlier.place.line} already; this line wins"
            # What is none of an agent's is most often some other text.
            tell = report.warn if prop.name.partition(".")[0] in agents else report.note
            tell(prop.place, "", message)
        by_name[prop.name] = prop
    return by_name


def path_of(name: str) -> str:
    """Whose property it is: `a1.sinks.k1` for `a1.sinks.k1.hdfs.path`, `a1` for `a1.runner`."""
    agent, _, rest = name.partition(".")
    kind, _, rest = rest.partition(".")
    component, dot, _ = rest.partition(".")
    return f"{agent}.{kind}.{component}" if dot and kind in LISTS else agent


def words(text: str) -> list[str]:
    """A list as Flume writes it: split on white space, nothing else."""
    return re.findall(r"[^ \t\n\x0b\f\r]+", text)
