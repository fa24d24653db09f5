"""Random operations on a batch of rows and on the same batch made of columns."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from flafka.plugins import Batch, Event, Origin
from flafka.plugins.rows import MAX_ROWS

_NAMES = ["host", "timestamp", "body", "headers", "", "é", "a b", *(f"h{i}" for i in range(8))]
_MANY_NAMES = [f"n{i}" for i in range(100)]
_TEXTS = ["", "x", "web-1", "ä", "\0", "\ud800", "😀", "a\nb"]


def check_views(chance: random.Random, operations: int) -> int:
    """Apply that many random operations to both views of random batches, and compare results and errors.

    Return how many results were rows.
    """
    done = rows = 0
    while done < operations:
        events = draw_events(chance)
        origin = draw_origin(chance, len(events))
        batch = Batch.of(events, origin)
        columns = Batch(Batch.of(events).records, origin)
        compare(batch, columns)
        for _ in range(chance.randrange(1, 6)):
            before = [copy.deepcopy(event) for event in batch]
            operation = draw_operation(chance, batch)
            results = _outcome(operation, batch), _outcome(operation, columns)
            done += 1
            assert list(batch) == list(columns) == before, "an operation never changes its batch"
            if not isinstance(results[0], Batch) or not isinstance(results[1], Batch):
                assert results[0] == results[1]
                continue
            batch, columns = results
            # Some operations return a batch of rows of any batch.
            columns = Batch(columns.records, columns.origin)
            rows += batch.rows is not None
            compare(batch, columns)
    return rows


def compare(batch: Batch, columns: Batch) -> None:
    """Assert that two batches are equal in all that they show."""
    assert batch.rows is None or len(batch.rows) <= MAX_ROWS
    found, wanted = list(batch), list(columns)
    assert found == wanted
    assert len(batch) == len(columns) == len(wanted)
    assert [list(event.headers) for event in found] == [list(event.headers) for event in wanted]
    assert batch.header_names == columns.header_names
    assert batch.is_wide == columns.is_wide
    assert repr(batch) == repr(columns)
    assert (batch.origin is None) == (columns.origin is None)
    if batch.origin is not None:
        assert batch.ids() == columns.ids()
    names = batch.header_names
    for name in [*names[:4], *names[-4:], "absent"]:
        header = batch.header(name)
        assert header.type == columns.header(name).type
        assert header.to_pylist() == columns.header(name).to_pylist() == [event.headers.get(name) for event in wanted]
    assert batch.bodies.equals(columns.bodies)
    assert batch.nbytes >= sum(len(event.body) for event in wanted)
    assert batch.header_maps().to_pylist() == columns.header_maps().to_pylist()
    batch.records.validate(full=True)
    assert batch.records.schema.equals(columns.records.schema)
    assert batch.bodies.equals(columns.bodies), "from the records, now that there are some"
    assert list(batch) == wanted


def draw_events(chance: random.Random) -> list[Event]:
    """Return few events, of few names or of many."""
    count = chance.choice((0, 1, 1, 2, 3, 8, MAX_ROWS, MAX_ROWS + 1))
    names = chance.choice((_NAMES[:3], _NAMES, _NAMES, _MANY_NAMES, _MANY_NAMES[:64]))
    size = min(len(names), chance.choice((0, 2, 3, 64)))
    common = chance.sample(names, size)
    texts = [text for text in _TEXTS if text != "\ud800"]
    events = []
    for _ in range(count):
        chosen = common if chance.random() < 0.6 else chance.sample(names, chance.randrange(min(len(names), 6)))
        headers = {name: chance.choice(texts) for name in chosen}
        events.append(Event(chance.randbytes(chance.randrange(5)), headers))
    return events


def draw_origin(chance: random.Random, events: int) -> Origin | None:
    """Return None, or locations of that many events in one partition."""
    if chance.random() < 0.3:
        return None
    offsets = np.array(sorted(chance.choices(range(50), k=events)), np.int64)
    return Origin("t", 3, offsets, np.arange(events, dtype=np.int32), offsets * 10)


def draw_operation(chance: random.Random, batch: Batch) -> Callable[[Batch], Any]:
    """Return a function that calls one method, with valid arguments mostly."""
    count = len(batch) if chance.random() < 0.97 else len(batch) + 1
    name = chance.choice([*_NAMES, *batch.header_names, *batch.header_names])
    keep = chance.random() < 0.5
    texts = _TEXTS if chance.random() < 0.05 else [text for text in _TEXTS if text != "\ud800"]
    text, values = chance.choice(texts), [chance.choice([*texts, None]) for _ in range(count)]
    flags = [chance.choice((True, True, False, None)) for _ in range(count)]
    bodies = [chance.randbytes(chance.randrange(4)) for _ in range(count)]
    start, length = chance.randrange(count + 2), chance.choice((None, chance.randrange(count + 2)))
    events, size = draw_events(chance), chance.randrange(1, 200)
    where = chance.random() < 0.5
    other_origin = draw_origin(chance, len(events)) if chance.random() < 0.2 or batch.origin is not None else None
    origin = draw_origin(chance, len(batch))
    removed = chance.sample([*batch.header_names, "absent"], chance.randrange(min(3, len(batch.header_names) + 1)))

    def array() -> Any:
        return pa.array(values, pa.string())

    def concat(b: Batch) -> Batch:
        parts = [b, Batch.of(events, other_origin)]
        return Batch.concat(parts if where else parts[::-1])

    def drop(event: Event) -> Event | None:
        event.headers["changed"] = text
        return event if event.body != b"" else None

    def pieces(b: Batch) -> Batch:
        parts = list(b.split(max(1, count // 2), size))
        assert sum(map(len, parts)) == len(b)
        return Batch.concat(parts)

    operations: list[Callable[[Batch], Any]] = [
        lambda b: b.with_header(name, text, preserve_existing=keep),
        lambda b: b.with_header(name, values, preserve_existing=keep),
        lambda b: b.with_header(name, array(), preserve_existing=keep),
        lambda b: b.with_header(name, array().dictionary_encode(), preserve_existing=keep),
        lambda b: b.with_header(f"{name}\ud800", text),
        lambda b: b.without_header(*removed),
        lambda b: b.with_bodies(pa.array(bodies, pa.binary())),
        lambda b: b.with_bodies(pa.array(["é"] * count, pa.string())),
        lambda b: b.with_bodies(pa.array([None] * count, pa.binary())),
        lambda b: b.where(pa.array(flags, pa.bool_())),
        lambda b: b.slice(start, length),
        lambda b: b.slice(-1),
        lambda b: b.map(drop),
        lambda b: b.with_origin(origin),
        pieces,
        concat,
        concat,
        lambda b: Batch.from_ipc(b.to_ipc()),
        lambda b: pickle.loads(pickle.dumps(b)),  # of this process
        copy.copy,
        copy.deepcopy,
        lambda b: b.id(0),
    ]
    return chance.choice(operations)


def _outcome(operation: Callable[[Batch], Any], batch: Batch) -> Any:
    """Return the result, or the type of the error."""
    try:
        return operation(batch)
    except (ValueError, TypeError, IndexError) as e:
        return next(kind for kind in (UnicodeError, ValueError, TypeError, IndexError) if isinstance(e, kind))
