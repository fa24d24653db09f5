"""Registry of components: names, aliases, suggestions, and plugins."""

import dataclasses
import importlib.metadata
import inspect
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from datetime import datetime
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Literal

import pydantic
import pytest

from flafka.plugins import (
    Batch,
    Component,
    Components,
    Config,
    Sink,
    Source,
    UnknownType,
    UnusableType,
    hookimpl,
    option,
)
from flafka.plugins.manager import KINDS


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
    """Return a plugin module with these classes."""
    plugin = types.ModuleType(f"plugin_{'_'.join(cls.__name__ for cls in classes)}")
    plugin.components = hookimpl(lambda: list(classes))
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


def test_two_components_of_one_name_are_unusable_and_both_named() -> None:
    components = brought(module(First), module(Second, AsSink))
    (fault,) = components.faults
    assert re.match(
        r"two plugins bring the source 'ticks': \S+First \(.*\) and \S+Second \(.*\); uninstall", fault.message
    )
    with pytest.raises(UnusableType, match="two plugins bring the source 'ticks'"):
        components.get("source", "Ticks")
    assert components.get("source", "tocks") is First
    assert components.get("sink", "ticks") is AsSink, "the rest can be used"


def test_the_same_class_twice_is_fine() -> None:
    components = brought(module(First), module(First, AsSink))
    assert (list(components.all("source")), components.faults) == ([First], [])


class Lacking(Sink[Config]):
    type_name = "lacking"
    aliases = ("org.example.Lacking",)


class Nameless(First):
    type_name = ""


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (NothingInParticular, "NothingInParticular is no source, channel, interceptor or sink"),
        (Nameless, "Nameless has no type_name to be named by in a configuration: write type_name = 'nameless'"),
        (
            Lacking,
            "the sink 'lacking', tests.plugins.test_manager.Lacking, lacks write: write `def write(self, batch)`",
        ),
        ("ticks", "components() lists 'ticks', which is no component's class"),
        (First(Config()), "which is no component's class"),
    ],
)
def test_an_invalid_component_is_a_fault_at_its_line_and_the_others_can_be_used(wrong: Any, message: str) -> None:
    plugin = module(First)
    plugin.components = hookimpl(lambda: [wrong, First])
    components = brought(plugin)
    (fault,) = components.faults
    assert message in fault.message
    assert fault.message.startswith(f"module {plugin.__name__}")
    assert (fault.file, fault.is_whole_plugin) == (__file__, False)
    assert list(components.all("source")) == [First]
    if isinstance(wrong, type):
        assert fault.line == inspect.getsourcelines(wrong)[1]


def test_a_component_without_a_method_is_an_error_when_it_is_requested() -> None:
    components = brought(module(Lacking))
    for name in ("LACKING", "org.example.lacking"):
        with pytest.raises(UnusableType, match=r"Lacking, lacks write: .* \(.*test_manager.py:\d+\)"):
            components.get("sink", name)
    with pytest.raises(UnknownType, match="did you mean 'lacking'"):
        components.get("sink", "lackin")


def raising() -> Any:
    raise ZeroDivisionError("no components today")


def ending() -> Any:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        (hookimpl(ending), "components(): SystemExit: 3"),
        (hookimpl(raising), "components(): ZeroDivisionError: no components today"),
        (hookimpl(lambda: None), "components(): TypeError: "),
        (hookimpl(lambda more: []), "components(): PluginValidationError"),
        (lambda: [First], "has no function `components` marked with @hookimpl"),
    ],
)
def test_a_plugin_that_cannot_be_used_is_a_fault_and_the_others_can(hook: Any, message: str) -> None:
    plugin = module()
    plugin.components = hook
    components = brought(plugin, module(First))
    (fault,) = components.faults
    assert message in fault.message
    assert fault.is_whole_plugin
    assert list(components.all("source")) == [First]


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
        metadata = {"Name": "x", "Version": "1"}  # noqa: RUF012  # as importlib has it
        entry_points = importlib.metadata.EntryPoints(
            [Installed("x", "plugin_First", "flafka"), Installed("y", "nowhere", "another.group")]
        )

        def read_text(self, filename: str) -> None:
            return None

        def locate_file(self, path: Any) -> Any:
            return path

    monkeypatch.setattr(importlib.metadata, "distributions", lambda **_: [Distribution()])
    assert list(Components().all("source")) == [First]
    assert list(Components(entry_points=False).all("source")) == []

    def load(self: Any) -> Any:
        raise SystemExit("there is no licence")

    monkeypatch.setattr(Installed, "load", load)
    (fault,) = Components().faults
    assert "cannot be imported: SystemExit: there is no licence" in fault.message


# --- mistakes of authors


class Plain:
    """Class that is no option."""


class Odd(Config):
    where: Path = option(name="where", description="May be one.")
    tags: set[str] = option(name="tags", description="A line is no set.")


class Objects(Config):
    thing: Plain | None = option(None, name="thing", description="A line is no such thing.")


class Place(pydantic.BaseModel):
    host: str


@dataclasses.dataclass
class Point:
    host: str


class Modelled(Config):
    place: Place | None = option(None, name="place", description="A line is no model.")


class Model(Config):
    place: Place = option(Place(host="a"), name="place", description="A line is no model.")


class Data(Config):
    point: Point = option(Point("a"), name="point", description="A line is no dataclass.")


class Mapped(Config):
    labels: dict[str, str] = option({}, name="labels", description="Of which properties?")


class Dotted(Config):
    labels: str = option("", name="labels.", description="All of them?")


class Fine(Config):
    a: Literal["x", "y"] | None = option(None, name="a", description="A word.")
    b: list[int] = option([], name="b", description="Numbers.")
    c: pydantic.SecretStr | None = option(None, name="c", description="A secret.")
    d: dict[str, str] | None = option(None, name="d.", description="Properties.")
    e: datetime | float | Path = option(1.5, name="e", description="A time, a number, a path.")
    f: IPv4Address | pydantic.HttpUrl | None = option(None, name="f", description="Anything that a text becomes.")


def sink(name: str, config: type[Config] = Config, **methods: Any) -> type[Any]:
    """Return a class of a sink with these methods."""
    methods = {"write": lambda self, batch: None, **methods}
    return types.new_class(name, (Sink[config],), {}, lambda body: body.update(type_name="mine", **methods))  # type: ignore[valid-type]  # it is one


async def awaited(self: Any, batch: Any) -> None:
    pass


def yielding(self: Any, batch: Any) -> Iterator[None]:
    yield


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (sink("A", write=awaited), "has an `async def write`, which nothing here awaits: write `def write`; it may"),
        (sink("A", flush=awaited), "has an `async def flush`, which nothing here awaits"),
        (sink("A", open=awaited), "has an `async def open`, which nothing here awaits"),
        (sink("A", write=yielding), "has a write that yields, so that it would never run: write it without `yield`"),
        (
            sink("A", write=lambda self: None),
            "has a `def write(self)`: write `def write(self, batch)`, as it is called",
        ),
        (
            sink("A", flush=lambda self, batch: None),
            "has a `def flush(self, batch)`: write `def flush(self)`, as it is called",
        ),
        (sink("A", Odd), "cannot be configured: the option tags is a set[str], and a line of a file holds a text"),
        (sink("A", Objects), "cannot be configured: the option thing is a "),
        (sink("A", Modelled), "cannot be configured: the option place is a "),
        (sink("A", Model), "cannot be configured: the option place is a Place, and a line of a file holds a text"),
        (sink("A", Data), "cannot be configured: the option point is a Point, and a line of a file holds a text"),
        (sink("A", Mapped), "cannot be configured: the option labels is a dict[str, str]; end its name in a dot"),
        (sink("A", Dotted), "cannot be configured: the option labels. is a str; under a name that ends in a dot"),
    ],
)
def test_an_unusable_class_is_reported_in_one_sentence_and_the_others_can_be_used(cls: type, message: str) -> None:
    components = brought(module(cls, First))
    (fault,) = components.faults
    assert message in fault.message
    assert f"the sink 'mine', {cls.__module__}.A, " in fault.message
    assert "\n" not in fault.message
    assert list(components.all("source")) == [First]
    with pytest.raises(UnusableType, match=re.escape(message)):
        components.get("sink", "mine")


def test_valid_classes_are_accepted() -> None:
    for cls in (
        sink("B", Fine),
        sink("B", write=lambda self, *batches: None),
        sink("B", flush=lambda self, timeout=5: None),
        sink("B", probe=lambda self: iter(["a sentence"])),
        sink("B", probe=yielding_probe),
    ):
        assert not brought(module(cls)).faults


def yielding_probe(self: Any) -> Iterator[str]:
    yield "a sentence"


WITHOUT_LIBRARY = """
import sys
sys.modules["confluent_kafka"] = None
from flafka.plugins.manager import Components, UnknownType
components = Components()
try:
    components.get("channel", "kafka")
except UnknownType as e:
    print(e, *(fault.message for fault in components.faults), sep="\\n")
"""


def test_a_built_in_component_without_its_library_is_a_fault() -> None:
    output = subprocess.check_output([sys.executable, "-c", WITHOUT_LIBRARY], text=True)
    assert "kafka" in output.splitlines()[0]
    assert "confluent_kafka" in output


def test_built_in_components_have_no_faults() -> None:
    from flafka.plugins.contractcheck import find_contract_violations

    components = Components()
    for kind in KINDS:
        for cls in components.all(kind):
            assert not [*find_contract_violations(cls)], cls


@pytest.mark.parametrize("kind", KINDS)
def test_a_built_in_component_is_the_same_class_whether_all_are_imported_or_not(kind: str) -> None:
    for cls in Components().all(kind):
        for name in (cls.type_name, cls.type_name.upper(), *cls.aliases):
            assert Components().get(kind, name) is cls
    with pytest.raises(UnknownType, match="unknown"):
        Components().get(kind, "templates")  # a module, but no type
