"""Templates of components and processors, with their tests, for `agent new` and `agent template`."""

from __future__ import annotations

import importlib.util
import keyword
import re
from importlib import resources
from pathlib import Path

from flafka.plugins import Components, FlafkaError, UnknownType

COMPONENTS = ("source", "channel", "sink", "interceptor")
KINDS = (*COMPONENTS, "processor")
NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")


def _package(kind: str) -> str:
    return "flafka.plugins.templates" if kind in COMPONENTS else "flafka.agent.templates"


def read_template(kind: str, *, test: bool = False) -> str:
    """Return the template of a component or a processor; with `test`, that of its test."""
    return (resources.files(_package(kind)) / f"{'test_' * test}{kind}.py").read_text("utf-8")


def render_java_replacement(kind: str, java_class: str) -> str:
    """Return the template of a component with `java_class` as its alias."""
    return read_template(kind).replace("com.example.Mine", java_class)


def render_files(kind: str, name: str, directory: Path) -> dict[str, str]:
    """Return file name → content for a new directory. Writes nothing.

    Raises FlafkaError if `name` is not valid, or is that of a type or a Python module already.
    """
    module = _module_name(kind, name)
    contents = {
        f"{module}.py": _rename(_without_java(kind, read_template(kind), name), kind, name),
        f"test_{module}.py": _rename(read_template(kind, test=True), kind, name),
        "agent.conf": _fill(_CONFIGURATIONS[kind], name, directory),
    }
    if kind in COMPONENTS:
        contents["pyproject.toml"] = _fill(PYPROJECT, name, directory).replace("{KIND}", kind)
    return contents


def _fill(text: str, name: str, directory: Path) -> str:
    """Return the text with name, module and absolute directory in place of the placeholders."""
    text = text.replace("{NAME}", name).replace("{MODULE}", name.replace("-", "_"))
    return text.replace("{DIRECTORY}", str(directory.absolute()))


def _module_name(kind: str, name: str) -> str:
    """Return the name of the Python module. Raises FlafkaError if `name` is not valid or is used already."""
    if not NAME.fullmatch(name):
        raise FlafkaError(
            f"{name!r} is not a valid name of a {kind}: use lower-case letters and digits, as in my-{kind}"
        )
    module = name.replace("-", "_")
    if keyword.iskeyword(module) or importlib.util.find_spec(module) is not None:
        raise FlafkaError(f"a Python module {module} exists: choose another name")
    if kind in COMPONENTS:
        try:
            Components().get(kind, name)
        except UnknownType:
            return module
        raise FlafkaError(f"a {kind} of type {name} exists: choose another name")
    return module


def _without_java(kind: str, text: str, name: str) -> str:
    """Return the template of a component without the alias and the docstrings of a Java class."""
    if kind not in COMPONENTS:
        return text
    head = f'"""The {kind} `{name}`."""\n'
    text = head + text.split('"""\n', 1)[1]
    text = text.replace("Options of the Java class, by the same names.", f"Options of the {kind} `{name}`.")
    return text.replace('    aliases = ("com.example.Mine",)\n', "")


def _rename(text: str, kind: str, name: str) -> str:
    """Return the template with `name` in place of its names for module, type and class."""
    module = name.replace("-", "_")
    text = text.replace(f"{_package(kind)}.{kind}", module).replace(
        f'type_name = "my_{kind}"', f'type_name = "{name}"'
    )
    text = text.replace(f"`my_{kind}`", f"`{name}`").replace(f"my_{kind}", module)
    return text.replace(f"My{kind.capitalize()}", "".join(word.capitalize() for word in re.split("[-_]", name)))


PYPROJECT = """\
[build-system]
requires = ["setuptools>=70.1"]
build-backend = "setuptools.build_meta"

[project]
name = "{NAME}"
version = "0.1.0"
description = "Flafka {KIND} {NAME}"
requires-python = ">=3.11"
dependencies = ["flafka"]

[project.entry-points.flafka]
{MODULE} = "{MODULE}"

[tool.setuptools]
py-modules = ["{MODULE}"]
"""

_SOURCE = """\
# Trial of the source {NAME}: its events are logged. agent start -c agent.conf; echo hello >> in
a1.sources = s1
a1.channels = c1
a1.sinks = k1
a1.sources.s1.type = {NAME}
a1.sources.s1.path = {DIRECTORY}/in
a1.sources.s1.channels = c1
a1.channels.c1.type = memory
a1.sinks.k1.type = logger
a1.sinks.k1.channel = c1
"""
_CHANNEL = """\
# Trial of the channel {NAME} with lines sent to a port. agent start -c agent.conf; nc localhost 5150
a1.sources = s1
a1.channels = c1
a1.sinks = k1
a1.sources.s1.type = netcat
a1.sources.s1.bind = 127.0.0.1
a1.sources.s1.port = 5150
a1.sources.s1.channels = c1
a1.channels.c1.type = {NAME}
a1.channels.c1.path = {DIRECTORY}/events.db
a1.sinks.k1.type = logger
a1.sinks.k1.channel = c1
"""
_SINK = """\
# Trial of the sink {NAME} with lines sent to a port. agent start -c agent.conf; nc localhost 5150
a1.sources = s1
a1.channels = c1
a1.sinks = k1
a1.sources.s1.type = netcat
a1.sources.s1.bind = 127.0.0.1
a1.sources.s1.port = 5150
a1.sources.s1.channels = c1
a1.channels.c1.type = memory
a1.sinks.k1.type = {NAME}
a1.sinks.k1.path = {DIRECTORY}/out
a1.sinks.k1.channel = c1
"""
_INTERCEPTOR = """\
# Trial of the interceptor {NAME} with lines sent to a port. agent start -c agent.conf; nc localhost 5150
a1.sources = s1
a1.channels = c1
a1.sinks = k1
a1.sources.s1.type = netcat
a1.sources.s1.bind = 127.0.0.1
a1.sources.s1.port = 5150
a1.sources.s1.channels = c1
a1.sources.s1.interceptors = i1
a1.sources.s1.interceptors.i1.type = {NAME}
a1.channels.c1.type = memory
a1.sinks.k1.type = logger
a1.sinks.k1.channel = c1
"""
_PROCESSOR = """\
# Trial of the processor {NAME}: agent process -c agent.conf --events FILE, or with brokers: agent cluster start
a1.channels = c1
a1.sinks = k1
a1.channels.c1.type = kafka
a1.sinks.k1.type = spark
a1.sinks.k1.channel = c1
a1.sinks.k1.processor = {MODULE}:{MODULE}
a1.sinks.k1.processor.path = {DIRECTORY}
a1.sinks.k1.option.word = error
a1.sinks.k1.output.found.type = console
"""
_CONFIGURATIONS = {
    "source": _SOURCE,
    "channel": _CHANNEL,
    "sink": _SINK,
    "interceptor": _INTERCEPTOR,
    "processor": _PROCESSOR,
}
