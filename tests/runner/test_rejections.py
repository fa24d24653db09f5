"""Rejections: the share that becomes dead letters, and the one that pauses the sink."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flafka.agent.runner.deadletters.rejections import MAX_PENDING_BYTES, OVERHEAD_BYTES, Rejections
from flafka.agent.runner.deadletters.store import DeadLetter, DeadLetterStore
from flafka.agent.topology import Tolerance
from flafka.plugins import Event, EventId, Retry


class MemoryDeadLetters(DeadLetterStore):
    def __init__(self) -> None:
        self.kept: list[DeadLetter] = []

    def put(self, letters: Any) -> None:
        self.kept += letters

    def close(self) -> None:
        pass


def dead_letter(number: int, *, partition: int = 0, body: bytes = b"x") -> DeadLetter:
    return DeadLetter("a.sinks.k", EventId("t", partition, number, 0), Event(body), "it is wrong")


def deliver(rejections: Rejections, events: int, rejected: int) -> bool:
    """Deliver one batch, from the rejections to the commit; return False if it was paused before."""
    rejections.add_offered(events)
    try:
        rejections.add(dead_letter(n) for n in range(rejected))
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
def test_no_more_than_the_share_of_the_latest_events_become_dead_letters(
    batches: list[tuple[int, int]], percent: int, window: int
) -> None:
    letters = MemoryDeadLetters()
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
        if paused:  # the sink continues as soon as most offered events are accepted, whatever was before
            assert bool(rejections.paused) == (rejected * 100 > percent * events)
        assert len(letters.kept) == sum(rejected for _, rejected in committed)
    if percent == 100:
        assert committed == batches
    if percent == 0:
        assert not letters.kept


def test_a_poison_event_now_and_then_pauses_nothing_and_a_wrong_schema_does_at_once() -> None:
    rejections = Rejections(MemoryDeadLetters(), Tolerance())
    assert all(deliver(rejections, 1, n % 100 == 0) for n in range(10_000))
    assert not deliver(rejections, 5_000, 5_000)
    assert "paused: 5,010 of the latest" in rejections.paused
    assert "more than errors.tolerance = 50" in rejections.paused
    assert "it is wrong" in rejections.paused


def test_a_slow_trickle_of_a_wrong_schema_pauses_once_the_window_is_half_full() -> None:
    letters = MemoryDeadLetters()
    rejections = Rejections(letters, Tolerance())
    taken = [deliver(rejections, 1, 1) for _ in range(1_000)]
    assert (taken.count(True), len(letters.kept)) == (500, 500)


def test_while_paused_the_share_counts_offered_events() -> None:
    rejections = Rejections(MemoryDeadLetters(), Tolerance())
    assert not deliver(rejections, 600, 600)
    why = rejections.paused
    assert not deliver(rejections, 10, 6)
    assert rejections.paused == why
    assert deliver(rejections, 10, 5)
    assert not rejections.paused


def test_dead_letters_wait_for_the_commit_of_their_partition() -> None:
    letters = MemoryDeadLetters()
    rejections = Rejections(letters, Tolerance())
    rejections.add_offered(4)
    rejections.add([dead_letter(0, partition=1), dead_letter(1, partition=2), dead_letter(2, partition=3)])
    assert not letters.kept
    assert rejections.partitions() == {1, 2, 3}
    assert rejections.store(2) == 1
    assert [letter.id and letter.id.partition for letter in letters.kept] == [2]
    rejections.lost({3})
    assert rejections.store() == 1
    assert [letter.id and letter.id.partition for letter in letters.kept] == [2, 1]
    rejections.add([dead_letter(4)])
    rejections.start_over()
    assert rejections.store() == 0


def test_large_dead_letters_request_a_commit() -> None:
    letters = MemoryDeadLetters()
    rejections = Rejections(letters, Tolerance())
    rejections.add_offered(10)
    rejections.add([dead_letter(0, body=bytes(MAX_PENDING_BYTES - OVERHEAD_BYTES))])
    assert not rejections.is_full
    rejections.add([dead_letter(1, partition=1)])
    assert rejections.is_full
    assert not letters.kept
    rejections.lost({1})
    assert not rejections.is_full
    rejections.start_over()
    assert rejections.store() == 0


def test_a_dead_letter_stored_before_a_failed_commit_is_not_stored_again() -> None:
    letters = MemoryDeadLetters()
    rejections = Rejections(letters, Tolerance())
    first, second = (replace(dead_letter(n), name=f"letter {n}") for n in range(2))
    rejections.add_offered(2)
    rejections.add([first])
    assert rejections.store() == 1
    rejections.start_over()  # the channel could not be committed: the events are redelivered
    rejections.add_offered(2)
    rejections.add([replace(first), second])
    assert rejections.store() == 1
    rejections.committed({1})
    rejections.add([first])
    assert rejections.store() == 0
    rejections.committed({0})
    assert letters.kept == [first, second]
    rejections.add_offered(1)
    rejections.add([first])  # a deliberate second delivery
    assert rejections.store() == 1


@pytest.mark.parametrize("take", [True, False])
def test_another_component_may_store_dead_letters(take: bool) -> None:
    letters = MemoryDeadLetters()
    rejections = Rejections(letters, Tolerance())
    rejections.add_offered(1)
    rejections.add([dead_letter(0)])
    assert len(rejections.take_all() if take else []) == take
    assert rejections.store() == (not take)
