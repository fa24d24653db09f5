"""Who brought a piece of code: what is wrong with it is told with distribution, entry point, file and line."""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import sys
import threading
import traceback
from collections.abc import Iterator
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

    @property
    def built_in(self) -> bool:
        """Whether it is one of this project's own."""
        return self.entry.dist is not None and _identity(self.entry.dist)[0] == GROUP

    @property
    def package(self) -> str:
        """The top-level module or package that it is in."""
        return self.entry.module.partition(".")[0]

    @property
    def listed(self) -> str:
        """The file that lists it."""
        directory = getattr(self.entry.dist, "_path", None)
        return str(Path(directory) / "entry_points.txt") if directory is not None else self.entry.module

    def __str__(self) -> str:
        dist = self.entry.dist
        name = " ".join(_identity(dist)) if dist is not None else "of no distribution"
        return f"plugin {name} (entry point '{self.entry.name} = {self.entry.value}')"


@functools.lru_cache(maxsize=64)
def _identity(dist: importlib.metadata.Distribution) -> tuple[str, str]:
    """Name and version, read once for all its entry points: they stand in a file with all of its README."""
    return dist.name, dist.version


def plugins() -> Iterator[Plugin]:
    """All that are installed, built-in ones first."""
    found = [Plugin(entry) for entry in importlib.metadata.entry_points(group=GROUP)]
    yield from sorted(found, key=lambda plugin: not plugin.built_in)


def plugin_of(module: str) -> Plugin | None:
    """Who brings a module; None for the built-in ones and for those that no entry point names."""
    package = module.partition(".")[0]
    return next((plugin for plugin in plugins() if plugin.package == package and not plugin.built_in), None)


def place_of(cls: Any) -> tuple[str, int]:
    """File and line of a class or function; an empty file where there is none."""
    try:
        return inspect.getsourcefile(cls) or "", inspect.getsourcelines(cls)[1]
    except (OSError, TypeError):
        return "", 0


def described(cls: type, place: tuple[str, int] | None = None) -> str:
    """A component's class with file and line, those of `place` or else its own, and its plugin."""
    file, line = place or place_of(cls)
    plugin = plugin_of(cls.__module__)
    where = [f"{file}:{line}"] * bool(file) + [str(plugin)] * (plugin is not None)
    return f"{cls.__module__}.{cls.__qualname__}" + (f" ({', '.join(where)})" if where else "")


def blamed(error: BaseException) -> str:
    """Where in a plugin an error was raised: file, line and plugin; empty where none had to do with it."""
    packages = {plugin.package: plugin for plugin in plugins() if not plugin.built_in}
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        plugin = packages.get(frame.f_globals.get("__name__", "").partition(".")[0])
        if plugin is not None:
            return f"{frame.f_code.co_filename}:{line}, {plugin}"
    return ""


def from_plugin(error: BaseException) -> TracebackType | None:
    """Its traceback from the first frame of a plugin on: what calls the plugin is no concern of who mends it.

    The whole traceback where no plugin had to do with it.
    """
    packages = {plugin.package for plugin in plugins() if not plugin.built_in}
    found = error.__traceback__
    while found is not None:
        if found.tb_frame.f_globals.get("__name__", "").partition(".")[0] in packages:
            return found
        found = found.tb_next
    return error.__traceback__


def at_work(thread: threading.Thread) -> str:
    """What a thread does: the innermost call of a plugin, or else of all, with file and line; empty at its end."""
    packages = {plugin.package for plugin in plugins() if not plugin.built_in}
    frame = sys._current_frames().get(thread.ident or 0)
    frames = [frame for frame, _ in traceback.walk_stack(frame)] if frame is not None else []
    ours = (one for one in frames if one.f_globals.get("__name__", "").partition(".")[0] in packages)
    found = next(ours, frames[0] if frames else None)
    if found is None:
        return ""
    return f"{found.f_code.co_name}() at {found.f_code.co_filename}:{found.f_lineno}"


def raised_at(error: BaseException) -> tuple[str, int]:
    """File and line, of its own, where a module could not be imported; an empty file where there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno or 0
    machinery = (__file__, importlib.__file__, importlib.metadata.__file__)
    found = [
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith("<frozen importlib")
        and frame.f_code.co_filename not in machinery
        and not frame.f_globals.get("__name__", "").startswith(("plugins.manager", "pluggy"))
    ]
    if not found:
        return "", 0
    first = Path(found[0][0])
    package = first.parent if first.name == "__init__.py" else first
    return [place for place in found if Path(place[0]).is_relative_to(package)][-1]
