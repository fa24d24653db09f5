"""Inputs of `tests/interop/test_differences.py` in large numbers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.differential.operations import OPERATIONS
from tests.interop.differential.search import Flumes, search

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]
INPUTS = 100_000


@pytest.fixture(scope="module")
def flumes(servers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flumes]:
    with Flumes(tmp_path_factory.mktemp("flumes")) as running:
        yield running


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_difference_is_known(flumes: Flumes, name: str, seed: int, figures: list[str]) -> None:
    result = search(flumes, OPERATIONS[name], seed, INPUTS)
    figures.append(str(result))
    assert not result.differ, str(result)
