"""Finding components: one hook, one entry-point group, for built-ins and for everyone else."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import pluggy

from flafka.plugins.channel import Channel
from flafka.plugins.component import Component
from flafka.plugins.errors import ANY_FAILURE, FlafkaError
from flafka.plugins.installed import GROUP, Plugin, described, place_of, plugins, raised_at
from flafka.plugins.interceptor import Interceptor
from flafka.plugins.mistakes import header, mistakes
from flafka.plugins.problems import suggestion
from flafka.plugins.sink import Sink
from flafka.plugins.source import Source
from flafka.plugins.streaming import StreamingSink

KINDS: dict[str, tuple[type[Component[Any]], ...]] = {
    "source": (Source,),
    "channel": (Channel,),
    "interceptor": (Interceptor,),
    "sink": (Sink, StreamingSink),
}

hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)


class Hooks:
    """What a plugin module may implement."""

    @hookspec
    def components(self) -> Iterable[type[Component[Any]]]:  # type: ignore[empty-body]  # pluggy looks at it, and never calls it
        """Return the component classes this module brings."""


class UnknownType(FlafkaError):
    """No component has that type name; the text suggests near ones."""


class UnusableType(UnknownType):
    """A component has that type name and cannot be used; the text says why, and whose it is."""


@dataclass(frozen=True)
class Fault:
    """What is wrong with a plugin, or with one component of it; all others can be used."""

    message: str
    file: str
    line: int
    """From 1; 0 where it does not stand on a line of its own."""
    whole: bool
    """Whether nothing of the plugin can be used, so that nobody knows what it would bring."""


class Components:
    """All components that can be named in a configuration, built-in and plugged in.

    What is wrong with a plugin is in `faults` and raised by nothing but `get` of what it concerns.
    """

    def __init__(self, modules: Iterable[Any] = (), *, entry_points: bool = True) -> None:
        self.faults: list[Fault] = []
        self._by_name: dict[tuple[str, str], type[Component[Any]]] = {}
        self._unusable: dict[tuple[str, str], Fault] = {}
        self._manager = pluggy.PluginManager(GROUP)
        self._manager.add_hookspecs(Hooks)
        for plugin in plugins() if entry_points else ():
            try:
                module = plugin.entry.load()
            except ANY_FAILURE as e:  # importing a plugin may raise whatever its author wrote
                file, line = raised_at(e)
                message = f"{plugin} cannot be imported: {_in_words(e)}"
                self._add_fault(message, (file or plugin.listed, line), whole=True)
                continue
            self._register(module, str(plugin), plugin)
        for module in modules:
            self._register(module, f"module {getattr(module, '__name__', module)}", None)

    def _register(self, module: Any, called: str, plugin: Plugin | None) -> None:
        if self._manager.is_registered(module):
            return
        file = getattr(module, "__file__", None) or (plugin.listed if plugin is not None else "")
        listed: list[Any] = []
        try:
            self._manager.register(module, name=f"{called} {id(module)}")
            hooks = [one for one in self._manager.hook.components.get_hookimpls() if one.plugin is module]
            if not hooks:
                message = f"{called} brings nothing: it has no function `components` marked with @hookimpl"
                self._add_fault(message, (file, 0), whole=True)
                return
            listed = [hooks[0].function]
            brought = [*cast("Iterable[Any]", hooks[0].function())]
        except ANY_FAILURE as e:  # and so may asking it for its components
            found = raised_at(e)
            message = f"{called} cannot be used: components(): {_in_words(e)}"
            self._add_fault(message, found if found[0] else _of(listed, file), whole=True)
            return
        for cls in brought:
            self._add(cls, called, listed, file, plugin)

    def _add(self, cls: Any, called: str, listed: list[Any], file: str, plugin: Plugin | None) -> None:
        def place() -> tuple[str, int]:
            return _of([cls, *listed], file)

        if not (inspect.isclass(cls) and issubclass(cls, Component)):
            self._add_fault(f"{called}: components() lists {cls!r}, which is no component's class", _of(listed, file))
            return
        kind = kind_of(cls)
        if kind is None:
            self._add_fault(f"{called}: {_name(cls)} is no source, channel, interceptor or sink", place())
            return
        if not cls.type_name or not isinstance(cls.type_name, str):
            message = f"{called}: {_name(cls)} has no type_name to be named by in a configuration"
            self._add_fault(f"{message}: write type_name = {_suggested(cls)!r}", place())
            return
        written = (name.lower() for name in (cls.type_name, *cls.aliases))
        names = [(kind, name) for one in written for name in dict.fromkeys((one, one.removesuffix("$builder")))]
        of_whom = f"{called}: the {kind} {cls.type_name!r}, {_name(cls)},"
        for wrong, thing in mistakes(cls) if plugin is None or not plugin.built_in else ():
            fault = self._add_fault(f"{of_whom} {wrong}", _of([thing, cls, *listed], file))
            self._unusable |= dict.fromkeys(names, fault)
            return
        if lacking := sorted(getattr(cls, "__abstractmethods__", ())):
            lines = ", ".join(f"`def {header(cls, name)}`" for name in lacking)
            fault = self._add_fault(f"{of_whom} lacks {', '.join(lacking)}: write {lines}", place())
            self._unusable |= dict.fromkeys(names, fault)
            return
        for name in names:
            other = self._by_name.setdefault(name, cls)
            if other is not cls and name not in self._unusable:
                both = f"{described(other)} and {described(cls)}"
                message = f"two plugins bring the {kind} {name[1]!r}: {both}; uninstall one"
                self._unusable[name] = self._add_fault(message, place())

    def _add_fault(self, message: str, place: tuple[str, int], *, whole: bool = False) -> Fault:
        fault = Fault(message, *place, whole)
        self.faults.append(fault)
        return fault

    def get(self, kind: str, name: str) -> type[Component[Any]]:
        """The class of that type name or alias. UnknownType with suggestions, or UnusableType, otherwise."""
        key = (kind, name.lower())
        if key not in self._by_name:  # Flume's files name an interceptor by its builder
            key = (kind, name.lower().removesuffix("$builder"))
        if (fault := self._unusable.get(key)) is not None:
            raise UnusableType(f"{fault.message} ({fault.file}:{fault.line})")
        found = self._by_name.get(key)
        if found is None:
            known = [n for k, n in (*self._by_name, *self._unusable) if k == kind and "." not in n]
            raise UnknownType(f"unknown {kind} type {name!r}{suggestion(name, known)}")
        return found

    def all(self, kind: str) -> Iterator[type[Component[Any]]]:
        """Every class of that kind, by type name."""
        classes = {cls.type_name: cls for (k, _), cls in self._by_name.items() if k == kind}
        yield from (classes[name] for name in sorted(classes))


def kind_of(cls: type[Component[Any]]) -> str | None:
    """`source`, `channel`, `interceptor` or `sink`; None for what is none of them."""
    return next((kind for kind, bases in KINDS.items() if issubclass(cls, bases)), None)


def _of(things: list[Any], otherwise: str) -> tuple[str, int]:
    """Where the first of them that has a source stands: asked only where it is told, as the search takes a while."""
    return next((place for place in map(place_of, things) if place[0]), (otherwise, 0))


def _in_words(error: BaseException) -> str:
    """On one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def _suggested(cls: type) -> str:
    kinds = "|".join(base.__name__ for bases in KINDS.values() for base in bases)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", re.sub(f"({kinds})$", "", cls.__name__)).lower() or "mine"


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
