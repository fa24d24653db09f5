"""Framing of syslog streams: by newlines and NULs, and by the octet counts of RFC 6587."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flafka.plugins.wire.octets import find_byte, is_rare
from flafka.sources.batching import CONNECTION_CHECK_SECONDS, BatchingPolicy
from flafka.sources.syslog.columns import LOOK_AHEAD_BYTES, Bytes
from flafka.sources.syslog.parser import CONTINUATION, CUT

Positions = npt.NDArray[np.int64]

MAX_COUNTED_BYTES = 64 * 1024
"""Minimum limit of an octet-counted frame, even if lines have a lower one."""

MAX_BATCH_EVENTS = 30_000
"""Maximum number of events in a batch."""
FEW_BYTES = 8 * 1024
"""Maximum size of data that is cut without columns."""
MIN_READ_BYTES = 64 * 1024
"""Minimum free space for a read; any datagram fits."""

_NEWLINE, _RETURN, _NUL = b"\n\r\0"
NO_FRAME = 4
"""Mark of data that belongs to no frame: an octet count, an empty line, the remainder of a stream."""
_WHOLE = bytes((NO_FRAME, 0))
"""Marks of an octet count and of the complete frame behind it."""

_PRIORITY = rb"<[0-9]{1,3}>"
_COUNT = rb"(?:[1-9][0-9]{1,6}|[5-9]|4(?= <[0-9]{1,2}>)|3(?= <[0-9]>))"
"""Octet count, if large enough for the priority behind it."""
_FIRST_COUNTED = re.compile(rb"[\n\0]*(%b) (?=%b)" % (_COUNT, _PRIORITY))
_COUNTED = re.compile(rb"(?:\r?[\n\0])*(%b) (?=%b)" % (_COUNT, _PRIORITY))
"""Octet count behind another octet-counted frame. Some senders write an uncounted CR LF between them."""
_UNDECIDED = re.compile(rb"(?:[1-9][0-9]{0,6}(?: (?:<[0-9]{0,3})?)?)?\Z")
"""Possible beginning of an octet-counted frame, including the empty text."""
_LINES = re.compile(rb"[\n\0](?=%b %b|%b)" % (_COUNT, _PRIORITY, _UNDECIDED.pattern))
"""End of a line that an octet-counted frame may follow."""


class SyslogFramer:
    """Framer of one stream. Its frames do not depend on the sizes of the reads.

    A frame is octet-counted if it begins with a count, a blank and a priority such as `<13>`; any other is a line. A
    line ends with a newline or a NUL: RFC 6587 3.4.2 names both, and Python's SysLogHandler sends NULs.

    A line is cut every `event_size` bytes. An octet-counted frame is cut at `MAX_COUNTED_BYTES`, or at `event_size`
    if that is larger. No byte is lost, and no frame waits for more bytes than the limit.
    """

    def __init__(self, event_size: int) -> None:
        self.line_max = event_size
        """Size at which a line is cut, in bytes."""
        self._counted_max = max(event_size, MAX_COUNTED_BYTES)
        self._counted: bool | None = None
        """True if the previous frame was octet-counted; None before the first frame."""
        self._missing = 0
        """Missing octets of the current frame; 0 in a line, and between frames."""
        self._continuation = 0
        """`CONTINUATION` behind a cut within a frame, or else 0."""
        self.fault = ""
        """Reason why the stream is unreadable from here on; empty if it is readable."""

    def cut(self, data: memoryview) -> tuple[Positions, Bytes]:
        """Return the ends of the complete pieces in `data`, which join without gaps, and their marks.

        `data` begins with the remainder of the previous call: the bytes behind the last end. `fault` is set if octet
        counts prove wrong.
        """
        if len(data) and not self._missing and not self._counted:
            octets = np.frombuffer(data, np.uint8)
            ends = _line_ends(octets)
            firsts = octets.take(ends, mode="clip")
            if not (ord("1") <= data[0] <= ord("9") or (firsts - ord("1") < 9).any()):
                return self._cut_lines(octets, ends)
        return self._cut_frames(bytes(data))  # loops over bytes take half the time of loops over a view

    @property
    def is_mid_frame(self) -> bool:
        """True within a frame that was cut or counted, and behind a counted frame: not only lines may follow."""
        return bool(self._missing or self._continuation or self._counted)

    def record_lines(self) -> None:
        """Record that `cut_streams` has cut lines of this stream, which was not `is_mid_frame`."""
        self._counted = False

    def final_mark(self) -> int:
        """Return the mark of the remainder at the end of the stream: `CUT`, with `CONTINUATION` behind a cut."""
        return CUT | self._continuation

    def _cut_frames(self, text: bytes) -> tuple[Positions, Bytes]:
        """Return ends and marks of the complete pieces in data that may contain octet-counted frames."""
        pieces = []
        position = 0
        while True:
            if self._missing or not self._continuation:
                ends, marks, position = self._cut_counted(text, position)
                pieces.append((ends, marks))
                if self._missing or _UNDECIDED.match(text, position):
                    break
            match = _LINES.search(text, position)
            lines = np.frombuffer(text, np.uint8)[position : match.end() if match else len(text)]
            ends, marks = self._cut_lines(lines, _line_ends(lines))
            pieces.append((ends + position, marks))
            if match is None:
                break
            position = match.end()
        return np.concatenate([ends for ends, _ in pieces]), np.concatenate([marks for _, marks in pieces])

    def _cut_lines(self, octets: Bytes, ends: Positions) -> tuple[Positions, Bytes]:
        """Return ends and marks of the pieces in data that consists of lines, with cuts of long lines.

        `ends` holds the positions behind the terminators of the lines. The remainder is no piece.
        """
        bounds = np.empty(len(ends) + 2, np.int64)
        bounds[0], bounds[1:-1], bounds[-1] = 0, ends, len(octets) + 1
        sizes = bounds[1:] - bounds[:-1] - 1
        empty = sizes[:-1] == 0
        if self._counted:  # an uncounted CR LF behind an octet-counted frame
            empty |= np.logical_and.accumulate(empty | (sizes[:-1] == 1) & (octets[bounds[:-2]] == _RETURN))
        marks = empty * np.uint8(NO_FRAME)
        cut_last = False
        if len(long := np.flatnonzero(sizes >= self.line_max)):
            step = self.line_max
            starts = bounds[:-1]
            cuts = np.concatenate([np.arange(starts[i] + step, starts[i] + sizes[i] + 1, step) for i in long])
            ends = np.sort(np.concatenate((ends, cuts)))
            cut = np.isin(ends, cuts)
            marks = cut * np.uint8(CUT)
            marks[1:] |= cut[:-1] * np.uint8(CONTINUATION)
            marks[np.diff(ends, prepend=0) == 1] = NO_FRAME
            cut_last = bool(cut[-1])
        if not len(ends):
            return ends, marks
        if marks[0] != NO_FRAME:
            marks[0] |= self._continuation
        self._continuation = CONTINUATION if cut_last else 0
        if self._counted is not False and len(frames := np.flatnonzero(marks != NO_FRAME)):
            if self._counted and marks[frames[0]] & CUT:
                # An octet count was wrong. Without newlines the start of the next frame is unknown.
                start = ends[frames[0]] - self.line_max
                self.fault = (
                    f"expected an octet count from 1 to 9999999, not {octets[start : start + 24].tobytes()!r}; "
                    "a count is one of bytes, not of characters"
                )
            self._counted = False
        return ends, marks

    def _cut_counted(self, text: bytes, position: int) -> tuple[Positions, Bytes, int]:
        """Cut octet-counted frames from `position` on.

        Return the ends and marks of the pieces, and the position behind the last complete one.
        """
        ends: list[int] = []
        marks = bytearray()
        match = (_COUNTED if self._counted else _FIRST_COUNTED).match
        size, limit, usual = len(text), self._counted_max, MAX_COUNTED_BYTES
        missing, continuation = self._missing, self._continuation
        while True:
            if not missing:
                count = match(text, position)
                if count is None:
                    break
                octets, start = int(count[1]), count.end()
                if octets <= usual and start + octets <= size:
                    position = start + octets
                    ends += start, position
                    match = _COUNTED.match
                    continue
                if octets > usual and self._counted is False and not ends:
                    break  # an injected newline and count in a message of lines would swallow the messages behind it
                marks += _WHOLE * ((len(ends) - len(marks)) // 2)
                missing, position = octets, start
                match = _COUNTED.match
                ends.append(start)
                marks.append(NO_FRAME)
            end = position + min(missing, limit)
            if end > size:
                break
            missing -= end - position
            position = end
            ends.append(end)
            marks.append(continuation | CUT if missing else continuation)
            continuation = CONTINUATION if missing else 0
        marks += _WHOLE * ((len(ends) - len(marks)) // 2)
        if ends:
            self._counted = True
        self._missing, self._continuation = missing, continuation
        return np.array(ends, np.int64), np.frombuffer(marks, np.uint8), position


def few_lines(data: bytes, framer: SyslogFramer) -> list[bytes] | None:
    """Return the lines that `framer.cut` finds in data of complete lines, without their ends; None for other data.

    Each line begins with a priority, so that none is empty or octet-counted. This takes a tenth of the time for few
    lines.
    """
    if framer.is_mid_frame or not data.endswith(b"\n") or b"\0" in data:
        return None
    lines = data[:-1].split(b"\n")
    for line in lines:
        if not line.startswith(b"<") or len(line) >= framer.line_max:
            return None
    framer.record_lines()
    return lines


def _line_ends(octets: Bytes) -> Positions:
    """Return the positions behind each newline and each NUL."""
    if is_rare(octets, _NEWLINE):
        ends = find_byte(octets, _NEWLINE)
        if len(nuls := find_byte(octets, _NUL)):
            ends = np.sort(np.concatenate((ends, nuls)))
        return ends + 1
    ends = np.flatnonzero(octets <= _NEWLINE)  # one scan for both: other control characters are rare
    found = octets[ends]
    if (found != _NEWLINE).any():
        ends = ends[(found == _NEWLINE) | (found == _NUL)]
    return ends + 1


class CutStreams(NamedTuple):
    """Pieces of several streams, one stream after the other, without gaps."""

    ends: Positions
    """Ends of the pieces in the data. The remainder of each of several streams is a piece as well."""
    marks: Bytes
    counts: list[int]
    """Number of pieces of each stream."""
    remainders: list[int]
    """Start of the remainder of each stream; the end of its data if there is no remainder."""


def cut_streams(data: memoryview, stops: Sequence[int], framers: Sequence[SyslogFramer]) -> CutStreams:
    """Cut several streams as `SyslogFramer.cut` does. Their data join without gaps and end at `stops`.

    All streams of lines are cut in one pass, as most of thousands of senders have sent a single line. A stream with
    a possible octet count or an oversized line is cut by its own framer.
    """
    if len(framers) == 1:
        ends, marks = framers[0].cut(data)
        return CutStreams(ends, marks, [len(ends)], [int(ends[-1]) if len(ends) else 0])
    octets, last = np.frombuffer(data, np.uint8), np.array(stops)
    ends = np.sort(np.concatenate((_line_ends(octets), last)))
    ends = ends[np.append(ends[1:] != ends[:-1], True)]
    is_terminated = (octets[ends - 1] == _NEWLINE) | (octets[ends - 1] == _NUL)
    sizes = np.diff(ends, prepend=0)
    starts = ends - sizes
    is_special = (octets[starts] - ord("1") < 9) | (sizes - is_terminated >= framers[0].line_max)
    is_separate = np.array([framer.is_mid_frame for framer in framers])
    is_separate[np.searchsorted(last, starts[is_special], "right")] = True
    after = np.searchsorted(ends, last, "right")
    before = np.append(0, after[:-1])
    remainders = np.where(is_terminated[after - 1], last, starts[after - 1])
    counts = after - before
    frames = is_terminated & (sizes > 1)
    marks = ~frames * np.uint8(NO_FRAME)
    frame_count = np.append(0, np.cumsum(frames))
    for number in np.flatnonzero((frame_count[after] > frame_count[before]) & ~is_separate).tolist():
        framers[number].record_lines()
    if is_separate.any():
        pieces = []
        done = 0
        for number in np.flatnonzero(is_separate).tolist():
            pieces.append((ends[done : before[number]], marks[done : before[number]]))
            start, stop = stops[number - 1] if number else 0, stops[number]
            own_ends, own_marks = framers[number].cut(data[start:stop])
            remainders[number] = start + (own_ends[-1] if len(own_ends) else 0)
            if remainders[number] < stop:
                own_ends = np.append(own_ends, stop - start)
                own_marks = np.append(own_marks, np.uint8(NO_FRAME))
            pieces.append((own_ends + start, own_marks))
            counts[number] = len(own_ends)
            done = after[number]
        pieces.append((ends[done:], marks[done:]))
        ends, marks = (np.concatenate(columns) for columns in zip(*pieces, strict=True))
    return CutStreams(ends, marks, counts.tolist(), remainders.tolist())


class FrameAccumulator:
    """Accumulator of the current batch: received bytes, and the ends of the frames in them."""

    def __init__(self, size_bytes: int) -> None:
        self._data = np.empty(size_bytes + LOOK_AHEAD_BYTES, np.uint8)
        self._bytes = self._data.data[:size_bytes]
        self._batching = BatchingPolicy()
        self._clear()

    def _clear(self) -> None:
        self.used_bytes = 0
        self.pieces = 0
        self._ends: list[Positions] = [np.zeros(1, np.int64)]
        self._marks: list[Bytes] = []
        self._senders: list[Any] = []

    @property
    def free_space(self) -> memoryview:
        """Buffer for the next read: all bytes behind the pieces that were added."""
        return self._bytes[self.used_bytes :]

    def may_leave(self, size_bytes: int) -> bool:
        """Return True if few events of this size are a batch of their own, as none wait, and none are waited for."""
        return size_bytes <= FEW_BYTES and not self.pieces and self._batching.may_leave()

    def record_batch(self, events: int, size_bytes: int) -> None:
        """Record a batch that was made without `add` and `take`."""
        self._batching.end_batch(events, size_bytes)

    def timeout(self) -> float:
        """Seconds to wait for more data: `CONNECTION_CHECK_SECONDS` while the batch is empty, 0 once it is full.

        In between, the time that `BatchingPolicy.timeout` returns.
        """
        if not self.pieces:
            return CONNECTION_CHECK_SECONDS
        return 0.0 if self._is_full else self._batching.timeout()

    def linger(self) -> bool:
        """Sleep for the rest of the linger since the last batch; return True if there was a rest.

        A full batch does not linger.
        """
        return not self._is_full and self._batching.linger()

    def is_due(self, *, idle: bool) -> bool:
        """Return True if the batch is complete; an empty one never is. `idle`: no data arrived in `timeout`."""
        return self.pieces > 0 and (self._is_full or self._batching.is_due(idle=idle))

    @property
    def _is_full(self) -> bool:
        """True at `MAX_BATCH_EVENTS` pieces, or with less than `MIN_READ_BYTES` of free space."""
        return self.pieces >= MAX_BATCH_EVENTS or len(self.free_space) < MIN_READ_BYTES

    def add(self, ends: Positions, marks: Bytes, senders: list[Any] | None = None) -> int:
        """Add the pieces that end at `ends` in `free_space`, and return the last end, or 0 without pieces.

        The bytes behind the last end stay free. `senders` holds the sender of each piece. Either all pieces of a
        batch have senders, or none.
        """
        if not len(ends):
            return 0
        if not self.pieces:
            self._batching.start_batch()
        self._ends.append(ends + self.used_bytes)
        self._marks.append(marks)
        if senders is not None:
            self._senders += senders
        self.used_bytes += int(ends[-1])
        self.pieces += len(ends)
        return int(ends[-1])

    def take(self) -> tuple[Any, Bytes, list[Any]]:
        """Return the frames (a binary array), their marks and their senders (empty if unknown), and clear the batch.

        Pieces with the mark `NO_FRAME` are left out. The array is valid until the next write to `free_space`.
        """
        marks = np.concatenate(self._marks) if self._marks else np.zeros(0, np.uint8)
        bounds = np.concatenate(self._ends).astype(np.int32)
        frames = pa.Array.from_buffers(
            pa.binary(), len(marks), [None, pa.py_buffer(bounds), pa.py_buffer(self._data)]
        )
        senders = self._senders
        self._batching.end_batch(self.pieces, self.used_bytes)
        self._clear()
        is_between = marks == NO_FRAME
        if is_between.any():
            rows = np.flatnonzero(~is_between)
            frames, marks = frames.take(pa.array(rows)), marks[rows]
            senders = [senders[row] for row in rows] if senders else senders
        return frames, marks, senders
