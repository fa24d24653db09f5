"""Commits of what the sinks on one reader have written.

The order is: events durable, dead letters stored, audit reported, commit of a sink that has a commit log, the offset
of the channel's group.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from flafka.agent.audit.publishing import Tallies
from flafka.agent.runner.delivery import Delivery, Range
from flafka.agent.runner.retries import log_failure
from flafka.plugins import Conflict, NotCommitted, PartitionClaim, Reader


class Commits:
    """Of a sink that keeps a commit record of its own, one partition after another; of simple sinks, all at once.

    A sink of the former kind is the only one. Used by the thread of the reader.
    """

    def __init__(self, deliveries: Sequence[Delivery], tallies: Tallies | None, log: logging.Logger) -> None:
        """`deliveries` are those of the sinks, which share their ranges."""
        self._deliveries, self._first, self._tallies, self._log = deliveries, deliveries[0], tallies, log
        self._ranges, self._committing = self._first.ranges, self._first.committing
        self._untold: dict[PartitionClaim, int] = {}
        """Delivered, and the channel was not told yet."""

    def flush(self, reader: Reader, delivery: Delivery, partitions: Collection[int]) -> bool:
        """Make what that sink has of these partitions durable, and commit the channel. False where it has nothing.

        Raises what the sink, the audit and the channel do.
        """
        due = {p: pending for p, pending in self._ranges.waiting().items() if p in partitions}
        if not due:
            return False
        if self._committing is not None:
            self._commit_each(reader, due)
        else:
            delivery.flush()
            delivery.store_dead_letters()
            flushed = self._ranges.waiting().values()  # a flush covers all of them
            self._report(flushed)
            self._delivered(reader, delivery, flushed)
        return True

    def resume(
        self, claim: PartitionClaim, position: int | None, reader: Reader | None = None
    ) -> tuple[PartitionClaim, int | None]:
        """Return where a partition goes on, given the channel's position: by the sink's commit log if it has one.

        A `reader` that has just been assigned it gets the last record before that position.
        """
        partition = claim.partition
        if self._committing is None:
            claim = claim._replace(record="")
            self._ranges[partition] = Range(claim, position)
            return claim, position
        self._forget_untold({partition})
        self._first.lost({partition})
        found = self._committing.resume(claim, position)
        self._ranges[partition] = Range(found.claim, found.position)
        if reader is not None and found.position is not None:
            reader.read_before(partition, found.position, found.last)
        return found.claim, found.position

    def tell(self, reader: Reader) -> None:
        """Tell the channel what is delivered."""
        if self._untold:
            reader.commit(self._untold)
            self._untold.clear()

    def lost(self, partitions: set[int]) -> None:
        """They are others' now: drop what is held of them."""
        self._forget_untold(partitions)
        for delivery in self._deliveries:
            delivery.lost(partitions)
        for partition in partitions & self._ranges.keys():
            del self._ranges[partition]

    def clear(self) -> None:
        """Forget what the channel was not told: the reader is closed, and another one resumes."""
        self._untold.clear()

    def _commit_each(self, reader: Reader, due: Mapping[int, Range]) -> None:
        committed: list[Range] = []
        try:
            for pending in due.values():
                if self._commit(reader, pending):
                    committed.append(pending)
        finally:
            if committed:  # when one of them fails, those before it are not taken again
                self._delivered(reader, self._first, committed)

    def _commit(self, reader: Reader, pending: Range) -> bool:
        """Stage and commit one partition; on Conflict go on where the other owner left off, and answer False."""
        assert self._committing is not None
        assert pending.start is not None
        assert pending.end is not None
        partition = pending.claim.partition
        try:
            receipt = self._first.stage(pending.claim, pending.start, pending.end)
            self._first.store_dead_letters(partition)
            self._report([pending])
            last = receipt.last._replace(leader_epoch=reader.leader_epoch(partition, pending.end))
            self._committing.commit(replace(receipt, last=last))
        except NotCommitted:
            if self._tallies is not None:
                self._tallies.withdraw(pending.claim, pending.start, pending.end)
            raise
        except Conflict as e:
            log_failure(self._log, logging.WARNING, str(e), e)
            claim, position = self.resume(pending.claim, pending.start)
            if position is not None:
                reader.rewind({partition: position})
                reader.commit({claim: position})
            return False
        return True

    def _report(self, ranges: Iterable[Range]) -> None:
        """Tell the audit what is about to be committed."""
        if self._tallies is not None:
            self._tallies.report(
                (r.claim, r.start, r.end) for r in ranges if r.start is not None and r.end is not None
            )

    def _delivered(self, reader: Reader, delivery: Delivery, ranges: Collection[Range]) -> None:
        """What was taken of these is durable: commit the channel."""
        ends = {pending.claim: pending.end for pending in ranges if pending.end is not None}
        delivery.committed(ranges)
        self._untold.update(ends)
        self.tell(reader)

    def _forget_untold(self, partitions: Collection[int]) -> None:
        """They are others', or have another claim."""
        self._untold = {claim: end for claim, end in self._untold.items() if claim.partition not in partitions}
