"""Users' real configurations: those that run here, and the obstacles of the others.

`python -m tests.conformance.real_files` prints the table. The files are the suite `real_files` of the conformance
cases, with the parts that Flume 1.11 keeps of each. No server is contacted: `agent check` runs without a Hadoop
configuration, and with only the environment and `-D` properties that a file needs.
"""

from __future__ import annotations

import json
import re
import tempfile
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flafka.agent.config import Diagnostic, catalogue, load
from flafka.agent.topology import AgentSpec
from flafka.plugins import Components
from tests.conformance import adapters

SUITE = "real_files"

_CLASS = re.compile(
    r"\.(?:(sources|channels|sinks|interceptors)\.[^.]+\.type|(selector|processor)\.type|"
    r"(serializer|handler|deserializer))[ \t]*[=:][ \t]*"
    r"([a-z]\w*\.[\w.$]+)[ \t]*$",
    re.MULTILINE,
)
"""Java class as a type: the kind of component, and the class."""
_KINDS = {
    "sources": "source",
    "channels": "channel",
    "sinks": "sink",
    "interceptors": "interceptor",
    "selector": "selector",
    "processor": "sink processor",
}
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")


NOTES: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
"""Notes on single files, by kind and id."""
FROM_ENVIRONMENT = {"propertiesImplementation": "org.apache.flume.node.EnvVarResolverProperties"}
"""System property by which Flume takes `${NAME}` from the environment."""


def environment(id: str) -> dict[str, str]:
    """Return the environment variables of that file."""
    variables: dict[str, str] = NOTES["environment"].get(id, {})
    return variables


def system(id: str) -> dict[str, str]:
    """Return the `-D` properties with which that file is started."""
    return FROM_ENVIRONMENT if environment(id) else {}


def loaded(
    id: str, file: Path, name: str | None, components: Components
) -> tuple[AgentSpec | None, list[Diagnostic]]:
    """Return the loaded agent of that file, or of its migration, and the diagnostics."""
    return load(file, name, components=components, environment=environment(id), system=system(id))


@dataclass(frozen=True)
class Verdict:
    """Result of one file."""

    id: str
    reason: str
    """Empty if every agent that Flume would run runs, else `java`, `unbuilt` or `other`."""
    errors: tuple[Diagnostic, ...]
    """Errors that keep it from running."""
    differs: tuple[str, ...]
    """Agents that would run with other parts than Flume keeps."""


def files() -> list[dict[str, Any]]:
    """Return the cases; empty if they are absent."""
    path = adapters.cases() / f"{SUITE}.json"
    if not path.exists():
        return []
    cases: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))["cases"]
    return cases


def judge(case: dict[str, Any], components: Components) -> Verdict:
    """Run `agent check` on one file, for each agent that Flume would run."""
    agents: dict[str, dict[str, list[str]] | None] = case["expected"]["agents"]
    text: str = case["input"]["properties"]
    errors: list[Diagnostic] = []
    differs = []
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "flume.conf")
        file.write_text(text, "utf-8", newline="")
        for name in [name for name, started in agents.items() if started] or [None]:
            spec, diagnostics = loaded(case["id"], file, name, components)
            errors += [diagnostic for diagnostic in diagnostics if diagnostic.severity == "error"]
            if spec is not None and name is not None and (started := agents[name]) is not None:
                specs = {"sources": spec.sources, "channels": spec.channels, "sinks": spec.sinks}
                names = {kind: sorted(part.name for part in parts) for kind, parts in specs.items()}
                if names != {kind: sorted(started[kind]) for kind in specs}:
                    differs.append(name)
    return Verdict(case["id"], _reason(text, errors), tuple(errors), tuple(differs))


def _reason(text: str, errors: list[Diagnostic]) -> str:
    if not errors:
        return ""
    if any("Java class" in error.message for error in errors) and own_classes(text):
        return "java"
    return "unbuilt" if all(re.search("is not (built yet|supported)", error.message) for error in errors) else "other"


def own_classes(text: str) -> list[str]:
    """Return the Java classes of a file that are not Flume's own."""
    classes = []
    for match in _CLASS.finditer(re.sub(r"(?m)^[ \t]*[#!].*$", "", text)):
        part = match[1] or match[2]
        kinds = [_KINDS[part]] if part else ["serializer", "deserializer"]
        if not any(catalogue.find_type(kind, match[4]) for kind in kinds):
            classes.append(match[4])
    return classes


def table(verdicts: list[Verdict]) -> str:
    """Return the number of running files, and the missing types and options with their numbers of files."""
    reasons = Counter(verdict.reason or "runs" for verdict in verdicts)
    missing: Counter[str] = Counter()
    for verdict in verdicts:
        missing.update({_short(error) for error in verdict.errors})
    lines = [f"{reasons[name]:4} {name}" for name in ("runs", "java", "unbuilt", "other")]
    lines += [f"{count:4}   {text}" for text, count in missing.most_common()]
    lines += [f"     {v.id}: {e}" for v in verdicts if v.reason == "other" for e in v.errors]
    return "\n".join(lines)


def _short(error: Diagnostic) -> str:
    """Return an error without names and values except types, so that files with the same error agree."""
    kind = error.component.split(".")[-2] if error.component.count(".") >= 2 else "agent"
    message = error.message.partition(";")[0]
    quoted = "" if "type" in message or re.search("not (built|supported)", message) else "…"
    return f"{kind}: {_QUOTED.sub(quoted, message) if quoted else message}"[:110]


def main() -> None:
    """Print the table."""
    components = Components()
    print(table([judge(case, components) for case in files()]))


if __name__ == "__main__":
    main()
