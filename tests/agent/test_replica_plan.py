"""Plans of partition reassignments: even loads, racks, and few moves."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flafka.agent.cli.replica_plan import Key, ReplicaMove, plan_moves

NO_RACKS = dict.fromkeys((1, 2, 3))


def planned(replicas: dict[Key, list[int]], moves: list[ReplicaMove]) -> dict[Key, tuple[int, ...]]:
    """Return the replicas of all partitions after the moves."""
    new = {(move.topic, move.partition): move.new_replicas for move in moves}
    return {key: new.get(key, tuple(brokers)) for key, brokers in replicas.items()}


def test_an_even_assignment_stays() -> None:
    even = {("t", 0): [1, 2, 3], ("t", 1): [2, 3, 1], ("t", 2): [3, 1, 2]}
    assert plan_moves(even, NO_RACKS) == []


def test_a_new_broker_gets_its_share_and_nothing_else_moves() -> None:
    replicas = {("t", number): [1 + number % 2] for number in range(6)}
    moves = plan_moves(replicas, NO_RACKS)
    assert [move.new_replicas for move in moves] == [(3,), (3,)]
    assert Counter(brokers[0] for brokers in planned(replicas, moves).values()) == {1: 2, 2: 2, 3: 2}


def test_small_topics_are_spread_together() -> None:
    replicas = {(f"t{number}", 0): [1] for number in range(9)}
    after = planned(replicas, plan_moves(replicas, NO_RACKS))
    assert Counter(brokers[0] for brokers in after.values()) == {1: 3, 2: 3, 3: 3}


def test_a_broker_is_emptied() -> None:
    replicas = {("t", 0): [1, 2], ("t", 1): [2, 3], ("t", 2): [3, 1]}
    after = planned(replicas, plan_moves(replicas, dict.fromkeys((1, 2))))
    assert {frozenset(brokers) for brokers in after.values()} == {frozenset({1, 2})}


def test_preferred_leaders_are_spread() -> None:
    replicas = {("t", number): [1, 2, 3] for number in range(3)}
    after = planned(replicas, plan_moves(replicas, NO_RACKS))
    assert sorted(brokers[0] for brokers in after.values()) == [1, 2, 3]


def test_replicas_are_in_different_racks() -> None:
    replicas = {("t", number): [1, 2] for number in range(4)}
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    after = planned(replicas, plan_moves(replicas, racks))
    assert all({racks[broker] for broker in brokers} == {"a", "b"} for brokers in after.values())
    assert set(Counter(broker for brokers in after.values() for broker in brokers).values()) == {2}


def test_the_replication_factor_changes() -> None:
    replicas = {("t", 0): [2]}
    (move,) = plan_moves(replicas, NO_RACKS, 3)
    assert (move.new_replicas[0], set(move.added)) == (2, {1, 3})
    (back,) = plan_moves({("t", 0): [2, 1, 3]}, NO_RACKS, 1)
    assert back.new_replicas == (2,)


def test_too_few_brokers_are_refused() -> None:
    with pytest.raises(ValueError, match="3 replicas need 3 brokers, not 2"):
        plan_moves({("t", 0): [1, 2, 3]}, dict.fromkeys((1, 2)))


BROKERS = st.integers(1, 6)


@given(
    st.dictionaries(st.tuples(st.sampled_from("ab"), st.integers(0, 9)), st.sets(BROKERS, min_size=1), max_size=12),
    st.dictionaries(BROKERS, st.sampled_from(["x", "y", None]), min_size=3),
    st.integers(1, 3),
)
def test_each_partition_has_its_replicas_on_as_many_racks_as_possible(
    present: dict[Key, set[int]], racks: dict[int, str | None], factor: int
) -> None:
    replicas = {key: sorted(brokers) for key, brokers in present.items()}
    after = planned(replicas, plan_moves(replicas, racks, factor))
    homes = {broker: rack or f"broker {broker}" for broker, rack in racks.items()}
    for brokers in after.values():
        assert len(set(brokers)) == len(brokers) == factor
        assert set(brokers) <= racks.keys()
        assert len({homes[broker] for broker in brokers}) == min(factor, len({*homes.values()}))
