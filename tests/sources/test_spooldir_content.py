"""Events of a source `spooldir`: lines, records of Avro, whole files."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flafka.sources.spooldir.content import FileContent
from flafka.sources.spooldir.deserializers import MIN_LINE_READ_BYTES, _TextLines, split_line
from tests.sources.spooldir_running import RECORD, avro, put, read, read_anew, start

# --- lines


def lines_of(data: bytes, directory: Path, **options: Any) -> list[bytes]:
    path = directory / "lines"
    path.write_bytes(data)
    content = FileContent(str(path), decompress=False)
    settings = {"charset": "utf-8", "policy": "FAIL", "output": "utf-8", "max_length": 2048} | options
    reader = _TextLines(content, 0, **settings)
    lines: list[bytes] = []
    try:
        while (piece := reader.read(3, 16)) is not None:
            lines += piece.bodies.to_pylist()
    finally:
        content.close()
    return lines


def as_flume(text: str, max_length: int) -> list[str]:
    """Return lines like LineDeserializer.readLine, a character at a time; surrogate pairs count as two and stay
    whole."""
    lines, position = [], 0
    while position < len(text):
        line, units, count = "", 0, 0
        while position < len(text):
            width = 2 if text[position] > "\uffff" else 1
            if units and units + width > max_length:
                break
            character, position, units, count = text[position], position + 1, units + width, count + 1
            if character == "\n":
                break
            line += character
            if units >= max_length:
                break
        lines.append(line)
    return lines


@given(st.text(st.sampled_from("ab\n\ré€\U0001f600\ufeff"), max_size=40), st.integers(1, 6))
def test_lines_are_cut_as_flume_cuts_them(
    tmp_path_factory: pytest.TempPathFactory, text: str, max_length: int
) -> None:
    directory = tmp_path_factory.getbasetemp()
    expected = as_flume(text, max_length)
    assert [line.decode() for line in lines_of(text.encode(), directory, max_length=max_length)] == expected
    for charset in ("utf-16", "utf-16-be", "utf-32"):
        lines = lines_of(text.encode(charset), directory, max_length=max_length, charset=charset)
        if text[:1] != "\ufeff" or charset != "utf-16-be":
            assert [line.decode() for line in lines] == expected


def test_a_line_of_many_megabytes_is_cut_within_no_character(tmp_path: Path) -> None:
    text = "€" * (3 * MIN_LINE_READ_BYTES // 3 + 5) + "\nend"
    lines = lines_of(text.encode(), tmp_path, max_length=2047)
    assert b"".join(lines) == text.replace("\n", "").encode()
    assert max(len(line.decode()) for line in lines) == 2047


def test_a_surrogate_pair_is_never_divided() -> None:
    assert split_line("a\U0001f600b", 2, ends_line=True) == ["a", "\U0001f600", "b"]
    assert split_line("\U0001f600" * 2, 1, ends_line=True) == ["\U0001f600", "\U0001f600", ""]
    assert split_line("ab", 2, ends_line=True) == ["ab", ""]
    assert split_line("ab", 2, ends_line=False) == ["ab"]


# --- Avro, and whole files


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "bzip2", "xz"])
def test_records_of_avro_and_their_schema(spool: Path, codec: str) -> None:
    put(spool / "a", avro(50, codec))
    source = start(spool, deserializer="org.apache.flume.serialization.AvroEventDeserializer$Builder")
    events = []
    for batch in source.poll():
        events += list(batch)
        source.stored(batch)
    source.close()
    parsed = fastavro.parse_schema(RECORD)
    records: list[Any] = [fastavro.schemaless_reader(io.BytesIO(event.body), parsed, None) for event in events]
    assert [record["number"] for record in records] == list(range(50))
    assert {event.headers["flume.avro.schema.hash"] for event in events} == {"a6c609a33e872fca"}


def test_avro_resumes_at_the_block_that_was_not_stored(spool: Path) -> None:
    put(spool / "a", avro(100))
    source = start(spool, deserializer="AVRO", batchSize="20")
    batches = source.poll()
    stored = []
    for _ in range(2):
        batch = next(batches)
        stored += batch.bodies.to_pylist()
        source.stored(batch)
    source.close()
    resumed = read_anew(spool, deserializer="AVRO")
    assert len(stored) + len(resumed) == 100
    assert len({*stored, *resumed}) == 100


def test_avro_that_is_damaged_is_read_as_far_as_possible(spool: Path) -> None:
    data = avro(100)
    put(spool / "a", data[:-30], age=9)
    put(spool / "b", b"no Avro at all", age=8)
    put(spool / "c", b"", age=7)
    put(spool / "d", gzip.compress(avro(3)), age=6)
    source = start(spool, deserializer="AVRO")
    events = read(source)
    assert 80 < len(events) - 3 < 100
    assert source.metrics.get("FileSkippedCount") == 3
    assert "is not a complete Avro file" in source.metrics.degradation()
    source.close()
