"""Batches of what several files hold, in columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def binary(text: bytes, ends: npt.NDArray[np.int64]) -> pa.Array:
    """Bodies that lie one behind the other, without copying them; `ends` says where each ends."""
    offsets = np.zeros(len(ends) + 1, np.int32)
    offsets[1:] = ends
    return pa.Array.from_buffers(pa.binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(text)])


def headers(counts: Sequence[int], of_pieces: Sequence[Mapping[str, str]]) -> dict[str, pa.Array]:
    """The columns of headers of pieces of so many rows, where all rows of a piece have the same."""
    rows = pa.array(np.repeat(np.arange(len(counts)), counts))
    columns = {}
    for name in dict.fromkeys(name for piece in of_pieces for name in piece):
        column = pa.array([piece.get(name) for piece in of_pieces], pa.string())
        columns[name] = column.dictionary_encode().take(rows)
    return columns
