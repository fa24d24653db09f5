"""Where a byte stands, however rare it is."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flafka.plugins.shared.octets import places


@given(size=st.integers(0, 200_000), step=st.integers(1, 100_000), first=st.integers(0, 1000))
def test_each_place_is_found_once(size: int, step: int, first: int) -> None:
    data = np.zeros(size, np.uint8)
    data[first::step] = 10
    assert places(data, 10).tolist() == list(range(first, size, step))


def test_what_is_rare_only_at_first_is_found_as_well() -> None:
    data = np.zeros(100_000, np.uint8)
    data[50_000:] = 10
    assert places(data, 10).tolist() == list(range(50_000, 100_000))
