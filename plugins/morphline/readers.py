"""Commands that read the body of an event, the field `_attachment_body`."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from flafka.plugins.java.charsets import text_codec
from flafka.plugins.morphline.arguments import Arguments
from flafka.plugins.morphline.compiler import Compiler, Process, command
from flafka.plugins.morphline.grok import Pattern
from flafka.plugins.morphline.record import (
    BODY,
    CHARSET,
    MESSAGE,
    MIME_TYPE,
    NAME,
    JsonNode,
    MorphlineRecord,
    MorphlineRuntimeError,
    to_java_string,
)

BLANK = "".join(map(chr, range(33)))
"""Characters that Java's `trim` removes."""
_LINE = re.compile(r"([^\r\n]*)(\r\n|\r|\n|\Z)")
_MIME_TYPE = re.compile(r"\s*([^;/\s]+/[^;/\s]+)\s*(?:;.*)?")
_SPACE = re.compile(r"[ \t\r\n]*")


def split_lines(text: str) -> Iterator[str]:
    r"""Yield the lines of a text without their ends: `\n`, `\r` or `\r\n`, as in Java."""
    position = 0
    while position < len(text):
        match = _LINE.match(text, position)
        assert match is not None
        yield match[1]
        position = match.end()


def _body_reader(arguments: Arguments) -> Callable[[MorphlineRecord], bytes | None]:
    """Return a function that returns a record's body; None if missing or not of `supportedMimeTypes`.

    The function raises MorphlineRuntimeError if an earlier command has replaced the body. Raises ValueError for a
    wrong MIME type.
    """
    supported = [_mime_type(name) for name in arguments.text_list("supportedMimeTypes", [])]

    def read(record: MorphlineRecord) -> bytes | None:
        if BODY not in record:
            return None
        if supported:
            if MIME_TYPE not in record:
                return None
            kind, _, subtype = _mime_type(to_java_string(record[MIME_TYPE][0])).partition("/")
            if not any(name in (f"{kind}/{subtype}", f"{kind}/*", f"*/{subtype}", "*/*") for name in supported):
                return None
        body = record[BODY][0]
        if not isinstance(body, bytes):
            raise MorphlineRuntimeError(f"{BODY} is no longer the body in bytes: an earlier command has replaced it")
        return body

    return read


def _mime_type(name: str) -> str:
    """Return a MIME type in lower case, without parameters. Raises ValueError for any other text."""
    match = _MIME_TYPE.fullmatch(name.lower())
    if match is None:
        raise ValueError(f"{name!r} is no MIME type")
    return match[1]


def _text_reader(arguments: Arguments) -> Callable[[MorphlineRecord], str | None]:
    """Return a function that returns a record's body as text; None as for `_body_reader`.

    The text is decoded by `charset` or the record's charset. The function raises MorphlineRuntimeError without a
    known one. Invalid bytes become U+FFFD.
    """
    read = _body_reader(arguments)
    charset = arguments.charset()

    def decode(record: MorphlineRecord) -> str | None:
        body = read(record)
        if body is None:
            return None
        codec = charset
        if codec is None:
            if CHARSET not in record:
                raise MorphlineRuntimeError(f"the record has no {CHARSET}, and the command no charset")
            try:
                codec = text_codec(to_java_string(record[CHARSET][0]))
            except ValueError as e:
                raise MorphlineRuntimeError(str(e)) from None
        return body.decode(codec, "replace")

    return decode


def _template(record: MorphlineRecord, *fields: str) -> MorphlineRecord:
    """Return a copy of the record without its body and these fields."""
    copy = record.copy()
    for name in (BODY, MIME_TYPE, CHARSET, NAME, *fields):
        del copy[name]
    return copy


def _emit(template: MorphlineRecord, field: str, value: Any, child: Process) -> bool:
    """Pass a copy of the template, with this value added to a field, to `child`; return the result."""
    record = template.copy()
    record[field].append(value)
    return child(record)


@command("readLine")
def read_line(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Build `readLine`, which makes a record of each line that is not empty, in `message`.

    Comments and, with `ignoreFirstLine`, the first line are dropped. The command fails without a body.
    """
    decode = _text_reader(arguments)
    skip = arguments.boolean("ignoreFirstLine", False)
    comment = arguments.character("commentPrefix", "")

    def process(record: MorphlineRecord) -> bool:
        body = decode(record)
        if body is None:
            return False
        template = _template(record, MESSAGE)
        for number, line in enumerate(split_lines(body)):
            if (number == 0 and skip) or not line or (comment and line.startswith(comment)):
                continue
            if not _emit(template, MESSAGE, line, child):
                return False
        return True

    return process


@command("readMultiLine")
def read_multi_line(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Build `readMultiLine`, which makes a record of lines joined by a newline, in `message`.

    Lines that match `regex` are joined to the previous or next line, as `what` says. Empty results are dropped. The
    command fails without a body.
    """
    decode = _text_reader(arguments)
    pattern = arguments.parsed("regex", Pattern)
    negate = arguments.boolean("negate", False)
    previous = arguments.choice("what", "previous", "next") == "previous"

    def process(record: MorphlineRecord) -> bool:
        body = decode(record)
        if body is None:
            return False
        template = _template(record, MESSAGE)
        pending: list[str] | None = None
        for line in split_lines(body):
            if pending is None:
                pending = [line]
            elif ((pattern.fullmatch(line) is not None) != negate) == previous:
                pending.append(line)
            else:
                if any(pending) and not _emit(template, MESSAGE, "\n".join(pending), child):
                    return False
                pending = [line]
        last = "\n".join(pending or ())
        return not last or _emit(template, MESSAGE, last, child)

    return process


@command("readClob")
def read_clob(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Build `readClob`, which puts the body as one text into a field of a record without the body.

    The command fails without a body.
    """
    return _read_whole_body(_text_reader(arguments), arguments.text("outputField", MESSAGE), _template, child)


@command("readBlob")
def read_blob(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Build `readBlob`, which puts the body as bytes into a field of the record; fails without a body."""
    return _read_whole_body(
        _body_reader(arguments), arguments.text("outputField", BODY), lambda record: record, child
    )


def _read_whole_body(
    read: Callable[[MorphlineRecord], Any],
    field: str,
    target: Callable[[MorphlineRecord], MorphlineRecord],
    child: Process,
) -> Process:
    """Build a command that sets a field of `target(record)` to the result of `read`, and fails if that is None."""

    def process(record: MorphlineRecord) -> bool:
        body = read(record)
        if body is None:
            return False
        output = target(record)
        output[field] = [body]
        return child(output)

    return process


@command("readJson")
def read_json(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Build `readJson`, which makes a record of each JSON value in the body, or of each item of an array.

    The body of each record is a `JsonNode`. The command fails without a body, and raises MorphlineRuntimeError if the
    body is not JSON.
    """
    read = _body_reader(arguments)
    if arguments.text("outputClass", "").rpartition(".")[2] not in ("", "JsonNode"):
        raise ValueError("has an outputClass of Java: only the default works, for extractJsonPaths")
    arguments.ignore("jsonFactory", "objectMapper")

    def process(record: MorphlineRecord) -> bool:
        body = read(record)
        if body is None:
            return False
        template = _template(record)
        for value in _json_values(body):
            copy = template.copy()
            copy[BODY].append(JsonNode(value))
            copy[MIME_TYPE].append("json/java+memory")
            if not child(copy):
                return False
        return True

    return process


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


_DECODER = json.JSONDecoder(parse_constant=_reject_constant)


def _skip_space(source: str, position: int) -> int:
    """Return the first offset from `position` on that is no white space of JSON."""
    match = _SPACE.match(source, position)
    assert match is not None  # the pattern matches an empty text too
    return match.end()


def _json_values(body: bytes) -> Iterator[Any]:
    """Yield the JSON values of a body, one after the other, or the items of an array at its begin.

    Raises MorphlineRuntimeError if it is not JSON; values before the error are yielded, but no items of such an
    array.
    """
    try:
        source = body.decode(json.detect_encoding(body))
        position = _skip_space(source, 0)
        if source.startswith("[", position):
            # Decode the array as a whole: later errors would otherwise appear after the first items were processed.
            values, end = _DECODER.raw_decode(source, position)
            yield from values
            position = _skip_space(source, end)
        while position < len(source):
            value, position = _DECODER.raw_decode(source, position)
            yield value
            position = _skip_space(source, position)
    except (ValueError, RecursionError) as e:
        raise MorphlineRuntimeError(f"the body is not JSON: {e}") from None


@command("readCSV")
def read_csv(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """Build `readCSV`, which makes a record of each line of separated values.

    Values beyond `columns` go to fields `column<number>`, and a column with an empty name is dropped. Blank lines and
    comments are skipped. A line that is too long is an error, or ignored. The command fails without a body.
    """
    decode = _text_reader(arguments)
    separator = arguments.character("separator", ",")
    columns = arguments.text_list("columns")
    skip = arguments.boolean("ignoreFirstLine", False)
    trim = arguments.boolean("trim", True)
    empty = arguments.boolean("addEmptyStrings", True)
    quote = arguments.character("quoteChar", "")
    comment = arguments.character("commentPrefix", "")
    max_characters = arguments.integer("maxCharactersPerRecord", 1_000_000)
    throws = arguments.choice("onMaxCharactersPerRecord", "throwException", "ignoreRecord") == "throwException"
    if quote == separator:
        raise ValueError("has the same character as quoteChar and as separator")

    def is_too_long(length: int) -> bool:
        if length > max_characters and throws:
            raise MorphlineRuntimeError(f"a line of the body has more than {max_characters} characters")
        return length > max_characters

    def process(record: MorphlineRecord) -> bool:
        body = decode(record)
        if body is None:
            return False
        template = _template(record)
        lines = split_lines(body)
        if skip:
            next(lines, None)
        for line in lines:
            if is_too_long(len(line)) or not line.strip(BLANK) or (comment and line.startswith(comment)):
                continue
            values = _split_quoted(line, lines, separator, quote, is_too_long) if quote else line.split(separator)
            if values is None:
                continue
            copy = template.copy()
            for number, value in enumerate(values):
                name = columns[number] if number < len(columns) else f"column{number}"
                value = value.strip(BLANK) if trim else value
                if name and (value or empty):
                    copy[name].append(value)
            if not child(copy):
                return False
        return True

    return process


def _split_quoted(
    line: str, lines: Iterator[str], separator: str, quote: str, is_too_long: Callable[[int], bool]
) -> list[str] | None:
    """Return the values of a line with quotes, or None if it is too long.

    A quoted value may continue on the next of `lines`. Raises MorphlineRuntimeError if the body ends within a quote.
    """
    values: list[str] = []
    value = io.StringIO()
    in_quotes, position, length = False, 0, len(line)
    while True:
        if position == len(line):
            if not in_quotes:
                break
            value.write("\n")
            next_line = next(lines, None)
            if next_line is None:
                raise MorphlineRuntimeError("the body ends within a quote")
            line, position, length = next_line, 0, length + len(next_line)
            if is_too_long(length):
                return None
            continue
        character = line[position]
        doubled = character == quote and line.startswith(quote, position + 1)
        if character == quote and doubled and (in_quotes or value.tell()):
            value.write(quote)
            position += 1
        elif character == quote:
            in_quotes = not in_quotes
        elif character == separator and not in_quotes:
            values.append(value.getvalue())
            value = io.StringIO()
        else:
            value.write(character)
        position += 1
    if values or value.tell():
        values.append(value.getvalue())
    return values
