"""Frames of Avro RPC, and the events in them, from good, cut or damaged bytes."""

import contextlib
import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flafka.plugins import Batch, Event
from flafka.plugins.wire.avrorpc import AvroFrameDecoder, encode_array, encode_frame, scan
from flafka.plugins.wire.flumeevent import encode_long
from flafka.plugins.wire.rpcevents import RpcBatchBuilder
from tests.fixtures.examples import examples
from tests.sources.calling import EVENTS, encoded

# --- events


@given(EVENTS, EVENTS)
def test_events_come_back_as_they_were(first, second):
    events = RpcBatchBuilder(scan)
    for group in (first, second):
        events.add(encode_array(encoded(Batch.of(group))), 0, is_batch=True)
    assert list(events.batch()) == first + second
    assert len(events.batch()) == len(first + second)


@given(st.binary(max_size=200), st.booleans())
def test_garbage_is_a_value_error(data, is_batch):
    with contextlib.suppress(ValueError):
        RpcBatchBuilder(scan).add(data, 0, is_batch=is_batch)


@given(EVENTS, st.data())
def test_damage_is_reported_and_adds_nothing(events, data):
    content = encode_array(encoded(Batch.of(events)))
    cut = data.draw(st.integers(0, len(content) - 1))
    gathered = RpcBatchBuilder(scan)
    with pytest.raises(ValueError):
        gathered.add(content[:cut], 0, is_batch=True)
    assert len(gathered.batch()) == 0


@pytest.mark.parametrize("hosts", [1, 2, 200])
def test_bodies_of_every_size_and_headers_that_repeat(hosts):
    sizes = (0, 1, 63, 64, 127, 128, 8191, 8192, 70_000)  # a length takes one, two or three bytes
    events = [
        Event(b"\x02" * size, {"host": f"web-{number % hosts}"}) for number, size in enumerate(sizes * 30)
    ]  # bodies that look like headers
    gathered = RpcBatchBuilder(scan)
    gathered.add(encode_array(encoded(Batch.of(events))), 0, is_batch=True)
    assert list(gathered.batch()) == events


def test_more_headers_than_columns():
    events = [Event(b"x", {f"h{i}": str(i) for i in range(70)}), Event(b"y", {})]
    gathered = RpcBatchBuilder(scan)
    gathered.add(encode_array(encoded(Batch.of(events))), 0, is_batch=True)
    assert list(gathered.batch()) == events


def test_other_ways_to_write_the_same():
    entry = b"\x02k\x02v"
    # two blocks, one with its size
    blocks = b"\x01" + encode_long(len(entry)) + entry + b"\x02" + b"\x02k\x02w" + b"\0"
    gathered = RpcBatchBuilder(scan)
    gathered.add(b"\x01\x02" + blocks + b"\x02a" + b"\0", 0, is_batch=True)  # an array's block with its size
    gathered.add(b"\x02\x02\xff\x04\xc3\x28\0\x02b", 0, is_batch=False)  # bytes that are no UTF-8
    assert list(gathered.batch()) == [Event(b"a", {"k": "w"}), Event(b"b", {"\ufffd": "\ufffd("})]


@pytest.mark.parametrize(
    "damaged",
    [
        b"\x02\x00\x7f\0",  # a body of negative length
        b"\x02\x02\x01",  # a name of negative length
        b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",  # 2^62 events, and none there
        b"\xff" * 12,
        b"",
        b"\0\0",
    ],
)
def test_impossible_lengths_are_refused(damaged):
    with pytest.raises(ValueError):
        RpcBatchBuilder(scan).add(damaged, 0, is_batch=True)


# --- frames


SERIALS = st.integers(0, 2**24 - 1) | st.integers(2**31, 2**32 - 1)
"""Serial numbers except those whose bytes are all alphabetic: a connection that begins with text is refused."""


@given(st.lists(st.tuples(SERIALS, st.lists(st.binary(max_size=50), max_size=5)), max_size=6), st.data())
@settings(max_examples=examples(50))
def test_frames_however_they_are_cut(wanted, data):
    stream = b"".join(encode_frame(serial, buffers) for serial, buffers in wanted)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    frames = AvroFrameDecoder(10_000)
    decoded = []
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        decoded += frames.feed(stream[start:stop])
    assert decoded == [(serial, b"".join(buffers)) for serial, buffers in wanted]
    assert frames.buffered_bytes == 0


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (struct.pack(">II", 1, 2**31), "at most 10000 are accepted"),
        (struct.pack(">III", 1, 1, 2**32 - 1), "at most 10000 are accepted"),
        (encode_frame(1, [b"x" * 9_000, b"x" * 2_000]), "at most 10000 are accepted"),
        (b"GET / HTTP/1.1\r\n", "does not speak Avro RPC"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03abcd", "ssl = true"),
        (zlib.compress(encode_frame(1, [b"x"])), "compression-type = deflate"),
    ],
)
def test_an_invalid_frame_is_named(data, reason):
    with pytest.raises(ValueError, match=reason):
        list(AvroFrameDecoder(10_000).feed(data))
