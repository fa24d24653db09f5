"""Installed plugins, and the plugin that a class, a thread or an error belongs to.

`plugins` and `place_of` read files. All other functions use what `plugins` has read last: an error is reported
without any file I/O, as the process may have no file descriptor left.
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

GROUP = "flafka"
"""Entry-point group, pluggy's project name, and the distribution that the built-in components belong to."""


@dataclass(frozen=True)
class Plugin:
    """One entry point of the group."""

    entry: importlib.metadata.EntryPoint
    distribution: str
    """Name and version of the distribution, as in `flafka-extras 1.0`; empty where there is none."""
    built_in: bool
    """True for the project's own distribution."""

    @property
    def package(self) -> str:
        """Name of the plugin's top-level module or package."""
        return self.entry.module.partition(".")[0]

    @property
    def listed(self) -> str:
        """Path of the file that lists the entry point."""
        directory = getattr(self.entry.dist, "_path", None)
        return str(Path(directory) / "entry_points.txt") if directory is not None else self.entry.module

    def __str__(self) -> str:
        name = self.distribution or "of no distribution"
        return f"plugin {name} (entry point '{self.entry.name} = {self.entry.value}')"


_read: tuple[Plugin, ...] | None = None
"""Latest result of `plugins`."""


@functools.lru_cache(maxsize=64)
def _identity(dist: importlib.metadata.Distribution) -> tuple[str, str]:
    """Name and version. Read once per distribution, as its metadata file also holds the whole README."""
    return dist.name, dist.version


def plugins() -> tuple[Plugin, ...]:
    """Read the installed plugins, built-in ones first."""
    global _read
    found = []
    for entry in importlib.metadata.entry_points(group=GROUP):
        name, version = _identity(entry.dist) if entry.dist is not None else ("", "")
        found.append(Plugin(entry, f"{name} {version}".strip(), name == GROUP))
    _read = tuple(sorted(found, key=lambda plugin: not plugin.built_in))
    return _read


def _foreign() -> dict[str, Plugin]:
    """Plugins that are not built in, by top-level package. Reads no file, except before the first `plugins`."""
    known = plugins() if _read is None else _read
    return {plugin.package: plugin for plugin in known if not plugin.built_in}


def plugin_of(module: str) -> Plugin | None:
    """Return the plugin of a module, or None for a built-in module and for one that no entry point names."""
    return _foreign().get(module.partition(".")[0])


def place_of(cls: Any) -> tuple[str, int]:
    """File and line of a class or function, found in its source file; an empty file where there is none."""
    try:
        return inspect.getsourcefile(cls) or "", inspect.getsourcelines(cls)[1]
    except (OSError, TypeError):
        return "", 0


def described(cls: type, place: tuple[str, int] | None = None) -> str:
    """A component's class with its plugin, and with `place` or else file and line of the class (reads its source)."""
    file, line = place or place_of(cls)
    plugin = plugin_of(cls.__module__)
    where = [f"{file}:{line}"] * bool(file) + [str(plugin)] * (plugin is not None)
    return f"{cls.__module__}.{cls.__qualname__}" + (f" ({', '.join(where)})" if where else "")


def described_method(cls: type, name: str) -> str:
    """A component's class with its plugin, and file and line of a method by its compiled code. Reads no file."""
    method = getattr(cls, name, None)
    code = getattr(inspect.unwrap(method), "__code__", None) if callable(method) else None
    return described(cls, (code.co_filename, code.co_firstlineno) if code is not None else ("", 0))


def blamed(error: BaseException) -> str:
    """File, line and plugin of the innermost frame of a plugin in a traceback; empty where there is none."""
    packages = _foreign()
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        plugin = packages.get(frame.f_globals.get("__name__", "").partition(".")[0])
        if plugin is not None:
            return f"{frame.f_code.co_filename}:{line}, {plugin}"
    return ""


def from_plugin(error: BaseException) -> TracebackType | None:
    """Traceback of an error from the first frame of a plugin on, or the whole traceback where there is none.

    The frames before it belong to the agent, and do not help the author of the plugin.
    """
    packages = _foreign()
    found = error.__traceback__
    while found is not None:
        if found.tb_frame.f_globals.get("__name__", "").partition(".")[0] in packages:
            return found
        found = found.tb_next
    return error.__traceback__


def at_work(thread: threading.Thread) -> str:
    """Innermost call of a thread, of a plugin where there is one, with file and line; empty after its end."""
    packages = _foreign()
    frame = sys._current_frames().get(thread.ident or 0)
    frames = [frame for frame, _ in traceback.walk_stack(frame)] if frame is not None else []
    ours = (one for one in frames if one.f_globals.get("__name__", "").partition(".")[0] in packages)
    found = next(ours, frames[0] if frames else None)
    if found is None:
        return ""
    return f"{found.f_code.co_name}() at {found.f_code.co_filename}:{found.f_lineno}"


def raised_at(error: BaseException) -> tuple[str, int]:
    """File and line of a module that could not be imported; an empty file where they are unknown."""
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno or 0
    machinery = (__file__, importlib.__file__, importlib.metadata.__file__)
    found = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith("<frozen importlib")
        and frame.f_code.co_filename not in machinery
        and not frame.f_globals.get("__name__", "").startswith(("flafka.plugins.manager", "pluggy"))
    ]
    if not found:
        return "", 0
    first = Path(found[0][0])
    package = first.parent if first.name == "__init__.py" else first
    return [place for place in found if Path(place[0]).is_relative_to(package)][-1]
