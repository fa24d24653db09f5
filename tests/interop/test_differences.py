"""A few inputs of each operation through Flume's own classes and through ours: nothing differs that is not known."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import SEED
from tests.interop.differential.operations import OPERATIONS
from tests.interop.differential.search import Flumes, search, texts

INPUTS = 1_000


@pytest.fixture(scope="module")
def flumes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flumes]:
    with Flumes(tmp_path_factory.mktemp("flumes")) as running:
        yield running


@pytest.mark.parametrize("name", OPERATIONS)
def test_nothing_differs_that_is_not_known(flumes: Flumes, name: str, pytestconfig: pytest.Config) -> None:
    found = search(flumes, OPERATIONS[name], pytestconfig.stash[SEED], INPUTS)
    assert not found.differ, str(found)


@pytest.mark.parametrize("name", OPERATIONS)
def test_users_are_told_of_what_is_known(name: str) -> None:
    operation = OPERATIONS[name]
    for known in [*operation.known, *getattr(operation, "streams", ())]:
        assert known.said in texts(), known.said
