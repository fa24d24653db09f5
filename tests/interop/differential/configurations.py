# ruff: noqa: E501  # a list of what is drawn, or a reason, reads best in one line
"""Configurations: components that survive Flume's checks, and values of `${…}`."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from flafka.agent.config.diagnostics import DiagnosticCollector
from flafka.agent.config.filters import config_filters
from flafka.agent.config.parts import group_properties
from flafka.agent.config.properties import Property, last_wins, parse, split_names
from flafka.agent.config.substitution import Resolver
from tests.conformance.adapters import cases
from tests.conformance.adapters import config as conformance
from tests.interop.differential.drawing import mutated, sometimes
from tests.interop.differential.search import Answers, Case, Known, Operation, Settings, shrunk

_ODD = (
    " ",
    "\t",
    ".",
    "=",
    ":",
    "\\",
    "\n",
    "#",
    "!",
    ",",
    "a1",
    "\\u00e4",
    "\u00e4",
    "\\\n",
    "c1",
    "k1",
    "r1",
    "..",
    "type",
    "\f",
    "${x}",
)
SOURCES = (
    "seq",
    "netcat",
    "exec",
    "avro",
    "syslogtcp",
    "TAILDIR",
    "spooldir",
    "http",
    "org.x.Own",
    "bogus",
    "OTHER",
    "Netcat",
    "multiport_syslogtcp",
)
CHANNELS = (
    "memory",
    "file",
    "MEMORY",
    "org.apache.flume.channel.kafka.KafkaChannel",
    "jdbc",
    "bogus",
    "OTHER",
    "SPILLABLEMEMORY",
)
SINKS = (
    "logger",
    "null",
    "hdfs",
    "avro",
    "file_roll",
    "org.x.Own",
    "NULL",
    "bogus",
    "OTHER",
    "hive",
    "org.apache.flume.sink.kafka.KafkaSink",
)


@cache
def samples() -> tuple[str, ...]:
    """Return users' real files and the files of Flume's guide, if present."""
    texts = [file.read_text("utf-8") for file in sorted(cases().glob("userguide*/*.conf"))]
    for suite in ("config", "real_files"):
        if (file := cases() / f"{suite}.json").exists():
            inputs = [case["input"] for case in json.loads(file.read_text("utf-8"))["cases"]]
            texts += [entry["properties"] for entry in inputs if len(entry.get("properties", "")) < 4000]
    return tuple(text for text in texts if text)


def drawn(draw: random.Random) -> str:
    """Draw a file with an agent or two."""
    lines: list[str] = []
    for agent in ["a1"] if sometimes(draw, 0.9) else ["a1", "agent"]:
        lines += _agent(draw, agent)
    if sometimes(draw, 0.2):
        draw.shuffle(lines)
    if sometimes(draw, 0.3):
        lines.insert(
            draw.randrange(len(lines) + 1),
            draw.choice(
                [
                    "# a comment",
                    "! another",
                    "",
                    "x",
                    "a1",
                    "a1.",
                    ".sources = r1",
                    "a1. = 1",
                    "a1.x = ",
                    "a1.bogus.r1.type = seq",
                ]
            ),
        )
    return "\n".join(lines) + "\n"


def _agent(draw: random.Random, agent: str) -> list[str]:
    lines: list[str] = []

    def put(key: str, value: str) -> None:
        if sometimes(draw, 0.96):
            lines.append(f"{agent}.{key}{draw.choice([' = ', ' = ', '=', ' : ', ' '])}{value}")

    channels = draw.sample(["c1", "c2", "ch.3", "c4"], draw.choice([1, 1, 2, 3]))
    sources = draw.sample(["r1", "r2", "src"], draw.choice([0, 1, 1, 2]))
    sinks = draw.sample(["k1", "k2", "k3", "k4"], draw.choice([0, 1, 1, 2, 3, 4]))
    between = draw.choice([" ", " ", "  ", "\t", ", "])
    for kind, names in ("channels", channels), ("sources", sources), ("sinks", sinks):
        put(kind, between.join(names + names[: sometimes(draw, 0.05)]))
    for name in channels:
        put(f"channels.{name}.type", draw.choice(CHANNELS[:3] if sometimes(draw, 0.8) else CHANNELS))
        if sometimes(draw, 0.3):
            put(
                f"channels.{name}.{draw.choice(['capacity', 'transactionCapacity', 'config', 'keep-alive'])}",
                draw.choice(["100", "OTHER", "memory", "x"]),
            )
    for name in sources:
        put(f"sources.{name}.type", draw.choice(SOURCES))
        put(
            f"sources.{name}.channels",
            " ".join(draw.sample([*channels, "c9"], draw.choice([1, 1, min(2, len(channels) + 1)]))),
        )
        if sometimes(draw, 0.4):
            put(
                f"sources.{name}.selector.type",
                draw.choice(["replicating", "multiplexing", "load_balancing", "bogus", "OTHER", "Multiplexing"]),
            )
            put(f"sources.{name}.selector.mapping.X", draw.choice([*channels, "c9"]))
        if sometimes(draw, 0.4):
            put(f"sources.{name}.interceptors", draw.choice(["i1", "i1 i2", "i2"]))
            put(f"sources.{name}.interceptors.i1.type", draw.choice(["host", "timestamp", "bogus"]))
        if sometimes(draw, 0.1):
            put(f"sources.{name}.config", draw.choice(["OTHER", "seq", "bogus"]))
    for name in sinks:
        put(f"sinks.{name}.type", draw.choice(SINKS))
        put(f"sinks.{name}.channel", draw.choice([*channels, *channels, "c9", " ".join(channels)]))
        if sometimes(draw, 0.3):
            put(
                f"sinks.{name}.{draw.choice(['hostname', 'config', 'sink.directory', 'hdfs.path'])}",
                draw.choice(["x", "OTHER", "null", "/a b"]),
            )
    if sinks and sometimes(draw, 0.5):
        groups = draw.choice([["g1"], ["g1", "g2"], ["g1", "g1"]])
        put("sinkgroups", draw.choice([" ", " ", "  ", "\t"]).join(groups))
        for name in dict.fromkeys(groups):
            lines.append(
                f"{agent}.sinkgroups.{name}.sinks = {' '.join(draw.sample([*sinks, 'k9'], draw.randrange(1, len(sinks) + 1)))}"
            )
            put(
                f"sinkgroups.{name}.processor.type",
                draw.choice(["failover", "load_balance", "default", "bogus", "OTHER", "FAILOVER"]),
            )
    if sometimes(draw, 0.2):
        put("configfilters", draw.choice(["f1", "f1 f2"]))
        put("configfilters.f1.type", draw.choice(["env", "bogus", "ENV", "external"]))
    return lines


class Config(Operation):
    """`FlumeConfiguration`: `agent check` names what it leaves out; what it keeps has the properties of the file."""

    name = "config"
    known = (
        Known(
            "The list of sink groups is split at blanks alone",
            lambda case: re.search(r"sinkgroups\s*[ =:].*\S[\t\f]", case.item) and _are_groups(case.theirs),
        ),
    )

    def draw(self, draw: random.Random) -> tuple[Settings, list[Any]]:
        return {}, [self.file(draw) for _ in range(40)]

    def file(self, draw: random.Random) -> str:
        text = draw.choice(samples()) if samples() and sometimes(draw, 0.3) else drawn(draw)
        return mutated(draw, text, _ODD) if sometimes(draw, 0.5) else text

    def ours(self, settings: Settings, items: list[Any]) -> Answers:
        return [{"ours": True} for _ in items]

    def comparable(self, settings: Settings, item: Any, answer: Any) -> Any:
        """Return the components of Flume's answer that `check` does not name, and those with other properties here."""
        if "ours" in answer:
            return []
        ours = conformance.checked(item)
        differences = conformance.skipped(ours, answer)
        if "error" not in answer and "error" not in ours:
            differences += [f"properties of {path}" for path in _other_contexts(item, answer["agents"])]
        return differences


def _are_groups(differences: list[str]) -> bool:
    return all(".sinkgroups." in difference for difference in differences)


def _other_contexts(text: str, agents: Mapping[str, Any]) -> Iterator[str]:
    """Return components that Flume keeps with other properties than ours.

    Of a source only the existing channels count. A sink or channel of a class that Flume knows is kept as an object,
    which has no properties to compare.
    """
    report = DiagnosticCollector("normal")
    properties = last_wins(parse(text, "case", report), report)
    for name, agent in agents.items():
        own = {key.removeprefix(f"{name}."): prop for key, prop in properties.items() if key.startswith(f"{name}.")}
        grouped = group_properties(name, {key: prop for key, prop in own.items() if key and prop.value}, report)
        for part, context in (agent or {}).get("contexts", {}).items():
            kind, _, component = part.partition(".")
            if (
                component not in agent[kind]
                or context.get("type", "").upper() in ("LOGGER", "OTHER")
                or context.get("config", "").upper() == "OTHER"
            ):
                continue
            mine = {key: prop.value for key, prop in grouped.components[kind].get(component, {}).items()}
            if kind == "sources":
                channels = {*agent["channels"]}
                context, mine = (
                    {**settings, "channels": {*split_names(settings.get("channels", ""))} & channels}
                    for settings in (context, mine)
                )
            if context != mine:
                yield f"{name}.{part}"


_BEFORE = """a1.channels = c
a1.channels.c.type = memory
a1.sources = r
a1.sources.r.type = org.x.Own
a1.sources.r.channels = c
"""
SHOWN = ("one", "two", "three")
"""Properties of the source whose values are compared."""


def _in_some_order(case: Case) -> bool:
    """Return True if each value of Flume's is ours where a property exists only after earlier ones are resolved."""
    properties = last_wins(
        parse(case.settings["before"] + case.item, "case", report := DiagnosticCollector("normal")), report
    )
    sources = {name: prop for name, prop in properties.items() if name.startswith("a1.sources")}
    names = [name for name in properties if name not in sources and name != "a1.channels.c.type"][-5:]
    unexplained, orders = {*SHOWN}, [sources]
    for order in orders:
        resolved = _resolved(order)
        unexplained -= {key for key in unexplained if resolved.get(key) == case.theirs.get(key)}
        if not unexplained:
            return True
        for name in names:
            if name not in order:
                value = _resolver({**order, name: properties[name]}).resolve(name).value
                orders.append({**order, name: replace(properties[name], value=value)})
    return False


def _resolver(properties: Mapping[str, Property]) -> Resolver:
    report, environment = DiagnosticCollector("normal"), dict(os.environ)
    own = {name.removeprefix("a1."): prop for name, prop in properties.items() if name.startswith("a1.")}
    filters = config_filters("a1", own, environment, report)
    return Resolver(properties, report, directory=Path.cwd(), system={}, environment=environment, filters=filters)


def _resolved(properties: Mapping[str, Property]) -> dict[str, str]:
    """Return the resolved values of the compared properties; empty ones are None."""
    resolver = _resolver(properties)
    names = {key: f"a1.sources.r.{key}" for key in SHOWN}
    values = {key: resolver.resolve(name).value for key, name in names.items() if name in properties}
    return {key: value for key, value in values.items() if value}


class Resolve(Operation):
    """`${…}`: properties, system properties, the environment and defaults."""

    name = "resolve"
    known = (
        Known("properties that name each other end Flume", lambda case: case.theirs == "error" and "${" in case.item),
        Known(
            "`${name}` of another property is resolved only where",
            lambda case: re.search(r"\$\$|\$\}|\$$| $|= \}$", case.item, re.MULTILINE) or _in_some_order(case),
        ),
    )

    def draw(self, draw: random.Random) -> tuple[Settings, list[Any]]:
        return {"before": _BEFORE}, [self.file(draw) for _ in range(50)]

    def file(self, draw: random.Random) -> str:
        lines = [
            f"{name} = {self.value(draw)}" for name in draw.sample(["x", "y.z", "A_B", "a1.own"], draw.randrange(4))
        ]
        lines += [f"a1.sources.r.{key} = {self.value(draw)}" for key in SHOWN[: draw.randrange(1, 4)]]
        return "\n".join(lines) + "\n"

    def smaller(self, settings: Settings, item: Any) -> Iterator[tuple[Settings, Any]]:
        lines = item.split("\n")
        for row, text in enumerate(lines):
            yield settings, "\n".join(lines[:row] + lines[row + 1 :])
            name, between, value = text.partition(" = ")
            for less in shrunk(value):
                yield settings, "\n".join([*lines[:row], name + between + less, *lines[row + 1 :]])

    def value(self, draw: random.Random) -> str:
        pieces = ["text", "/a/b", " ", "$", "{", "}", ":-", "%{a}", "${x}", "${y.z}", "${A_B}", "${env:HOME}", "${env:NONE_SUCH}", "${env:NONE_SUCH:-dflt}",
                  "${sys:user.name}", "${sys:none.such}", "${none}", "${none:-d}", "$${x}", "${${x}}", "${env:${A_B}}", "${f1['HOME']}", "${f1[\"PATH\"]}", "${f1[NONE]}",
                  "${f9['HOME']}", "${x:-${y.z}}", "${file%.log}", "${none:-}", "${ x }", "${}", "${a1.channels}", "${const:x}", "${base64Encoder:abc}"]  # fmt: skip
        text = "".join(draw.choice(pieces) for _ in range(draw.choice([1, 1, 2, 3])))
        return mutated(draw, text, ("$", "{", "}", ":", "-", "${", "x")) if sometimes(draw, 0.2) else text

    def ours(self, settings: Settings, items: list[Any]) -> Answers:
        return [self._answer(settings["before"] + item) for item in items]

    def _answer(self, text: str) -> Any:
        report = DiagnosticCollector("normal")
        properties = last_wins(parse(text, "case", report), report)
        return {"error": "IllegalArgumentException"} if report.has_errors else _resolved(properties)

    def comparable(self, settings: Settings, item: Any, answer: Any) -> Any:
        """Return the properties of the source."""
        if "agents" in answer:
            answer = (answer["agents"].get("a1") or {}).get("contexts", {}).get("sources.r", {})
            answer = {key: answer[key] for key in SHOWN if key in answer}
        return super().comparable(settings, item, answer)
