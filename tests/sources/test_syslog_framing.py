"""Framing of syslog: independent of the arriving pieces, and every byte is in one frame."""

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flafka.sources.syslog.framing import (
    MAX_COUNTED_BYTES,
    NO_FRAME,
    FrameAccumulator,
    SyslogFramer,
    cut_streams,
    few_lines,
)
from flafka.sources.syslog.parser import CONTINUATION, CUT
from tests.fixtures.examples import examples


def receive(pieces, event_size=2500, *, as_few=False):
    """Return the frames with their marks, the rest at the end as a frame of its own, and the fault.

    With `as_few`, pieces of complete lines are cut by `few_lines`.
    """
    framer, accumulator, buffered, frames = SyslogFramer(event_size), FrameAccumulator(1 << 20), b"", []
    for piece in pieces:
        arrived = buffered + piece
        if as_few and (lines := few_lines(arrived, framer)) is not None:
            frames += [(line + b"\n", 0) for line in lines]
            buffered = b""
            continue
        accumulator.free_space[: len(arrived)] = arrived
        consumed = accumulator.add(*framer.cut(accumulator.free_space[: len(arrived)]))
        buffered = arrived[consumed:]
        assert len(buffered) < max(event_size, MAX_COUNTED_BYTES)
        completed, marks, _ = accumulator.take()
        frames += zip(completed.to_pylist(), marks.tolist(), strict=True)
    if buffered:
        frames.append((buffered, framer.final_mark()))
    return frames, framer.fault


def chop(stream, places):
    bounds = [0, *sorted(position % (len(stream) + 1) for position in places), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(bounds)]


def join_frames(frames):
    """Return cut frames joined again."""
    joined = []
    for frame, mark in frames:
        if mark & CONTINUATION:
            joined[-1] += frame
        else:
            joined.append(frame)
    return joined


def test_lines():
    frames, _ = receive([b"<1>a\n\n\n<2>b\r\nc"])
    assert frames == [(b"<1>a\n", 0), (b"<2>b\r\n", 0), (b"c", CUT)]


PARTS = [
    b"<1>a\n",
    b"<22>bb\n",
    b"<3>c",
    b"\n",
    b"\0",
    b"4 <1>a",
    b"5 <3>c\n",
    b"x\n",
    b"<4>long line \n",
    b"\r\n",
    b"7",
]


@given(
    st.lists(st.sampled_from([*PARTS, *PARTS[:2] * 9]), max_size=9).map(b"".join),
    st.lists(st.integers(0, 100), max_size=4),
    st.sampled_from([10, 13, 2500]),
)
@example(b"<3>c\0<1>a\n", [], 2500)
@example(b"<4>long li<22>bb\n", [10], 10)
def test_few_lines_are_cut_as_many_are(stream, places, event_size):
    pieces = chop(stream, places)
    assert receive(pieces, event_size, as_few=True) == receive(pieces, event_size)


def test_lines_that_end_with_nul():
    frames, _ = receive([b"<1>a\0<2>b\n\0<3>c\0\n5 <13>\0\0<4>d\0"])
    ends = [b"<1>a\0", b"<2>b\n", b"<3>c\0", b"<13>\0", b"<4>d\0"]
    assert frames == [(frame, 0) for frame in ends]


def test_octet_counts():
    frames, _ = receive([b"4 <1>a8 <2>b\nb\nb5 <3>c\n7 <4>d"])
    assert frames == [(b"<1>a", 0), (b"<2>b\nb\nb", 0), (b"<3>c\n", 0), (b"<4>d", CUT)]


def test_lines_are_cut_at_the_event_size_and_where_they_reach_it():
    frames, _ = receive([b"<1>" + b"x" * 7 + b"\n" + b"y" * 25 + b"\n<2>z\n"], event_size=10)
    assert frames == [
        (b"<1>" + b"x" * 7, CUT),
        (b"y" * 10, CUT),
        (b"y" * 10, CUT | CONTINUATION),
        (b"y" * 5 + b"\n", CONTINUATION),
        (b"<2>z\n", 0),
    ]


def test_octet_counted_frames_may_be_longer_than_lines():
    text = b"<1>" + b"x" * (MAX_COUNTED_BYTES - 3)
    frames, _ = receive([b"%d %s%d %sy3 <1>" % (len(text), text, len(text) + 1, text)], event_size=10)
    assert frames == [(text, 0), (text, CUT), (b"y", CONTINUATION), (b"<1>", 0)]


NO_COUNTS = [
    b"<",
    b"x",
    b"0 <1>",
    b"04 <1>",
    b"2024-05-01 text",
    b"22 Nov 2026 10:00:00 text",
    b"2026 text",
    b"1 message",
    b"12",
    b"12 ",
    b"12x",
    b"12 <b>text",
    b"12 <1234>text",
    b"12 <",
    b"12 <13",
    b"12  <13>two blanks",
    b"-1 <1>",
    b"1_0 <1>",
    b" 5 <1>",
    b"1 <13>sequence number",
    b"4 <133>sequence number",
    b"3 <13>sequence number",
    b"99999999 <1>",
    b"9999999999 <1>",
    "٤ <1>".encode(),
]


@pytest.mark.parametrize("text", NO_COUNTS)
def test_without_a_count_and_a_priority_after_it_a_frame_is_a_line(text):
    stream = b"4 <1>a" + text + b"\n5 <13>b" + text + b"\n" + text + b"\n<1>c\n"
    expected = [(b"<1>a", 0), (text + b"\n", 0), (b"<13>b", 0), *[(text + b"\n", 0)] * 2, (b"<1>c\n", 0)]
    assert receive([stream]) == receive(chop(stream, range(len(stream)))) == (expected, "")


def test_newlines_that_no_count_includes_are_no_frames():
    stream = b"4 <1>a\n4 <1>b\n\n4 <1>c\r\n4 <1>d\r\n\r\n5 <1>e\r\n4 <1>f\0"
    frames = [(b"<1>%b" % text, 0) for text in (b"a", b"b", b"c", b"d", b"e\r", b"f")]
    assert receive([stream]) == receive(chop(stream, range(len(stream)))) == (frames, "")


@pytest.mark.parametrize("tail", [b"<1>b", b"9999999999 <1>b", b"04 <1>b", b"rest of a frame"])
def test_a_wrong_count_without_a_newline_after_it_makes_the_stream_invalid(tail):
    stream = b"4 <1>a" + tail + b"x" * 50
    for pieces in ([stream], chop(stream, range(len(stream)))):
        frames, fault = receive(pieces, event_size=30)
        assert join_frames(frames) == [b"<1>a", tail + b"x" * 50], "nothing is lost"
        assert "octet count" in fault


def test_a_long_line_is_no_fault_where_lines_are_sent():
    assert receive([b"4 <1>a<1>b\n<1>c" + b"x" * 50 + b"\n"], event_size=30)[1] == ""


def test_a_count_in_a_message_consumes_64_kib_at_most():
    stream = b"<1>two\n9999999 <13>lines\n" + b"<2>next\n" * 3
    assert len(receive([stream])[0]) == 5


LINE = st.one_of(
    st.binary(max_size=40).map(lambda line: line.translate(None, b"\n\0")),
    st.builds(lambda n: b"<13>" + b"x" * n, st.integers(0, 60)),
)
END = st.sampled_from([b"\n", b"\n", b"\0"])
PLACES = st.lists(st.integers(0, 10_000), max_size=12)
COUNTED = st.builds(lambda text, priority: b"<%d>%b" % (priority, text), st.binary(max_size=40), st.integers(0, 999))
FRAMES = st.one_of(
    st.builds(lambda line, end: (b"<" + line + end,) * 2, LINE, END),
    st.sampled_from(NO_COUNTS).map(lambda line: (line + b"\n",) * 2),
    COUNTED.map(lambda frame: (frame, b"%d %s" % (len(frame), frame))),
)
"""Each frame with its form on the wire."""


@settings(max_examples=examples(60))
@given(st.lists(LINE.map(lambda line: b"<" + line), max_size=12), LINE, PLACES, END)
@example([b"<13>" + b"x" * 6], b"", [10], b"\n")
@example([b"<13>" + b"x" * 16], b"", [20], b"\0")
def test_lines_in_any_pieces(lines, tail, places, end):
    stream = b"".join(line + end for line in lines) + (b"<" + tail if lines else b"")
    frames, _ = receive([stream], event_size=10)
    assert receive(chop(stream, places), event_size=10)[0] == frames
    assert receive(chop(stream, range(len(stream))), event_size=10)[0] == frames
    # The newline after a line of exactly one or more event sizes is the only byte outside of frames.
    assert [frame.rstrip(end) for frame in join_frames(frames)] == [line for line in stream.split(end) if line]
    assert all(len(frame.rstrip(end)) <= 10 for frame, _ in frames)


@settings(max_examples=examples(200))
@given(st.lists(FRAMES, min_size=1, max_size=12), PLACES)
def test_lines_and_octet_counts_in_any_order_and_pieces(frames, places):
    stream = b"".join(data for _, data in frames)
    expected = ([(frame, 0) for frame, _ in frames], "")
    assert receive([stream]) == expected
    assert receive(chop(stream, places)) == expected
    assert receive(chop(stream, range(len(stream)))) == expected


@settings(max_examples=examples(60))
@given(st.lists(COUNTED, min_size=1, max_size=12), PLACES)
def test_octet_counts_in_any_pieces(messages, places):
    stream = b"".join(b"%d %s" % (len(message), message) for message in messages)
    expected = ([(message, 0) for message in messages], "")
    assert receive([stream]) == expected
    assert receive(chop(stream, places)) == expected
    assert receive(chop(stream, range(len(stream)))) == expected


PIECE = st.one_of(
    st.binary(max_size=30),
    st.sampled_from([b"\n", b"\0", b"\r\n", b"5 ", b"12 <13>", b"<1>", b"70000 <1>", b"x" * 9]),
)


@settings(max_examples=examples(200))
@given(st.lists(PIECE, max_size=12).map(b"".join), PLACES)
@example(b"\r\x0010 <0>", [])
def test_any_bytes_in_any_pieces(stream, places):
    frames, fault = receive([stream], event_size=10)
    for pieces in chop(stream, places), chop(stream, range(len(stream))):
        cut_frames, fault_again = receive(pieces, event_size=10)
        assert (cut_frames, bool(fault_again)) == (frames, bool(fault))


@settings(max_examples=examples(40))
@given(st.integers(1, 200), PLACES)
def test_long_octet_counted_frames_in_any_pieces(size, places):
    body = b"<13>" + bytes(range(1, 201))[:size] * 700
    stream = b"%d %s%d <1>" % (len(body), body, 3)
    frames, _ = receive(chop(stream, [position * 13 for position in places]))
    assert join_frames(frames) == [body, b"<1>"]
    assert frames == receive([stream])[0]


def receive_together(streams, event_size):
    """Receive these streams like `receive`, in turns of one piece each."""
    framers = [SyslogFramer(event_size) for _ in streams]
    buffered, frames = [b""] * len(streams), [[] for _ in streams]
    for arrived in itertools.zip_longest(*streams):
        active = [number for number, piece in enumerate(arrived) if piece]
        if not active:
            continue
        data = [buffered[number] + arrived[number] for number in active]
        stops = list(itertools.accumulate(map(len, data)))
        accumulator = FrameAccumulator(1 << 20)
        accumulator.free_space[: sum(map(len, data))] = b"".join(data)
        cut = cut_streams(
            accumulator.free_space[: sum(map(len, data))], stops, [framers[number] for number in active]
        )
        assert sum(cut.counts) == len(cut.ends) == len(cut.marks)
        whose = [number for number, count in zip(active, cut.counts, strict=True) for _ in range(count)]
        accumulator.add(cut.ends, cut.marks, whose)
        for frame, mark, number in zip(*(list(column) for column in accumulator.take()), strict=True):
            frames[number].append((frame.as_py(), int(mark)))
        for number, begin, stop in zip(active, cut.remainders, stops, strict=True):
            buffered[number] = b"".join(data)[begin:stop]
    for number, tail in enumerate(buffered):
        if tail:
            frames[number].append((tail, framers[number].final_mark()))
    return [(collected, framer.fault) for collected, framer in zip(frames, framers, strict=True)]


STREAM = st.one_of(
    st.lists(st.builds(lambda line, end: b"<" + line + end, LINE, END), max_size=12).map(b"".join),
    st.lists(FRAMES, max_size=8).map(lambda frames: b"".join(data for _, data in frames)),
    st.lists(PIECE, max_size=12).map(b"".join),
)


@settings(max_examples=examples(300))
@given(st.lists(st.tuples(STREAM, PLACES), min_size=2, max_size=5), st.sampled_from([10, 2500]))
def test_several_streams_that_are_cut_together(streams, event_size):
    pieces = [chop(stream, places) for stream, places in streams]
    together = receive_together(pieces, event_size)
    alone = [receive(chopped, event_size) for chopped in pieces]
    assert [(frames, bool(fault)) for frames, fault in together] == [(frames, bool(fault)) for frames, fault in alone]


def test_an_intake_keeps_the_data_of_several_streams():
    accumulator = FrameAccumulator(1000)
    for text in b"<1>a\n", b"4 <2>b", b"<3>c\n\n<4>d\nrest":
        accumulator.free_space[: len(text)] = text
        accumulator.add(*SyslogFramer(2500).cut(accumulator.free_space[: len(text)]))
    frames, marks, _ = accumulator.take()
    assert frames.to_pylist() == [b"<1>a\n", b"<2>b", b"<3>c\n", b"<4>d\n"]
    assert not np.any(marks == NO_FRAME)
    assert len(accumulator.free_space) == 1000
    assert len(accumulator.take()[0]) == 0
