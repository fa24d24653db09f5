"""Plan of a partition reassignment: replicas spread evenly over brokers and racks, with few moves."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

Replicas = tuple[int, ...]
Key = tuple[str, int]
"""Topic and partition."""


class ReplicaMove(NamedTuple):
    """Reassignment of one partition. The first replica is the preferred leader."""

    topic: str
    partition: int
    replicas: Replicas
    new_replicas: Replicas

    @property
    def added(self) -> Replicas:
        """Brokers that copy the partition."""
        return tuple(broker for broker in self.new_replicas if broker not in self.replicas)


def plan_moves(
    replicas: Mapping[Key, Sequence[int]], racks: Mapping[int, str | None], factor: int | None = None
) -> list[ReplicaMove]:
    """Return the moves that spread partitions evenly over the brokers of `racks`, without unchanged partitions.

    Replicas of a partition are in as many racks as possible, and a broker without a rack is a rack of its own. Each
    broker gets about as many replicas and preferred leaders, of each topic and of all. Present replicas stay where
    they are if that allows it. `factor` is the number of replicas; None keeps that of each partition. Raises
    ValueError if a partition needs more brokers than there are.
    """
    if (most := max((factor or len(brokers) for brokers in replicas.values()), default=0)) > len(racks):
        raise ValueError(f"{most} replicas need {most} brokers, not {len(racks)}")
    homes = {broker: racks[broker] or f"broker {broker}" for broker in sorted(racks)}
    loads, leads = _Loads(), _Loads()
    for (topic, _), brokers in replicas.items():
        loads.expect(topic, factor or len(brokers), len(homes))
        leads.expect(topic, 1, len(homes))
    moves = []
    for (topic, partition), present in sorted(replicas.items()):
        chosen: list[int] = []
        while len(chosen) < (factor or len(present)):
            used = Counter(homes[broker] for broker in chosen)
            best = min(
                homes.keys() - chosen,
                key=lambda broker: (
                    used[homes[broker]],
                    *loads.rank(topic, broker, _index(present, broker)),
                ),
            )
            chosen.append(best)
            loads.add(topic, best)
        leader = min(chosen, key=lambda broker: leads.rank(topic, broker, _index(present, broker)))
        leads.add(topic, leader)
        stay = [broker for broker in present if broker in chosen]
        ordered = dict.fromkeys([leader, *stay, *chosen])
        moves.append(ReplicaMove(topic, partition, tuple(present), tuple(ordered)))
    return [move for move in moves if move.replicas != move.new_replicas]


def _index(present: Sequence[int], broker: int) -> int:
    """Return the index of a broker in the present replicas; their number if it has none."""
    return present.index(broker) if broker in present else len(present)


class _Loads:
    """Numbers of replicas, or of preferred leaders, that brokers have in a plan: of each topic, and of all."""

    def __init__(self) -> None:
        self._expected: Counter[str] = Counter()
        self._brokers = 1
        self._counts: Counter[tuple[str, int]] = Counter()

    def expect(self, topic: str, count: int, brokers: int) -> None:
        """Add to the number of replicas that all brokers together get."""
        self._brokers = brokers
        for name in (topic, ""):
            self._expected[name] += count

    def add(self, topic: str, broker: int) -> None:
        """Count a replica of this topic for a broker."""
        for name in (topic, ""):
            self._counts[name, broker] += 1

    def rank(self, topic: str, broker: int, index: int) -> tuple[bool, bool, int, int, int, int]:
        """Return the rank of a broker, the least for the best one: below its share, then by index, then idle."""
        full = [self._counts[name, broker] >= math.ceil(self._expected[name] / self._brokers) for name in (topic, "")]
        return full[0], full[1], index, self._counts[topic, broker], self._counts["", broker], broker
