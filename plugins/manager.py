"""Finding components: one hook, one entry-point group, for built-ins and for everyone else."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable, Iterator
from typing import Any

import pluggy

from plugins.channel import Channel
from plugins.component import Component
from plugins.errors import FlafkaError
from plugins.interceptor import Interceptor
from plugins.options import suggestion
from plugins.sink import Sink
from plugins.source import Source
from plugins.streaming import StreamingSink

GROUP = "flafka"
"""Entry-point group, and pluggy's project name."""

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
    def components(self) -> Iterable[type[Component[Any]]]:  # type: ignore[empty-body]
        """Return the component classes this module brings."""


class UnknownType(FlafkaError):
    """No component has that type name; the text suggests near ones."""


class Components:
    """All components that can be named in a configuration, built-in and plugged in."""

    def __init__(self, modules: Iterable[Any] = (), *, entry_points: bool = True) -> None:
        manager = pluggy.PluginManager(GROUP)
        manager.add_hookspecs(Hooks)
        if entry_points:
            manager.load_setuptools_entrypoints(GROUP)
        for module in modules:
            manager.register(module)
        self._by_name: dict[tuple[str, str], type[Component[Any]]] = {}
        for brought in reversed(manager.hook.components()):
            for cls in brought:
                self._add(cls)

    def _add(self, cls: type[Component[Any]]) -> None:
        kind = kind_of(cls)
        for name in (cls.type_name, *cls.aliases):
            other = self._by_name.setdefault((kind, name.lower()), cls)
            if other is not cls:
                raise FlafkaError(
                    f"two plugins bring the {kind} {name!r}: {_where(other)} and {_where(cls)}; uninstall one"
                )

    def get(self, kind: str, name: str) -> type[Component[Any]]:
        """The class of that type name or alias. UnknownType with suggestions otherwise."""
        found = self._by_name.get((kind, name.lower()))
        if found is None:
            known = [n for k, n in self._by_name if k == kind and "." not in n]
            raise UnknownType(f"unknown {kind} type {name!r}{suggestion(name, known)}")
        return found

    def all(self, kind: str) -> Iterator[type[Component[Any]]]:
        """Every class of that kind, by type name."""
        classes = {cls.type_name: cls for (k, _), cls in self._by_name.items() if k == kind}
        yield from (classes[name] for name in sorted(classes))


def kind_of(cls: type[Component[Any]]) -> str:
    """`source`, `channel`, `interceptor` or `sink`."""
    for kind, bases in KINDS.items():
        if issubclass(cls, bases):
            return kind
    raise FlafkaError(f"{_where(cls)} is no source, channel, interceptor or sink")


def _where(cls: type) -> str:
    module = cls.__module__
    owners = importlib.metadata.packages_distributions().get(module.partition(".")[0], [])
    return f"{module}.{cls.__qualname__}" + (f" (of {', '.join(sorted(set(owners)))})" if owners else "")
