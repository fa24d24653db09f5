"""Grammar and snippets of configurations, for editors, made of the declarations of components."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from flafka.agent.config.properties import LISTS
from flafka.agent.config.selectors import SELECTOR_OPTIONS
from flafka.agent.explain import AGENT, KINDS, PROCESSOR, describe_component, first_sentence, list_types
from flafka.agent.explain import OptionDescription as Described
from flafka.agent.options import AgentOptions
from flafka.plugins import Components

SCOPE = "source.flafka"
COMMON = {
    "source": ("type", "channels", "interceptors", "selector.type"),
    "channel": ("type",),
    "sink": ("type", "channel", "interceptors", "runner", "group"),
    "interceptor": ("type",),
}
"""Kind → options that the agent itself reads."""
PREFIXES = {
    "source": "a1.sources.s1",
    "channel": "a1.channels.c1",
    "sink": "a1.sinks.k1",
    "interceptor": "a1.sources.s1.interceptors.i1",
    PROCESSOR: "a1.sinkgroups.g1.processor",
    AGENT: "a1",
}
"""Kind → beginning of the lines of a snippet."""
FILENAME_PATTERNS = ["agent*.conf", "flafka*.conf", "flume*.conf", "flume*.properties"]
_WORD = r"[^\s.=:#!]+"
_SEPARATOR = r"\s*([=:])"
_ARCHIVE_TIME = (1980, 1, 1, 0, 0, 0)


@dataclass
class _Names:
    """Options of all components of a kind, and their types."""

    options: set[str] = field(default_factory=set)
    """Names; one that ends in a dot is the beginning of names."""
    without_effect: set[str] = field(default_factory=set)
    types: set[str] = field(default_factory=set)


def textmate_grammar(components: Components) -> dict[str, Any]:
    """Return the TextMate grammar. Its expressions are also valid for Python's `re`.

    An option has a scope if some component of the kind in its line declares it.
    """
    names = {kind: _names(components, kind) for kind in KINDS}
    agent_options = {option.name for option in AgentOptions.options()}
    processor_options = {"type", *_options(components, PROCESSOR)}
    interceptors = _key("sources|sinks", names["interceptor"], rf"(\.)(interceptors)(\.)({_WORD})")
    keys = [
        *interceptors,
        *(rule for kind in ("source", "channel", "sink") for rule in _key(f"{kind}s", names[kind])),
        *_key("sinkgroups", _Names({"sinks", *(f"processor.{name}" for name in processor_options)})),
        *_key("configfilters", _Names({"type", "command", "charset"})),
        _rule(rf"^\s*({_WORD})(\.)({'|'.join(LISTS)}){_SEPARATOR}", _scopes("agent", "", "kind", "")),
        _rule(rf"^\s*({_WORD})(\.)({_alternatives(agent_options)}){_SEPARATOR}", _scopes("agent", "", "option", "")),
    ]
    types = {name for kind in names.values() for name in kind.types} | {
        *SELECTOR_OPTIONS,
        *_types_of_processors(components),
    }
    return {
        "$schema": "https://raw.githubusercontent.com/martinring/tmlanguage/master/tmlanguage.json",
        "name": "Flafka",
        "scopeName": SCOPE,
        "fileTypes": ["conf"],
        "patterns": [{"include": "#comment"}, *({"include": f"#key{n}"} for n in range(len(keys)))],
        "repository": {
            "comment": {"match": r"^\s*[#!].*$", "name": "comment.line.number-sign.flafka"},
            **{f"key{n}": rule for n, rule in enumerate(keys)},
            "value": {"patterns": _value_patterns(types)},
        },
    }


SCOPES = {
    "agent": "entity.name.namespace.flafka",
    "kind": "keyword.other.flafka",
    "name": "entity.name.type.flafka",
    "option": "support.type.property-name.flafka",
    "unused": "invalid.deprecated.flafka",
    "": "punctuation.separator.flafka",
}
"""Part of a line → its scope."""


def _scopes(*parts: str) -> dict[str, dict[str, str]]:
    return {str(number): {"name": SCOPES[part]} for number, part in enumerate(parts, 1)}


def _rule(begin: str, captures: dict[str, dict[str, str]]) -> dict[str, Any]:
    """Return the rule of a line with such a key. A value ends with the first line that has no final backslash.

    Editors add the end of a line to each line, and then match `$` before and behind it.
    """
    return {"begin": begin, "beginCaptures": captures, "end": r"(?<![\\\n])$", "patterns": [{"include": "#value"}]}


def _key(kinds: str, names: _Names, inner: str = "") -> list[dict[str, Any]]:
    """Return the rules for the options of components. `inner` is between the component and the option."""
    rules = []
    parts = ["agent", "", "kind", "", "name", *(["", "kind", "", "name"] if inner else []), ""]
    head = rf"^\s*({_WORD})(\.)({kinds})(\.)({_WORD}){inner}(\.)"
    for scope, options in (("option", names.options), ("unused", names.without_effect - names.options)):
        if options:
            begin = rf"{head}({_alternatives(options)}){_SEPARATOR}"
            rules.append(_rule(begin, _scopes(*parts, scope, "")))
    return rules


def _alternatives(options: Iterable[str]) -> str:
    """Return an expression for these names; for one that ends in a dot, whatever follows it."""
    ordered = sorted(options, key=lambda name: (-len(name), name))
    return "|".join(re.escape(name).replace(r"\-", "-") + r"[^\s=:]+" * name.endswith(".") for name in ordered)


def _names(components: Components, kind: str) -> _Names:
    """Return the names of all options of a kind."""
    names = _Names({*COMMON[kind]})
    if kind == "source":
        names.options |= {f"selector.{option}" for options in SELECTOR_OPTIONS.values() for option in options}
    for cls in components.all(kind):
        names.types |= {cls.type_name, *cls.aliases}
        for name in (cls.type_name, *cls.aliases):
            component = describe_component(components, kind, name)
            names.options |= {n for option in component.options() for n in _spellings(option)}
            names.without_effect |= {*component.without_effect}
    return names


def _spellings(option: Described) -> list[str]:
    """Return the name and the deprecated alias of an option."""
    return [name.removesuffix("*") for name in (option.name, option.older) if name]


def _options(components: Components, kind: str) -> Iterator[str]:
    """Yield the options of all sink processors."""
    for name in _types_of_processors(components):
        for option in describe_component(components, kind, name).options():
            yield from _spellings(option)


def _types_of_processors(components: Components) -> list[str]:
    """Return the types of sink processors."""
    return [name for name, _ in list_types(components, PROCESSOR)]


def _value_patterns(types: set[str]) -> list[dict[str, Any]]:
    """Return the patterns of a value: its separator, variables, escapes, types, numbers and booleans."""
    plain = sorted(types, key=lambda name: (-len(name), name))
    matches = {
        "variable.other.flafka": r"\$\{[^}\s]*\}?|%\{[^}\s]*\}|%[a-zA-Z%]",
        "constant.character.escape.flafka": r"\\(?:u[0-9a-fA-F]{4}|.)|\\$",
        "support.class.flafka": rf"(?<![\w.$-])(?:{'|'.join(map(re.escape, plain))})(?![\w.$-])",
        "constant.numeric.flafka": r"(?<![\w.-])-?\d+(?:\.\d+)?(?![\w.-])",
        "constant.language.flafka": r"(?<![\w.-])(?:true|false)(?![\w.-])",
    }
    return [{"match": match, "name": name} for name, match in matches.items()]


# --- snippets


def snippets(components: Components) -> dict[str, Any]:
    """Return snippets as VS Code has them: for each option, and for each type with its required options."""
    made: dict[str, Any] = {}
    for kind in KINDS:
        for cls in components.all(kind):
            made |= _component_snippets(components, kind, cls.type_name)
    for name in _types_of_processors(components):
        made |= _component_snippets(components, PROCESSOR, name)
    for option in describe_component(components, AGENT, AGENT).options():
        made |= _option_snippet(AGENT, "", option)
    return made


def _component_snippets(components: Components, kind: str, name: str) -> dict[str, Any]:
    component = describe_component(components, kind, name)
    head = PREFIXES[kind]
    body = [f"${{1:{head}}}.type = {name}"]
    required = [option for option in component.options() if option.required and not option.name.endswith("*")]
    body += [f"${{1:{head}}}.{option.name} = ${{{n}:{option.kind}}}" for n, option in enumerate(required, 2)]
    if kind in ("source", "sink"):
        body.append(f"${{1:{head}}}.{'channels' if kind == 'source' else 'channel'} = ${{{len(required) + 2}:c1}}")
    description = first_sentence(component.guarantee)
    made = {f"{kind} {name}": {"prefix": f"{kind} {name}", "body": body, "description": description}}
    for option in component.options():
        made |= _option_snippet(kind, name, option)
    return made


def _option_snippet(kind: str, type_name: str, option: Described) -> dict[str, Any]:
    written = option.name.replace("*", "${2:NAME}")
    default = option.default.replace("\\", "\\\\").replace("}", "\\}").replace("$", "\\$")
    body = f"${{1:{PREFIXES[kind]}}}.{written} = ${{3:{default}}}"
    owner = " ".join(filter(None, (kind, type_name)))
    text = f"{owner}: {option.text}" + f" ({option.unit})" * bool(option.unit)
    return {f"{owner} {option.name}": {"prefix": option.name.rstrip("*."), "body": [body], "description": text}}


# --- an extension of VS Code


def vscode_extension(components: Components, version: str) -> bytes:
    """Return a file .vsix with grammar and snippets. The same input gives the same bytes."""
    language = {
        "id": "flafka",
        "aliases": ["Flafka", "Apache Flume"],
        "filenamePatterns": FILENAME_PATTERNS,
        "configuration": "./language-configuration.json",
    }
    package = {
        "name": "flafka",
        "displayName": "Flafka",
        "description": "Configurations of Flafka and Apache Flume",
        "version": version,
        "publisher": "flafka",
        "engines": {"vscode": "^1.60.0"},
        "categories": ["Programming Languages", "Snippets"],
        "contributes": {
            "languages": [language],
            "grammars": [{"language": "flafka", "scopeName": SCOPE, "path": "./flafka.tmLanguage.json"}],
            "snippets": [{"language": "flafka", "path": "./flafka.code-snippets"}],
        },
    }
    files = {
        "[Content_Types].xml": _CONTENT_TYPES,
        "extension.vsixmanifest": _MANIFEST.replace("{VERSION}", version),
        "extension/package.json": _json(package),
        "extension/language-configuration.json": _json(
            {"comments": {"lineComment": "#"}, "wordPattern": r"[^\s=:#]+"}
        ),
        "extension/flafka.tmLanguage.json": _json(textmate_grammar(components)),
        "extension/flafka.code-snippets": _json(snippets(components)),
    }
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as target:
        for name, text in files.items():
            info = zipfile.ZipInfo(name, _ARCHIVE_TIME)
            info.external_attr = 0o644 << 16
            target.writestr(info, text.encode(), zipfile.ZIP_DEFLATED)
    return archive.getvalue()


def _json(value: object) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


_CONTENT_TYPES = """\
<?xml version="1.0" encoding="utf-8"?>
<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">
  <Default Extension="json" ContentType="application/json"/>
  <Default Extension="code-snippets" ContentType="application/json"/>
  <Default Extension="vsixmanifest" ContentType="text/xml"/>
</Types>
"""
_MANIFEST = """\
<?xml version="1.0" encoding="utf-8"?>
<PackageManifest Version="2.0.0" xmlns="http://schemas.microsoft.com/developer/vsx-schema/2011">
  <Metadata>
    <Identity Language="en-US" Id="flafka" Version="{VERSION}" Publisher="flafka"/>
    <DisplayName>Flafka</DisplayName>
    <Description xml:space="preserve">Configurations of Flafka and Apache Flume</Description>
    <Categories>Programming Languages,Snippets</Categories>
  </Metadata>
  <Installation>
    <InstallationTarget Id="Microsoft.VisualStudio.Code"/>
  </Installation>
  <Dependencies/>
  <Assets>
    <Asset Type="Microsoft.VisualStudio.Code.Manifest" Path="extension/package.json" Addressable="true"/>
  </Assets>
</PackageManifest>
"""
