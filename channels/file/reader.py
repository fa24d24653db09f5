"""How a sink takes what the file channel holds."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from channels.file.log import Entry, Log
from plugins import Batch, EventId, Origin, PartitionClaim, Reader, RebalanceListener, Record, Taken, Undecodable

if TYPE_CHECKING:
    from channels.file.channel import FileChannel

MERGE_EVENTS, MERGE_BYTES = 10_000, 16 << 20
"""Small puts are handed out together, up to so many events or bytes."""


class FileReader(Reader):
    """Takes the entries of the partitions that are its own, in their order. Used by one thread."""

    def __init__(self, channel: FileChannel, log: Log, owner: RebalanceListener, member: str) -> None:
        self.member = member
        self.positions: dict[int, int] = {}
        """By partition of its own: the entry to be taken next."""
        self.held: set[int] = set()
        """Partitions that no other reader may have now: its own ones, and those that it is about to begin with."""
        self._channel, self._log, self._owner = channel, log, owner
        self._claims: dict[int, PartitionClaim] = {}
        self._place = log.place(0)
        self._pushed: tuple[Entry, memoryview] | None = None
        """Read already, and to be taken next."""

    def take(self, timeout: float) -> Taken | None:
        """See `Reader`."""
        self._rebalance()
        gathered: list[tuple[Entry, memoryview]] = []
        events = size = 0
        while events < MERGE_EVENTS and size < MERGE_BYTES and (found := self._next()) is not None:
            entry = found[0]
            if gathered and entry.partition != gathered[0][0].partition:
                self._pushed = found
                break
            gathered.append(found)
            events, size = events + entry.events, size + entry.size
        if not gathered:
            self._log.wait(self._place, timeout)
            return None
        self._channel.metrics.add("EventTakeAttemptCount", events)
        return self._decoded(gathered)

    def _next(self) -> tuple[Entry, memoryview] | None:
        """The next entry of its partitions that it has not taken."""
        if (pushed := self._pushed) is not None:
            self._pushed = None
            return pushed
        while self.positions:
            expected, path = self._place.number, self._place.segment.path
            found = self._log.read(self._place)
            read = self._place.number if found is None else found[0].number
            if read > expected:
                self._channel.lost(path, expected, read)
            if found is None or found[0].number >= self.positions.get(found[0].partition, sys.maxsize):
                return found
        return None

    def _decoded(self, gathered: list[tuple[Entry, memoryview]]) -> Taken:
        partition, start, end = gathered[0][0].partition, gathered[0][0].number, gathered[-1][0].number + 1
        claim = self._claims[partition]
        parts: list[Batch] = []
        undecodable: list[Undecodable] = []
        for entry, payload in gathered:
            try:
                batch = Batch.from_ipc(payload)
            except ValueError as e:
                record = Record(entry.number, entry.arrival, None, bytes(payload), [])
                undecodable.append(Undecodable(EventId(claim.stem, partition, entry.number, 0), record, str(e)))
                continue
            origin = Origin.of_record(claim.topic, partition, entry.number, entry.arrival, len(batch), claim.stem)
            parts.append(Batch(batch.records, origin))
        self._channel.taken(self, partition, end, sum(entry.events for entry, _ in gathered))
        if not parts:
            parts.append(Batch.of([], Origin.of_records(claim.topic, partition, [], [], claim.stem)))
        return Taken(partition, start, end, Batch.concat(parts), tuple(undecodable))

    def _rebalance(self) -> None:
        """Take the partitions that are this reader's now, and give up the others."""
        own = self._channel.partitions(self)
        if gone := self.positions.keys() - own:
            self._owner.revoked(set(gone))
            for partition in gone:
                del self.positions[partition], self._claims[partition]
            self.rewind({})
        self.held &= own
        if new := self.held - self.positions.keys():
            committed = dict(map(self._channel.committed, new))
            answer = self._owner.assigned({claim: position or None for claim, position in committed.items()})
            starts = {claim: position or 0 for claim, position in answer.items()}
            self._channel.commit(starts)
            self._claims.update({claim.partition: claim for claim in starts})
            self.rewind({claim.partition: position for claim, position in starts.items()})

    def commit(self, positions: Mapping[PartitionClaim, int]) -> None:
        """See `Reader`."""
        own = {claim: end for claim, end in positions.items() if claim.partition in self.positions}
        self._claims.update({claim.partition: claim for claim in own})
        self._channel.commit(own)

    def rewind(self, positions: Mapping[int, int]) -> None:
        """See `Reader`."""
        self.positions.update(positions)
        self._pushed = None
        self._place = self._log.place(min(self.positions.values(), default=0))
        self._channel.moved()

    def pressed(self) -> bool:
        """See `Reader`."""
        return self._channel.pressed()

    def close(self) -> None:
        """See `Reader`."""
        self._channel.leave(self)
        self.positions.clear()
