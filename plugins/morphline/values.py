"""Commands that change each value of a field."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from typing import Any

from flafka.plugins.morphline.arguments import Arguments
from flafka.plugins.morphline.compiler import Compiler, Process, command
from flafka.plugins.morphline.grok import Pattern
from flafka.plugins.morphline.readers import BLANK
from flafka.plugins.morphline.record import Failed, MorphlineRecord, text
from flafka.plugins.shared.simpledate import SimpleDateFormat, zone

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


def _transformed(field: str, child: Process, change: Callable[[Any], Any]) -> Process:
    def process(record: MorphlineRecord) -> bool:
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

    def process(record: MorphlineRecord) -> bool:
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

    def process(record: MorphlineRecord) -> bool:
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
