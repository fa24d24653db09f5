"""Conformance checks of a channel."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from flafka.plugins.batch import Batch
from flafka.plugins.channel import Channel, Reader
from flafka.plugins.conformance.components import Properties, check_component, make
from flafka.plugins.conformance.samples import ARRIVAL_SECONDS, sample_events
from flafka.plugins.event import Event, EventId
from flafka.plugins.partitions import Assignment

EMPTY_CHANNEL_SECONDS = 0.2
"""Time without an event after which the channel counts as empty."""


def check_channel(cls: type[Channel[Any]], properties: Properties) -> None:
    """Check that a channel redelivers events until they are committed; a durable channel also after a restart.

    A reader of a durable channel must also start at the offset that `RebalanceListener.assigned` returns.
    """
    check_component(cls, properties)
    first, second = sample_events(), [Event(b"second %d" % i, {}) for i in range(10)]
    channel = make(cls, properties)
    channel.open()
    try:
        owner = AssignmentListener()
        reader = channel.reader(owner, group=None, member="conformance")
        for events in ([], first[:1], first[1:]):
            channel.put(Batch.of(events))
        taken = _take(reader, first)
        assert len(set(taken)) == len(taken), f"{cls.__name__} gives two events one id"
        reader.rewind(owner.first_assignments(taken))
        assert sorted(_take(reader, first)) == sorted(taken), f"{cls.__name__} gives other ids after a rewind"
        reader.commit(owner.next_assignments(taken))
        channel.put(Batch.of(second))
        later = _take(reader, second)
        assert not set(later) & set(taken), f"{cls.__name__} gives an id twice"
        reader.close()
        reader = channel.reader(owner, group=None, member="conformance")
        _take(reader, second)  # uncommitted events are redelivered, and no others
        reader.close()
        if cls.durable:
            channel.close()
            channel = make(cls, properties)
            channel.open()
            reader = channel.reader(owner, group=None, member="conformance")
            reader.commit(owner.next_assignments(_take(reader, second)))
            channel.put(Batch.of(first))
            ahead = AheadListener(owner.next_assignments(_take(reader, first)))
            reader.close()
            channel.put(Batch.of(second))
            reader = channel.reader(ahead, group=None, member="conformance")
            _take(reader, second, ": a reader starts at the offset that `assigned` returns")
            reader.close()
    finally:
        channel.stopping.set()
        channel.close()


class AssignmentListener:
    """A `RebalanceListener` that starts at the committed offsets and records the assignments."""

    def __init__(self) -> None:
        self.assignments: dict[int, Assignment] = {}
        """Latest assignment by partition."""

    def assigned(self, committed: Sequence[Assignment]) -> Sequence[Assignment]:
        """Record the assignments, and return them unchanged."""
        self.assignments.update({assignment.partition: assignment for assignment in committed})
        return committed

    def revoked(self, partitions: set[int]) -> None:
        """Do nothing, as no events are buffered."""

    lost = revoked

    def first_assignments(self, ids: Iterable[EventId]) -> list[Assignment]:
        """Return the assignment of each partition at the smallest offset of these ids."""
        firsts = {id.partition: id.offset for id in sorted(ids, reverse=True)}
        return [self.assignments[partition].with_offset(first) for partition, first in firsts.items()]

    def next_assignments(self, ids: Iterable[EventId]) -> list[Assignment]:
        """Return the assignment of each partition at the offset after the greatest of these ids."""
        lasts = {id.partition: id.offset for id in sorted(ids)}
        return [self.assignments[partition].with_offset(last + 1) for partition, last in lasts.items()]


class AheadListener(AssignmentListener):
    """A `RebalanceListener` that starts past the committed offset, like a sink whose commit log is ahead."""

    def __init__(self, ends: Collection[Assignment]) -> None:
        super().__init__()
        self._ends = {assignment.partition: assignment.next_offset for assignment in ends}

    def assigned(self, committed: Sequence[Assignment]) -> Sequence[Assignment]:
        """Return the assignments at the given ends, or unchanged for a partition without one."""
        return [
            assignment.with_offset(self._ends.get(assignment.partition, assignment.next_offset))
            for assignment in committed
        ]


def _take(reader: Reader, events: list[Event], why: str = "") -> list[EventId]:
    """Take exactly these events, in any order, and return their ids. Texts of errors end with `why`."""
    got: list[tuple[EventId, Event]] = []
    deadline = time.monotonic() + ARRIVAL_SECONDS
    while time.monotonic() < deadline:
        polled = reader.take(EMPTY_CHANNEL_SECONDS)
        if polled is not None:
            assert not polled.undecodable, f"the channel cannot decode what was put: {polled.undecodable}"
            ids, offsets = polled.batch.ids(), polled.offsets
            assert all(offsets.start <= id.offset < offsets.end for id in ids), "ids lie outside what was taken"
            got += zip(ids, polled.batch, strict=True)
        elif len(got) >= len(events):
            break
    wanted = sorted(map(repr, events))
    assert sorted(repr(event) for _, event in got) == wanted, (
        f"{len(events)} events are in the channel, {len(got)} came out, or others than these{why}"
    )
    return [id for id, _ in got]
