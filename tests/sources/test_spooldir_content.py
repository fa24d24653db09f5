"""What a source `spooldir` makes events of: lines, records of Avro, whole files."""

from __future__ import annotations

import gzip
import io
import json
import os
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flafka.sources.spooldir.content import Content
from flafka.sources.spooldir.deserializers import LEAST_LINE_BYTES, _TextLines, divided
from tests.sources.spooldir_running import RECORD, avro, put, read, read_anew, start

# --- lines


def lines_of(data: bytes, directory: Path, **options: Any) -> list[bytes]:
    path = directory / "lines"
    path.write_bytes(data)
    content = Content(str(path), unpack=False)
    settings = {"charset": "utf-8", "policy": "FAIL", "output": "utf-8", "longest": 2048} | options
    reader = _TextLines(content, 0, **settings)
    found: list[bytes] = []
    try:
        while (piece := reader.read(3, 16)) is not None:
            found += piece.bodies.to_pylist()
    finally:
        content.close()
    return found


def as_flume(text: str, longest: int) -> list[str]:
    """LineDeserializer.readLine, a character at a time; characters of two units count as such and stay whole."""
    found, at = [], 0
    while at < len(text):
        line, units, taken = "", 0, 0
        while at < len(text):
            width = 2 if text[at] > "\uffff" else 1
            if units and units + width > longest:
                break
            character, at, units, taken = text[at], at + 1, units + width, taken + 1
            if character == "\n":
                break
            line += character
            if units >= longest:
                break
        found.append(line)
    return found


@given(st.text(st.sampled_from("ab\n\ré€\U0001f600\ufeff"), max_size=40), st.integers(1, 6))
def test_lines_are_cut_as_flume_cuts_them(tmp_path_factory: pytest.TempPathFactory, text: str, longest: int) -> None:
    directory = tmp_path_factory.getbasetemp()
    expected = as_flume(text, longest)
    assert [line.decode() for line in lines_of(text.encode(), directory, longest=longest)] == expected
    for charset in ("utf-16", "utf-16-be", "utf-32"):
        found = lines_of(text.encode(charset), directory, longest=longest, charset=charset)
        if text[:1] != "\ufeff" or charset != "utf-16-be":
            assert [line.decode() for line in found] == expected


def test_a_line_of_many_megabytes_is_cut_within_no_character(tmp_path: Path) -> None:
    text = "€" * (3 * LEAST_LINE_BYTES // 3 + 5) + "\nend"
    found = lines_of(text.encode(), tmp_path, longest=2047)
    assert b"".join(found) == text.replace("\n", "").encode()
    assert max(len(line.decode()) for line in found) == 2047


def test_a_pair_is_never_divided() -> None:
    assert divided("a\U0001f600b", 2, ended=True) == ["a", "\U0001f600", "b"]
    assert divided("\U0001f600" * 2, 1, ended=True) == ["\U0001f600", "\U0001f600", ""]
    assert divided("ab", 2, ended=True) == ["ab", ""]
    assert divided("ab", 2, ended=False) == ["ab"]


# --- Avro, and whole files


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "bzip2", "xz"])
def test_records_of_avro_and_their_schema(spool: Path, codec: str) -> None:
    put(spool / "a", avro(50, codec))
    source = start(spool, deserializer="org.apache.flume.serialization.AvroEventDeserializer$Builder")
    events = []
    for batch in source.look():
        events += list(batch)
        source.stored(batch)
    source.close()
    parsed = fastavro.parse_schema(RECORD)
    records: list[Any] = [fastavro.schemaless_reader(io.BytesIO(event.body), parsed, None) for event in events]
    assert [record["number"] for record in records] == list(range(50))
    assert {event.headers["flume.avro.schema.hash"] for event in events} == {"a6c609a33e872fca"}


def test_the_schema_itself_in_a_header(spool: Path) -> None:
    put(spool / "a", avro(1))
    source = start(spool, deserializer="AVRO", deserializer__schemaType="literal")
    (event,) = [event for batch in source.look() for event in batch]
    source.close()
    assert json.loads(event.headers["flume.avro.schema.literal"]) == RECORD
    assert list(event.headers) == list(source.sets_headers())


def test_avro_goes_on_at_the_block_that_was_not_stored(spool: Path) -> None:
    put(spool / "a", avro(100))
    source = start(spool, deserializer="AVRO", batchSize="20")
    look = source.look()
    stored = []
    for _ in range(2):
        batch = next(look)
        stored += batch.bodies.to_pylist()
        source.stored(batch)
    source.close()
    rest = read_anew(spool, deserializer="AVRO")
    assert len(stored) + len(rest) == 100
    assert len({*stored, *rest}) == 100


def test_avro_that_is_damaged_is_read_as_far_as_possible(spool: Path) -> None:
    whole = avro(100)
    put(spool / "a", whole[:-30], age=9)
    put(spool / "b", b"no Avro at all", age=8)
    put(spool / "c", b"", age=7)
    put(spool / "d", gzip.compress(avro(3)), age=6)
    source = start(spool, deserializer="AVRO")
    found = read(source)
    assert 80 < len(found) - 3 < 100
    assert source.metrics.get("FileSkippedCount") == 3
    assert "is no whole Avro file" in source.metrics.degraded()
    source.close()


def test_whole_files(spool: Path) -> None:
    data = gzip.compress(os.urandom(50_000))
    put(spool / "a", data)
    put(spool / "b", b"")
    found = read_anew(spool, deserializer="blob", deserializer__maxBlobLength="20000")
    assert sorted(found, key=len) == sorted([data[:20000], data[20000:40000], data[40000:], b""], key=len)
