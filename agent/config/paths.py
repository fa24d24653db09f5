"""Relative paths in a configuration: what they begin at, and their absolute form."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from flafka.agent.config.diagnostics import DiagnosticCollector
from flafka.agent.config.properties import Property
from flafka.plugins import Option

_STORE = re.compile(r"kafka\.(.+\.)?ssl\.\w+\.location")
"""Options of Kafka's Java client that name a file, which Flume passes on."""
_ABSOLUTE = re.compile(r"[/~]|[A-Za-z][A-Za-z0-9+.-]*:|$")
"""Beginning of an absolute path, of a home directory or of a URL; or no path at all."""


def absolute_paths(
    component: str, options: Iterable[Option], properties: Mapping[str, Property], report: DiagnosticCollector
) -> dict[str, str]:
    """Return the values of options with relative paths, by option, in their absolute form.

    A path in an option that Flume has begins at the working directory, as in Flume. In an option of ours it begins
    at the directory of the configuration file. A file that is there in the other directory alone is a warning.
    """
    declared, found = list(options), {}
    for name, prop in properties.items():
        option = next((one for one in declared if _is_of(one, name)), None)
        kind = option.path if option is not None else "flume" if _STORE.fullmatch(name) else ""
        parts = [part.strip() for part in prop.value.split(",")] if kind == "flume list" else [prop.value]
        if not kind or all(map(_ABSOLUTE.match, parts)):
            continue
        home = Path(prop.place.file).absolute().parent
        base = home if kind == "own" else Path.cwd()
        pattern = name.startswith("filegroups.")  # its last part is a regex, and taildir joins it itself
        value = ",".join(part if _ABSOLUTE.match(part) else _joined(base, part, pattern) for part in parts)
        report.paths[f"{component}.{name}"] = value
        if not pattern:
            found[name] = value
        begins = "the directory of the configuration file" if kind == "own" else "the working directory, as in Flume"
        other = Path(os.path.normpath((Path.cwd() if kind == "own" else home) / prop.value))
        if (option is None or option.file) and other.exists() and not Path(value).exists():
            report.warn(
                *(prop.place, component),
                f"{name} is {value}, which does not exist: a relative path of this option begins at {begins}; write "
                f"{other} for the one there",
            )
    return found


def _is_of(option: Option, name: str) -> bool:
    if option.path and option.is_prefix:
        return name.startswith(option.name) and (option.path == "flume" or name.endswith(".path"))
    return bool(option.path) and option.name == name


def _joined(base: Path, part: str, pattern: bool) -> str:
    return f"{base}/{part}" if pattern else os.path.normpath(base / part)
