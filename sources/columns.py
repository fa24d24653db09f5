"""Arrow columns of batches from several files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def binary_array(data: bytes, ends: npt.NDArray[np.int64]) -> pa.Array:
    """Return the bodies in `data`, which join without gaps, as a binary array without a copy.

    `ends` holds the exclusive end of each body in `data`, ascending.
    """
    offsets = np.zeros(len(ends) + 1, np.int32)
    offsets[1:] = ends
    return pa.Array.from_buffers(pa.binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def header_columns(counts: Sequence[int], headers: Sequence[Mapping[str, str]]) -> dict[str, pa.Array]:
    """Return header columns in which each mapping of `headers` applies to as many rows as `counts` has at its index.

    A row has null in the columns that its mapping does not name.
    """
    rows = pa.array(np.repeat(np.arange(len(counts)), counts))
    columns = {}
    for name in dict.fromkeys(name for mapping in headers for name in mapping):
        column = pa.array([mapping.get(name) for mapping in headers], pa.string())
        columns[name] = column.dictionary_encode().take(rows)
    return columns
