"""`agent grammar`: the shipped configurations are coloured, and what no component knows is not."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner

from flafka.agent.cli import main
from flafka.agent.explain import KINDS, describe_component
from flafka.agent.grammar import SCOPES, textmate_grammar, vscode_extension
from flafka.plugins import Components
from tests.docs.blocks import ROOT

CONFIGURATIONS = [*ROOT.glob("conf/*.conf"), *ROOT.glob("conf/examples/*/*.conf"), *ROOT.glob("docs/samples/*.conf")]
CONFIGURATIONS = [file for file in CONFIGURATIONS if re.search(r"^\w+\.s\w+\..*=", file.read_text(), re.MULTILINE)]
KEY = re.compile(r"\s*([^\s=:#!]+)\s*[=:]")


@pytest.fixture(scope="module")
def components() -> Components:
    return Components()


@pytest.fixture(scope="module")
def grammar(components: Components) -> dict[str, Any]:
    return textmate_grammar(components)


def tokens(grammar: dict[str, Any], text: str) -> Iterator[list[tuple[str, str]]]:
    """Yield text and scope of the coloured parts of each line, as an editor's tokeniser finds them."""
    rules = [grammar["repository"][rule["include"][1:]] for rule in grammar["patterns"]]
    values = grammar["repository"]["value"]["patterns"]
    end: str | None = None
    for line in text.splitlines():
        found, position = [], 0
        if end is None:
            for rule in rules:
                if match := re.match(rule.get("match", rule.get("begin")), line):
                    if "match" in rule:
                        found.append((match[0], rule["name"]))
                        position = len(line)
                    else:
                        captures = rule["beginCaptures"].items()
                        found += [(match[int(number)], scope["name"]) for number, scope in captures]
                        position, end = match.end(), rule["end"]
                    break
            else:
                position = len(line)
        while position < len(line):
            matches = [
                (match, rule["name"])
                for rule in values
                if (match := re.compile(rule["match"]).search(line, position))
            ]
            if not matches:
                break
            match, name = min(matches, key=lambda pair: pair[0].start())
            found.append((match[0], name))
            position = max(match.end(), position + 1)
        if end is not None and re.search(end, f"{line}\n"):  # as editors do
            end = None
        yield found


def scope_of(grammar: dict[str, Any], line: str) -> str | None:
    """Return the last word of the scope of a line's option; None if it has none."""
    (found,) = tokens(grammar, line)
    by_scope = {scope: part for part, scope in SCOPES.items()}
    parts = [by_scope[scope] for _, scope in found if by_scope.get(scope) in ("option", "unused", "kind")]
    return parts[-1] if parts else None


@pytest.mark.parametrize("file", CONFIGURATIONS, ids=lambda file: str(file.relative_to(ROOT)))
def test_each_key_of_a_shipped_configuration_is_coloured(file: Path, grammar: dict[str, Any]) -> None:
    text = re.sub(r"\\\n\s*", "", file.read_text())
    for line, found in zip(text.splitlines(), tokens(grammar, text), strict=True):
        if not line.strip():
            assert not found
        elif line.lstrip().startswith("#"):
            assert found == [(line, "comment.line.number-sign.flafka")]
        elif key := KEY.match(line):
            coloured = "".join(text for text, scope in found if scope in SCOPES.values())
            assert coloured.rstrip("=:") == key[1], line


def test_every_declared_option_is_coloured_and_a_misspelt_one_is_not(
    components: Components, grammar: dict[str, Any]
) -> None:
    heads = {kind: f"a1.{kind}s.x" for kind in KINDS} | {"interceptor": "a1.sinks.k1.interceptors.i1"}
    for kind in KINDS:
        for cls in components.all(kind):
            described = describe_component(components, kind, cls.type_name)
            for option in described.options():
                line = f"{heads[kind]}.{option.name.replace('*', 'made.up')} = 1"
                assert scope_of(grammar, line) == "option", line
            for name in described.without_effect:
                line = f"{heads[kind]}.{name}{'made.up' * name.endswith('.')}: 1"
                assert scope_of(grammar, line) in ("option", "unused"), line
        assert scope_of(grammar, f"{heads[kind]}.made-up = 1") is None


@pytest.mark.parametrize(
    ("line", "scope"),
    [
        ("a1.sources = s1 s2", "kind"),
        ("  a1.sinks.k1.hdfs.path = /x", "option"),
        ("a1.sinks.k1.hdfs.paht = /x", None),
        ("a1.sources.s1.hdfs.path = /x", None),
        ("a1.sinks.k1.maxIoWorkers = 2", "unused"),
        ("a1.sources.s1.selector.type = multiplexing", "option"),
        ("a1.sources.s1.selector.mapping.a b = c1", None),
        ("a1.sources.s1.selector.mapping.a = c1", "option"),
        ("a1.sinkgroups.g1.processor.priority.k1 = 5", "option"),
        ("a1.sinkgroups.g1.processor.priorty.k1 = 5", None),
        ("a1.configfilters.f1.command = cat", "option"),
        ("a1.runner = spark", "option"),
        ("a1.spark.conf.spark.sql.shuffle.partitions = 4", "option"),
        ("a1.rnner = spark", None),
        ("a1.sources.s1.interceptors.i1.type = mask", "option"),
        ("a1.sources.s1.interceptors.i1.hdfs.path = mask", None),
        ("runner = spark", None),
    ],
)
def test_keys(line: str, scope: str | None, grammar: dict[str, Any]) -> None:
    assert scope_of(grammar, line) == scope


def test_values(grammar: dict[str, Any]) -> None:
    text = "a1.sinks.k1.hdfs.path = ${env:HOME}/%{host}/%Y \\\n  true 42 v42 hdfs\n! a comment\na1.made.up = true 42"
    first, second, third, fourth = tokens(grammar, text)
    assert [part for part in first if part[1].startswith(("var", "const"))] == [
        ("${env:HOME}", "variable.other.flafka"),
        ("%{host}", "variable.other.flafka"),
        ("%Y", "variable.other.flafka"),
        ("\\", "constant.character.escape.flafka"),
    ]
    assert second == [
        ("true", "constant.language.flafka"),
        ("42", "constant.numeric.flafka"),
        ("hdfs", "support.class.flafka"),
    ]
    assert third == [("! a comment", "comment.line.number-sign.flafka")]
    assert fourth == []


def test_the_command_prints_the_grammar_and_the_snippets(grammar: dict[str, Any]) -> None:
    result = CliRunner().invoke(main, ["grammar"])
    assert json.loads(result.stdout) == grammar
    made = json.loads(CliRunner().invoke(main, ["grammar", "--snippets"]).stdout)
    assert made["source syslogtcp"]["body"] == [
        "${1:a1.sources.s1}.type = syslogtcp",
        "${1:a1.sources.s1}.port = ${2:integer}",
        "${1:a1.sources.s1}.channels = ${3:c1}",
    ]
    assert made["sink hdfs hdfs.rollInterval"]["prefix"] == "hdfs.rollInterval"
    assert made["sink hdfs hdfs.rollInterval"]["body"] == ["${1:a1.sinks.k1}.hdfs.rollInterval = ${3:30}"]
    assert made["agent runner"]["body"] == ["${1:a1}.runner = ${3:local}"]


def test_the_extension_is_complete_and_reproducible(components: Components, tmp_path: Path) -> None:
    file = tmp_path / "flafka.vsix"
    result = CliRunner().invoke(main, ["grammar", "--vscode", str(file)])
    assert (result.exit_code, result.stdout) == (0, "")
    with zipfile.ZipFile(io.BytesIO(file.read_bytes())) as archive:
        assert archive.testzip() is None
        contents = {name: archive.read(name).decode() for name in archive.namelist()}
    package = json.loads(contents["extension/package.json"])
    for kind in ("grammars", "snippets"):
        for contribution in package["contributes"][kind]:
            json.loads(contents["extension/" + contribution["path"].removeprefix("./")])
    (language,) = package["contributes"]["languages"]
    json.loads(contents["extension/" + language["configuration"].removeprefix("./")])
    manifest = ET.fromstring(contents["extension.vsixmanifest"])
    assert {asset.get("Path") for asset in manifest.iter() if asset.tag.endswith("Asset")} <= {*contents}
    assert vscode_extension(components, package["version"]) == file.read_bytes()
