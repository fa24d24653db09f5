"""Registry of components, from one hook and one entry-point group for built-in components and plugins."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import pluggy

from flafka.plugins.channel import Channel
from flafka.plugins.component import Component
from flafka.plugins.contractcheck import find_contract_violations, method_signature
from flafka.plugins.errors import ANY_FAILURE, FlafkaError
from flafka.plugins.installed import (
    ENTRY_POINT_GROUP,
    Plugin,
    describe_class,
    import_error_location,
    read_plugins,
    source_location,
)
from flafka.plugins.interceptor import Interceptor
from flafka.plugins.problems import suggest
from flafka.plugins.sink import Sink
from flafka.plugins.source import Source
from flafka.plugins.streaming import StreamingSink

KINDS: dict[str, tuple[type[Component[Any]], ...]] = {
    "source": (Source,),
    "channel": (Channel,),
    "interceptor": (Interceptor,),
    "sink": (Sink, StreamingSink),
}

hookspec = pluggy.HookspecMarker(ENTRY_POINT_GROUP)
hookimpl = pluggy.HookimplMarker(ENTRY_POINT_GROUP)


class Hooks:
    """Hooks that a plugin module may implement."""

    @hookspec
    def components(self) -> Iterable[type[Component[Any]]]:  # type: ignore[empty-body]  # a declaration, which pluggy never calls
        """Return the component classes of the module."""


class UnknownType(FlafkaError):
    """Lack of a component of that type name. The text suggests similar names."""


class UnusableType(UnknownType):
    """Use of a component that violates the contract. The text names the violation and the plugin."""


@dataclass(frozen=True)
class Fault:
    """Failure of a plugin, or of one of its components. All others stay usable."""

    message: str
    file: str
    line: int
    """Line of the file, from 1; 0 if unknown."""
    is_whole_plugin: bool
    """True if no component of the plugin can be used, and their types are unknown."""


class Components:
    """Components that a configuration can name, built-in and of plugins.

    The failures of plugins are in `faults`. Only `get` of a component concerned raises them.
    """

    def __init__(self, modules: Iterable[Any] = (), *, entry_points: bool = True) -> None:
        """Load the plugins of all entry points, unless `entry_points` is False, and the components of these modules.

        Failures are collected in `faults`; nothing is raised. If there are only built-in components, each is imported
        on its first use: a configuration needs a few, and all components take 6 MiB.
        """
        self.faults: list[Fault] = []
        self._by_name: dict[tuple[str, str], type[Component[Any]]] = {}
        self._unusable: dict[tuple[str, str], Fault] = {}
        self._manager = pluggy.PluginManager(ENTRY_POINT_GROUP)
        self._manager.add_hookspecs(Hooks)
        plugins = read_plugins() if entry_points else ()
        self._not_loaded = plugins if all(plugin.is_built_in for plugin in plugins) and not modules else ()
        """Built-in plugins of which not all components are imported."""
        if not self._not_loaded:
            self._load(plugins)
        for module in modules:
            self._register(module, f"module {getattr(module, '__name__', module)}", None)

    def _load(self, plugins: Iterable[Plugin]) -> None:
        """Import these plugins, and add their components or faults."""
        for plugin in plugins:
            try:
                module = plugin.entry.load()
            except ANY_FAILURE as e:  # importing a plugin may raise whatever its author wrote
                file, line = import_error_location(e)
                message = f"{plugin} cannot be imported: {_in_one_line(e)}"
                self._add_fault(message, (file or plugin.entry_points_file, line), is_whole_plugin=True)
                continue
            self._register(module, str(plugin), plugin)

    def _load_rest(self) -> None:
        """Load the built-in plugins of which not all components are imported."""
        plugins, self._not_loaded = self._not_loaded, ()
        self._load(plugins)

    def _load_built_in(self, kind: str, name: str) -> None:
        """Import the built-in component of that type name; all built-in components if no module has its name.

        The module is named by the type, or in `MODULES` of its package.
        """
        for plugin in self._not_loaded:
            if plugin.entry.name != f"{kind}s":
                continue
            with contextlib.suppress(*ANY_FAILURE):  # a library is missing: `_load_rest` adds the fault
                package = plugin.entry.load()
                module = f"{package.__name__}.{getattr(package, 'MODULES', {}).get(name, name)}"
                if name.isidentifier() and importlib.util.find_spec(module) is not None:
                    for cls in vars(importlib.import_module(module)).values():
                        if inspect.isclass(cls) and issubclass(cls, Component) and cls.type_name.lower() == name:
                            self._add(cls, str(plugin), [], "", plugin)
                            return
        self._load_rest()

    def _register(self, module: Any, description: str, plugin: Plugin | None) -> None:
        """Add the components of a plugin's module, or a fault if it has no usable hook.

        Does nothing the second time.
        """
        if self._manager.is_registered(module):
            return
        file = getattr(module, "__file__", None) or (plugin.entry_points_file if plugin is not None else "")
        listed: list[Any] = []
        try:
            self._manager.register(module, name=f"{description} {id(module)}")
            hooks = [hook for hook in self._manager.hook.components.get_hookimpls() if hook.plugin is module]
            if not hooks:
                message = f"{description} brings nothing: it has no function `components` marked with @hookimpl"
                self._add_fault(message, (file, 0), is_whole_plugin=True)
                return
            listed = [hooks[0].function]
            classes = [*cast("Iterable[Any]", hooks[0].function())]
        except ANY_FAILURE as e:  # as may the hook
            location = import_error_location(e)
            message = f"{description} cannot be used: components(): {_in_one_line(e)}"
            self._add_fault(message, location if location[0] else _first_location(listed, file), is_whole_plugin=True)
            return
        for cls in classes:
            self._add(cls, description, listed, file, plugin)

    def _add(self, cls: Any, description: str, listed: list[Any], file: str, plugin: Plugin | None) -> None:
        """Add one class that a plugin lists, or a fault.

        `listed` are the function and objects whose source location the fault names; `file` is the file without one.
        """

        def location() -> tuple[str, int]:
            return _first_location([cls, *listed], file)

        if not (inspect.isclass(cls) and issubclass(cls, Component)):
            message = f"{description}: components() lists {cls!r}, which is no component's class"
            self._add_fault(message, _first_location(listed, file))
            return
        kind = kind_of(cls)
        if kind is None:
            self._add_fault(f"{description}: {_name(cls)} is no source, channel, interceptor or sink", location())
            return
        if not cls.type_name or not isinstance(cls.type_name, str):
            message = f"{description}: {_name(cls)} has no type_name to be named by in a configuration"
            self._add_fault(f"{message}: write type_name = {_suggest_type_name(cls)!r}", location())
            return
        written = (name.lower() for name in (cls.type_name, *cls.aliases))
        names = [(kind, key) for name in written for key in dict.fromkeys((name, name.removesuffix("$builder")))]
        subject = f"{description}: the {kind} {cls.type_name!r}, {_name(cls)},"
        for text, violator in find_contract_violations(cls) if plugin is None or not plugin.is_built_in else ():
            fault = self._add_fault(f"{subject} {text}", _first_location([violator, cls, *listed], file))
            self._unusable |= dict.fromkeys(names, fault)
            return
        if missing := sorted(getattr(cls, "__abstractmethods__", ())):
            lines = ", ".join(f"`def {method_signature(cls, name)}`" for name in missing)
            fault = self._add_fault(f"{subject} lacks {', '.join(missing)}: write {lines}", location())
            self._unusable |= dict.fromkeys(names, fault)
            return
        for name in names:
            other = self._by_name.setdefault(name, cls)
            if other is not cls and name not in self._unusable:
                both = f"{describe_class(other)} and {describe_class(cls)}"
                message = f"two plugins bring the {kind} {name[1]!r}: {both}; uninstall one"
                self._unusable[name] = self._add_fault(message, location())

    def _add_fault(self, message: str, location: tuple[str, int], *, is_whole_plugin: bool = False) -> Fault:
        """Append a fault and return it."""
        fault = Fault(message, *location, is_whole_plugin)
        self.faults.append(fault)
        return fault

    def get(self, kind: str, name: str) -> type[Component[Any]]:
        """Return the class of that type name or alias, in any case.

        Raises UnknownType, with a suggestion, or UnusableType if the component has a fault.
        """
        key = (kind, name.lower())
        if key not in self._by_name and self._not_loaded:
            self._load_built_in(*key)
        if key not in self._by_name:  # Flume's files name an interceptor by its builder
            key = (kind, name.lower().removesuffix("$builder"))
        if (fault := self._unusable.get(key)) is not None:
            raise UnusableType(f"{fault.message} ({fault.file}:{fault.line})")
        cls = self._by_name.get(key)
        if cls is None:
            known = [n for k, n in (*self._by_name, *self._unusable) if k == kind and "." not in n]
            raise UnknownType(f"unknown {kind} type {name!r}{suggest(name, known)}")
        return cls

    def all(self, kind: str) -> Iterator[type[Component[Any]]]:
        """Yield every class of that kind once, in the order of type names."""
        self._load_rest()
        classes = {cls.type_name: cls for (k, _), cls in self._by_name.items() if k == kind}
        yield from (classes[name] for name in sorted(classes))


def kind_of(cls: type[Component[Any]]) -> str | None:
    """Return `source`, `channel`, `interceptor` or `sink`; None for any other class."""
    return next((kind for kind, bases in KINDS.items() if issubclass(cls, bases)), None)


def _first_location(objects: list[Any], default: str) -> tuple[str, int]:
    """Return the location of the first object that has source code. Slow: it parses source files."""
    return next((location for location in map(source_location, objects) if location[0]), (default, 0))


def _in_one_line(error: BaseException) -> str:
    """Return the type and the text of an exception in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def _suggest_type_name(cls: type) -> str:
    """Return a name in lower case with underscores, from the name of a class without its kind."""
    kinds = "|".join(base.__name__ for bases in KINDS.values() for base in bases)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", re.sub(f"({kinds})$", "", cls.__name__)).lower() or "mine"


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
