"""Templates of components: each is complete, and replaces a Java class in an unchanged file."""

from __future__ import annotations

import importlib
import importlib.util
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flafka.agent.cli import main
from flafka.agent.config import load
from flafka.plugins import Components, UnknownType

FILE = """\
a1.sources = s1
a1.channels = c1
a1.sinks = k1
a1.sources.s1.type = com.acme.OurSource
a1.sources.s1.channels = c1
a1.sources.s1.path = /in
a1.sources.s1.what.others.know = x
a1.sources.s1.interceptors = i1
a1.sources.s1.interceptors.i1.type = com.acme.OurInterceptor$Builder
a1.channels.c1.type = com.acme.OurChannel
a1.channels.c1.path = /events.db
a1.sinks.k1.type = com.acme.OurSink
a1.sinks.k1.channel = c1
a1.sinks.k1.path = /out
"""
CLASSES = {
    "source": "com.acme.OurSource",
    "interceptor": "com.acme.OurInterceptor$Builder",
    "channel": "com.acme.OurChannel",
    "sink": "com.acme.OurSink",
}


@pytest.fixture
def printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Modules that the command prints for those classes."""
    modules = {}
    for kind, java in CLASSES.items():
        result = CliRunner().invoke(main, ["template", kind, java])
        assert result.exit_code == 0, result.output
        file = tmp_path / f"my_{kind}.py"
        file.write_text(result.output)
        spec = importlib.util.spec_from_file_location(file.stem, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, file.stem, module)
        spec.loader.exec_module(module)
        modules[kind] = module
    return modules


def test_a_file_with_java_classes_runs_with_components_that_have_their_names(
    printed: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "flume.conf"
    file.write_text(FILE)
    spec, diagnostics = load(file, components=Components(printed.values()))
    assert spec is not None, [*map(str, diagnostics)]
    assert [str(diagnostic).partition("a1.")[2] for diagnostic in diagnostics] == [
        "sources.s1: unknown option 'what.others.know' (ignored)"
    ]
    kinds = (spec.sources[0], spec.channels[0], spec.sources[0].interceptors[0], spec.sinks[0])
    assert [component.cls.type_name for component in kinds] == [
        "my_source",
        "my_channel",
        "my_interceptor",
        "my_sink",
    ]


def test_missing_components_are_named_with_the_command_to_run(tmp_path: Path) -> None:
    file = tmp_path / "flume.conf"
    file.write_text(FILE)
    spec, diagnostics = load(file, components=Components())
    assert spec is None
    errors = [str(diagnostic) for diagnostic in diagnostics if diagnostic.severity == "error"]
    for text, (kind, java) in zip(errors, CLASSES.items(), strict=True):
        assert f"the {kind} {java} is a Java class" in text
        assert f"`agent template {kind} {shlex.quote(java)}`" in text
        assert "docs/migrating-from-flume.md" in text


def test_an_interceptor_is_found_with_and_without_its_builder(printed: dict[str, Any]) -> None:
    components = Components([printed["interceptor"]])
    for name in ("com.acme.OurInterceptor", "com.acme.ourinterceptor$builder", "my_interceptor"):
        assert components.get("interceptor", name) is printed["interceptor"].MyInterceptor
    with pytest.raises(UnknownType):
        components.get("interceptor", "com.acme.Other$Builder")


def test_an_invalid_class_name_is_refused() -> None:
    result = CliRunner().invoke(main, ["template", "sink", "x y"])
    assert result.exit_code == 2
    assert "is not a name of a Java class" in result.output


@pytest.mark.parametrize("kind", CLASSES)
def test_each_passes_the_kit(kind: str, tmp_path: Path) -> None:
    module = importlib.import_module(f"flafka.plugins.templates.test_{kind}")
    for name, test in vars(module).items():
        if name.startswith("test_"):
            test(*[tmp_path] * ("tmp_path" in test.__annotations__))
