"""Bodies as bytes in a row, for what looks at all of a batch at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from plugins.columns import Array

Positions = npt.NDArray[np.int64]


def bytes_of(column: Array) -> tuple[npt.NDArray[np.uint8], Positions]:
    """All that a binary column holds, and where in it each row begins; at last where the last one ends."""
    _, offsets, values = column.buffers()
    bounds = np.frombuffer(offsets, np.int32, len(column) + 1, 4 * column.offset).astype(np.int64)
    return np.frombuffer(values or b"", np.uint8)[bounds[0] : bounds[-1]], bounds - bounds[0]


def rows_at(bounds: Positions, places: Positions) -> Positions:
    """The rows in which these places are."""
    rows: Positions = np.searchsorted(bounds, places, "right") - 1
    return rows
