"""How many rejections are dead letters, and from when on they are a pause."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flafka.agent.runner.deadletters.letters import DeadLetter, DeadLetters
from flafka.agent.runner.deadletters.rejections import HELD_BYTES, LETTER_BYTES, Rejections
from flafka.agent.topology import Tolerance
from flafka.plugins import Event, EventId, Retry


class Letters(DeadLetters):
    def __init__(self) -> None:
        self.kept: list[DeadLetter] = []

    def put(self, letters: Any) -> None:
        self.kept += letters

    def close(self) -> None:
        pass


def letter(number: int, *, partition: int = 0, body: bytes = b"x") -> DeadLetter:
    return DeadLetter("a.sinks.k", EventId("t", partition, number, 0), Event(body), "it is wrong")


def deliver(rejections: Rejections, events: int, rejected: int) -> bool:
    """One batch, from the offer to the commit; whether it came to that."""
    rejections.offered(events)
    try:
        rejections.add(letter(n) for n in range(rejected))
    except Retry:
        rejections.start_over()
        return False
    rejections.store()
    rejections.committed({0})
    return True


BATCHES = st.lists(
    st.integers(1, 40).flatmap(lambda events: st.tuples(st.just(events), st.integers(0, events))), max_size=60
)


@given(BATCHES, st.sampled_from([0, 10, 50, 100]), st.integers(1, 100))
def test_no_more_than_the_share_of_the_latest_events_become_letters(
    batches: list[tuple[int, int]], percent: int, window: int
) -> None:
    letters = Letters()
    rejections = Rejections(letters, Tolerance(percent, window))
    committed: list[tuple[int, int]] = []
    for events, rejected in batches:
        paused = bool(rejections.paused)
        if deliver(rejections, events, rejected):
            committed.append((events, rejected))
            assert not rejections.paused
        else:
            assert rejections.paused
            assert rejected > 0
        if paused:  # it goes on as soon as most of what is offered is taken, whatever was before
            assert bool(rejections.paused) == (rejected * 100 > percent * events)
        assert len(letters.kept) == sum(rejected for _, rejected in committed)
    if percent == 100:
        assert committed == batches
    if percent == 0:
        assert not letters.kept


def test_a_poison_event_now_and_then_pauses_nothing_and_a_wrong_schema_does_at_once() -> None:
    rejections = Rejections(Letters(), Tolerance())
    assert all(deliver(rejections, 1, n % 100 == 0) for n in range(10_000))
    assert not deliver(rejections, 5_000, 5_000)
    assert "paused: 5,010 of the latest" in rejections.paused
    assert "more than errors.tolerance = 50" in rejections.paused
    assert "it is wrong" in rejections.paused


def test_a_slow_trickle_of_a_wrong_schema_pauses_once_the_window_is_half_full() -> None:
    letters = Letters()
    rejections = Rejections(letters, Tolerance())
    taken = [deliver(rejections, 1, 1) for _ in range(1_000)]
    assert (taken.count(True), len(letters.kept)) == (500, 500)


def test_while_paused_the_share_is_that_of_what_is_offered() -> None:
    rejections = Rejections(Letters(), Tolerance())
    assert not deliver(rejections, 600, 600)
    why = rejections.paused
    assert not deliver(rejections, 10, 6)
    assert rejections.paused == why
    assert deliver(rejections, 10, 5)
    assert not rejections.paused


def test_letters_wait_for_the_commit_of_their_partition() -> None:
    letters = Letters()
    rejections = Rejections(letters, Tolerance())
    rejections.offered(4)
    rejections.add([letter(0, partition=1), letter(1, partition=2), letter(2, partition=3)])
    assert not letters.kept
    assert rejections.partitions() == {1, 2, 3}
    assert rejections.store(2) == 1
    assert [one.id and one.id.partition for one in letters.kept] == [2]
    rejections.lost({3})
    assert rejections.store() == 1
    assert [one.id and one.id.partition for one in letters.kept] == [2, 1]
    rejections.add([letter(4)])
    rejections.start_over()
    assert rejections.store() == 0


def test_letters_that_grow_large_ask_for_a_commit() -> None:
    letters = Letters()
    rejections = Rejections(letters, Tolerance())
    rejections.offered(10)
    rejections.add([letter(0, body=bytes(HELD_BYTES - LETTER_BYTES))])
    assert not rejections.full
    rejections.add([letter(1, partition=1)])
    assert rejections.full
    assert not letters.kept
    rejections.lost({1})
    assert not rejections.full
    rejections.start_over()
    assert rejections.store() == 0


def test_a_letter_kept_before_a_commit_that_failed_is_not_kept_again() -> None:
    letters = Letters()
    rejections = Rejections(letters, Tolerance())
    one, two = (replace(letter(n), name=f"letter {n}") for n in range(2))
    rejections.offered(2)
    rejections.add([one])
    assert rejections.store() == 1
    rejections.start_over()  # the channel could not be committed: the events come again
    rejections.offered(2)
    rejections.add([replace(one), two])
    assert rejections.store() == 1
    rejections.committed({1})
    rejections.add([one])
    assert rejections.store() == 0
    rejections.committed({0})
    assert letters.kept == [one, two]
    rejections.offered(1)
    rejections.add([one])  # delivered once more, on purpose
    assert rejections.store() == 1


@pytest.mark.parametrize("take", [True, False])
def test_someone_else_may_keep_them(take: bool) -> None:
    letters = Letters()
    rejections = Rejections(letters, Tolerance())
    rejections.offered(1)
    rejections.add([letter(0)])
    assert len(rejections.take() if take else []) == take
    assert rejections.store() == (not take)
