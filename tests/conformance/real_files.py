"""Configurations that people really have: which of them run here, and what keeps the others from it.

`python -m tests.conformance.real_files` prints the table. The files are the suite `real_files` of the conformance
cases, with the parts that Flume 1.11 keeps of each. No server is asked: this is what `agent check` says without a
Hadoop configuration, and without an environment and `-D` properties but those that a file cannot do without.
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
"""A Java class as the type of something: what kind of thing, and the class."""
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
"""What is known of single files: by kind and id."""
FROM_ENVIRONMENT = {"propertiesImplementation": "org.apache.flume.node.EnvVarResolverProperties"}
"""The system property by which Flume takes `${NAME}` from the environment."""


def environment(id: str) -> dict[str, str]:
    """What that file takes from the environment."""
    found: dict[str, str] = NOTES["environment"].get(id, {})
    return found


def system(id: str) -> dict[str, str]:
    """The `-D` properties with which that file is started."""
    return FROM_ENVIRONMENT if environment(id) else {}


def loaded(
    id: str, file: Path, name: str | None, components: Components
) -> tuple[AgentSpec | None, list[Diagnostic]]:
    """What that file, or what was made of it, is here."""
    return load(file, name, components=components, environment=environment(id), system=system(id))


@dataclass(frozen=True)
class Verdict:
    """What becomes of one file."""

    id: str
    reason: str
    """Empty where every agent of it that Flume would run runs, else `java`, `unbuilt` or `other`."""
    errors: tuple[Diagnostic, ...]
    """All that keeps it from running."""
    differs: tuple[str, ...]
    """Agents that would run with other parts than Flume keeps."""


def files() -> list[dict[str, Any]]:
    """The cases; none where there are none."""
    path = adapters.cases() / f"{SUITE}.json"
    if not path.exists():
        return []
    found: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))["cases"]
    return found


def judge(case: dict[str, Any], components: Components) -> Verdict:
    """Run `agent check` on one file, for each agent that Flume would run."""
    agents: dict[str, dict[str, list[str]] | None] = case["expected"]["agents"]
    text: str = case["input"]["properties"]
    errors: list[Diagnostic] = []
    differs = []
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "flume.conf")
        file.write_text(text, "utf-8", newline="")
        for name in [name for name, kept in agents.items() if kept] or [None]:
            spec, found = loaded(case["id"], file, name, components)
            errors += [one for one in found if one.severity == "error"]
            if spec is not None and name is not None and (kept := agents[name]) is not None:
                ours = {"sources": spec.sources, "channels": spec.channels, "sinks": spec.sinks}
                names = {kind: sorted(part.name for part in parts) for kind, parts in ours.items()}
                if names != {kind: sorted(kept[kind]) for kind in ours}:
                    differs.append(name)
    return Verdict(case["id"], _reason(text, errors), tuple(errors), tuple(differs))


def _reason(text: str, errors: list[Diagnostic]) -> str:
    if not errors:
        return ""
    if any("Java class" in error.message for error in errors) and own_classes(text):
        return "java"
    return "unbuilt" if all("is not built yet" in error.message for error in errors) else "other"


def own_classes(text: str) -> list[str]:
    """The Java classes that a file names and that are none of Flume's own."""
    found = []
    for match in _CLASS.finditer(re.sub(r"(?m)^[ \t]*[#!].*$", "", text)):
        part = match[1] or match[2]
        kinds = [_KINDS[part]] if part else ["serializer", "deserializer"]
        if not any(catalogue.find(kind, match[4]) for kind in kinds):
            found.append(match[4])
    return found


def table(verdicts: list[Verdict]) -> str:
    """How many run, and what is missing, by component type and option, with the number of files."""
    reasons = Counter(verdict.reason or "runs" for verdict in verdicts)
    missing: Counter[str] = Counter()
    for verdict in verdicts:
        missing.update({_short(error) for error in verdict.errors})
    lines = [f"{reasons[name]:4} {name}" for name in ("runs", "java", "unbuilt", "other")]
    lines += [f"{count:4}   {what}" for what, count in missing.most_common()]
    lines += [f"     {v.id}: {e}" for v in verdicts if v.reason == "other" for e in v.errors]
    return "\n".join(lines)


def _short(error: Diagnostic) -> str:
    """One sentence for the same thing in several files: without names and values, but for those of types."""
    kind = error.component.split(".")[-2] if error.component.count(".") >= 2 else "agent"
    message = error.message.partition(";")[0]
    quoted = "" if "type" in message or "not built" in message else "…"
    return f"{kind}: {_QUOTED.sub(quoted, message) if quoted else message}"[:110]


def main() -> None:
    """Print the table."""
    components = Components()
    print(table([judge(case, components) for case in files()]))


if __name__ == "__main__":
    main()
