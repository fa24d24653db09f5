"""Properties of one agent, grouped by component."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field

from flafka.agent.config.diagnostics import DiagnosticCollector
from flafka.agent.config.properties import JAVA_BLANKS, LISTS, Property, split_names
from flafka.agent.options import AgentOptions
from flafka.agent.topology import ConfigLocation
from flafka.plugins.problems import suggest

Groups = dict[str, dict[str, Property]]
"""Properties of several components, by component and option."""

AGENT_KEYS = sorted({*LISTS, *(option.name.partition(".")[0] for option in AgentOptions.options())})
"""First parts of the property names of an agent, without its name."""


@dataclass
class ComponentProperties:
    """Unparsed properties of one component."""

    kind: str
    name: str
    path: str
    place: ConfigLocation
    """Position of the `type` line, or else of the first line."""
    properties: dict[str, Property]
    """Properties by option. The readers remove common options, such as `channels`."""

    def take(self, name: str) -> Property | None:
        """Remove one property and return it; None if it is absent."""
        return self.properties.pop(name, None)

    def take_all(self, prefix: str) -> dict[str, Property]:
        """Remove the properties whose option begins with `prefix`, and return them by the rest of the option."""
        names = [name for name in self.properties if name.startswith(prefix)]
        return {name.removeprefix(prefix): self.properties.pop(name) for name in names}


@dataclass
class AgentProperties:
    """Unparsed properties of one agent."""

    lists: dict[str, Property] = field(default_factory=dict)
    options: dict[str, Property] = field(default_factory=dict)
    components: dict[str, Groups] = field(default_factory=lambda: {kind: {} for kind in LISTS})


def group_properties(agent: str, properties: Mapping[str, Property], report: DiagnosticCollector) -> AgentProperties:
    """Return the properties of an agent as lists, options, and components by kind and name.

    `properties` are by name without the agent's. A line that fits nowhere is left out, with a warning, or an error
    for a probable misspelling.
    """
    written = AgentProperties()
    unknown: Groups = {}
    for key, prop in properties.items():
        head, _, rest = key.partition(".")
        name, _, own = rest.partition(".")
        if key in LISTS:
            written.lists[key] = prop
        elif head in LISTS and name.strip(JAVA_BLANKS) and own:
            written.components[head].setdefault(name.strip(JAVA_BLANKS), {})[own] = prop
        elif head in LISTS:
            message = f"{prop.name} is ignored: it is not of the form {agent}.{head}.<name>.<option>"
            report.warn(prop.place, agent, message)
        elif head in AGENT_KEYS:
            written.options[key] = prop
        else:
            unknown.setdefault(head, {})[key] = prop
    for head, lines in unknown.items():
        first = next(iter(lines.values()))
        more = f" (on {len(lines)} lines)" if len(lines) > 1 else ""
        near = suggest(head, AGENT_KEYS)
        if near and not suggest(head, list(LISTS)):
            report.error(first.place, agent, f"unknown key {head!r}{near}{more}")
        else:
            report.warn(first.place, agent, f"unknown key {head!r}{near}{more} (ignored)")
    return written


def listed_names(
    listed: Property | None, report: DiagnosticCollector, path: str, *, duplicate_note: str = ""
) -> list[str]:
    """Return the distinct names of a list in its order; empty for None or an unresolved value.

    Commas between names are an error, and separate names all the same. A duplicate is a warning with `duplicate_note`
    at its end, which names a difference from Flume.
    """
    if listed is None or not listed.resolved:
        return []
    names = split_names(listed.value)
    if any("," in name for name in names):
        corrected = " ".join(split_names(listed.value.replace(",", " ")))
        message = f"names are separated by blanks, not by commas: write {listed.name} = {corrected}"
        report.error(listed.place, path, message)
        names = split_names(listed.value.replace(",", " "))
    for name in {name for name in names if names.count(name) > 1}:
        report.warn(listed.place, path, f"{name!r} is listed twice{duplicate_note}", differs=bool(duplicate_note))
    return list(dict.fromkeys(names))


def drop_trailing_comment(
    names: list[str], known: Container[str], listed: Property | None, path: str, report: DiagnosticCollector
) -> list[str]:
    """Return `names` without the words of a trailing comment, and warn about the comment.

    It begins at a name with `#` or `//`. Flume takes its words for unknown components. A name in `known` is never
    part of a comment. `listed` is the line.
    """
    start = next((row for row, name in enumerate(names) if name.startswith(("#", "//"))), len(names))
    comment = [name for name in names[start:] if name not in known]
    if listed is None or not comment:
        return names
    message = f"{' '.join(comment)!r} is read as names of components, which do not exist, and ignored, as in Flume"
    report.warn(listed.place, path, f"{message}; write a comment on a line of its own, beginning with #")
    return [name for name in names if name not in comment]


def configured_components(
    kind: str, names: list[str], listed: Property | None, groups: Groups, path: str, report: DiagnosticCollector
) -> Iterator[ComponentProperties]:
    """Yield the components that are both listed and configured, in the order of `names`, and report the others.

    A listed component without properties is an error. Only for a channel it is a warning, as the sources and sinks
    that name the channel report an error. A component that is not listed is a warning.
    """
    unconfigured = [name for name in names if name not in groups]
    unlisted = [name for name in groups if name not in names]
    for name in names:
        if name in groups:
            place = (groups[name].get("type") or next(iter(groups[name].values()))).place
            yield ComponentProperties(kind, name, f"{path}.{name}", place, groups[name])
        elif listed is not None:
            near = _suggest(name, unlisted, unlisted)
            add = f"; add {path}.{name}.type = …, or remove {name} from {listed.name}"
            message = f"is listed but has no properties{near or add}"
            if kind == "channel":
                report.warn(listed.place, f"{path}.{name}", f"{message} (ignored)")
                continue
            report.error(listed.place, f"{path}.{name}", message)
    for name in unlisted:
        message = f"is configured but not listed in {path}, so it does not run{_suggest(name, unconfigured, names)}"
        report.warn(next(iter(groups[name].values())).place, f"{path}.{name}", message)


def _suggest(name: str, likely: list[str], possible: list[str]) -> str:
    """Return `, did you mean 'x'?` with the only likely name, or else with a possible name of similar spelling.

    Empty without one.
    """
    return f", did you mean {likely[0]!r}?" if len(likely) == 1 else suggest(name, possible)
