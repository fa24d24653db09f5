"""Spooling directories: Avro files as events, and the files that are read, in their order."""

from __future__ import annotations

import io
import json
import logging
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro

from flafka.plugins import Metrics
from flafka.sources.file_errors import FileErrors
from flafka.sources.spooldir import SpooldirConfig
from flafka.sources.spooldir.content import FileContent, SkipFile
from flafka.sources.spooldir.deserializers import make_deserializer
from flafka.sources.spooldir.directory import SpoolDirectory
from tests.fixtures.memory import room
from tests.interop.differential.drawing import as_bytes, line, sometimes
from tests.interop.differential.search import Answers, Case, Known, Operation, Settings

_PRIMITIVE = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
LITERAL = "flume.avro.schema.literal"


def configured(directory: str, options: Settings) -> SpooldirConfig:
    config, problems = SpooldirConfig.parse({"spoolDir": directory, **options})
    assert config is not None, problems
    return config


def _is_valid_avro(case: Case) -> bool:
    """Return True for an Avro file as a library wrote it."""
    try:
        list(fastavro.reader(io.BytesIO(case.item.encode("latin-1"))))
    except Exception:
        return False
    return True


def _same_schema(case: Case) -> bool:
    """Return True if only the text of the schema differs."""
    if case.theirs == "error" or case.ours == "error" or len(case.theirs) != len(case.ours):
        return False
    return all(
        body == our_body and _canonical(headers[LITERAL]) == _canonical(our_headers[LITERAL])
        for (headers, body), (our_headers, our_body) in zip(case.theirs, case.ours, strict=True)
        if LITERAL in headers
    )


def _canonical(literal: str) -> str:
    return str(fastavro.schema.to_parsing_canonical_form(json.loads(literal)))


class DeserializeAvro(Operation):
    """Deserializer `AVRO`."""

    name = "deserializeAvro"
    known = (
        Known("the schema in the header is written anew", _same_schema),
        Known("a damaged or empty Avro file", lambda case: not _is_valid_avro(case)),
    )

    def draw(self, draw: random.Random) -> tuple[Settings, list[Any]]:
        config = {"schemaType": draw.choice(["HASH", "LITERAL", "literal"])} if sometimes(draw, 0.7) else {}
        settings = {"type": "AVRO", "config": config, "charset": "UTF-8", "policy": "FAIL"}
        return settings, [self.content(draw) for _ in range(20)]

    def content(self, draw: random.Random) -> str:
        names = iter(range(1000))
        schema = self.record(draw, names, 2)
        file = io.BytesIO()
        records = [self.value(draw, schema) for _ in range(draw.choice([0, 1, 2, 5, 30]))]
        codec = draw.choice(["null", "null", "deflate", "snappy", "bzip2"])
        fastavro.writer(file, schema, records, codec=codec, sync_interval=draw.choice([1, 100, 16_000]))
        data = file.getvalue().decode("latin-1")
        return data[: draw.randrange(len(data))] if sometimes(draw, 0.15) else data

    def record(self, draw: random.Random, names: Any, depth: int) -> dict[str, Any]:
        fields = []
        for number in range(draw.randrange(1, 5)):
            field = {"name": f"f{number}", "type": self.type(draw, names, depth)}
            if sometimes(draw, 0.2):
                field["doc"] = draw.choice(["what it is", "größer", 'a "quoted" one'])
            fields.append(field)
        record = {"type": "record", "name": f"R{next(names)}", "fields": fields}
        if sometimes(draw, 0.4):
            record["namespace"] = draw.choice(["com.example", "a.b"])
        return record

    def type(self, draw: random.Random, names: Any, depth: int) -> Any:
        kind = draw.choice([*_PRIMITIVE, "array", "map", "union", "enum", "fixed", "record", "logical"])
        if kind in ("array", "map", "union", "record") and not depth:
            return "string"
        match kind:
            case "array":
                return {"type": "array", "items": self.type(draw, names, depth - 1)}
            case "map":
                return {"type": "map", "values": self.type(draw, names, depth - 1)}
            case "union":
                return draw.choice([["null", "string"], ["null", "long"], ["string", "null"]])
            case "enum":
                return {"type": "enum", "name": f"E{next(names)}", "symbols": ["A", "B"]}
            case "fixed":
                return {"type": "fixed", "name": f"F{next(names)}", "size": 3}
            case "record":
                return self.record(draw, names, depth - 1)
            case "logical":
                return {"type": "long", "logicalType": "timestamp-millis"}
        return kind

    def value(self, draw: random.Random, schema: Any) -> Any:
        kind = schema["type"] if isinstance(schema, dict) else schema
        match kind:
            case "record":
                return {field["name"]: self.value(draw, field["type"]) for field in schema["fields"]}
            case "array":
                return [self.value(draw, schema["items"]) for _ in range(draw.randrange(3))]
            case "map":
                return {f"k{n}": self.value(draw, schema["values"]) for n in range(draw.randrange(3))}
            case "enum":
                return draw.choice(schema["symbols"])
            case "fixed":
                return b"abc"
            case list():
                return self.value(draw, draw.choice(kind))
            case "null":
                return None
            case "boolean":
                return sometimes(draw, 0.5)
            case "int" | "long":
                return draw.choice([0, 1, -1, 2**31 - 1, draw.randrange(10**6)])
            case "float" | "double":
                return draw.choice([0.0, -1.5, 3.25])
            case "bytes":
                return as_bytes(line(draw, 30)).encode("latin-1")
        return line(draw, 30)

    def ours(self, settings: Settings, items: list[Any]) -> Answers:
        options = {f"deserializer.{name}": value for name, value in settings["config"].items()}
        config = configured("/", {"deserializer": "AVRO", **options})
        with tempfile.NamedTemporaryFile() as file:
            return [self._read(config, Path(file.name), item.encode("latin-1")) for item in items]

    def _read(self, config: SpooldirConfig, file: Path, data: bytes) -> Any:
        file.write_bytes(data)
        content = FileContent(str(file), decompress=False)
        events: list[Any] = []
        try:
            reader = make_deserializer(config, content, 0)
            while (piece := reader.read(100, 1 << 16)) is not None:
                events += [[{**piece.headers}, body.decode("latin-1")] for body in piece.bodies.to_pylist()]
        except SkipFile as e:
            return {"error": str(e)}
        finally:
            content.close()
        return events


def _but_for_twins(case: Case) -> bool:
    """Return True if only the order of files with the same time and name differs."""
    if "error" in (case.theirs, case.ours):
        return False
    times = dict(map(tuple, case.item))
    read, ours = ([(times[path], Path(path).name) for path in files] for files, _ in (case.theirs, case.ours))
    return read == ours and case.theirs[1] == case.ours[1]


class Spool(Operation):
    """Files of a directory that are read, their order, and their marks."""

    name = "spool"
    known = (Known("of files with the same time and name, in several directories,", _but_for_twins),)

    def draw(self, draw: random.Random) -> tuple[Settings, list[Any]]:
        config: dict[str, str] = {}
        if sometimes(draw, 0.4):
            config["includePattern"] = draw.choice([r"^.*\.log$", ".*", r"a.*", r"[a-c]\.\w+", r"(?i).*\.LOG"])
        if sometimes(draw, 0.4):
            config["ignorePattern"] = draw.choice([r"^.*\.tmp$", r"([^ ]*\.tmp)", r"\..*", r"sub", r"b.*"])
        if sometimes(draw, 0.5):
            config["consumeOrder"] = draw.choice(["oldest", "youngest", "YOUNGEST"])
        if sometimes(draw, 0.4):
            config["recursiveDirectorySearch"] = draw.choice(["true", "false"])
        if sometimes(draw, 0.3):
            config["fileSuffix"] = draw.choice([".done", ".COMPLETED", "x", ".log"])
        if sometimes(draw, 0.2):
            config["deletePolicy"] = draw.choice(["immediate", "IMMEDIATE", "never"])
        elif sometimes(draw, 0.2):
            config["trackingPolicy"] = draw.choice(["tracker_dir", "rename"])
        return {"config": config}, [self.files(draw) for _ in range(5)]

    def files(self, draw: random.Random) -> list[Any]:
        base = 1_700_000_000_000
        stems = ("a", "b", "c", "aa", "B", "a b", "ä", ".hidden", "x,y", "0")
        ends = (".log", ".tmp", "", ".LOG", ".log.COMPLETED", ".done", ".gz")
        above = ("", "", "", "sub/", "sub/deep/", ".dot/", "b1/", "sub.COMPLETED/")
        pick = draw.choice
        paths = {f"{pick(above)}{pick(stems)}{pick(ends)}" for _ in range(draw.randrange(7))}
        return [[path, base + draw.choice([0, 0, 1, 999, 1000, 60_000])] for path in sorted(paths)]

    def smaller(self, settings: Settings, item: Any) -> Iterator[tuple[Settings, Any]]:
        """Return fewer files, or fewer options."""
        for row in range(len(item)):
            yield settings, item[:row] + item[row + 1 :]
        for name in settings["config"]:
            fewer = {key: value for key, value in settings["config"].items() if key != name}
            yield {**settings, "config": fewer}, item

    def ours(self, settings: Settings, items: list[Any]) -> Answers:
        return [self._answer(settings["config"], item) for item in items]

    def _answer(self, config: dict[str, str], files: list[Any]) -> Any:
        with tempfile.TemporaryDirectory(dir=room()) as folder:
            root = Path(folder)
            for name, modified in files:
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text("x\n")
                os.utime(root / name, ns=(modified * 1_000_000,) * 2)
            directory = SpoolDirectory(configured(folder, config), FileErrors(logging.getLogger("spool"), Metrics()))
            read = []
            for file in directory.candidates():
                if trouble := directory.mark_as_read(file.path):
                    return {"error": trouble}
                read.append(os.path.relpath(file.path, folder))
            remaining = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
            return [read, remaining]

    def comparable(self, settings: Settings, item: Any, answer: Any) -> Any:
        """Return the answer without the metadata that only one of the two keeps beside the files."""
        if isinstance(answer, dict):
            return "error"
        read, remaining = answer
        return [read, sorted(name for name in remaining if not name.startswith(".flumespool/.flumespool-main"))]
