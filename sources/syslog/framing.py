"""Cuts what arrives into syslog frames: by newlines and NULs, and by the octet counts of RFC 6587."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flafka.plugins.shared.octets import places
from flafka.sources.pace import STOP_CHECK_SECONDS, Pace
from flafka.sources.syslog.columns import LOOK_AHEAD, Bytes
from flafka.sources.syslog.parser import CUT, REST

Positions = npt.NDArray[np.int64]

COUNTED_MAX = 64 * 1024
"""An octet-counted frame may have so many bytes before it is cut, even where a line may not."""

MAX_EVENTS = 30_000
"""Events in one batch."""
LEAST_ROOM = 64 * 1024
"""Room there is, at least, for one read; any datagram fits."""

_NEWLINE, _RETURN, _NUL = b"\n\r\0"
BETWEEN = 4
"""Mark of bytes that belong to no frame: an octet count, an empty line, what a stream has left over."""
_WHOLE = bytes((BETWEEN, 0))
"""The marks of an octet count and of the whole frame behind it."""

_PRIORITY = rb"<[0-9]{1,3}>"
_COUNT = rb"(?:[1-9][0-9]{1,6}|[5-9]|4(?= <[0-9]{1,2}>)|3(?= <[0-9]>))"
"""An octet count; one too small for the priority behind it is none."""
_FIRST_COUNTED = re.compile(rb"[\n\0]*(%b) (?=%b)" % (_COUNT, _PRIORITY))
_COUNTED = re.compile(rb"(?:\r?[\n\0])*(%b) (?=%b)" % (_COUNT, _PRIORITY))
"""The same behind another one: CR LF that neither counts lies between them."""
_UNDECIDED = re.compile(rb"(?:[1-9][0-9]{0,6}(?: (?:<[0-9]{0,3})?)?)?\Z")
"""Possible beginning of an octet-counted frame; the empty text is one as well."""
_LINES = re.compile(rb"[\n\0](?=%b %b|%b)" % (_COUNT, _PRIORITY, _UNDECIDED.pattern))
"""The end of lines that something else may follow."""


class SyslogFramer:
    """Cuts one stream into frames; however the stream came in pieces, the frames are the same.

    A frame is octet-counted if it begins with a count, a blank and a priority such as `<13>`; any other is a line. A
    line ends with a newline or a NUL: RFC 6587 3.4.2 names both, and Python's SysLogHandler sends the latter.
    A line that reaches `event_size` bytes is cut there, and again after as many. An octet-counted frame is cut at
    `COUNTED_MAX` bytes, or at `event_size` where that is more. So nothing is lost, and no more is ever waited for.
    """

    def __init__(self, event_size: int) -> None:
        self.line_max = event_size
        """A line is cut after so many bytes."""
        self._counted_max = max(event_size, COUNTED_MAX)
        self._counted: bool | None = None
        """True if the frame before was octet-counted; None before the first."""
        self._missing = 0
        """Octets of the present frame still to come; 0 in a line, and where a frame begins."""
        self._rest = 0
        """`REST` while within a frame that was cut."""
        self.fault = ""
        """Reason why the stream makes no sense from here on; empty while it does."""

    def cut(self, data: memoryview) -> tuple[Positions, Bytes]:
        """Return the ends of the complete pieces in `data`, which join without gaps, and their marks.

        `data` begins with what was left over last time.
        """
        if len(data) and not self._missing and not self._counted:
            octets = np.frombuffer(data, np.uint8)
            ends = _line_ends(octets)
            firsts = octets.take(ends, mode="clip")
            if not (ord("1") <= data[0] <= ord("9") or (firsts - ord("1") < 9).any()):
                return self._cut_lines(octets, ends)
        return self._cut_frames(bytes(data))  # bytes cost half of what a view does in loops

    @property
    def amid(self) -> bool:
        """True where anything else than the beginning of a line may come next."""
        return bool(self._missing or self._rest or self._counted)

    def has_lines(self) -> None:
        """Somebody else has cut lines of this stream, which was not `amid` anything."""
        self._counted = False

    def end(self) -> int:
        """The marks of what is left over when the stream ends: it is one frame, without its end."""
        return CUT | self._rest

    def _cut_frames(self, text: bytes) -> tuple[Positions, Bytes]:
        """Cut data that may have octet-counted frames."""
        pieces = []
        position = 0
        while True:
            if self._missing or not self._rest:
                ends, marks, position = self._cut_counted(text, position)
                pieces.append((ends, marks))
                if self._missing or _UNDECIDED.match(text, position):
                    break
            found = _LINES.search(text, position)
            lines = np.frombuffer(text, np.uint8)[position : found.end() if found else len(text)]
            ends, marks = self._cut_lines(lines, _line_ends(lines))
            pieces.append((ends + position, marks))
            if found is None:
                break
            position = found.end()
        return np.concatenate([ends for ends, _ in pieces]), np.concatenate([marks for _, marks in pieces])

    def _cut_lines(self, octets: Bytes, ends: Positions) -> tuple[Positions, Bytes]:
        """Cut data that has lines only; `ends` is where they end."""
        bounds = np.empty(len(ends) + 2, np.int64)
        bounds[0], bounds[1:-1], bounds[-1] = 0, ends, len(octets) + 1
        sizes = bounds[1:] - bounds[:-1] - 1
        empty = sizes[:-1] == 0
        if self._counted:  # CR LF behind an octet-counted frame, which counts neither
            empty |= np.logical_and.accumulate(empty | (sizes[:-1] == 1) & (octets[bounds[:-2]] == _RETURN))
        marks = empty * np.uint8(BETWEEN)
        cut_last = False
        if len(long := np.flatnonzero(sizes >= self.line_max)):
            step = self.line_max
            starts = bounds[:-1]
            cuts = np.concatenate([np.arange(starts[i] + step, starts[i] + sizes[i] + 1, step) for i in long])
            ends = np.sort(np.concatenate((ends, cuts)))
            cut = np.isin(ends, cuts)
            marks = cut * np.uint8(CUT)
            marks[1:] |= cut[:-1] * np.uint8(REST)
            marks[np.diff(ends, prepend=0) == 1] = BETWEEN
            cut_last = bool(cut[-1])
        if not len(ends):
            return ends, marks
        if marks[0] != BETWEEN:
            marks[0] |= self._rest
        self._rest = REST if cut_last else 0
        if self._counted is not False and len(frames := np.flatnonzero(marks != BETWEEN)):
            if self._counted and marks[frames[0]] & CUT:
                # A count lied, and without newlines nothing tells where the next frame begins.
                start = ends[frames[0]] - self.line_max
                self.fault = (
                    f"expected an octet count from 1 to 9999999, not {octets[start : start + 24].tobytes()!r}; "
                    "a count is one of bytes, not of characters"
                )
            self._counted = False
        return ends, marks

    def _cut_counted(self, text: bytes, position: int) -> tuple[Positions, Bytes, int]:
        """Cut octet-counted frames from that position on; return also the position of what is none, or not whole."""
        ends: list[int] = []
        marks = bytearray()
        match = (_COUNTED if self._counted else _FIRST_COUNTED).match
        size, most, usual = len(text), self._counted_max, COUNTED_MAX
        missing, rest = self._missing, self._rest
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
                    break  # whoever gets a newline into somebody's message shall not swallow those that follow
                marks += _WHOLE * ((len(ends) - len(marks)) // 2)
                missing, position = octets, start
                match = _COUNTED.match
                ends.append(start)
                marks.append(BETWEEN)
            end = position + min(missing, most)
            if end > size:
                break
            missing -= end - position
            position = end
            ends.append(end)
            marks.append(rest | CUT if missing else rest)
            rest = REST if missing else 0
        marks += _WHOLE * ((len(ends) - len(marks)) // 2)
        if ends:
            self._counted = True
        self._missing, self._rest = missing, rest
        return np.array(ends, np.int64), np.frombuffer(marks, np.uint8), position


def _line_ends(octets: Bytes) -> Positions:
    """Return the positions behind each newline and each NUL."""
    ends = places(octets, _NEWLINE)
    if len(others := places(octets, _NUL)):
        ends = np.sort(np.concatenate((ends, others)))
    return ends + 1


class Together(NamedTuple):
    """Several streams, cut into pieces: one stream after the other, without gaps."""

    ends: Positions
    """Ends of the pieces in the data. What one of several streams has left over is a piece as well."""
    marks: Bytes
    counts: list[int]
    """Number of pieces of each stream."""
    left: list[int]
    """Start of what each stream has left over; the end of its data if that is nothing."""


def cut_together(data: memoryview, stops: Sequence[int], framers: Sequence[SyslogFramer]) -> Together:
    """Cut these streams as `SyslogFramer.cut` does; their data lie one behind the other and end at `stops`.

    All that are in lines take one stream's time together; of thousands of senders most have sent one line. A stream
    that may have octet counts, or has a line that is too long, is cut by itself.
    """
    if len(framers) == 1:
        ends, marks = framers[0].cut(data)
        return Together(ends, marks, [len(ends)], [int(ends[-1]) if len(ends) else 0])
    octets, last = np.frombuffer(data, np.uint8), np.array(stops)
    ends = np.sort(np.concatenate((_line_ends(octets), last)))
    ends = ends[np.append(ends[1:] != ends[:-1], True)]
    whole = (octets[ends - 1] == _NEWLINE) | (octets[ends - 1] == _NUL)
    sizes = np.diff(ends, prepend=0)
    starts = ends - sizes
    odd = (octets[starts] - ord("1") < 9) | (sizes - whole >= framers[0].line_max)
    alone = np.array([framer.amid for framer in framers])
    alone[np.searchsorted(last, starts[odd], "right")] = True
    after = np.searchsorted(ends, last, "right")
    before = np.append(0, after[:-1])
    left = np.where(whole[after - 1], last, starts[after - 1])
    counts = after - before
    frames = whole & (sizes > 1)
    marks = ~frames * np.uint8(BETWEEN)
    seen = np.append(0, np.cumsum(frames))
    for number in np.flatnonzero((seen[after] > seen[before]) & ~alone).tolist():
        framers[number].has_lines()
    if alone.any():
        pieces = []
        at = 0
        for number in np.flatnonzero(alone).tolist():
            pieces.append((ends[at : before[number]], marks[at : before[number]]))
            start, stop = stops[number - 1] if number else 0, stops[number]
            own, own_marks = framers[number].cut(data[start:stop])
            left[number] = start + (own[-1] if len(own) else 0)
            if left[number] < stop:
                own, own_marks = np.append(own, stop - start), np.append(own_marks, np.uint8(BETWEEN))
            pieces.append((own + start, own_marks))
            counts[number] = len(own)
            at = after[number]
        pieces.append((ends[at:], marks[at:]))
        ends, marks = (np.concatenate(columns) for columns in zip(*pieces, strict=True))
    return Together(ends, marks, counts.tolist(), left.tolist())


class Intake:
    """A batch in the making: bytes as they arrived, and where frames end in them."""

    def __init__(self, size: int) -> None:
        self._data = np.empty(size + LOOK_AHEAD, np.uint8)
        self._bytes = self._data.data[:size]
        self._pace = Pace()
        self._clear()

    def _clear(self) -> None:
        self.used = 0
        self.pieces = 0
        self._ends: list[Positions] = [np.zeros(1, np.int64)]
        self._marks: list[Bytes] = []
        self._senders: list[Any] = []

    @property
    def room(self) -> memoryview:
        """Room for what arrives next."""
        return self._bytes[self.used :]

    def patience(self) -> float:
        """Seconds to wait for more."""
        if not self.pieces:
            return STOP_CHECK_SECONDS
        return 0.0 if self._full else self._pace.patience()

    def rest(self) -> bool:
        """Sleep for as long as what is there to read would wait anyway; whether that was so."""
        return not self._full and self._pace.rest()

    def due(self, *, quiet: bool) -> bool:
        """Return True if the batch in the making is to go; `quiet`: nothing has come within the last `patience`."""
        return self.pieces > 0 and (self._full or self._pace.due(quiet=quiet))

    @property
    def _full(self) -> bool:
        return self.pieces >= MAX_EVENTS or len(self.room) < LEAST_ROOM

    def add(self, ends: Positions, marks: Bytes, senders: list[Any] | None = None) -> int:
        """Keep these pieces of what was put into `room`. The rest is free again; returns where it begins.

        `senders` holds the sender of each piece; either all pieces of an intake have one, or none.
        """
        if not len(ends):
            return 0
        if not self.pieces:
            self._pace.begin()
        self._ends.append(ends + self.used)
        self._marks.append(marks)
        if senders is not None:
            self._senders += senders
        self.used += int(ends[-1])
        self.pieces += len(ends)
        return int(ends[-1])

    def take(self) -> tuple[Any, Bytes, list[Any]]:
        """Return the frames (a binary array), their marks, and their senders, an empty list where none are known.

        The array is of use until something is added again.
        """
        marks = np.concatenate(self._marks) if self._marks else np.zeros(0, np.uint8)
        bounds = np.concatenate(self._ends).astype(np.int32)
        frames = pa.Array.from_buffers(
            pa.binary(), len(marks), [None, pa.py_buffer(bounds), pa.py_buffer(self._data)]
        )
        senders = self._senders
        self._pace.end(self.used)
        self._clear()
        between = marks == BETWEEN
        if between.any():
            rows = np.flatnonzero(~between)
            frames, marks = frames.take(pa.array(rows)), marks[rows]
            senders = [senders[row] for row in rows] if senders else senders
        return frames, marks, senders
