"""Commands that read the body: `_attachment_body`, as it came with the event."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from flafka.plugins.morphline.arguments import Arguments
from flafka.plugins.morphline.compiler import Compiler, Process, command
from flafka.plugins.morphline.grok import Pattern
from flafka.plugins.morphline.record import (
    BODY,
    CHARSET,
    MESSAGE,
    MIME_TYPE,
    NAME,
    Failed,
    JsonNode,
    MorphlineRecord,
    text,
)
from flafka.plugins.shared.charsets import text_codec

BLANK = "".join(map(chr, range(33)))
"""What Java's `trim` removes."""
_LINE = re.compile(r"([^\r\n]*)(\r\n|\r|\n|\Z)")
_MIME_TYPE = re.compile(r"\s*([^;/\s]+/[^;/\s]+)\s*(?:;.*)?")
_SPACE = re.compile(r"[ \t\r\n]*")


def lines(text: str) -> Iterator[str]:
    """Its lines, by Java's rules."""
    position = 0
    while position < len(text):
        match = _LINE.match(text, position)
        assert match is not None
        yield match[1]
        position = match.end()


def _body(arguments: Arguments) -> Callable[[MorphlineRecord], bytes | None]:
    """What gives a record's body; None where it has none, or one of another type than `supportedMimeTypes`."""
    supported = [_mime_type(one) for one in arguments.texts("supportedMimeTypes", [])]

    def read(record: MorphlineRecord) -> bytes | None:
        if BODY not in record:
            return None
        if supported:
            if MIME_TYPE not in record:
                return None
            kind, _, subtype = _mime_type(text(record[MIME_TYPE][0])).partition("/")
            if not any(one in (f"{kind}/{subtype}", f"{kind}/*", f"*/{subtype}", "*/*") for one in supported):
                return None
        body = record[BODY][0]
        if not isinstance(body, bytes):
            raise Failed(f"{BODY} no longer holds the bytes of the body: a command before has replaced them")
        return body

    return read


def _mime_type(name: str) -> str:
    match = _MIME_TYPE.fullmatch(name.lower())
    if match is None:
        raise ValueError(f"{name!r} is no MIME type")
    return match[1]


def _text(arguments: Arguments) -> Callable[[MorphlineRecord], str | None]:
    """The same as text, in `charset` or what the record says."""
    read = _body(arguments)
    charset = arguments.charset()

    def decode(record: MorphlineRecord) -> str | None:
        body = read(record)
        if body is None:
            return None
        codec = charset
        if codec is None:
            if CHARSET not in record:
                raise Failed(f"the record has no {CHARSET}, and the command no charset")
            try:
                codec = text_codec(text(record[CHARSET][0]))
            except ValueError as e:
                raise Failed(str(e)) from None
        return body.decode(codec, "replace")

    return decode


def _template(record: MorphlineRecord, *fields: str) -> MorphlineRecord:
    copy = record.copy()
    for name in (BODY, MIME_TYPE, CHARSET, NAME, *fields):
        del copy[name]
    return copy


def _passes(template: MorphlineRecord, field: str, value: Any, child: Process) -> bool:
    record = template.copy()
    record[field].append(value)
    return child(record)


@command("readLine")
def read_line(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """A record for each line, in `message`; empty ones are left out."""
    decode = _text(arguments)
    skip = arguments.truth("ignoreFirstLine", False)
    comment = arguments.character("commentPrefix", "")

    def process(record: MorphlineRecord) -> bool:
        body = decode(record)
        if body is None:
            return False
        template = _template(record, MESSAGE)
        for number, line in enumerate(lines(body)):
            if (number == 0 and skip) or not line or (comment and line.startswith(comment)):
                continue
            if not _passes(template, MESSAGE, line, child):
                return False
        return True

    return process


@command("readMultiLine")
def read_multi_line(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """A record for several lines: those that match `regex` belong to the one before or after them."""
    decode = _text(arguments)
    pattern = arguments.read("regex", Pattern)
    negate = arguments.truth("negate", False)
    previous = arguments.one_of("what", "previous", "next") == "previous"

    def process(record: MorphlineRecord) -> bool:
        body = decode(record)
        if body is None:
            return False
        template = _template(record, MESSAGE)
        held: list[str] | None = None
        for line in lines(body):
            if held is None:
                held = [line]
            elif ((pattern.fullmatch(line) is not None) != negate) == previous:
                held.append(line)
            else:
                if any(held) and not _passes(template, MESSAGE, "\n".join(held), child):
                    return False
                held = [line]
        whole = "\n".join(held or ())
        return not whole or _passes(template, MESSAGE, whole, child)

    return process


@command("readClob")
def read_clob(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """The body as one text, in a record without the body."""
    return _as_one(_text(arguments), arguments.text("outputField", MESSAGE), _template, child)


@command("readBlob")
def read_blob(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """The body as bytes, in the record that has it."""
    return _as_one(_body(arguments), arguments.text("outputField", BODY), lambda record: record, child)


def _as_one(
    read: Callable[[MorphlineRecord], Any],
    field: str,
    target: Callable[[MorphlineRecord], MorphlineRecord],
    child: Process,
) -> Process:
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
    """A record for each value of JSON in the body; those of one array around them count singly."""
    read = _body(arguments)
    if arguments.text("outputClass", "").rpartition(".")[2] not in ("", "JsonNode"):
        raise ValueError("has an outputClass in Java: only the default works, for extractJsonPaths")
    arguments.ignored("jsonFactory", "objectMapper")

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


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is no value of JSON")


_DECODER = json.JSONDecoder(parse_constant=_constant)


def _past_space(source: str, position: int) -> int:
    match = _SPACE.match(source, position)
    assert match is not None  # no space is a match, too
    return match.end()


def _json_values(body: bytes) -> Iterator[Any]:
    try:
        source = body.decode(json.detect_encoding(body))
        position = _past_space(source, 0)
        if source.startswith("[", position):
            # Not read value by value: what is wrong further on would then be seen only after the first went through.
            values, end = _DECODER.raw_decode(source, position)
            yield from values
            position = _past_space(source, end)
        while position < len(source):
            value, position = _DECODER.raw_decode(source, position)
            yield value
            position = _past_space(source, position)
    except (ValueError, RecursionError) as e:
        raise Failed(f"the body is no JSON: {e}") from None


@command("readCSV")
def read_csv(arguments: Arguments, child: Process, compiler: Compiler) -> Process:
    """A record for each line of values that are set apart."""
    decode = _text(arguments)
    separator = arguments.character("separator", ",")
    columns = arguments.texts("columns")
    skip = arguments.truth("ignoreFirstLine", False)
    trim = arguments.truth("trim", True)
    empty = arguments.truth("addEmptyStrings", True)
    quote = arguments.character("quoteChar", "")
    comment = arguments.character("commentPrefix", "")
    most = arguments.whole("maxCharactersPerRecord", 1_000_000)
    throws = arguments.one_of("onMaxCharactersPerRecord", "throwException", "ignoreRecord") == "throwException"
    if quote == separator:
        raise ValueError("has the same character as quoteChar and as separator")

    def too_long(length: int) -> bool:
        if length > most and throws:
            raise Failed(f"a line of the body has more than {most} characters")
        return length > most

    def process(record: MorphlineRecord) -> bool:
        body = decode(record)
        if body is None:
            return False
        template = _template(record)
        rest = lines(body)
        if skip:
            next(rest, None)
        for line in rest:
            if too_long(len(line)) or not line.strip(BLANK) or (comment and line.startswith(comment)):
                continue
            values = _quoted(line, rest, separator, quote, too_long) if quote else line.split(separator)
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


def _quoted(
    line: str, rest: Iterator[str], separator: str, quote: str, too_long: Callable[[int], bool]
) -> list[str] | None:
    """The values of a line in which some are quoted, with those lines after it that a quote reaches into.

    None where there are too many characters.
    """
    values: list[str] = []
    held = io.StringIO()
    quoted, position, length = False, 0, len(line)
    while True:
        if position == len(line):
            if not quoted:
                break
            held.write("\n")
            following = next(rest, None)
            if following is None:
                raise Failed("the body ends within a quote")
            line, position, length = following, 0, length + len(following)
            if too_long(length):
                return None
            continue
        character = line[position]
        doubled = character == quote and line.startswith(quote, position + 1)
        if character == quote and doubled and (quoted or held.tell()):
            held.write(quote)
            position += 1
        elif character == quote:
            quoted = not quoted
        elif character == separator and not quoted:
            values.append(held.getvalue())
            held = io.StringIO()
        else:
            held.write(character)
        position += 1
    if values or held.tell():
        values.append(held.getvalue())
    return values
