"""Commands that make fields of what is within a value: expressions, separators, JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from flafka.plugins.morphline.arguments import Arguments
from flafka.plugins.morphline.compiler import Compiler, Process, command
from flafka.plugins.morphline.grok import Pattern
from flafka.plugins.morphline.readers import BLANK
from flafka.plugins.morphline.record import BODY, CHARSET, MIME_TYPE, NAME, Failed, JsonNode, MorphlineRecord, text

_WHITESPACE = "\t\n\v\f\r \x85\xa0\u1680\u180e\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
"""What Guava's `Splitter` trims."""


@command("grok")
def grok(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Fields out of the groups of regular expressions; fails where one does not match."""
    dictionary = arguments.dictionary()
    patterns = {
        name: Pattern(_text(written), dictionary) for name, written in arguments.mapping("expressions").items()
    }
    mode = arguments.text("extract", "true")
    extract = mode == "inplace" or arguments.truth("extract", True)
    how_many = arguments.one_of("numRequiredMatches", "atLeastOnce", "once", "all")
    substrings = arguments.truth("findSubstrings", False)
    empty = arguments.truth("addEmptyStrings", False)

    def matches(record: MorphlineRecord) -> Iterator[tuple[Pattern, re.Match[str]] | None]:
        """Every match, or None once one of the expressions does not match as often as it must."""
        for name, pattern in patterns.items():
            values = list(record[name])
            matched = 0
            for value in values:
                found = [pattern.fullmatch(text(value))] if not substrings else [*pattern.finditer(text(value))]
                some = [one for one in found if one is not None]
                matched += bool(some)
                if matched > 1 and how_many == "once":
                    yield None
                for one in some:
                    yield pattern, one
            if matched < (len(values) if how_many == "all" else 1):
                yield None

    def process(record: MorphlineRecord) -> bool:
        # A record that fails stays as it is, for the commands of another rule.
        found = []
        for one in matches(record):
            if one is None:
                return False
            found.append(one)
        output = record.copy() if extract and mode != "inplace" else record
        if extract:
            for pattern, match in found:
                for name, value in pattern.fields(match):
                    if value or empty:
                        output[name].append(value)
        return child(output)

    return process


def _text(written: Any) -> str:
    if isinstance(written, list):
        raise ValueError("has a list where an expression must be")
    return text(written.value)


@command("split")
def split(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """The pieces of a value, in one field or in one each."""
    source = arguments.text("inputField")
    target = arguments.text("outputField", "") if "outputField" in arguments.given else None
    targets = arguments.texts("outputFields", []) if "outputFields" in arguments.given else None
    if (target is None) == (targets is None):
        raise ValueError("needs either outputField or outputFields")
    arguments.ignored("outputField", "outputFields")
    separator = arguments.text("separator")
    if not separator:
        raise ValueError("needs a separator")
    dictionary = arguments.dictionary()
    pattern = Pattern(separator, dictionary) if arguments.truth("isRegex", False) else None
    if pattern is not None and pattern.fullmatch(""):
        raise ValueError(f"has the separator {separator!r}, which matches nothing, too")
    limit = arguments.whole("limit", -1)
    empty = arguments.truth("addEmptyStrings", False)
    trim = arguments.truth("trim", True)

    def pieces(value: str) -> Iterator[str]:
        gaps = _found(separator, value) if pattern is None else _matched(pattern, value)
        start, left = 0, limit
        for end, following in [*gaps, (len(value), len(value))]:
            piece = value[start:end].strip(_WHITESPACE) if trim else value[start:end]
            if piece or empty or targets is not None:
                if left == 1:
                    rest = value[start:]
                    yield rest.strip(_WHITESPACE) if trim else rest
                    return
                left -= 1
                yield piece
            start = following

    def process(record: MorphlineRecord) -> bool:
        for value in list(record[source]):
            if targets is None:
                assert target is not None
                record[target].extend(pieces(text(value)))
                continue
            for name, piece in zip(targets, pieces(text(value)), strict=False):
                if name and (piece or empty):
                    record[name].append(piece)
        return child(record)

    return process


def _found(separator: str, value: str) -> Iterator[tuple[int, int]]:
    """Find where each separator begins and ends."""
    position = 0
    while (found := value.find(separator, position)) >= 0:
        position = found + len(separator)
        yield found, position


def _matched(pattern: Pattern, value: str) -> Iterator[tuple[int, int]]:
    """Find where each match of a pattern begins and ends, but for matches of nothing."""
    yield from (match.span() for match in pattern.finditer(value) if match.end() > match.start())


@command("splitKeyValue")
def split_key_value(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """A field for each value such as `key=value`."""
    source = arguments.text("inputField")
    prefix = arguments.text("outputFieldPrefix", "")
    separator = arguments.text("separator", "=")
    if not separator:
        raise ValueError("needs a separator")
    pattern = Pattern(separator, arguments.dictionary()) if arguments.truth("isRegex", False) else None
    empty = arguments.truth("addEmptyStrings", False)
    trim = arguments.truth("trim", True)

    def process(record: MorphlineRecord) -> bool:
        for value in map(text, list(record[source])):
            if pattern is None:
                key, _, rest = value.partition(separator)
            elif match := pattern.search(value):
                key, rest = value[: match.start()], value[match.end() :]
            else:
                key, rest = value, ""
            if trim:
                key, rest = key.strip(BLANK), rest.strip(BLANK)
            if rest or empty:
                record[prefix + key].append(rest)
        return child(record)

    return process


@command("extractJsonPaths")
def extract_json_paths(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Fields out of the JSON that `readJson` read."""
    flatten = arguments.truth("flatten", True)
    paths = {}
    for name, written in arguments.mapping("paths", required=True).items():
        paths[name] = _steps(_text(written))

    def process(record: MorphlineRecord) -> bool:
        root = record[BODY][0] if BODY in record else None
        if not isinstance(root, JsonNode):
            raise Failed(f"{BODY} is no JSON: readJson must come before extractJsonPaths")
        copy = record.copy()
        for name, steps in paths.items():
            for value in _at(root.value, steps):
                copy[name].extend(_flat(value) if flatten else _whole(value))
        return child(copy)

    return process


def _steps(path: str) -> list[str]:
    path = path.strip(BLANK)
    if "//" in path:
        raise ValueError(f"has the path {path!r}: // is not known")
    steps = []
    for step in (one.strip(BLANK) for one in path.removeprefix("/").removesuffix("/").strip(BLANK).split("/")):
        steps += [step[:-2], "[]"] if len(step) > 2 and step.endswith("[]") else [step]
    return steps


def _at(value: Any, steps: list[str]) -> Iterator[Any]:
    """What stands at the end of a path; a list is gone into at `[]` only."""
    if not steps:
        yield value
    elif steps[0] == "[]":
        if isinstance(value, list):
            for one in [value] if len(steps) == 1 else value:
                yield from _at(one, steps[1:])
    elif isinstance(value, dict) and steps[0] in value:
        yield from _at(value[steps[0]], steps[1:])


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (dict, list)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _flat(one)
    elif value is not None:
        yield value


def _whole(value: Any) -> list[Any]:
    if value is None:
        return []
    return [JsonNode(value) if isinstance(value, (dict, list)) else value]


@command("separateAttachments")
def separate_attachments(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """A record for each body."""

    def process(record: MorphlineRecord) -> bool:
        for number in range(len(record[BODY])):
            copy = record.copy()
            for name in (BODY, MIME_TYPE, CHARSET, NAME):
                copy[name] = record[name][number : number + 1]
            if not child(copy):
                return False
        return True

    return process
