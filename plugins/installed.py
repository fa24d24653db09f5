"""Installed plugins, and the plugin that a class, a thread or an error belongs to.

`read_plugins` and `source_location` read files. All other functions use the latest result of `read_plugins`, without
file I/O: a process that reports an error may have no file descriptor left.
"""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import sys
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

ENTRY_POINT_GROUP = "flafka"
"""Entry-point group, pluggy's project name, and the distribution that the built-in components belong to."""


@dataclass(frozen=True)
class Plugin:
    """One entry point of the group."""

    entry: importlib.metadata.EntryPoint
    distribution: str
    """Name and version of the distribution, such as `flafka-extras 1.0`; empty if there is none."""
    is_built_in: bool
    """True for the project's own distribution."""

    @property
    def package(self) -> str:
        """Name of the plugin's top-level module or package."""
        return self.entry.module.partition(".")[0]

    @property
    def entry_points_file(self) -> str:
        """Path of the file that lists the entry point."""
        directory = getattr(self.entry.dist, "_path", None)
        return str(Path(directory) / "entry_points.txt") if directory is not None else self.entry.module

    def __str__(self) -> str:
        name = self.distribution or "of no distribution"
        return f"plugin {name} (entry point '{self.entry.name} = {self.entry.value}')"


_latest: tuple[Plugin, ...] | None = None
"""Latest result of `read_plugins`."""


@functools.lru_cache(maxsize=64)
def _identity(dist: importlib.metadata.Distribution) -> tuple[str, str]:
    """Return name and version. Cached, because the metadata file of a distribution also holds its whole README."""
    return dist.name, dist.version


def read_plugins() -> tuple[Plugin, ...]:
    """Return the installed plugins, built-in ones first. Reads files."""
    global _latest
    installed = []
    for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        name, version = _identity(entry.dist) if entry.dist is not None else ("", "")
        installed.append(Plugin(entry, f"{name} {version}".strip(), name == ENTRY_POINT_GROUP))
    _latest = tuple(sorted(installed, key=lambda plugin: not plugin.is_built_in))
    return _latest


def _third_party() -> dict[str, Plugin]:
    """Return the plugins that are not built in, by top-level package. Reads files only on the first call."""
    known = read_plugins() if _latest is None else _latest
    return {plugin.package: plugin for plugin in known if not plugin.is_built_in}


def plugin_of(module: str) -> Plugin | None:
    """Return the plugin of a module, or None for a built-in module and for one that no entry point names."""
    return _third_party().get(module.partition(".")[0])


def source_location(cls: Any) -> tuple[str, int]:
    """Return file and line of a class or function, by its source file; an empty file if there is no source."""
    try:
        return inspect.getsourcefile(cls) or "", inspect.getsourcelines(cls)[1]
    except (OSError, TypeError):
        return "", 0


def describe_class(cls: type, location: tuple[str, int] | None = None) -> str:
    """Return a component's class as text, with its plugin and location.

    Reads the source file if `location`, a file and a line, is None.
    """
    file, line = location or source_location(cls)
    plugin = plugin_of(cls.__module__)
    details = [f"{file}:{line}"] * bool(file) + [str(plugin)] * (plugin is not None)
    return f"{cls.__module__}.{cls.__qualname__}" + (f" ({', '.join(details)})" if details else "")


def describe_method(cls: type, name: str) -> str:
    """Return a component's class as text, with its plugin and the location of a method. Reads no file."""
    method = getattr(cls, name, None)
    code = getattr(inspect.unwrap(method), "__code__", None) if callable(method) else None
    return describe_class(cls, (code.co_filename, code.co_firstlineno) if code is not None else ("", 0))


def plugin_location(error: BaseException) -> str:
    """Return file, line and plugin of the innermost frame of a plugin in a traceback; empty if there is none."""
    packages = _third_party()
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        plugin = packages.get(frame.f_globals.get("__name__", "").partition(".")[0])
        if plugin is not None:
            return f"{frame.f_code.co_filename}:{line}, {plugin}"
    return ""


def plugin_traceback(error: BaseException) -> TracebackType | None:
    """Return the traceback of an error from the first frame of a plugin on; the whole traceback if there is none.

    The frames before belong to the agent, and do not help the author of the plugin.
    """
    packages = _third_party()
    part = error.__traceback__
    while part is not None:
        if part.tb_frame.f_globals.get("__name__", "").partition(".")[0] in packages:
            return part
        part = part.tb_next
    return error.__traceback__


def current_call(thread: threading.Thread) -> str:
    """Return the innermost call of a thread, preferably of a plugin, with file and line; empty after its end."""
    packages = _third_party()
    frame = sys._current_frames().get(thread.ident or 0)
    frames = [frame for frame, _ in traceback.walk_stack(frame)] if frame is not None else []
    of_plugins = (frame for frame in frames if frame.f_globals.get("__name__", "").partition(".")[0] in packages)
    innermost = next(of_plugins, frames[0] if frames else None)
    if innermost is None:
        return ""
    return f"{innermost.f_code.co_name}() at {innermost.f_code.co_filename}:{innermost.f_lineno}"


def import_error_location(error: BaseException) -> tuple[str, int]:
    """Return file and line at which an import has failed; an empty file if they are unknown."""
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno or 0
    machinery = (__file__, importlib.__file__, importlib.metadata.__file__)
    locations = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith("<frozen importlib")
        and frame.f_code.co_filename not in machinery
        and not frame.f_globals.get("__name__", "").startswith(("flafka.plugins.manager", "pluggy"))
    ]
    if not locations:
        return "", 0
    first = Path(locations[0][0])
    package = first.parent if first.name == "__init__.py" else first
    return [location for location in locations if Path(location[0]).is_relative_to(package)][-1]
