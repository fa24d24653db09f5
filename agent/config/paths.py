"""Absolute forms of the relative paths in a configuration."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from flafka.agent.config.diagnostics import DiagnosticCollector
from flafka.agent.config.properties import Property
from flafka.plugins import Option

_KAFKA_STORE_OPTION = re.compile(r"kafka\.(.+\.)?ssl\.\w+\.location")
"""Options of Kafka's Java client with a file name, which Flume passes on to the client."""
_ABSOLUTE = re.compile(r"[/~]|[A-Za-z][A-Za-z0-9+.-]*:|$")
"""Start of an absolute path, of a home directory or of a URL; also matches an empty value."""


def absolute_paths(
    component: str, options: Iterable[Option], properties: Mapping[str, Property], report: DiagnosticCollector
) -> dict[str, str]:
    """Return option → absolute form of each value that is a relative path, or a list with one.

    A path in an option of Flume is relative to the working directory, as in Flume. Any other path is relative to the
    directory of the configuration file. File name patterns are left out. All forms are added to `report.paths`, and a
    warning to `report` if the file exists only relative to the other directory. `component` is the path of the
    component.
    """
    declared, absolute = list(options), {}
    for name, prop in properties.items():
        option = next((option for option in declared if _is_path_option(option, name)), None)
        kind = option.path if option is not None else "flume" if _KAFKA_STORE_OPTION.fullmatch(name) else ""
        parts = [part.strip() for part in prop.value.split(",")] if kind == "flume list" else [prop.value]
        if not kind or all(map(_ABSOLUTE.match, parts)):
            continue
        home = Path(prop.place.file).absolute().parent
        base = home if kind == "own" else Path.cwd()
        is_pattern = name.startswith("filegroups.")  # the last part is a regex, which normpath would damage
        value = ",".join(part if _ABSOLUTE.match(part) else _join(base, part, is_pattern) for part in parts)
        report.paths[f"{component}.{name}"] = value
        if not is_pattern:
            absolute[name] = value
        base_name = (
            "the directory of the configuration file" if kind == "own" else "the working directory, as in Flume"
        )
        other = Path(os.path.normpath((Path.cwd() if kind == "own" else home) / prop.value))
        if (option is None or option.must_exist) and other.exists() and not Path(value).exists():
            report.warn(
                *(prop.place, component),
                f"{name} is {value}, which does not exist: the option is relative to {base_name}; if you mean "
                f"{other}, write that path",
            )
    return absolute


def _is_path_option(option: Option, name: str) -> bool:
    """Return True if the property `name` belongs to the option, and its value is a path by the option's declaration.

    An option that is a prefix has all properties that begin with it. If its `path` is not `flume`, only those that
    end in `.path` have paths as values.
    """
    if option.path and option.is_prefix:
        return name.startswith(option.name) and (option.path == "flume" or name.endswith(".path"))
    return bool(option.path) and option.name == name


def _join(base: Path, part: str, is_pattern: bool) -> str:
    """Return the absolute path of `part` below `base`; a pattern is not normalized."""
    return f"{base}/{part}" if is_pattern else os.path.normpath(base / part)
