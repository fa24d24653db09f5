"""Looking for single bytes in many."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_HEAD = 8192
"""So many bytes are looked at first."""
_FEW = 6
"""A byte that comes up to so many times among them is rare. To find one by itself costs what numpy takes for 500."""


def places(data: npt.NDArray[np.uint8], byte: int) -> npt.NDArray[np.int64]:
    """Where this byte stands in `data`, in order; fastest where its first bytes are like the others."""
    if len(data) < 4 * _HEAD or np.count_nonzero(data[:_HEAD] == byte) > _FEW:
        return np.flatnonzero(data == byte)
    # numpy looks at each byte three times, C's search for the next one once; bytes have that, arrays have not.
    text, wanted, found = data.tobytes(), bytes((byte,)), []
    at = text.find(wanted)
    while at >= 0:
        found.append(at)
        at = text.find(wanted, at + 1)
    return np.array(found, np.int64)
