"""Commands that add, compare and remove fields."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

from flafka.plugins.morphline.arguments import Arguments
from flafka.plugins.morphline.compiler import Compiler, Process, command
from flafka.plugins.morphline.expressions import FieldValues
from flafka.plugins.morphline.grok import Pattern
from flafka.plugins.morphline.record import MorphlineRecord, to_java_string


@command("addValues")
def add_values(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Build `addValues`, which adds values to fields, behind their present ones."""
    return _for_each_field(arguments, child, lambda record, name, values: record[name].extend(values.of(record)))


@command("setValues")
def set_values(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Build `setValues`, which replaces all values of fields by the given ones."""

    def put(record: MorphlineRecord, name: str, values: FieldValues) -> None:
        del record[name]
        record[name] = values.of(record)

    return _for_each_field(arguments, child, put)


@command("addValuesIfAbsent")
def add_values_if_absent(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Build `addValuesIfAbsent`, which adds each value to its field unless the field has an equal one."""

    def put(record: MorphlineRecord, name: str, values: FieldValues) -> None:
        for value in values.of(record):
            if not any(_equal(value, existing) for existing in record[name]):
                record[name].append(value)

    return _for_each_field(arguments, child, put)


def _for_each_field(
    arguments: Arguments, child: Process, put: Callable[[MorphlineRecord, str, FieldValues], None]
) -> Process:
    """Build a command that calls `put` for each field in the arguments, with the values to put."""
    fields = {name: FieldValues(definition) for name, definition in arguments.flat_values().items()}

    def process(record: MorphlineRecord) -> bool:
        for name, values in fields.items():
            put(record, name, values)
        return child(record)

    return process


@command("equals")
def equals(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Build `equals`, which fails unless each field has exactly these values, in this order."""

    def matches(values: list[Any], expected_values: list[Any]) -> bool:
        return len(values) == len(expected_values) and all(map(_equal, values, expected_values))

    return _compare(arguments, child, matches)


@command("contains")
def contains(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Build `contains`, which fails unless each field has at least one of the values given for it."""

    def matches(values: list[Any], expected_values: list[Any]) -> bool:
        return any(_equal(value, expected) for expected in expected_values for value in values)

    return _compare(arguments, child, matches)


def _compare(arguments: Arguments, child: Process, matches: Callable[[list[Any], list[Any]], bool]) -> Process:
    """Build a command that fails unless `matches` is True for the values of each field, and the expected ones."""
    fields = {name: FieldValues(definition) for name, definition in arguments.flat_values().items()}

    def process(record: MorphlineRecord) -> bool:
        return all(matches(record[name], values.of(record)) for name, values in fields.items()) and child(record)

    return process


def _equal(left: Any, right: Any) -> bool:
    """Return True for equality as in Java: same type and value, and for bytes the same object."""
    if isinstance(left, bytes):
        return left is right
    return type(left) is type(right) and bool(left == right)


class _NameFilter:
    """Names or values that are in a blacklist and not in a whitelist."""

    def __init__(self, blacklist: list[str], whitelist: list[str]) -> None:
        self._black, self._white = ([_matcher(name) for name in names] for names in (blacklist, whitelist))

    def __contains__(self, name: str) -> bool:
        return any(match(name) for match in self._black) and not any(match(name) for match in self._white)


def _matcher(expression: str) -> Callable[[str], bool]:
    """Return a function that tests a name against `*`, or an expression such as `glob:a*`. Raises ValueError."""
    kind, colon, pattern = expression.partition(":")
    if expression == "*" or (kind == "glob" and pattern == "*"):
        return lambda name: True
    if kind == "literal" and colon:
        return lambda name: name == pattern
    if kind in ("regex", "glob") and colon:
        regex = Pattern(pattern if kind == "regex" else _glob(pattern))
        return lambda name: regex.fullmatch(name) is not None
    raise ValueError(f"has {expression!r}, which must be *, or begin with literal:, regex: or glob:")


def _glob(pattern: str) -> str:
    """Return the regular expression of a glob."""
    regex, braces, in_set = [], 0, False
    characters = iter(pattern)
    for character in characters:
        if character == "\\":
            regex.append(f"\\{next(characters, '')}")
        elif character in ".$()|+" or (character == "^" and not in_set):
            regex.append(f"\\{character}")
        elif character in "*?":
            regex.append(".*" if character == "*" else ".")
        elif character == "{":
            braces += 1
            regex.append("(?:")
        elif character == "," and braces:
            regex.append("|")
        elif character == "}" and braces:
            braces -= 1
            regex.append(")")
        elif character == "!" and in_set and regex[-1] == "[":
            regex.append("^")
        else:
            in_set = character == "[" or (in_set and character != "]")
            regex.append(character)
    return "".join(regex)


@command("removeFields")
def remove_fields(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Build `removeFields`, which removes the fields whose names are in `blacklist` and not in `whitelist`."""
    names = _NameFilter(arguments.text_list("blacklist", ["*"]), arguments.text_list("whitelist", []))
    arguments.ignore("cacheCapacity")

    def process(record: MorphlineRecord) -> bool:
        for name in record:
            if name in names:
                del record[name]
        return child(record)

    return process


def _change_values(
    arguments: Arguments, child: Process, change: Callable[[list[Any], _NameFilter], list[Any]]
) -> Process:
    """Build a command that replaces the values of each field selected by name with the result of `change`.

    `change` also gets the filter of values.
    """
    names = _NameFilter(arguments.text_list("nameBlacklist", ["*"]), arguments.text_list("nameWhitelist", []))
    values = _NameFilter(arguments.text_list("valueBlacklist", ["*"]), arguments.text_list("valueWhitelist", []))
    arguments.ignore("nameCacheCapacity", "valueCacheCapacity")

    def process(record: MorphlineRecord) -> bool:
        for name in record:
            if name in names:
                record[name] = change(record[name], values)
        return child(record)

    return process


@command("removeValues")
def remove_values(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Build `removeValues`, which removes selected values, in the fields selected by name.

    Black- and whitelists select both.
    """
    return _change_values(
        arguments, child, lambda values, removed: [value for value in values if to_java_string(value) not in removed]
    )


@command("replaceValues")
def replace_values(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Build `replaceValues`, which sets selected values to `replacement`, in the fields selected by name."""
    replacement = arguments.text("replacement")
    return _change_values(
        arguments,
        child,
        lambda values, replaced: [replacement if to_java_string(value) in replaced else value for value in values],
    )


def _generate(field: str, arguments: Arguments, child: Process, make: Callable[[], list[Any]]) -> Process:
    """Build a command that sets a field to the result of `make`; an existing field stays with `preserveExisting`.

    The argument `field` names it, by default `field`.
    """
    name = arguments.text("field", field)
    preserve = arguments.boolean("preserveExisting", True)

    def process(record: MorphlineRecord) -> bool:
        if not (preserve and name in record):
            record[name] = make()
        return child(record)

    return process


@command("addCurrentTime")
def add_current_time(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Build `addCurrentTime`, which sets a field to the time in milliseconds since the epoch.

    The field is `timestamp` by default.
    """
    return _generate("timestamp", arguments, child, lambda: [time.time_ns() // 1_000_000])


@command("addLocalHost")
def add_local_host(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Build `addLocalHost`, which sets a field, by default `host`, to this host's address.

    Without `useIP` it is the host's name. The host is looked up once. Without a result, the field has no values.
    """
    by_address = arguments.boolean("useIP", True)

    def host() -> list[str]:
        name = socket.gethostname()
        try:
            return [socket.gethostbyname(name) if by_address else socket.getfqdn(name)]
        except OSError:
            return []

    cache: list[list[str]] = []

    def cached_host() -> list[str]:
        if not cache:
            cache.append(host())
        return cache[0]

    return _generate("host", arguments, child, cached_host)


@command("generateUUID")
def generate_uuid(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Build `generateUUID`, which sets a field, by default `id`, to `prefix` and a UUID."""
    prefix = arguments.text("prefix", "")
    arguments.choice("type", "secure", "nonSecure")
    return _generate("id", arguments, child, lambda: [prefix + compiler.uuid()])
