"""File that `taildir` finds under a path, whatever the order in which files are created, renamed and removed."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from flafka.sources.taildir.cursors import FileCheckpoint
from flafka.sources.taildir.table import PathIndex
from flafka.sources.taildir.tail import FileLocation, Tail
from tests.fixtures.examples import examples

PATHS = ("a", "b", "c")
CHANGES = st.tuples(
    st.integers(0, 3), st.sampled_from(PATHS), st.sampled_from(PATHS), st.booleans(), st.sampled_from(["put", "drop"])
)


@settings(max_examples=examples(200))
@given(st.lists(CHANGES, max_size=30))
def test_a_path_leads_to_its_present_or_else_its_last_file(
    changes: list[tuple[int, str, str, bool, str]],
) -> None:
    tails = [Tail("a", id=number, inode=number, device=1, checkpoint=FileCheckpoint()) for number in range(4)]
    paths, order = PathIndex(), list[Tail]()
    for number, path, real, named, action in changes:
        tail = tails[number]
        order = [other for other in order if other is not tail]
        if action == "drop":
            paths.remove(tail)
        else:
            tail.path, tail.real, tail.replaced = path, real, False
            tail.location = FileLocation.MATCHED if named else FileLocation.UNSEEN
            paths.put(tail)
            order.append(tail)
        for name in PATHS:
            candidates = [other for other in order if name in (other.path, other.real)]
            present = max(candidates, key=lambda other: (other.has_name, order.index(other)), default=None)
            assert paths.get(name) is present
            assert all(other.replaced for other in candidates if other is not present)


def test_a_replaced_file_is_missing_at_no_moment() -> None:
    """Other threads read it meanwhile."""
    paths, lookups = PathIndex(), list[Tail | None]()

    class Watched(dict[str, list[Tail]]):
        def __setitem__(self, path: str, tails: list[Tail]) -> None:
            super().__setitem__(path, tails)
            lookups.append(paths.get("a"))

        def __delitem__(self, path: str) -> None:
            super().__delitem__(path)
            lookups.append(paths.get("a"))

    paths._tails = Watched()
    tail = Tail("a", id=1, inode=1, device=1, checkpoint=FileCheckpoint())
    for path in ("b", "c", "b"):
        tail.real = path
        paths.put(tail)
    assert {*lookups[1:]} == {tail}
