"""Partitions that no member of a group reads, although the group has members."""

from __future__ import annotations

import random
import time

from flafka.channels.kafka.positions import TopicIds


class UnreadPartitions:
    """Partitions of the topic that no member of the group has; requested at each assignment, and every 15 to 30 s.

    A static member that ends amid a rebalance comes back to its old share, without what it gave up or was to get.
    No member has those partitions until the next rebalance, which a member of another name brings about.
    """

    def __init__(self, topic_ids: TopicIds, group: str) -> None:
        self._topic_ids, self._group = topic_ids, group
        self._before = frozenset[int]()
        """Partitions that no member had at the latest request."""
        self._due = time.monotonic() + _wait_seconds()

    def ask(self) -> frozenset[int]:
        """Ask the brokers, and return the partitions that no member has."""
        self._due = time.monotonic() + _wait_seconds()
        self._before = self._topic_ids.unread(self._group)
        return self._before

    def lasting(self) -> frozenset[int]:
        """Return the partitions that no member had at two requests in a row; none until the next request is due."""
        if time.monotonic() < self._due:
            return frozenset()
        before = self._before
        return before & self.ask()


def _wait_seconds() -> float:
    """Return a random time, as one member that joins anew is enough.

    With the session of the member that it was before, it has what nobody read within the minute after which a drain
    is given up.
    """
    return random.uniform(15, 30)
