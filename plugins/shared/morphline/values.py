"""Commands that change the fields of a record."""

from __future__ import annotations

import base64
import re
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

from plugins.shared.morphline.arguments import Arguments
from plugins.shared.morphline.compiler import Compiler, Process, command
from plugins.shared.morphline.expressions import Values
from plugins.shared.morphline.grok import Pattern
from plugins.shared.morphline.readers import BLANK
from plugins.shared.morphline.record import BODY, CHARSET, MIME_TYPE, NAME, Failed, Json, Record, text
from plugins.shared.morphline.simpledate import SimpleDateFormat, zone

_WHITESPACE = "\t\n\v\f\r \x85\xa0\u1680\u180e\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
"""What Guava's `Splitter` trims."""
_SOLR_TIME = "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'"
_TIMES = [
    _SOLR_TIME,
    "yyyy-MM-dd'T'HH:mm:ss'Z'",
    "yyyy-MM-dd'T'HH:mm:ss",
    "yyyy-MM-dd",
    "yyyy-MM-dd hh:mm:ss",
    "yyyy-MM-dd HH:mm:ss",
    "EEE MMM d hh:mm:ss z yyyy",
    "EEE MMM d HH:mm:ss yyyy",
    "EEEE, dd-MMM-yy HH:mm:ss zzz",
    "EEE, dd MMM yyyy HH:mm:ss zzz",
]
_LOCALES = ("", "en", "en_US", "en_GB", "en_CA", "en_AU")
_UNIX_TIMES = {"unixTimeInMillis": 1, "unixTimeInSeconds": 1000}
_WHOLE = re.compile(r"[+-]?\d{1,19}")


# --- fields as a whole


@command("addValues")
def add_values(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Further values."""
    return _each(arguments, child, lambda record, name, values: record[name].extend(values.of(record)))


@command("setValues")
def set_values(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Values instead of those there are."""

    def put(record: Record, name: str, values: Values) -> None:
        del record[name]
        record[name] = values.of(record)

    return _each(arguments, child, put)


@command("addValuesIfAbsent")
def add_values_if_absent(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Further values that are not there yet."""

    def put(record: Record, name: str, values: Values) -> None:
        for value in values.of(record):
            if not any(_same(value, one) for one in record[name]):
                record[name].append(value)

    return _each(arguments, child, put)


def _each(arguments: Arguments, child: Process, put: Callable[[Record, str, Values], None]) -> Process:
    fields = {name: Values(written) for name, written in arguments.all().items()}

    def process(record: Record) -> bool:
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

    def process(record: Record) -> bool:
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

    def process(record: Record) -> bool:
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

    def process(record: Record) -> bool:
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


# --- each value of a field


def _transformed(field: str, child: Process, change: Callable[[Any], Any]) -> Process:
    def process(record: Record) -> bool:
        if field in record:
            record[field] = [change(value) for value in record[field]]
        return child(record)

    return process


@command("toString")
def to_string(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Values as texts."""
    trim = arguments.truth("trim", False)
    return _transformed(
        arguments.text("field"), child, lambda value: text(value).strip(BLANK) if trim else text(value)
    )


@command("toByteArray")
def to_byte_array(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Values as bytes."""
    codec = arguments.charset("UTF-8")
    assert codec is not None

    def encoded(value: Any) -> bytes:
        return value if isinstance(value, bytes) else text(value).encode(codec, "replace")

    return _transformed(arguments.text("field"), child, encoded)


@command("decodeBase64")
def decode_base64(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """The bytes that a value stands for."""

    def decoded(value: Any) -> bytes:
        kept = re.sub("[^A-Za-z0-9+/]", "", text(value).partition("=")[0].replace("-", "+").replace("_", "/"))
        kept = kept[:-1] if len(kept) % 4 == 1 else kept
        return base64.b64decode(kept + "=" * (-len(kept) % 4))

    return _transformed(arguments.text("field"), child, decoded)


@command("findReplace")
def find_replace(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """A text or a regular expression replaced within values."""
    written, new = arguments.text("pattern"), arguments.text("replacement")
    count = int(arguments.truth("replaceFirst", False))
    dictionary = arguments.dictionary()
    if arguments.truth("isRegex", False):
        pattern = Pattern(written, dictionary)
        parts = pattern.replacement(new)
        return _transformed(arguments.text("field"), child, lambda value: pattern.replace(text(value), parts, count))
    return _transformed(
        arguments.text("field"),
        child,
        lambda value: text(value).replace(written, new, count or -1) if written else text(value),
    )


@command("translate")
def translate(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Values looked up in a dictionary."""
    field = arguments.text("field")
    there = {name: _translation(value) for name, value in arguments.mapping("dictionary", required=True).items()}
    fallback = [arguments.text("fallback")] if "fallback" in arguments.given else []
    arguments.ignored("fallback")

    def process(record: Record) -> bool:
        for number, value in enumerate(record[field]):
            if (key := text(value)) in there:
                record[field][number] = there[key]
            elif fallback:
                record[field][number] = fallback[0]
            else:
                return False
        return child(record)

    return process


def _translation(written: Any) -> Any:
    if isinstance(written, list):
        raise ValueError("has a list in its dictionary, where a text must be")
    return written.value


@command("convertTimestamp")
def convert_timestamp(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Times written in another format."""
    field = arguments.text("field", "timestamp")
    for name in ("inputLocale", "outputLocale"):
        if (locale := arguments.text(name, "")) not in _LOCALES:
            raise ValueError(f"has {name} {locale!r}: only English names of months and days are built")
    source, target = (arguments.text(name, "UTC") for name in ("inputTimezone", "outputTimezone"))
    read = [_time_reader(one, source) for one in arguments.texts("inputFormats", _TIMES)]
    written = arguments.text("outputFormat", _SOLR_TIME)
    if written in _UNIX_TIMES:
        _only_utc(written, target)
        unit = _UNIX_TIMES[written]

        def write(millis: int) -> str:
            return str(abs(millis) // unit * (1 if millis >= 0 else -1))

    else:
        write = SimpleDateFormat(written, zone(target)).format

    def process(record: Record) -> bool:
        for number, value in enumerate(record[field]):
            times = (one(text(value)) for one in read)
            millis = next((one for one in times if one is not None), None)
            if millis is None:
                return False
            try:
                record[field][number] = write(millis)
            except ValueError as e:
                raise Failed(str(e)) from None
        return child(record)

    return process


def _time_reader(pattern: str, zone_name: str) -> Callable[[str], int | None]:
    if pattern in _UNIX_TIMES:
        _only_utc(pattern, zone_name)
        unit = _UNIX_TIMES[pattern]
        return lambda text: int(text) * unit if _WHOLE.fullmatch(text) and abs(int(text)) < 2**63 else None
    return SimpleDateFormat(pattern, zone(zone_name)).parse


def _only_utc(pattern: str, zone_name: str) -> None:
    if zone_name != "UTC":
        raise ValueError(f"has {pattern} in the time zone {zone_name}: only UTC makes sense there")


# --- values made of other values


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

    def matches(record: Record) -> Iterator[tuple[Pattern, re.Match[str]] | None]:
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

    def process(record: Record) -> bool:
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

    def gaps(value: str) -> Iterator[tuple[int, int]]:
        if pattern is not None:
            yield from (match.span() for match in pattern.finditer(value) if match.end() > match.start())
            return
        position = 0
        while (found := value.find(separator, position)) >= 0:
            position = found + len(separator)
            yield found, position

    def pieces(value: str) -> Iterator[str]:
        start, left = 0, limit
        for end, following in [*gaps(value), (len(value), len(value))]:
            piece = value[start:end].strip(_WHITESPACE) if trim else value[start:end]
            if piece or empty or targets is not None:
                if left == 1:
                    rest = value[start:]
                    yield rest.strip(_WHITESPACE) if trim else rest
                    return
                left -= 1
                yield piece
            start = following

    def process(record: Record) -> bool:
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

    def process(record: Record) -> bool:
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

    def process(record: Record) -> bool:
        root = record[BODY][0] if BODY in record else None
        if not isinstance(root, Json):
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
    return [Json(value) if isinstance(value, (dict, list)) else value]


@command("separateAttachments")
def separate_attachments(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """A record for each body."""

    def process(record: Record) -> bool:
        for number in range(len(record[BODY])):
            copy = record.copy()
            for name in (BODY, MIME_TYPE, CHARSET, NAME):
                copy[name] = record[name][number : number + 1]
            if not child(copy):
                return False
        return True

    return process


# --- values from outside


def _made(field: str, arguments: Arguments, child: Process, make: Callable[[], list[Any]]) -> Process:
    name = arguments.text("field", field)
    preserve = arguments.truth("preserveExisting", True)

    def process(record: Record) -> bool:
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
