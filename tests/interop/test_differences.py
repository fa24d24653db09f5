"""A few inputs of each operation through Flume's own classes and through ours: no unknown difference.

The inputs are always the same: `tests/soak` searches for differences once in 100,000 inputs, not every run.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.differential.operations import OPERATIONS
from tests.interop.differential.search import Flumes, search, texts

INPUTS, SEED = 1_000, 1


@pytest.fixture(scope="module")
def flumes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flumes]:
    with Flumes(tmp_path_factory.mktemp("flumes")) as running:
        yield running


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_difference_is_known(flumes: Flumes, name: str) -> None:
    result = search(flumes, OPERATIONS[name], SEED, INPUTS)
    assert not result.differ, str(result)


@pytest.mark.parametrize("name", OPERATIONS)
def test_known_differences_are_documented(name: str) -> None:
    operation = OPERATIONS[name]
    for known in [*operation.known, *getattr(operation, "streams", ())]:
        assert known.sentence in texts(), known.sentence
