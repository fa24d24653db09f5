"""Commands that change each value of a field."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from typing import Any

from flafka.plugins.java.simpledate import SimpleDateFormat, time_zone
from flafka.plugins.morphline.arguments import Arguments
from flafka.plugins.morphline.compiler import Compiler, Process, command
from flafka.plugins.morphline.grok import Pattern
from flafka.plugins.morphline.readers import BLANK
from flafka.plugins.morphline.record import MorphlineRecord, MorphlineRuntimeError, to_java_string

_SOLR_TIME = "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'"
_INPUT_FORMATS = [
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
_INTEGER = re.compile(r"[+-]?\d{1,19}")


def _change_each_value(field: str, child: Process, change: Callable[[Any], Any]) -> Process:
    """Build a command that replaces each value of a field by the result of `change`; nothing without the field."""

    def process(record: MorphlineRecord) -> bool:
        if field in record:
            record[field] = [change(value) for value in record[field]]
        return child(record)

    return process


@command("toString")
def to_string(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Build `toString`, which converts values into Java's text of them, trimmed with `trim`."""
    trim = arguments.boolean("trim", False)
    convert = (lambda value: to_java_string(value).strip(BLANK)) if trim else to_java_string
    return _change_each_value(arguments.text("field"), child, convert)


@command("toByteArray")
def to_byte_array(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Build `toByteArray`, which encodes the text of values as bytes, in UTF-8 by default; bytes stay."""
    codec = arguments.charset("UTF-8")
    assert codec is not None

    def encode(value: Any) -> bytes:
        return value if isinstance(value, bytes) else to_java_string(value).encode(codec, "replace")

    return _change_each_value(arguments.text("field"), child, encode)


@command("decodeBase64")
def decode_base64(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Build `decodeBase64`, which decodes values into bytes, as leniently as Java: other characters are skipped."""

    def decode(value: Any) -> bytes:
        digits = to_java_string(value).partition("=")[0].replace("-", "+").replace("_", "/")
        digits = re.sub("[^A-Za-z0-9+/]", "", digits)
        digits = digits[:-1] if len(digits) % 4 == 1 else digits
        return base64.b64decode(digits + "=" * (-len(digits) % 4))

    return _change_each_value(arguments.text("field"), child, decode)


@command("findReplace")
def find_replace(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Build `findReplace`, which replaces a text or the matches of a regular expression in values.

    All occurrences are replaced, or only the first with `replaceFirst`.
    """
    searched, replacement = arguments.text("pattern"), arguments.text("replacement")
    count = int(arguments.boolean("replaceFirst", False))
    dictionary = arguments.dictionary()
    if arguments.boolean("isRegex", False):
        pattern = Pattern(searched, dictionary)
        parts = pattern.parse_replacement(replacement)
        return _change_each_value(
            arguments.text("field"), child, lambda value: pattern.replace(to_java_string(value), parts, count)
        )
    return _change_each_value(
        arguments.text("field"),
        child,
        lambda value: (
            to_java_string(value).replace(searched, replacement, count or -1) if searched else to_java_string(value)
        ),
    )


@command("translate")
def translate(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Build `translate`, which replaces values by a dictionary.

    A value that it lacks becomes `fallback`; without one the command fails.
    """
    field = arguments.text("field")
    translations = {
        name: _translation(value) for name, value in arguments.flat_object("dictionary", required=True).items()
    }
    fallback = [arguments.text("fallback")] if "fallback" in arguments.values else []
    arguments.ignore("fallback")

    def process(record: MorphlineRecord) -> bool:
        for number, value in enumerate(record[field]):
            if (key := to_java_string(value)) in translations:
                record[field][number] = translations[key]
            elif fallback:
                record[field][number] = fallback[0]
            else:
                return False
        return child(record)

    return process


def _translation(definition: Any) -> Any:
    if isinstance(definition, list):
        raise ValueError("has a list in its dictionary where a text must be")
    return definition.value


@command("convertTimestamp")
def convert_timestamp(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Build `convertTimestamp`, which converts times from the first of `inputFormats` that fits into `outputFormat`.

    The command fails if none fits, and raises MorphlineRuntimeError for a time that cannot be written.
    """
    field = arguments.text("field", "timestamp")
    for name in ("inputLocale", "outputLocale"):
        if (locale := arguments.text(name, "")) not in _LOCALES:
            raise ValueError(f"has {name} {locale!r}: only English names of months and days are supported")
    source, target = (arguments.text(name, "UTC") for name in ("inputTimezone", "outputTimezone"))
    parsers = [_time_parser(pattern, source) for pattern in arguments.text_list("inputFormats", _INPUT_FORMATS)]
    output_format = arguments.text("outputFormat", _SOLR_TIME)
    if output_format in _UNIX_TIMES:
        _require_utc(output_format, target)
        unit = _UNIX_TIMES[output_format]

        def write(millis: int) -> str:
            return str(abs(millis) // unit * (1 if millis >= 0 else -1))

    else:
        write = SimpleDateFormat(output_format, time_zone(target)).format

    def process(record: MorphlineRecord) -> bool:
        for number, value in enumerate(record[field]):
            times = (parse(to_java_string(value)) for parse in parsers)
            millis = next((time for time in times if time is not None), None)
            if millis is None:
                return False
            try:
                record[field][number] = write(millis)
            except ValueError as e:
                raise MorphlineRuntimeError(str(e)) from None
        return child(record)

    return process


def _time_parser(pattern: str, zone_name: str) -> Callable[[str], int | None]:
    """Return a function from a text to milliseconds since the epoch, None if it does not fit.

    Raises ValueError.
    """
    if pattern in _UNIX_TIMES:
        _require_utc(pattern, zone_name)
        unit = _UNIX_TIMES[pattern]
        return lambda text: int(text) * unit if _INTEGER.fullmatch(text) and abs(int(text)) < 2**63 else None
    return SimpleDateFormat(pattern, time_zone(zone_name)).parse


def _require_utc(pattern: str, zone_name: str) -> None:
    """Raise ValueError unless a Unix time is in UTC."""
    if zone_name != "UTC":
        raise ValueError(f"has {pattern} in the time zone {zone_name}, which must be UTC")
