"""Bytes of many frames, and columns made from them."""

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

LOOK_AHEAD = 320
"""Room behind the last frame, in bytes, that spares a copy of them all."""


def unpack(frames: Array) -> tuple[Bytes, Ints, Ints]:
    """The bytes that hold the frames, and where each frame starts and ends. There is always room to look ahead."""
    _, offsets, values = frames.buffers()
    bounds = np.frombuffer(offsets, np.int32, len(frames) + 1, 4 * frames.offset).astype(np.int64)
    data = np.frombuffer(values or b"", np.uint8)
    if bounds[-1] + LOOK_AHEAD > len(data):
        data = np.concatenate((data[: bounds[-1]], np.zeros(LOOK_AHEAD, np.uint8)))
    return data, bounds[:-1], bounds[1:]


def windows(data: Bytes, starts: Ints, width: int) -> Bytes:
    """The `width` bytes from each start, a row each."""
    everywhere = np.ndarray((len(data) - width + 1,), f"V{width}", data, strides=(1,))
    return everywhere[starts].view(np.uint8).reshape(-1, width)


def coded(codes: npt.NDArray[Any], texts: Array, present: Mask) -> Array:
    """A header column: for each event the text of that number, null where not present."""
    indices = pa.array(codes.astype(np.int32), mask=_absent(present))
    return pa.DictionaryArray.from_arrays(indices, texts, safe=False)


def numbers(numbers: npt.NDArray[Any], present: Mask | None = None) -> Array:
    """A header column: the numbers as text, null where not present."""
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
    """These numbers as text: remembered, as the next batch most often has the same."""
    return pa.array(np.frombuffer(numbers, kind)).cast(pa.string())


def _absent(present: Mask | None) -> Mask | None:
    """The mask as Arrow takes it, which has a shorter way for none."""
    return None if present is None or present.all() else ~present


def is_digit(window: Bytes) -> Mask:
    """Whether each byte is a digit of ASCII."""
    return window - ord("0") < 10


def two_digits(window: Bytes, column: int) -> Bytes:
    """The number of two digits in these columns."""
    return (window[:, column] - ord("0")) * 10 + (window[:, column + 1] - ord("0"))


def rows_of(mask: Mask) -> Any:
    """An index of the rows where the mask is true, the cheapest there is; None where it nowhere is."""
    return slice(None) if mask.all() else np.flatnonzero(mask) if mask.any() else None
