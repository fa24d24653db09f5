"""Multi-line events: the ends of events by a pattern of continuation lines."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from flafka.plugins.shared.regex import Regex
from flafka.sources.columns import binary


class Multiline:
    """Rule that joins lines by a pattern, as in Filebeat.

    Lines that match are continuation lines; with `negate`, lines that do not match. With `after`, a continuation line
    belongs to the line before it, else to the line after it. A longer event than `most_lines` lines or `most_bytes`
    bytes is split. A single line is never split here.
    """

    def __init__(self, pattern: Regex, *, negate: bool, after: bool, most_lines: int, most_bytes: int) -> None:
        self._pattern = pattern
        self._negate = negate
        self._after = after
        self._most_lines = most_lines
        self._most_bytes = most_bytes

    def last_lines(self, text: bytes, ends: npt.NDArray[np.int64], *, final: bool) -> npt.NDArray[np.bool_]:
        """Return a mask of the lines of `text` that end an event.

        `ends` are the indexes of the newlines. The text begins with an event. Its last event may continue beyond the
        text, unless `final`.
        """
        lines = binary(text.replace(b"\n", b""), ends - np.arange(len(ends)))
        goes_on = self._pattern.matches(lines).to_numpy(zero_copy_only=False) != self._negate
        last = np.append(~goes_on[1:], False) if self._after else ~goes_on
        last[-1] = last[-1] or final
        self._cut(last, ends)
        return last

    def _cut(self, last: npt.NDArray[np.bool_], ends: npt.NDArray[np.int64]) -> None:
        """Add ends to the mask where an event would be too long."""
        stops = np.flatnonzero(last)
        if not last[-1]:
            stops = np.append(stops, len(last) - 1)
        starts = np.append(0, stops[:-1] + 1)
        before = np.append(-1, ends[:-1])  # the newline before each line
        too_long = (stops - starts >= self._most_lines - 1) | (ends[stops] - before[starts] > self._most_bytes)
        for start, stop in zip(starts[too_long].tolist(), stops[too_long].tolist(), strict=True):
            first = start
            for line in range(start, stop + 1):
                # The size of an event includes all its newlines.
                if line > first and ends[line] - before[first] > self._most_bytes:
                    last[line - 1] = True
                    first = line
                if line - first + 1 == self._most_lines:
                    last[line] = True
                    first = line + 1
