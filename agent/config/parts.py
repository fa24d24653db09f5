"""The lines of one agent, sorted by the component they are about."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field

from flafka.agent.config.diagnostics import DiagnosticCollector
from flafka.agent.config.properties import BLANKS, LISTS, Property, words
from flafka.agent.options import AgentOptions
from flafka.agent.topology import Place
from flafka.plugins.problems import suggestion

Groups = dict[str, dict[str, Property]]
"""The properties of several components, by component and option."""

AGENT_WORDS = sorted({*LISTS, *(option.name.partition(".")[0] for option in AgentOptions.options())})


@dataclass
class ComponentProperties:
    """What is written about one component, before it is understood."""

    kind: str
    name: str
    path: str
    place: Place
    """Its `type` line, else its first."""
    properties: dict[str, Property]
    """By option; what belongs to the agent rather than to the component gets taken out."""

    def take(self, name: str) -> Property | None:
        """One property, taken out."""
        return self.properties.pop(name, None)

    def take_all(self, prefix: str) -> dict[str, Property]:
        """All properties under a prefix, without it, taken out."""
        names = [name for name in self.properties if name.startswith(prefix)]
        return {name.removeprefix(prefix): self.properties.pop(name) for name in names}


@dataclass
class AgentProperties:
    """All that is written about one agent."""

    lists: dict[str, Property] = field(default_factory=dict)
    options: dict[str, Property] = field(default_factory=dict)
    components: dict[str, Groups] = field(default_factory=lambda: {kind: {} for kind in LISTS})


def sort(agent: str, properties: Mapping[str, Property], report: DiagnosticCollector) -> AgentProperties:
    """Sort an agent's properties, which come by name without the agent's; lines that mean nothing are reported."""
    written = AgentProperties()
    strange: Groups = {}
    for key, prop in properties.items():
        head, _, rest = key.partition(".")
        name, _, own = rest.partition(".")
        if key in LISTS:
            written.lists[key] = prop
        elif head in LISTS and name.strip(BLANKS) and own:
            written.components[head].setdefault(name.strip(BLANKS), {})[own] = prop
        elif head in LISTS:
            message = f"{prop.name} is not understood; expected {agent}.{head}.<name>.<option>"
            report.warn(prop.place, agent, f"{message} (ignored)")
        elif head in AGENT_WORDS:
            written.options[key] = prop
        else:
            strange.setdefault(head, {})[key] = prop
    for head, lines in strange.items():
        first = next(iter(lines.values()))
        more = f" (on {len(lines)} lines)" if len(lines) > 1 else ""
        near = suggestion(head, AGENT_WORDS)
        if near and not suggestion(head, list(LISTS)):
            report.error(first.place, agent, f"unknown key {head!r}{near}{more}")
        else:
            report.warn(first.place, agent, f"unknown key {head!r}{near}{more} (ignored)")
    return written


def names_in(listed: Property | None, report: DiagnosticCollector, path: str, *, twice: str = "") -> list[str]:
    """The names of a list, each once; what is wrong with the list is reported.

    `twice` says what Flume does with a name that is there twice, where it does otherwise.
    """
    if listed is None or not listed.resolved:
        return []
    names = words(listed.value)
    if any("," in name for name in names):
        apart = " ".join(words(listed.value.replace(",", " ")))
        message = f"names are separated by blanks, not by commas: write {listed.name} = {apart}"
        report.error(listed.place, path, message)
        names = words(listed.value.replace(",", " "))
    for name in {name for name in names if names.count(name) > 1}:
        report.warn(listed.place, path, f"{name!r} is listed twice{twice}", differs=bool(twice))
    return list(dict.fromkeys(names))


def without_remark(
    names: list[str], known: Container[str], listed: Property | None, path: str, report: DiagnosticCollector
) -> list[str]:
    """The names without a comment behind them, for which Flume looks in vain; what is known is none."""
    start = next((row for row, name in enumerate(names) if name.startswith(("#", "//"))), len(names))
    remark = [name for name in names[start:] if name not in known]
    if listed is None or not remark:
        return names
    message = f"{' '.join(remark)!r} is taken for names, which nothing here has, and ignored, as in Flume"
    report.warn(listed.place, path, f"{message}; a comment is a line of its own, which begins with #")
    return [name for name in names if name not in remark]


def parts(
    kind: str, names: list[str], listed: Property | None, groups: Groups, path: str, report: DiagnosticCollector
) -> Iterator[ComponentProperties]:
    """The components that are listed and configured; those that are only one of the two are reported.

    A channel without properties keeps nothing from running that does not name it.
    """
    bare = [name for name in names if name not in groups]
    unlisted = [name for name in groups if name not in names]
    for name in names:
        if name in groups:
            place = (groups[name].get("type") or next(iter(groups[name].values()))).place
            yield ComponentProperties(kind, name, f"{path}.{name}", place, groups[name])
        elif listed is not None:
            meant = _meant(name, unlisted, unlisted)
            add = f"; add {path}.{name}.type = …, or take it out of {listed.name}"
            message = f"is listed but has no properties{meant or add}"
            if kind == "channel":  # whatever names it is told so
                report.warn(listed.place, f"{path}.{name}", f"{message} (ignored)")
                continue
            report.error(listed.place, f"{path}.{name}", message)
    for name in unlisted:
        message = f"is configured but not listed in {path}, so it does not run{_meant(name, bare, names)}"
        report.warn(next(iter(groups[name].values())).place, f"{path}.{name}", message)


def _meant(name: str, likely: list[str], possible: list[str]) -> str:
    """Which name was meant: the only likely one, else one that is spelled alike."""
    return f", did you mean {likely[0]!r}?" if len(likely) == 1 else suggestion(name, possible)
