from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flafka.plugins import Batch, Event, Origin
from flafka.sinks.templates import Template, decode_text, event_ids

ORIGIN = Origin("a.b", 2, np.array([5, 5, 9]), np.array([0, 1, 0], np.int32), np.array([0, 0, 1_700_000_000_123]))
BATCH = Batch.of([Event(b"x", {"h": "1"}), Event(b"\xff", {}), Event("é".encode(), {"h": ""})], ORIGIN)


def test_all_escapes() -> None:
    first, second, third = Template("<%{h}|%[id]|%[timestamp]|%[time]|%[body]>").texts(BATCH)
    assert first == "<1|a.b-2-5-0|0|1970-01-01T00:00:00.000Z|x>"
    assert str(second).startswith("it has no header 'h', which '<%{h}")
    assert third == "<|a.b-2-9-0|1700000000123|2023-11-14T22:13:20.123Z|é>"
    assert list(Template("%[body]").texts(BATCH))[1] == r"\xff"


def test_plain_text_and_nothing() -> None:
    assert list(Template("100% of it").texts(BATCH)) == ["100% of it"] * 3
    assert list(Template("").texts(BATCH)) == [""] * 3


def test_ids_are_those_of_the_batch() -> None:
    assert event_ids(BATCH) == [str(id) for id in BATCH.ids()]


@given(st.binary())
def test_any_bytes_are_readable(data: bytes) -> None:
    text = decode_text(data)
    assert len(text.encode()) >= len(data)
    assert decode_text(text.encode()) == text
