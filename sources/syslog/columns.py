"""Arrays of the bytes of many frames, and header columns made from them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flafka.plugins.columns import HEADER_TYPE

Array = Any
Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

LOOK_AHEAD_BYTES = 320
"""Space behind the last frame that `windows` may read. A buffer without it is copied."""


def unpack(frames: Array) -> tuple[Bytes, Ints, Ints]:
    """Return the bytes of all frames, and the start and exclusive end of each frame in these bytes.

    At least `LOOK_AHEAD_BYTES` follow the last frame; the bytes are copied only if they lack these.
    """
    _, offsets, values = frames.buffers()
    bounds = np.frombuffer(offsets, np.int32, len(frames) + 1, 4 * frames.offset).astype(np.int64)
    data = np.frombuffer(values or b"", np.uint8)
    if bounds[-1] + LOOK_AHEAD_BYTES > len(data):
        data = np.concatenate((data[: bounds[-1]], np.zeros(LOOK_AHEAD_BYTES, np.uint8)))
    return data, bounds[:-1], bounds[1:]


def windows(data: Bytes, starts: Ints, width: int) -> Bytes:
    """Return an array with one row for each start: the `width` bytes of `data` from there on."""
    everywhere = np.ndarray((len(data) - width + 1,), f"V{width}", data, strides=(1,))
    return everywhere[starts].view(np.uint8).reshape(-1, width)


def dictionary_column(codes: npt.NDArray[Any], texts: Array, present: Mask) -> Array:
    """Return a header column: `texts[code]` for each event, null where not `present`."""
    indices = pa.array(codes.astype(np.int32), mask=_absent(present))
    return pa.DictionaryArray.from_arrays(indices, texts, safe=False)


def number_column(numbers: npt.NDArray[Any], present: Mask | None = None) -> Array:
    """Return a header column: the numbers as text, null where not `present`."""
    if present is not None and not present.any():
        return pa.nulls(len(present), HEADER_TYPE)
    if numbers.dtype == np.uint8:
        used = np.flatnonzero(np.bincount(numbers if present is None else numbers[present], minlength=256))
        code = np.zeros(256, np.int32)
        code[used] = np.arange(len(used))
        codes = code[numbers]
    elif len(numbers) and (numbers == numbers[0]).all():
        used, codes = numbers[:1], np.zeros(len(numbers), np.int32)
    else:
        encoded = pa.array(numbers, mask=_absent(present)).dictionary_encode()
        return pa.DictionaryArray.from_arrays(encoded.indices, encoded.dictionary.cast(pa.string()))
    indices = pa.array(codes, mask=_absent(present))
    return pa.DictionaryArray.from_arrays(indices, _texts(used.tobytes(), used.dtype.char), safe=False)


@lru_cache(maxsize=64)
def _texts(numbers: bytes, kind: str) -> Array:
    """Return numbers as text. Cached, as consecutive batches often have the same numbers."""
    return pa.array(np.frombuffer(numbers, kind)).cast(pa.string())


def _absent(present: Mask | None) -> Mask | None:
    """Return the mask of nulls for Arrow: the inverse of `present`, or None if all are present.

    Arrow handles None faster than a mask without nulls.
    """
    return None if present is None or present.all() else ~present


def is_digit(window: Bytes) -> Mask:
    """Return a mask, of the shape of `window`, of the bytes that are ASCII digits."""
    return window - ord("0") < 10


def two_digits(window: Bytes, column: int) -> Bytes:
    """Return for each row the number that the digits in `column` and in the next column write, modulo 256."""
    return (window[:, column] - ord("0")) * 10 + (window[:, column + 1] - ord("0"))


def row_index(mask: Mask) -> Any:
    """Return an index of the rows where the mask is true: a slice for all rows, or else an array of row numbers.

    None if the mask is true nowhere.
    """
    return slice(None) if mask.all() else np.flatnonzero(mask) if mask.any() else None
