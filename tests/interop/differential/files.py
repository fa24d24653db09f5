# ruff: noqa: E501  # a list of what is drawn, or a reason, reads best in one line
"""Events in files, in Kafka records and in JSON, written and read."""

from __future__ import annotations

import codecs
import io
import itertools
import json
import random
import re
import tempfile
from pathlib import Path
from typing import Any

import fastavro

from flafka.plugins import Batch, Event
from flafka.plugins.wire import flumeevent
from flafka.sinks import serializers
from flafka.sinks.file_roll import FileRollConfig
from flafka.sources.http.handlers import HandlerError
from flafka.sources.http.handlers import json as json_handler
from flafka.sources.spooldir import SpooldirConfig
from flafka.sources.spooldir.content import FileContent, SkipFile
from flafka.sources.spooldir.deserializers import make_deserializer
from tests.interop.differential.drawing import event, header, headers, line, mutated, sometimes
from tests.interop.differential.search import Answers, Case, Known, Operation, Settings


class Serialize(Operation):
    """Serializers: `text`, `header_and_text`, `avro_event`."""

    name = "serialize"

    def draw(self, draw: random.Random) -> tuple[Settings, list[Any]]:
        kind, config = draw.choice(["text", "header_and_text", "header_and_text", "avro_event"]), {}
        if kind == "avro_event":
            if sometimes(draw, 0.5):
                config["compressionCodec"] = draw.choice(["null", "deflate", "deflate", "snappy", "snappy", "bzip2"])
            if sometimes(draw, 0.3):
                config["syncIntervalBytes"] = draw.choice(["100", "2048000"])
        elif sometimes(draw, 0.5):
            config["appendNewline"] = draw.choice(["true", "false", "TRUE"])
        return {"type": kind, "config": config}, [
            [event(draw) for _ in range(draw.choice([0, 1, 1, 2, 5]))] for _ in range(40)
        ]

    def ours(self, settings: Settings, items: list[Any]) -> Answers:
        options = {f"sink.serializer.{name}": value for name, value in settings["config"].items()}
        config, problems = FileRollConfig.parse(
            {"sink.directory": ".", "sink.serializer": settings["type"], **options}
        )
        if config is None:
            return {"error": str(problems)}
        return [self._file(serializers.make_serializer(config), item) for item in items]

    def _file(self, serializer: Any, item: list[Any]) -> str:
        batch = Batch.of(Event(body.encode("latin-1"), headers) for headers, body in item)
        writer = serializer.writer("")
        data = bytes(writer.header) + (bytes(writer.add(serializer.records(batch))) if item else b"")
        return (data + bytes(writer.close())).decode("latin-1")

    def comparable(self, settings: Settings, item: Any, answer: Any) -> Any:
        """Return an Avro file as its reader sees it; the order of headers is free."""
        if isinstance(answer, dict):
            return "error"
        data = answer.encode("latin-1")
        if settings["type"] == "avro_event":
            file = fastavro.reader(io.BytesIO(data))
            records = [[record["headers"], record["body"].decode("latin-1")] for record in file]
            return [json.loads((file.metadata or {})["avro.schema"]), file.codec, records]
        if settings["type"] == "header_and_text":
            return _unordered(data, item)
        return answer


def _unordered(data: bytes, item: list[Any]) -> str:
    """Return the text with every event's headers in the order of their names."""
    text = data.decode("utf-8", "surrogateescape")
    for event_headers, _ in item:
        pairs = sorted(f"{name}={value}" for name, value in event_headers.items())
        for order in itertools.permutations(pairs):
            text = text.replace(f"{{{', '.join(order)}}} ", f"{{{', '.join(pairs)}}} ")
    return text


def _unfinished(case: Case) -> bool:
    """Return True if the file ends within a character, or with a byte that Java takes for the beginning of one."""
    codec = codecs.getincrementaldecoder(case.settings["charset"])("replace")
    codec.decode(case.item.encode("latin-1"))
    odd = case.settings["charset"] == "Shift_JIS" and case.item[-1:] in "\x80\xa0\xfd\xfe\xff"
    return bool(codec.getstate()[0]) or odd


def _malformed(case: Case) -> bool:
    try:
        case.item.encode("latin-1").decode(case.settings["charset"])
    except UnicodeError:
        return True
    return False


class Deserialize(Operation):
    """Deserializer `LINE`."""

    name = "deserialize"
    known = (
        Known(
            "`deserializer.maxLineLength` divides characters beyond U+FFFF",
            lambda case: (
                "maxLineLength" in case.settings["config"]
                and case.theirs != "error"
                and re.search("[\xf0-\xf4]|[\xd8-\xdf]", case.item)
                and re.search("\\?|\xff\xfd|\xfd\xff", str(case.theirs))
            ),
        ),
        Known("bytes at the end of a file that begin a character", _unfinished),
        Known(
            "in UTF-16 and the charsets of East Asia, what is malformed",
            lambda case: case.settings["charset"].startswith(("UTF-16", "GBK", "Shift")) and _malformed(case),
        ),
        Known(
            "some bytes that are no UTF-8 end a file early",
            lambda case: (
                case.settings["charset"] == "UTF-8" and case.settings["policy"] != "FAIL" and _malformed(case)
            ),
        ),
    )

    def draw(self, draw: random.Random) -> tuple[Settings, list[Any]]:
        config = {}
        if sometimes(draw, 0.4):
            config["maxLineLength"] = draw.choice(["1", "5", "10", "2048"])
        if sometimes(draw, 0.2):
            config["outputCharset"] = draw.choice(["UTF-8", "ISO-8859-1", "UTF-16BE", "US-ASCII"])
        settings = {
            "type": "LINE",
            "config": config,
            "charset": draw.choice(
                [
                    "UTF-8",
                    "UTF-8",
                    "UTF-8",
                    "ISO-8859-1",
                    "UTF-16BE",
                    "UTF-16LE",
                    "US-ASCII",
                    "windows-1252",
                    "GBK",
                    "Shift_JIS",
                ]
            ),
            "policy": draw.choice(["FAIL", "REPLACE", "IGNORE"]),
            "buffer": draw.choice([16384, 16384, 8]),
        }
        return settings, [self.content(draw, settings["charset"]) for _ in range(50)]

    def content(self, draw: random.Random, charset: str) -> str:
        pieces = [line(draw, 40) for _ in range(draw.choice([0, 1, 2, 3]))]
        text = "".join(piece + draw.choice(["\n", "\n", "\n", "\r\n", "\r", "", "\n\n"]) for piece in pieces)
        text = (
            mutated(draw, text, ("\n", "\r", "ä", "\u20ac", "\U0001f600", "\0", "\u2028", "\x85", "\ufeff", "日"))
            if sometimes(draw, 0.5)
            else text
        )
        data = text.encode(charset.replace("windows-", "cp"), "replace").decode("latin-1")
        if sometimes(draw, 0.2):
            position = draw.randrange(len(data) + 1)
            data = (
                data[:position]
                + draw.choice(
                    ["\xff", "\xc3", "\xe2\x82", "\xf0\x9f\x98", "\xed\xa0\x80", "\xd8\x00", "\x80", "\xc0\x80"]
                )
                + data[position:]
            )
        return data

    def ours(self, settings: Settings, items: list[Any]) -> Answers:
        properties = {f"deserializer.{name}": value for name, value in settings["config"].items()}
        properties |= {
            "inputCharset": settings["charset"],
            "decodeErrorPolicy": settings["policy"],
            "deserializer": settings["type"],
        }
        config, problems = SpooldirConfig.parse({"spoolDir": "/", **properties})
        if config is None:
            return {"error": str(problems)}
        with tempfile.NamedTemporaryFile() as file:
            return [self._read(config, Path(file.name), item.encode("latin-1")) for item in items]

    def _read(self, config: Any, file: Path, data: bytes) -> Any:
        file.write_bytes(data)
        content = FileContent(str(file), decompress=False)
        try:
            reader, bodies = make_deserializer(config, content, 0), []
            while (piece := reader.read(100, 1 << 16)) is not None:
                bodies += piece.bodies.to_pylist()
        except SkipFile as e:
            return {"error": str(e)}
        finally:
            content.close()
        return [[{}, body.decode("latin-1")] for body in bodies]


def _as_java_utf8(text: str) -> str:
    """Return the text as Java writes it in UTF-8."""
    return re.sub("[\ud800-\udfff]", "?", text)


class JsonHandler(Operation):
    """`JSONHandler` of the HTTP source."""

    name = "json"
    known = (
        Known(
            "some requests that are no JSON are answered 500",
            lambda case: (case.theirs, case.ours) == (500, 400),
        ),
        Known(
            "an object of other fields than `headers` and `body`",
            lambda case: (
                case.ours == 400 and isinstance(case.theirs, list) and any(not body for _, body in case.theirs)
            ),
        ),
    )

    def draw(self, draw: random.Random) -> tuple[Settings, list[Any]]:
        charset = draw.choice([None, None, "UTF-8", "utf-8", "UTF-16", "UTF-32"])
        codec = {"UTF-16": "utf-16-be", "UTF-32": "utf-32-be"}.get(charset or "", "utf-8")
        items = [self.content(draw).encode(codec, "surrogatepass").decode("latin-1") for _ in range(100)]
        return {"charset": charset}, items

    def content(self, draw: random.Random) -> str:
        events = [self.event(draw) for _ in range(draw.choice([0, 1, 1, 1, 2, 3]))]
        text = json.dumps(events, ensure_ascii=sometimes(draw, 0.5), indent=draw.choice([None, None, 1]))
        odd = ("'", '"', "\\", "\\u0041", "\\x", "{", "}", "[", "]", ",", ":", "=", ";", "=>", "#c\n", "//c\n", "/*c*/", "null", "true",
               "1", "1.0", "-0", "1e5", "NaN", "body", "headers", " ", "\n", "\t", "\0", "\\ud83d", "\ufeff", "ä", "\\n", "\x0b", "\xa0", ")]}'\n")  # fmt: skip
        return mutated(draw, text, odd) if sometimes(draw, 0.5) else text

    def event(self, draw: random.Random) -> Any:
        fields: dict[str, Any] = {}
        if sometimes(draw, 0.8):
            fields["headers"] = headers(draw)
            if sometimes(draw, 0.2):
                fields["headers"]["odd"] = draw.choice([1, 1.5, True, None, -0.0, 10**20, 1e300])
        if sometimes(draw, 0.9):
            fields["body"] = draw.choice(
                [line(draw, 30), "", header(draw), 'a"b\\c\n', 5, True, None]
                if sometimes(draw, 0.3)
                else [line(draw, 30)]
            )
        if sometimes(draw, 0.1):
            fields["more"] = draw.choice([1, [], {"a": [1, {}]}, None, "x"])
        return fields

    def ours(self, settings: Settings, items: list[Any]) -> Answers:
        return [self._answer(item.encode("latin-1"), settings["charset"]) for item in items]

    def _answer(self, content: bytes, charset: str | None) -> Any:
        try:
            events = json_handler(content, charset)
        except HandlerError as e:
            return {"error": str(e), "status": e.status}
        return [[event.headers, event.body.decode("latin-1")] for event in events]

    def comparable(self, settings: Settings, item: Any, answer: Any) -> Any:
        """Return the status of Flume's source as answer; null headers are omitted."""
        if isinstance(answer, dict):
            return answer.get("status") or (400 if answer["error"].startswith("HTTPBadRequestException") else 500)
        return [
            [
                {
                    _as_java_utf8(name): _as_java_utf8(text)
                    for name, text in event_headers.items()
                    if text is not None
                },
                body,
            ]
            for event_headers, body in answer
        ]


class Wire(Operation):
    """Events to the values of a Kafka channel's records."""

    name = "wire"

    def draw(self, draw: random.Random) -> tuple[Settings, list[Any]]:
        return {}, [event(draw) for _ in range(100)]

    def ours(self, settings: Settings, items: list[Any]) -> Answers:
        batch = Batch.of(Event(body.encode("latin-1"), headers) for headers, body in items)
        return [value.decode("latin-1") for value in flumeevent.encode(batch).to_pylist()]

    def comparable(self, settings: Settings, item: Any, answer: Any) -> Any:
        """Return the answer with sorted headers, as the order of a map is free."""
        event = flumeevent.decode_event(answer.encode("latin-1"))
        return [len(answer), event.headers, event.body]


_SCHEMA = fastavro.parse_schema(
    {
        "type": "record",
        "name": "AvroFlumeEvent",
        "fields": [
            {"name": "headers", "type": {"type": "map", "values": "string"}},
            {"name": "body", "type": "bytes"},
        ],
    }
)


def _behind(value: str) -> bool:
    """Return True if bytes follow the event."""
    data = io.BytesIO(value.encode("latin-1"))
    try:
        fastavro.schemaless_reader(data, _SCHEMA, None)
    except (UnicodeDecodeError, EOFError):
        return False
    return data.tell() < len(value)


def _headers(value: str) -> int:
    try:
        return abs(flumeevent.decode_long(value.encode("latin-1"), 0)[0])
    except (ValueError, IndexError):
        return 0


class Unwire(Operation):
    """Values of a Kafka channel's records to events."""

    name = "unwire"
    known = (
        Known(
            "A record with bytes behind its event is a dead letter",
            lambda case: case.ours == "error" and case.theirs != "error" and _behind(case.item),
        ),
        Known(
            "bytes behind an event are dropped",
            lambda case: case.ours == "error" and "\\ufffd" in json.dumps(case.theirs[0]),
        ),
    )

    def draw(self, draw: random.Random) -> tuple[Settings, list[Any]]:
        return {}, [self.value(draw) for _ in range(100)]

    def value(self, draw: random.Random) -> str:
        drawn, body = event(draw)
        value: str = flumeevent.encode_event(Event(str(body).encode("latin-1"), drawn)).decode("latin-1")  # type: ignore[arg-type]  # as drawn
        if sometimes(draw, 0.4):
            other = mutated(draw, value, ("\0", "\1", "\2", "\4", "\x80", "\xff", "a", "\x10", "\x7f"))
            return other if _headers(other) < 100_000 else value  # Flume allocates this many, and dies of it
        return value

    def ours(self, settings: Settings, items: list[Any]) -> Answers:
        return [self._answer(item.encode("latin-1")) for item in items]

    def _answer(self, value: bytes) -> Any:
        together = flumeevent.decode([value])
        try:
            event = next(iter(together)) if together is not None else flumeevent.decode_event(value)
        except ValueError as e:
            return {"error": str(e)}
        return [event.headers, event.body.decode("latin-1")]
