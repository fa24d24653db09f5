"""Offsets of a byte, however rare it is."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flafka.plugins.wire.octets import find_byte


@given(size=st.integers(0, 200_000), step=st.integers(1, 100_000), first=st.integers(0, 1000))
def test_each_offset_is_found_once(size: int, step: int, first: int) -> None:
    data = np.zeros(size, np.uint8)
    data[first::step] = 10
    assert find_byte(data, 10).tolist() == list(range(first, size, step))


def test_bytes_that_are_rare_only_at_first_are_found_too() -> None:
    data = np.zeros(100_000, np.uint8)
    data[50_000:] = 10
    assert find_byte(data, 10).tolist() == list(range(50_000, 100_000))
