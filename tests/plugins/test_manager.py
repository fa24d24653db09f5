"""Finding components: names, aliases, suggestions, and who brings what."""

import importlib.metadata
import types
from collections.abc import Iterator
from typing import Any

import pytest

from plugins import Batch, Component, Components, Config, FlafkaError, Sink, Source, UnknownType, hookimpl


class First(Source[Config]):
    type_name = "ticks"
    aliases = ("org.example.TicksSource", "tocks")

    def batches(self) -> Iterator[Batch]:
        return iter(())


class Second(First):
    type_name = "other"
    aliases = ("TICKS",)


class AsSink(Sink[Config]):
    type_name = "ticks"

    def write(self, batch: Batch) -> None:
        pass


class NothingInParticular(Component[Config]):
    type_name = "nothing"


def module(*classes: type[Component[Any]]) -> Any:
    """A plugin module that brings these classes."""
    plugin = types.ModuleType(f"plugin_{'_'.join(cls.__name__ for cls in classes)}")
    plugin.components = hookimpl(lambda: list(classes))  # type: ignore[attr-defined]
    return plugin


def brought(*modules: Any) -> Components:
    return Components(modules, entry_points=False)


@pytest.mark.parametrize("name", ["ticks", "TICKS", "Tocks", "org.example.ticksSOURCE"])
def test_type_names_and_aliases_ignore_case(name: str) -> None:
    assert brought(module(First)).get("source", name) is First


def test_kinds_have_names_of_their_own() -> None:
    components = brought(module(First), module(AsSink))
    assert components.get("source", "ticks") is First
    assert components.get("sink", "ticks") is AsSink
    assert list(components.all("source")) == [First]
    assert list(components.all("channel")) == []


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("source", "tick", "unknown source type 'tick', did you mean 'ticks'?"),
        ("source", "Tokcs", "unknown source type 'Tokcs', did you mean 'tocks'?"),
        ("source", "kafka", "unknown source type 'kafka'"),
        ("sink", "org.example.TicksSource", "unknown sink type 'org.example.TicksSource'"),
    ],
)
def test_unknown_types_get_a_suggestion(kind: str, name: str, message: str) -> None:
    with pytest.raises(UnknownType) as e:
        brought(module(First)).get(kind, name)
    assert str(e.value) == message


def test_two_components_of_one_name_are_refused_and_both_named() -> None:
    with pytest.raises(FlafkaError, match=r"two plugins bring the source 'ticks'|the source 'TICKS'") as e:
        brought(module(First), module(Second))
    assert "First" in str(e.value)
    assert "Second" in str(e.value)
    assert "uninstall one" in str(e.value)
    assert list(brought(module(First), module(First, AsSink)).all("source")) == [First], (
        "the same class twice is fine"
    )


def test_something_of_no_kind_is_refused() -> None:
    with pytest.raises(FlafkaError, match="NothingInParticular is no source, channel, interceptor or sink"):
        brought(module(NothingInParticular))


def test_the_options_are_those_of_the_type_argument() -> None:
    class Mine(Config):
        pass

    class Made(Source[Mine]):
        def batches(self) -> Iterator[Batch]:
            return iter(())

    assert Made.config_class is Mine
    assert First.config_class is Config
    assert Made(Mine()).name == ""
    assert First(Config()).name == "ticks"
    assert First(Config(), "s1").name == "s1"


def test_plugins_come_through_the_entry_point_group(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = module(First)

    class Installed(importlib.metadata.EntryPoint):
        def load(self) -> Any:
            return plugin

    class Distribution(importlib.metadata.Distribution):
        entry_points = importlib.metadata.EntryPoints(  # type: ignore[assignment]
            [Installed("x", "plugin_First", "flafka"), Installed("y", "nowhere", "another.group")]
        )

        def read_text(self, filename: str) -> None:
            return None

        def locate_file(self, path: Any) -> Any:
            return path

    monkeypatch.setattr(importlib.metadata, "distributions", lambda **_: [Distribution()])
    assert list(Components().all("source")) == [First]
    assert list(Components(entry_points=False).all("source")) == []
