"""Serializers compared with the plainest code that does the same, event by event."""

from __future__ import annotations

import base64
import gzip
import io
import itertools
import json
import time
import zlib
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flafka.interceptors.remove_header import RemoveHeaderConfig, RemoveHeaderInterceptor
from flafka.plugins import Batch, Event, Origin
from flafka.plugins.columns import MAX_HEADER_COLUMNS
from flafka.plugins.dataframe import to_arrow
from flafka.sinks.hdfs.codecs import CODECS
from flafka.sinks.hdfs.formats import CompressedFile
from flafka.sinks.hdfs.sequencefile import SequenceFile, vint
from flafka.sinks.serializers import Serializer
from flafka.sinks.serializers.avro import AvroEvent, encode_long
from flafka.sinks.serializers.parquet import Parquet
from flafka.sinks.serializers.text import HeaderAndText, Json, Text
from flafka.sinks.solr.config import SolrConfig
from flafka.sinks.solr.sink import SolrSink

TEXTS = st.text(max_size=8) | st.sampled_from(['"', "\\", "\n", "\x00", "\x1f", "é", "😀", "\u2028"])
BODIES = st.binary(max_size=12) | TEXTS.map(str.encode) | st.integers(60, 300).map(lambda n: b"x" * n)
EVENTS = st.lists(st.builds(Event, BODIES, st.dictionaries(TEXTS, TEXTS, max_size=3)), min_size=1, max_size=12)
BATCHES = st.builds(
    lambda events, skip: Batch.of(events).slice(min(skip, len(events) - 1)), EVENTS, st.integers(0, 3)
)
MANY = Batch.of(Event(b"%d" % n, {f"h{n}": "v", "all": str(n)}) for n in range(3 * MAX_HEADER_COLUMNS))
"""Batch with more headers than columns."""


def serialize(serializer: Serializer, batch: Batch, cuts: int = 3) -> bytes:
    """Return one file of these events, written in some parts."""
    writer, records = serializer.writer(""), serializer.records(batch)
    out = [bytes(writer.header)]
    bounds = sorted({0, len(batch), *np.linspace(0, len(batch), cuts + 1).astype(int).tolist()})
    for begin, stop in itertools.pairwise(bounds):
        out.append(bytes(writer.add(records.part(begin, stop))))
    return b"".join([*out, bytes(writer.close())])


def text_of(event: Event, headed: bool, newline: bool) -> bytes:
    pairs = ", ".join(f"{name}={value}" for name, value in event.headers.items())
    return (f"{{{pairs}}} ".encode() if headed else b"") + event.body + (b"\n" if newline else b"")


@given(BATCHES, st.booleans(), st.booleans())
def test_text(batch: Batch, headed: bool, newline: bool) -> None:
    serializer = HeaderAndText(newline) if headed else Text(newline)
    assert serialize(serializer, batch) == b"".join(text_of(event, headed, newline) for event in batch)
    ends = np.cumsum([len(text_of(event, headed, newline)) for event in batch])
    assert serializer.records(batch).ends.tolist() == ends.tolist()


def json_of(event: Event) -> dict[str, Any]:
    try:
        return {"headers": event.headers, "body": event.body.decode()}
    except UnicodeDecodeError:
        return {"headers": event.headers, "bodyBase64": base64.b64encode(event.body).decode()}


@given(BATCHES)
def test_json(batch: Batch) -> None:
    lines = serialize(Json(), batch).split(b"\n")
    assert lines.pop() == b""
    assert [json.loads(line) for line in lines] == [json_of(event) for event in batch]


def _solr(batch: Batch) -> None:
    config, problems = SolrConfig.parse({"url": "http://127.0.0.1:1/solr/c"})
    assert config is not None, problems
    SolrSink(config)._make_items(batch)


def _remove_header(batch: Batch) -> None:
    config, problems = RemoveHeaderConfig.parse({"matching": "h.*"})
    assert config is not None, problems
    assert RemoveHeaderInterceptor(config).intercept(batch).header_names == []


@pytest.mark.parametrize(
    "use",
    [
        HeaderAndText(True).records,
        Json().records,
        lambda batch: [Json().records(part) for part in batch.split(100, 1 << 20)],
        Parquet("null").records,
        AvroEvent("null", 1000).records,
        to_arrow,
        list,
        lambda batch: Batch.concat([*batch.split(500, 1 << 20)]),
        _solr,
        _remove_header,
    ],
    ids=["text", "json", "json in parts", "parquet", "avro", "frames", "events", "concat", "solr", "remove_header"],
)
def test_senders_with_ever_new_header_names_slow_nothing_down(use: Callable[[Batch], object]) -> None:
    """Time in proportion to the events; with one pass for each name it was more than 4 s."""
    events = 5000
    batch = Batch.of(
        (Event(b"%d" % n, {f"h{n}": "v"}) for n in range(events)), Origin.of_record("t", 0, 7, 0, events)
    )
    since = time.process_time()
    use(batch)
    assert time.process_time() - since < 2


@given(BATCHES, st.sampled_from(["null", "deflate", "snappy", "bzip2", "xz"]), st.sampled_from([32, 1 << 20]))
def test_avro(batch: Batch, codec: str, interval: int) -> None:
    file = fastavro.reader(io.BytesIO(serialize(AvroEvent(codec, interval), batch)))
    assert [Event(record["body"], record["headers"]) for record in file] == list(batch)
    assert file.codec == codec


@given(BATCHES)
def test_parquet(batch: Batch) -> None:
    rows = pq.read_table(io.BytesIO(serialize(Parquet("snappy"), batch))).to_pylist()
    assert [Event(row["body"], dict(row["headers"])) for row in rows] == list(batch)


TYPED = {
    "s": "string",
    "b": "boolean",
    "i": "int",
    "l": "bigint",
    "f": "float",
    "d": "double",
    "day": "date",
    "at": "timestamp",
}
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize("more", [[], [Event(b"", dict.fromkeys(TYPED, "no such value"))]])
def test_parquet_has_typed_columns_of_headers(more: list[Event]) -> None:
    values = {"s": "x", "b": "true", "i": "-7", "l": "123456789012345", "f": "1.5", "d": "1.50", "day": "2026-01-31"}
    events = [
        Event(b"1", {**values, "at": "2026-01-31T13:00:00+01:00"}),
        Event(b"2", {"i": "12"}),
        Event(b"3"),
        *more,
    ]
    table = pq.read_table(io.BytesIO(serialize(Parquet("snappy", TYPED), Batch.of(events))))
    assert [str(table.schema.field(name).type) for name in TYPED] == [
        *("string", "bool", "int32", "int64", "float", "double", "date32[day]", "timestamp[us, tz=UTC]")
    ]
    first, second, third, *other_rows = table.to_pylist()
    assert {name: first[name] for name in TYPED} == {
        "s": "x",
        "b": True,
        "i": -7,
        "l": 123456789012345,
        "f": 1.5,
        "d": 1.5,
        "day": date(2026, 1, 31),
        "at": NOON,
    }
    assert (second["i"], [third[name] for name in TYPED]) == (12, [None] * len(TYPED))
    assert [(row["s"], {row[name] for name in TYPED if name != "s"}) for row in other_rows] == [
        ("no such value", {None}) for _ in more
    ]
    assert [Event(row["body"], dict(row["headers"])) for row in table.to_pylist()] == events, "texts are all there"


@given(st.lists(st.text(max_size=12) | st.from_regex(r"[-+]?[0-9]{1,20}(\.[0-9]+)?", fullmatch=True), max_size=5))
def test_a_value_is_read_alike_in_every_batch(texts: list[str]) -> None:
    columns = {f"h-{name}": name for name in TYPED.values()}
    serializer = Parquet("null", columns)
    together = Batch.of([Event(b"", dict.fromkeys(columns, text)) for text in texts])
    alone = [plain(serializer.records(together.slice(row, 1)).records)[0] for row in range(len(texts))]
    assert plain(serializer.records(together).records) == alone


def plain(records: pa.RecordBatch) -> list[str]:
    """Return its rows, with times as numbers: Python has none of so long ago."""
    numbers = {True: pa.int32(), False: pa.int64()}
    columns = [
        column.cast(numbers[pa.types.is_date32(column.type)]) if pa.types.is_temporal(column.type) else column
        for column in records.columns
    ]
    return [repr(row) for row in zip(*(column.to_pylist() for column in columns), strict=True)]


def test_parquet_keeps_no_batch_for_a_few_of_its_events() -> None:
    writer = Parquet("null").writer("")
    before = pa.total_allocated_bytes()
    writer.add(Parquet("null").records(Batch.of([Event(b"x" * 1000)] * 1000)).part(0, 1))
    assert pa.total_allocated_bytes() - before < 10_000


def test_headers_past_the_columns_of_a_batch() -> None:
    assert serialize(HeaderAndText(True), MANY).count(b"=v") == len(MANY)
    assert [json.loads(line) for line in serialize(Json(), MANY).splitlines()] == [json_of(event) for event in MANY]
    avro = fastavro.reader(io.BytesIO(serialize(AvroEvent("null", 1 << 20), MANY)))
    assert [record["headers"] for record in avro] == [event.headers for event in MANY]
    rows = pq.read_table(io.BytesIO(serialize(Parquet("null"), MANY))).to_pylist()
    assert [dict(row["headers"]) for row in rows] == [event.headers for event in MANY]


@pytest.mark.parametrize("number", [0, 1, 63, 64, -1, -64, -65, 8191, 8192, 2**31, 2**62])
def test_numbers_of_avro(number: int) -> None:
    assert fastavro.schemaless_reader(io.BytesIO(encode_long(number)), "long", None) == number


@pytest.mark.parametrize(
    ("number", "encoded"),
    [(0, "00"), (127, "7f"), (128, "8f80"), (255, "8fff"), (256, "8e0100"), (70000, "8d011170")],
)
def test_numbers_of_hadoop(number: int, encoded: str) -> None:
    assert vint(number).hex() == encoded


def test_an_empty_compressed_file_is_one() -> None:
    assert gzip.decompress(bytes(CompressedFile(Text(False).writer(""), CODECS["gzip"]).close())) == b""


@pytest.mark.parametrize("size", [10, 50_000, 150_000])
def test_sync_marks_of_a_sequence_file_stand_between_records(size: int) -> None:
    origin = Origin.of_record("t", 0, 0, 7, 12)
    batch = Batch.of((Event(bytes([n]) * size, {"timestamp": "x" if n % 2 else "9"}) for n in range(12)), origin)
    data = serialize(SequenceFile("Writable", None), batch, cuts=5)
    header = data.index(b"BytesWritable") + len(b"BytesWritable") + 6
    sync, offset, records, since = data[header : header + 16], header + 16, [], 0
    while offset < len(data):
        length = int.from_bytes(data[offset : offset + 4], "big", signed=True)
        if length == -1:
            assert data[offset + 4 : offset + 20] == sync
            offset, since = offset + 20, 0
            continue
        assert data[offset + 4 : offset + 8] == bytes([0, 0, 0, 8])
        key, value = data[offset + 8 : offset + 16], data[offset + 16 : offset + 8 + length]
        records.append((int.from_bytes(key, "big"), value))
        offset, since = offset + 8 + length, since + 8 + length
        assert since < 2 * 102_400 + size
    assert records == [(7 if n % 2 else 9, size.to_bytes(4, "big") + bytes([n]) * size) for n in range(12)]


def flumes(events: int) -> Batch:
    """Return the events of a `seq` source of Flume that wrote the files below, version 1.11 with Hadoop 3.4."""
    origin = Origin.of_record("t", 0, 0, 0, events)
    return Batch.of((Event(b"%d" % n, {"timestamp": "1704157445006"}) for n in range(events)), origin)


def test_a_sequence_file_equals_flumes() -> None:
    sync = bytes(range(16))
    record = "0000000d000000080000018cc7b2fb8e00000001"
    flume = (
        b"SEQ\x06!org.apache.hadoop.io.LongWritable\x22org.apache.hadoop.io.BytesWritable\0\0\0\0\0\0"
        + sync
        + b"".join(bytes.fromhex(record) + b"%d" % n for n in range(7))
        + b"\xff\xff\xff\xff"
        + sync
    )
    data = serialize(SequenceFile("Writable", None), flumes(7))
    assert data.replace(data[-16:], sync) == flume


def test_a_block_equals_flumes_except_zlibs_version() -> None:
    data = serialize(SequenceFile("Text", CODECS["deflate"]), flumes(7), cuts=1)
    head, sync, block = data[:113], data[113:129], data[129:]
    assert head[64:] == b"\x01\x01*org.apache.hadoop.io.compress.DeflateCodec\0\0\0\0"
    assert block[:21] == b"\xff\xff\xff\xff" + sync + b"\x07"
    unread, columns = block[21:], []
    while unread:
        columns.append(zlib.decompress(unread[1 : 1 + unread[0]]))
        unread = unread[1 + unread[0] :]
    key = bytes.fromhex("0000018cc7b2fb8e")
    assert columns == [b"\x08" * 7, key * 7, b"\x02" * 7, b"".join(b"\x01%d" % n for n in range(7))]


def test_a_snappy_stream_equals_flumes() -> None:
    writer = CompressedFile(Text(True).writer(""), CODECS["snappy"])
    assert not writer.add(Text(True).records(flumes(7)))
    assert bytes(writer.close()).hex() == "0000000e000000100e34300a310a320a330a340a350a360a"
