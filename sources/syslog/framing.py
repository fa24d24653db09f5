"""Cuts what arrives into syslog frames: by newlines, or by the octet counts of RFC 6587."""

from __future__ import annotations

import re
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sources.listening import TICK
from sources.syslog.columns import LOOK_AHEAD, Bytes
from sources.syslog.parser import CUT, REST

Positions = npt.NDArray[np.int64]

COUNTED_MAX = 64 * 1024
"""An octet-counted frame may have so many bytes before it is cut, even where a line may not."""

MAX_EVENTS = 10_000
"""Events in one batch."""
LEAST_ROOM = 64 * 1024
"""Room there is, at least, for one read; any datagram fits."""
MAX_WAIT = 0.02
"""Seconds that a batch waits for more after its first byte."""

BETWEEN = 4
"""Mark of bytes that belong to no frame: an octet count, an empty line."""

_COUNT = re.compile(rb"([1-9][0-9]{0,6}) ")
_COUNT_BEGINS = re.compile(rb"(?:[1-9][0-9]{0,6})?\Z")
_COUNT_TOO_LONG = re.compile(rb"[1-9][0-9]{7}")


class Framer:
    """Cuts one stream into frames; however the stream came in pieces, the frames are the same.

    Its first bytes decide for good: a number and a space make it octet-counted, anything else makes it lines.
    A line that reaches `event_size` bytes is cut there, and again after as many; an octet-counted frame at
    `COUNTED_MAX` bytes, or at `event_size` where that is more. So nothing is lost, and no more is ever waited for.
    """

    def __init__(self, event_size: int) -> None:
        self._line_max = event_size
        self._counted_max = max(event_size, COUNTED_MAX)
        self._counted: bool | None = None
        self._missing = 0
        """Octets of the present frame still to come; 0 where a count is due."""
        self._rest = 0
        """`REST` while within a frame that was cut."""
        self.fault = ""
        """Why the stream makes no sense from here on; empty while it does."""

    def cut(self, data: memoryview) -> tuple[Positions, Bytes]:
        """Where the pieces that are complete in `data` end, and their marks: they join without gaps.

        `data` begins with what was left over last time. Once there is a fault, what is left over is no frame.
        """
        if self._counted is None:
            if _COUNT_TOO_LONG.match(data):
                self._counted = True
            elif not _COUNT_BEGINS.match(data):
                self._counted = _COUNT.match(data) is not None
        if self._counted is None:
            return np.zeros(0, np.int64), np.zeros(0, np.uint8)
        return self._cut_counted(data) if self._counted else self._cut_lines(data)

    def end(self) -> int:
        """The marks of what is left over when the stream ends: it is one frame, without its end."""
        return CUT | self._rest

    def _cut_lines(self, data: memoryview) -> tuple[Positions, Bytes]:
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")) + 1
        starts = np.concatenate(([0], ends))
        sizes = np.concatenate((ends - 1, [len(data)])) - starts
        cut = np.zeros(len(ends), np.bool_)
        if len(long := np.flatnonzero(sizes >= self._line_max)):
            step = self._line_max
            cuts = np.concatenate([np.arange(starts[i] + step, starts[i] + sizes[i] + 1, step) for i in long])
            ends = np.sort(np.concatenate((ends, cuts)))
            cut = np.isin(ends, cuts)
        if not len(ends):
            return ends, cut.view(np.uint8)
        marks = cut * np.uint8(CUT)
        marks[1:] |= cut[:-1] * np.uint8(REST)
        marks[0] |= self._rest
        marks[np.diff(ends, prepend=0) == 1] = BETWEEN
        self._rest = REST if cut[-1] else 0
        return ends, marks

    def _cut_counted(self, data: memoryview) -> tuple[Positions, Bytes]:
        ends: list[int] = []
        marks = bytearray()
        text, position = bytes(data), 0  # bytes cost half of what a view does in this loop
        match, size, most = _COUNT.match, len(text), self._counted_max
        missing, rest = self._missing, self._rest
        while True:
            if not missing:
                count = match(text, position)
                if count is None:
                    break
                missing, position = int(count[1]), count.end()
                ends.append(position)
                marks.append(BETWEEN)
            end = position + (missing if missing < most else most)
            if end > size:
                break
            missing -= end - position
            position = end
            ends.append(end)
            marks.append(rest | CUT if missing else rest)
            rest = REST if missing else 0
        self._missing, self._rest = missing, rest
        if not missing and not _COUNT_BEGINS.match(text, position):
            self.fault = f"expected an octet count from 1 to 9999999, not {text[position : position + 24]!r}"
        return np.array(ends, np.int64), np.frombuffer(marks, np.uint8)


class Intake:
    """A batch in the making: bytes as they arrived, and where frames end in them."""

    def __init__(self, size: int) -> None:
        self._data = np.empty(size + LOOK_AHEAD, np.uint8)
        self._bytes = self._data.data[:size]
        self._clear()

    def _clear(self) -> None:
        self.used = 0
        self.pieces = 0
        self.since = 0.0
        self._ends: list[Positions] = [np.zeros(1, np.int64)]
        self._marks: list[Bytes] = []
        self._senders: list[Any] = []

    @property
    def room(self) -> memoryview:
        """Where to put what arrives next."""
        return self._bytes[self.used :]

    def patience(self) -> float:
        """Seconds to wait for more: 0 when the batch in the making is due."""
        if not self.pieces:
            return TICK
        if self.pieces >= MAX_EVENTS or len(self.room) < LEAST_ROOM:
            return 0
        return max(0.0, self.since + MAX_WAIT - time.monotonic())

    def add(self, ends: Positions, marks: Bytes, senders: list[Any] | None = None) -> int:
        """Keep these pieces of what was put into `room`. The rest is free again; returns where it begins.

        `senders` tells for each piece who sent it; either all pieces of an intake have one, or none.
        """
        if not len(ends):
            return 0
        if not self.pieces:
            self.since = time.monotonic()
        self._ends.append(ends + self.used)
        self._marks.append(marks)
        if senders is not None:
            self._senders += senders
        self.used += int(ends[-1])
        self.pieces += len(ends)
        return int(ends[-1])

    def take(self) -> tuple[Any, Bytes, list[Any]]:
        """The frames (a binary array), their marks, and their senders, an empty list where none are told.

        The array is of use until something is added again.
        """
        marks = np.concatenate(self._marks) if self._marks else np.zeros(0, np.uint8)
        bounds = np.concatenate(self._ends).astype(np.int32)
        frames = pa.Array.from_buffers(
            pa.binary(), len(marks), [None, pa.py_buffer(bounds), pa.py_buffer(self._data)]
        )
        senders = self._senders
        self._clear()
        between = marks == BETWEEN
        if between.any():
            rows = np.flatnonzero(~between)
            frames, marks = frames.take(pa.array(rows)), marks[rows]
            senders = [senders[row] for row in rows] if senders else senders
        return frames, marks, senders
