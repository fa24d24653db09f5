"""Batches: events and columns are two views of one thing, and no operation loses any part."""

import random
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from flafka.plugins import MAX_HEADER_COLUMNS, Batch, Event, EventId, Origin
from tests.fixtures.examples import examples

NAMES = st.one_of(
    st.sampled_from(["body", "headers", "host", "", "é", "a b"]),
    st.integers(0, 90).map("h{}".format),
    st.text(max_size=3),
)
EVENTS = st.lists(
    st.builds(Event, st.binary(max_size=20), st.dictionaries(NAMES, st.text(max_size=5), max_size=5)), max_size=8
)


@st.composite
def _batches(draw: st.DrawFn) -> tuple[list[Event], Batch]:
    """Draw events, and their batch: with or without an origin, fresh, sliced, joined, or read from a stream."""
    events = draw(EVENTS)
    if draw(st.booleans()):
        events = [
            Event(e.body, {f"n{i}": str(row) for i in range(row, row + 70)} | e.headers)
            for row, e in enumerate(events)
        ]
    offsets = np.array(
        sorted(draw(st.lists(st.integers(0, 9), min_size=len(events), max_size=len(events)))), np.int64
    )
    origin = None
    if draw(st.booleans()):
        origin = Origin("t", 3, offsets, np.arange(len(events), dtype=np.int32), offsets * 10)
    batch = Batch.of(events, origin)
    form = draw(st.sampled_from(["fresh", "sliced", "joined", "read", "reordered"]))
    start = draw(st.integers(0, len(events)))
    if form == "sliced":
        return events[start:], batch.slice(start)
    if form == "joined":
        return events, Batch.concat([batch.slice(0, start), batch.slice(start)])
    if form == "read":
        return events, Batch(Batch.from_ipc(batch.to_ipc()).records, origin)
    return events, batch


BATCHES = _batches()


def ids(batch: Batch) -> list[EventId] | None:
    return None if batch.origin is None else batch.ids()


@given(BATCHES)
def test_events_and_columns_agree(drawn: tuple[list[Event], Batch]) -> None:
    events, batch = drawn
    assert len(batch) == len(events)
    assert list(batch) == events
    assert batch.bodies.to_pylist() == [event.body for event in events]
    assert {name for event in events for name in event.headers} <= set(batch.header_names)
    assert len(set(batch.header_names)) == len(batch.header_names)
    assert [dict(pairs) for pairs in batch.header_maps().to_pylist()] == [event.headers for event in events]
    assert batch.is_wide or len(batch.header_names) <= MAX_HEADER_COLUMNS
    for name in [*batch.header_names, "no such header"]:
        column = batch.header(name)
        assert column.type == pa.dictionary(pa.int32(), pa.string())
        assert column.to_pylist() == [event.headers.get(name) for event in events]
    assert repr(batch).startswith(f"<Batch of {len(events)} events")


@given(BATCHES, st.sampled_from([None, "lz4", "zstd"]))
def test_a_stream_gives_the_batch_back(drawn: tuple[list[Event], Batch], compression: str | None) -> None:
    events, batch = drawn
    read = Batch.from_ipc(batch.to_ipc(compression))
    assert list(read) == events
    assert read.origin is None


@given(BATCHES, st.data())
def test_dropping_keeps_contents_and_ids_of_the_rest(drawn: tuple[list[Event], Batch], data: st.DataObject) -> None:
    events, batch = drawn
    mask = data.draw(st.lists(st.sampled_from([True, False, None]), min_size=len(events), max_size=len(events)))
    rows = [row for row, is_kept in enumerate(mask) if is_kept]
    before = ids(batch)
    by_mask = batch.where(pa.array(mask, pa.bool_()))
    numbers = iter(range(len(events)))
    by_function = batch.map(lambda event: event if next(numbers) in rows else None)
    for result in (by_mask, by_function):
        assert list(result) == [events[row] for row in rows]
        assert ids(result) == (None if before is None else [before[row] for row in rows])


@given(BATCHES, st.data())
def test_pieces_joined_are_the_whole(drawn: tuple[list[Event], Batch], data: st.DataObject) -> None:
    events, batch = drawn
    max_events, max_bytes = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 2000))
    pieces = list(batch.split(max_events, max_bytes))
    assert all(0 < len(piece) <= max_events for piece in pieces if events)
    for piece in pieces:
        assert len(piece) <= 1 or sum(len(event.body) for event in piece) <= max_bytes
    joined = Batch.concat(pieces)
    assert list(joined) == events
    assert ids(joined) == ids(batch)
    start = data.draw(st.integers(0, len(events)))
    length = data.draw(st.none() | st.integers(0, len(events) - start))
    part = batch.slice(start, length)
    stop = len(events) if length is None else start + length
    assert list(part) == events[start:stop]
    assert ids(part) == (None if batch.origin is None else batch.ids()[start:stop])


@given(BATCHES, NAMES, st.data())
def test_setting_a_header_changes_that_header_only(
    drawn: tuple[list[Event], Batch], name: str, data: st.DataObject
) -> None:
    events, batch = drawn
    name = data.draw(st.sampled_from([name, *batch.header_names]))
    values = data.draw(
        st.text(max_size=3) | st.lists(st.none() | st.text(max_size=3), min_size=len(events), max_size=len(events))
    )
    column = [values] * len(events) if isinstance(values, str) else values
    keep = data.draw(st.booleans())
    changed = batch.with_header(name, values, preserve_existing=keep)
    wanted = []
    for event, value in zip(events, column, strict=True):
        headers = {key: old for key, old in event.headers.items() if key != name}
        if keep and name in event.headers:
            value = event.headers[name]
        wanted.append(Event(event.body, headers if value is None else headers | {name: value}))
    assert list(changed) == wanted
    assert ids(changed) == ids(batch)
    bare = changed.without_header(name)
    assert [event.headers for event in bare] == [
        {key: value for key, value in event.headers.items() if key != name} for event in events
    ]
    assert bare.header(name).null_count == len(events)
    assert list(batch) == events, "the batch itself never changes"


@given(BATCHES)
def test_other_bodies(drawn: tuple[list[Event], Batch]) -> None:
    events, batch = drawn
    changed = batch.with_bodies(pa.array([event.body + b"\xff" for event in events], pa.binary()))
    assert list(changed) == [Event(event.body + b"\xff", event.headers) for event in events]
    assert ids(changed) == ids(batch)
    with pytest.raises(ValueError, match="bodies are needed"):
        batch.with_bodies(pa.array([b"x"] * (len(events) + 1), pa.binary()))
    assume(events)
    with pytest.raises(ValueError, match="of them null"):
        batch.with_bodies(pa.array([None] * len(events), pa.binary()))


def test_a_thousand_header_names() -> None:
    count = examples(1000)
    last = f"name{count - 1}"
    events = [Event(b"%d" % i, {f"name{i}": str(i), "host": "h"}) for i in range(count)]
    batch = Batch.of(events)
    assert batch.is_wide == (count >= MAX_HEADER_COLUMNS)
    assert list(batch) == events
    assert len(batch.header_names) == count + 1
    assert batch.header(last).to_pylist() == [None] * (count - 1) + [str(count - 1)]
    for changed in (batch.with_header("new", "x"), batch.with_header(last, "x"), batch.with_header("host", "x")):
        assert [event.headers["host"] for event in changed.without_header("host").with_header("host", "h")] == [
            "h"
        ] * count
        assert {k: v for k, v in next(iter(changed)).headers.items() if v != "x"}.items() <= events[0].headers.items()
    assert list(batch.with_header("new", "x").without_header("new")) == events
    joined = Batch.concat([batch, Batch.of([Event(b"last", {"later": "1"})])])
    assert list(joined) == [*events, Event(b"last", {"later": "1"})]


def test_header_values_may_be_any_array_of_text() -> None:
    batch = Batch.of([Event(b"a", {}), Event(b"b", {})])
    for values in (
        ["x", None],
        pa.array(["x", None]),
        pa.array(["x", None]).dictionary_encode(),
        pa.chunked_array([["x"], pa.array([None], pa.string())]),
        pa.array(["x", None], pa.large_string()),
        pa.array(["x", None]).dictionary_encode().cast(pa.dictionary(pa.int8(), pa.string())),
    ):
        assert [event.headers for event in batch.with_header("k", values)] == [{"k": "x"}, {}]
    with pytest.raises(ValueError, match="2 header values are needed, got 1"):
        batch.with_header("k", ["x"])


def test_ids_need_a_channel_and_joins_one_partition() -> None:
    batch = Batch.of([Event(b"a", {})])
    with pytest.raises(ValueError, match="only once a channel holds them"):
        batch.id(0)
    first, second = (Batch(batch.records, Origin.of_record("t", partition, 0, 0, 1)) for partition in (0, 1))
    for batches in ([first, second], [first, batch], [batch, first]):
        with pytest.raises(ValueError, match="only batches of one partition"):
            Batch.concat(batches)
    assert Batch.concat([]).header_names == []
    assert len(Batch.concat([])) == 0


def test_changing_an_event_does_not_change_the_batch() -> None:
    batch = Batch.of([Event(b"a", {"k": "v"})])
    for event in batch:
        event.body, event.headers["k"] = b"b", "w"
    assert list(batch) == [Event(b"a", {"k": "v"})]


# --- foreign and broken streams


def stream(columns: list[pa.Array], names: list[str], batches: int = 1) -> bytes:
    sink = pa.BufferOutputStream()
    records = pa.RecordBatch.from_arrays(columns, names)
    with pa.ipc.new_stream(sink, records.schema) as writer:
        for _ in range(batches):
            writer.write_batch(records)
    return bytes(sink.getvalue())


BODY = pa.array([b"a"], pa.binary())
HEADER = pa.array(["x"]).dictionary_encode()
MAP = pa.map_(pa.string(), pa.string())


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not an Arrow IPC stream"),
        (b"\x00" * 100, "not an Arrow IPC stream|one record batch expected, found 0"),
        (b"<134>Oct 11 22:14:15 web-1 sshd: hello", "not an Arrow IPC stream"),
        (stream([], []), "columns"),
        (stream([BODY], ["body"], batches=0), "one record batch expected, found 0"),
        (stream([BODY], ["body"], batches=2), "one record batch expected, found 2"),
        (stream([pa.array(["a"])], ["body"]), "not a batch of events: columns string"),
        (stream([pa.array([None], pa.binary())], ["body"]), "not a batch of events"),
        (stream([BODY, pa.array(["x"])], ["body", "h"]), "not a batch of events"),
        (stream([BODY, HEADER, HEADER], ["body", "h", "h"]), "a header occurs twice"),
        (stream([BODY, HEADER, pa.array([[("h", "y")]], MAP)], ["body", "h", "headers"]), "a header occurs twice"),
        (stream([BODY, pa.array([None], MAP)], ["body", "headers"]), "a header without a value"),
        (stream([BODY, pa.array([[("h", None)]], MAP)], ["body", "headers"]), "a header without a value"),
        (stream([pa.array([[("h", "x")]], MAP)], ["headers"]), "not a batch of events"),
    ],
)
def test_a_stream_that_is_no_batch_is_a_value_error(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Batch.from_ipc(data)


@given(st.binary(max_size=200), st.booleans())
def test_garbage_is_a_value_error(data: bytes, magic: bool) -> None:
    with pytest.raises(ValueError):
        Batch.from_ipc(b"\xff\xff\xff\xff" + data if magic else data)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_a_stream_with_flipped_bytes_is_a_value_error_or_a_batch(compression: str | None) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    drawn = [Event(chance.randbytes(9), {f"h{i}": str(i) for i in range(chance.randrange(90))}) for _ in range(9)]
    streams = [bytes(Batch.of(events).to_ipc(compression)) for events in ([], drawn[:1], drawn)]
    for _ in range(examples(500)):
        data = bytearray(chance.choice(streams))
        for _ in range(chance.choice((1, 1, 2, 8))):
            start = chance.randrange(len(data) - 4)
            data[start : start + 4] = chance.choice(
                (
                    b"\xff\xff\xff\xff",
                    b"\0\0\0\0",
                    b"\0\0\0\x80",
                    chance.randbytes(4),
                    bytes(data[start : start + 3]) + b"\1",
                )
            )
        try:
            batch = Batch.from_ipc(bytes(data[: chance.choice((len(data), chance.randrange(len(data))))]))
        except ValueError:
            continue
        for event in batch:
            assert isinstance(event.body, bytes)
            assert all(isinstance(value, str) for value in event.headers.values())
        for name in batch.header_names:
            batch.header(name).to_pylist()
        Batch.from_ipc(batch.to_ipc())


def test_a_piece_of_a_split_batch_carries_its_own_header_values_only():
    batch = Batch.of([Event(b"b", {"n": str(n), "same": "s"}) for n in range(1000)])
    pieces = list(batch.split(300, 1 << 20))
    assert [event for piece in pieces for event in piece] == list(batch)
    assert [len(piece.header("n").dictionary) for piece in pieces] == [300, 300, 300, 100]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (b"x", "Batch.of takes events, such as Event(b'…', {'host': 'web1'}), not the bytes b'x'"),
        ({"body": "x"}, "not the dict {'body': 'x'}"),
        (Event(None), "the body of an event must be bytes, not the NoneType None"),  # type: ignore[arg-type]  # as by mistake
        (Event(7), "the body of an event must be bytes, not the int 7"),  # type: ignore[arg-type]  # as by mistake
        (Event(b"", {"a": 1}), "the headers of an event must be texts by name, not the dict {'a': 1}"),  # type: ignore[dict-item]  # as by mistake
        (Event(b"", ["a"]), "the headers of an event must be texts by name, not the list ['a']"),  # type: ignore[arg-type]  # as by mistake
    ],
)
def test_an_invalid_event_is_named(given: Any, message: str) -> None:
    with pytest.raises(TypeError, match=re.escape(message)):
        Batch.of([Event(b"fine"), given])
