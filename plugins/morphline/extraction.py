"""Commands that extract fields from a value: by expressions, separators or JSON paths."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from flafka.plugins.morphline.arguments import Arguments
from flafka.plugins.morphline.compiler import Compiler, Process, command
from flafka.plugins.morphline.grok import Pattern
from flafka.plugins.morphline.readers import BLANK
from flafka.plugins.morphline.record import (
    BODY,
    CHARSET,
    MIME_TYPE,
    NAME,
    JsonNode,
    MorphlineRecord,
    MorphlineRuntimeError,
    to_java_string,
)

_WHITESPACE = "\t\n\v\f\r \x85\xa0\u1680\u180e\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
"""Characters that Guava's `Splitter` trims."""


@command("grok")
def grok(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Build `grok`, which makes fields of the named groups of regular expressions.

    The command fails unless each expression matches as often as `numRequiredMatches` says. With `extract` the groups
    are added to a copy of the record, with `inplace` to the record; with false they are not added.
    """
    dictionary = arguments.dictionary()
    patterns = {
        name: Pattern(_scalar_text(definition), dictionary)
        for name, definition in arguments.flat_object("expressions").items()
    }
    mode = arguments.text("extract", "true")
    extract = mode == "inplace" or arguments.boolean("extract", True)
    required_matches = arguments.choice("numRequiredMatches", "atLeastOnce", "once", "all")
    substrings = arguments.boolean("findSubstrings", False)
    empty = arguments.boolean("addEmptyStrings", False)

    def matches(record: MorphlineRecord) -> Iterator[tuple[Pattern, re.Match[str]] | None]:
        """Yield every match, or None once an expression does not match often enough."""
        for name, pattern in patterns.items():
            values = list(record[name])
            matched = 0
            for value in values:
                string = to_java_string(value)
                candidates = [*pattern.finditer(string)] if substrings else [pattern.fullmatch(string)]
                found = [match for match in candidates if match is not None]
                matched += bool(found)
                if matched > 1 and required_matches == "once":
                    yield None
                for match in found:
                    yield pattern, match
            if matched < (len(values) if required_matches == "all" else 1):
                yield None

    def process(record: MorphlineRecord) -> bool:
        # Collect all matches first: a record that fails must stay unchanged for the commands of another rule.
        pairs = []
        for pair in matches(record):
            if pair is None:
                return False
            pairs.append(pair)
        output = record.copy() if extract and mode != "inplace" else record
        if extract:
            for pattern, match in pairs:
                for name, value in pattern.named_groups(match):
                    if value or empty:
                        output[name].append(value)
        return child(output)

    return process


def _scalar_text(definition: Any) -> str:
    if isinstance(definition, list):
        raise ValueError("has a list where an expression must be")
    return to_java_string(definition.value)


@command("split")
def split(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Build `split`, which splits values at a separator, and adds the pieces to fields.

    All pieces go to `outputField`, or each to the field at its place in `outputFields`, beyond which pieces are
    dropped. With `limit`, the last piece is all that remains.
    """
    source = arguments.text("inputField")
    target = arguments.text("outputField", "") if "outputField" in arguments.values else None
    targets = arguments.text_list("outputFields", []) if "outputFields" in arguments.values else None
    if (target is None) == (targets is None):
        raise ValueError("needs either outputField or outputFields")
    arguments.ignore("outputField", "outputFields")
    separator = arguments.text("separator")
    if not separator:
        raise ValueError("needs a separator")
    dictionary = arguments.dictionary()
    pattern = Pattern(separator, dictionary) if arguments.boolean("isRegex", False) else None
    if pattern is not None and pattern.fullmatch(""):
        raise ValueError(f"has the separator {separator!r}, which matches an empty text")
    limit = arguments.integer("limit", -1)
    empty = arguments.boolean("addEmptyStrings", False)
    trim = arguments.boolean("trim", True)

    def pieces(value: str) -> Iterator[str]:
        separators = _find_text(separator, value) if pattern is None else _find_pattern(pattern, value)
        start, remaining = 0, limit
        for end, next_start in [*separators, (len(value), len(value))]:
            piece = value[start:end].strip(_WHITESPACE) if trim else value[start:end]
            if piece or empty or targets is not None:
                if remaining == 1:
                    last = value[start:]
                    yield last.strip(_WHITESPACE) if trim else last
                    return
                remaining -= 1
                yield piece
            start = next_start

    def process(record: MorphlineRecord) -> bool:
        for value in list(record[source]):
            if targets is None:
                assert target is not None
                record[target].extend(pieces(to_java_string(value)))
                continue
            for name, piece in zip(targets, pieces(to_java_string(value)), strict=False):
                if name and (piece or empty):
                    record[name].append(piece)
        return child(record)

    return process


def _find_text(separator: str, value: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each separator, from left to right."""
    position = 0
    while (start := value.find(separator, position)) >= 0:
        position = start + len(separator)
        yield start, position


def _find_pattern(pattern: Pattern, value: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each match that is not empty."""
    yield from (match.span() for match in pattern.finditer(value) if match.end() > match.start())


@command("splitKeyValue")
def split_key_value(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Build `splitKeyValue`, which makes a field of each value such as `key=value`.

    A value without a separator has an empty text, which is added only with `addEmptyStrings`.
    """
    source = arguments.text("inputField")
    prefix = arguments.text("outputFieldPrefix", "")
    separator = arguments.text("separator", "=")
    if not separator:
        raise ValueError("needs a separator")
    pattern = Pattern(separator, arguments.dictionary()) if arguments.boolean("isRegex", False) else None
    empty = arguments.boolean("addEmptyStrings", False)
    trim = arguments.boolean("trim", True)

    def process(record: MorphlineRecord) -> bool:
        for value in map(to_java_string, list(record[source])):
            if pattern is None:
                key, _, content = value.partition(separator)
            elif match := pattern.search(value):
                key, content = value[: match.start()], value[match.end() :]
            else:
                key, content = value, ""
            if trim:
                key, content = key.strip(BLANK), content.strip(BLANK)
            if content or empty:
                record[prefix + key].append(content)
        return child(record)

    return process


@command("extractJsonPaths")
def extract_json_paths(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Build `extractJsonPaths`, which adds the values at paths in the JSON of `readJson` to fields.

    With `flatten`, objects and arrays are replaced by their scalar values. Raises MorphlineRuntimeError if the body
    is no JSON of `readJson`.
    """
    flatten = arguments.boolean("flatten", True)
    paths = {}
    for name, definition in arguments.flat_object("paths", required=True).items():
        paths[name] = _steps(_scalar_text(definition))

    def process(record: MorphlineRecord) -> bool:
        root = record[BODY][0] if BODY in record else None
        if not isinstance(root, JsonNode):
            raise MorphlineRuntimeError(f"{BODY} is no JSON: readJson must come before extractJsonPaths")
        copy = record.copy()
        for name, steps in paths.items():
            for value in _values_at(root.value, steps):
                copy[name].extend(_leaves(value) if flatten else _node(value))
        return child(copy)

    return process


def _steps(path: str) -> list[str]:
    """Return the steps of a path, where `[]` behind a name is a step of its own. Raises ValueError for `//`."""
    path = path.strip(BLANK)
    if "//" in path:
        raise ValueError(f"has the path {path!r}: // is not supported")
    steps = []
    for step in (part.strip(BLANK) for part in path.removeprefix("/").removesuffix("/").strip(BLANK).split("/")):
        steps += [step[:-2], "[]"] if len(step) > 2 and step.endswith("[]") else [step]
    return steps


def _values_at(value: Any, steps: list[str]) -> Iterator[Any]:
    """Yield the values at the end of a path. Only the step `[]` enters lists."""
    if not steps:
        yield value
    elif steps[0] == "[]":
        if isinstance(value, list):
            for item in [value] if len(steps) == 1 else value:
                yield from _values_at(item, steps[1:])
    elif isinstance(value, dict) and steps[0] in value:
        yield from _values_at(value[steps[0]], steps[1:])


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the scalar values in a value of JSON, without nulls."""
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _leaves(item)
    elif value is not None:
        yield value


def _node(value: Any) -> list[Any]:
    """Return a value of JSON as a list of one value; empty for null."""
    if value is None:
        return []
    return [JsonNode(value) if isinstance(value, (dict, list)) else value]


@command("separateAttachments")
def separate_attachments(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Build `separateAttachments`, which passes on a record for each body, until a later command fails."""

    def process(record: MorphlineRecord) -> bool:
        for number in range(len(record[BODY])):
            copy = record.copy()
            for name in (BODY, MIME_TYPE, CHARSET, NAME):
                copy[name] = record[name][number : number + 1]
            if not child(copy):
                return False
        return True

    return process
