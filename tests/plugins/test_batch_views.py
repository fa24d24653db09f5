"""Batches of rows and batches of columns: two views that no method distinguishes."""

import copy
import pickle
import random
import threading
from enum import StrEnum

import numpy as np
import pyarrow as pa
import pytest

from flafka.plugins import MAX_HEADER_COLUMNS, Batch, Event, Origin
from flafka.plugins.rows import MAX_ROWS
from tests.fixtures.examples import examples
from tests.plugins.batchviews import check_views, compare

OPERATIONS = 150


def test_random_operations_give_the_same_by_rows_and_by_columns(seed: int) -> None:
    assert check_views(random.Random(seed), examples(OPERATIONS))


def test_neither_later_changes_to_events_nor_to_iterated_ones_reach_a_batch() -> None:
    events = [Event(b"a", {"k": "v"}), Event(b"b", {"l": "w"})]
    batch = Batch.of(events)
    derived = [batch, batch.with_header("m", "x"), batch.slice(0), batch.with_origin(None), Batch.concat([batch] * 2)]
    before = [copy.deepcopy(list(b)) for b in derived]
    for event in [*events, *(event for b in derived for event in b)]:
        event.body = b"changed"
        event.headers["k"] = event.headers["new"] = "changed"
    batch.map(lambda event: event.headers.clear())
    assert [list(b) for b in derived] == before


def test_the_view_of_rows_ends_where_columns_are_cheaper() -> None:
    event = Event(b"a", {f"h{i}": "x" for i in range(MAX_HEADER_COLUMNS)})
    assert Batch.of([event] * MAX_ROWS).rows is not None
    assert Batch.of([event] * (MAX_ROWS + 1)).rows is None
    wide = Batch.of([event, Event(b"b", {"more": "y"})])
    assert wide.rows is None
    assert wide.is_wide
    assert Batch.concat([Batch.of([event]), Batch.of([Event(b"b", {"more": "y"})])]).is_wide
    assert Batch.concat([Batch.of([event])] * (MAX_ROWS + 1)).rows is None
    assert Batch.concat([Batch.of([event])] * MAX_ROWS).rows is not None


class Level(StrEnum):
    """Text of a subclass."""

    INFO = "info"


class Dated(Event):
    """Event of a subclass."""


@pytest.mark.parametrize(
    "event",
    [
        Dated(b"a", {"k": "v"}),
        Event(bytearray(b"a"), {"k": "v"}),  # columns convert it
        Event("a", {"k": "v"}),  # columns convert it
        Event(b"a", {"k": Level.INFO}),
        Event(b"a", {Level.INFO: "k"}),
        Event(b"a", {"k": "v", "none": None}),  # a header without a value is none
    ],
)
def test_events_that_are_not_plain_become_plain(event: Event) -> None:
    (plain,) = Batch.of([event])
    assert [type(plain), type(plain.body)] == [Event, bytes]
    assert {type(text) for pair in plain.headers.items() for text in pair} == {str}
    assert plain == Event(b"a", {str(k): str(v) for k, v in event.headers.items() if v is not None})
    name = next(iter(Batch.of([Event(b"", {})]).with_header(Level.INFO, Level.INFO))).headers.popitem()
    assert [*map(type, name)] == [str, str]


@pytest.mark.parametrize("headers", [{"k": "\ud800"}, {"\ud800": "v"}])
def test_lone_surrogates_are_refused(headers: dict[str, str]) -> None:
    for events in ([Event(b"", headers)], [Event(b"", headers)] * (MAX_ROWS + 1)):
        with pytest.raises(UnicodeEncodeError):
            Batch.of(events)


def test_threads_that_use_the_columns_first_get_equal_ones() -> None:
    origin = Origin.of_record("t", 0, 7, 1, MAX_ROWS)
    for _ in range(examples(20)):
        batch = Batch.of([Event(b"%d" % i, {"n": str(i), "é": "ü"}) for i in range(MAX_ROWS)], origin)
        barrier, found = threading.Barrier(4), list[pa.RecordBatch]()

        def use(batch: Batch = batch, barrier: threading.Barrier = barrier, found: list[object] = found) -> None:
            barrier.wait()
            found.append(batch.records)

        threads = [threading.Thread(target=use) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 4
        assert all(records.equals(batch.records) for records in found)
        compare(batch, Batch(batch.records, origin))


def test_a_batch_of_rows_can_be_pickled_and_copied() -> None:
    batch = Batch.of([Event(b"a", {"k": "v"})], Origin.of_record("t", 0, 7, 1, 1))
    for copied in (pickle.loads(pickle.dumps(batch)), copy.copy(batch), copy.deepcopy(batch)):
        assert copied.rows is not None
        compare(copied, Batch(batch.records, batch.origin))


def test_the_last_of_duplicate_names_counts() -> None:
    repeated = [[f"n{i}", "all", f"n{i}", "all"] for i in range(3 * MAX_HEADER_COLUMNS)]
    pairs = [[(name, str(number)) for number, name in enumerate(row)] for row in repeated]
    bodies = pa.array([b""] * len(pairs), pa.binary())
    for rows in (pairs, pairs[:1]):
        names, values = (pa.array([pair[part] for row in rows for pair in row], pa.string()) for part in (0, 1))
        batch = Batch.of_entries(bodies.slice(0, len(rows)), np.repeat(np.arange(len(rows)), 4), names, values)
        batch.records.validate(full=True)
        assert [event.headers for event in batch] == [dict(row) for row in rows]
        assert batch.is_wide == (len(rows) > 1)


def test_headers_that_few_events_have_share_one_column() -> None:
    count = 4 * MAX_HEADER_COLUMNS
    events = [Event(b"", {f"n{i}": "x", "all": "y", "half" if i % 2 else f"m{i}": "z"}) for i in range(count)]
    batch = Batch.of(events)
    assert batch.records.schema.names == ["body", "all", "half", "headers"]
    assert list(batch) == events
    kept = batch.where(pa.array(np.arange(count) < 2))
    assert list(kept) == events[:2]
    assert list(kept.without_header("n0", "n1", "m0").with_header("n0", ["a", None])) == [
        Event(b"", {"all": "y", "n0": "a"}),
        Event(b"", {"all": "y", "half": "z"}),
    ]


def test_headers_keep_their_order_beside_a_wide_batch() -> None:
    few = Batch.of([Event(b"", {"a": "1", "b": "2"}), Event(b"", {"b": "3"}), Event(b"", {"a": "4", "b": "5"})])
    wide = Batch.of([Event(b"", {f"n{number}": "x" for number in range(200)})])
    by_rows, by_columns = (Batch.concat([part.slice(1), wide]) for part in (few, Batch(few.records)))
    assert [list(event.headers) for event in by_rows] == [list(event.headers) for event in by_columns]


@pytest.mark.parametrize("number", [3, 100])
def test_wrong_arguments_are_refused_by_either_view(number: int) -> None:
    batch = Batch.of([Event(b"")] * number)
    with pytest.raises(TypeError, match="boolean array"):
        batch.where(pa.array([1] * number))
    with pytest.raises(TypeError, match="Arrow array"):
        batch.with_bodies(pa.chunked_array([[b""] * number]))
    for start, length in ((0, -1), (-1, 1)):
        with pytest.raises(IndexError, match="slice"):
            batch.slice(start, length)
