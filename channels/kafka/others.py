"""The other members of a group that reads the Kafka channel, as far as they decide what one reader does."""

from __future__ import annotations

import random
import time

from channels.kafka.positions import TopicIds

ALONE_SECONDS = 3600.0
"""A group counts as one without members of version 0.1 once none was seen for so long."""


class Others:
    """Looked at when partitions are assigned, and from time to time in between."""

    def __init__(self, topic_ids: TopicIds, group: str) -> None:
        self._topic_ids, self._group = topic_ids, group
        self._unread = frozenset[int]()
        """Partitions that nobody had when that was last looked at."""
        self._due = time.monotonic() + _unread_seconds()
        self._older_at = time.monotonic()
        """When a member of version 0.1 was seen last, or may have been."""

    def older(self) -> tuple[str, ...]:
        """Look at them. The members of version 0.1, in words."""
        self._due = time.monotonic() + _unread_seconds()
        self._unread, older = self._topic_ids.members(self._group)
        if older:
            self._older_at = time.monotonic()
        return older

    def unread(self) -> frozenset[int]:
        """The partitions that nobody had at two looks in a row, where it is time for one.

        A static member that ends amid a rebalance comes back to its old share, without what it gave up or was to get:
        nobody has that until the next rebalance, which a member of another name brings about.
        """
        if time.monotonic() < self._due:
            return frozenset()
        before = self._unread
        self.older()
        return before & self._unread

    def older_gone(self) -> bool:
        """Whether positions may be committed with what members of version 0.1 do not understand."""
        return time.monotonic() - self._older_at > ALONE_SECONDS


def _unread_seconds() -> float:
    """Not the same for all members: one that joins anew is enough. With the session of the member that it was before,
    it has what nobody read within the minute after which a drain is given up."""
    return random.uniform(15, 30)
