"""Commands that put, compare and remove fields as a whole."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

from flafka.plugins.morphline.arguments import Arguments
from flafka.plugins.morphline.compiler import Compiler, Process, command
from flafka.plugins.morphline.expressions import Values
from flafka.plugins.morphline.grok import Pattern
from flafka.plugins.morphline.record import MorphlineRecord, text


@command("addValues")
def add_values(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Further values."""
    return _each(arguments, child, lambda record, name, values: record[name].extend(values.of(record)))


@command("setValues")
def set_values(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Values instead of those there are."""

    def put(record: MorphlineRecord, name: str, values: Values) -> None:
        del record[name]
        record[name] = values.of(record)

    return _each(arguments, child, put)


@command("addValuesIfAbsent")
def add_values_if_absent(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Further values that are not there yet."""

    def put(record: MorphlineRecord, name: str, values: Values) -> None:
        for value in values.of(record):
            if not any(_same(value, one) for one in record[name]):
                record[name].append(value)

    return _each(arguments, child, put)


def _each(arguments: Arguments, child: Process, put: Callable[[MorphlineRecord, str, Values], None]) -> Process:
    fields = {name: Values(written) for name, written in arguments.all().items()}

    def process(record: MorphlineRecord) -> bool:
        for name, values in fields.items():
            put(record, name, values)
        return child(record)

    return process


@command("equals")
def equals(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Fails unless each field has just these values."""

    def holds(values: list[Any], wanted: list[Any]) -> bool:
        return len(values) == len(wanted) and all(map(_same, values, wanted))

    return _compared(arguments, child, holds)


@command("contains")
def contains(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Fails unless each field has one of these values."""

    def holds(values: list[Any], wanted: list[Any]) -> bool:
        return any(_same(value, one) for one in wanted for value in values)

    return _compared(arguments, child, holds)


def _compared(arguments: Arguments, child: Process, holds: Callable[[list[Any], list[Any]], bool]) -> Process:
    fields = {name: Values(written) for name, written in arguments.all().items()}

    def process(record: MorphlineRecord) -> bool:
        return all(holds(record[name], values.of(record)) for name, values in fields.items()) and child(record)

    return process


def _same(one: Any, other: Any) -> bool:
    """Equal for Java: of one type, and bytes only if they are the same object."""
    if isinstance(one, bytes):
        return one is other
    return type(one) is type(other) and bool(one == other)


class _Names:
    """Which names (or values) are meant: those of a blacklist that are not in a whitelist."""

    def __init__(self, blacklist: list[str], whitelist: list[str]) -> None:
        self._black, self._white = ([_matcher(one) for one in names] for names in (blacklist, whitelist))

    def __contains__(self, name: str) -> bool:
        return any(match(name) for match in self._black) and not any(match(name) for match in self._white)


def _matcher(expression: str) -> Callable[[str], bool]:
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
    out, braces, in_set = [], 0, False
    characters = iter(pattern)
    for character in characters:
        if character == "\\":
            out.append(f"\\{next(characters, '')}")
        elif character in ".$()|+" or (character == "^" and not in_set):
            out.append(f"\\{character}")
        elif character in "*?":
            out.append(".*" if character == "*" else ".")
        elif character == "{":
            braces += 1
            out.append("(?:")
        elif character == "," and braces:
            out.append("|")
        elif character == "}" and braces:
            braces -= 1
            out.append(")")
        elif character == "!" and in_set and out[-1] == "[":
            out.append("^")
        else:
            in_set = character == "[" or (in_set and character != "]")
            out.append(character)
    return "".join(out)


@command("removeFields")
def remove_fields(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Without the fields of these names."""
    names = _Names(arguments.texts("blacklist", ["*"]), arguments.texts("whitelist", []))
    arguments.ignored("cacheCapacity")

    def process(record: MorphlineRecord) -> bool:
        for name in record:
            if name in names:
                del record[name]
        return child(record)

    return process


def _values_of_names(
    arguments: Arguments, child: Process, change: Callable[[list[Any], _Names], list[Any]]
) -> Process:
    names = _Names(arguments.texts("nameBlacklist", ["*"]), arguments.texts("nameWhitelist", []))
    values = _Names(arguments.texts("valueBlacklist", ["*"]), arguments.texts("valueWhitelist", []))
    arguments.ignored("nameCacheCapacity", "valueCacheCapacity")

    def process(record: MorphlineRecord) -> bool:
        for name in record:
            if name in names:
                record[name] = change(record[name], values)
        return child(record)

    return process


@command("removeValues")
def remove_values(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Without these values."""
    return _values_of_names(arguments, child, lambda given, names: [one for one in given if text(one) not in names])


@command("replaceValues")
def replace_values(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Another value in the place of these."""
    other = arguments.text("replacement")
    return _values_of_names(
        arguments, child, lambda given, names: [other if text(one) in names else one for one in given]
    )


def _made(field: str, arguments: Arguments, child: Process, make: Callable[[], list[Any]]) -> Process:
    name = arguments.text("field", field)
    preserve = arguments.truth("preserveExisting", True)

    def process(record: MorphlineRecord) -> bool:
        if not (preserve and name in record):
            record[name] = make()
        return child(record)

    return process


@command("addCurrentTime")
def add_current_time(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Milliseconds since the epoch."""
    return _made("timestamp", arguments, child, lambda: [time.time_ns() // 1_000_000])


@command("addLocalHost")
def add_local_host(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """This host's address or name."""
    by_address = arguments.truth("useIP", True)

    def host() -> list[str]:
        name = socket.gethostname()
        try:
            return [socket.gethostbyname(name) if by_address else socket.getfqdn(name)]
        except OSError:
            return []

    found: list[list[str]] = []

    def once() -> list[str]:
        if not found:
            found.append(host())
        return found[0]

    return _made("host", arguments, child, once)


@command("generateUUID")
def generate_uuid(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """An identifier."""
    prefix = arguments.text("prefix", "")
    arguments.one_of("type", "secure", "nonSecure")
    return _made("id", arguments, child, lambda: [prefix + compiler.uuid()])
