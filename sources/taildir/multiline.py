"""Events of several lines: where each ends."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from plugins.shared.regex import Regex


class Multiline:
    """Joins lines by a pattern, as Filebeat does.

    With `after`, a line that goes on belongs to the event before it; with `before`, to the one after it. Lines that
    match go on, or with `negate` those that do not. No event has more than `most_lines` lines, or more than
    `most_bytes` bytes if it has more than one line: what is longer is cut into several.
    """

    def __init__(self, pattern: Regex, *, negate: bool, after: bool, most_lines: int, most_bytes: int) -> None:
        self._pattern = pattern
        self._negate = negate
        self._after = after
        self._most_lines = most_lines
        self._most_bytes = most_bytes

    def last_lines(self, text: bytes, ends: npt.NDArray[np.int64], *, final: bool) -> npt.NDArray[np.bool_]:
        """Which lines of `text`, whose newlines are at `ends`, are the last of an event.

        The text begins with an event. What follows the last event may go on, unless this is `final`.
        """
        count = len(ends)
        offsets = np.zeros(count + 1, np.int32)
        offsets[1:] = ends - np.arange(count)
        lines = pa.Array.from_buffers(
            pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(text.replace(b"\n", b""))]
        )
        goes_on = self._pattern.matches(lines).to_numpy(zero_copy_only=False) != self._negate
        last = np.append(~goes_on[1:], False) if self._after else ~goes_on
        last[-1] = last[-1] or final
        self._cut(last, ends)
        return last

    def _cut(self, last: npt.NDArray[np.bool_], ends: npt.NDArray[np.int64]) -> None:
        """Mark more of them as last, where an event would be too long."""
        stops = np.flatnonzero(last)
        if not last[-1]:
            stops = np.append(stops, len(last) - 1)
        starts = np.append(0, stops[:-1] + 1)
        before = np.append(-1, ends[:-1])  # the newline before each line
        too_long = (stops - starts >= self._most_lines - 1) | (ends[stops] - before[starts] > self._most_bytes)
        for start, stop in zip(starts[too_long].tolist(), stops[too_long].tolist(), strict=True):
            first = start
            for line in range(start, stop + 1):
                # An event's newlines count as its bytes, the last one too.
                if line > first and ends[line] - before[first] > self._most_bytes:
                    last[line - 1] = True
                    first = line
                if line - first + 1 == self._most_lines:
                    last[line] = True
                    first = line + 1
