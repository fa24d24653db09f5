"""Runner of one channel: opens it, keeps it open, and puts batches into it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from flafka.agent.audit.publishing import AUDIT_INTERVAL_SECONDS, Audit
from flafka.agent.monitoring.latency import record_batch_duration
from flafka.agent.monitoring.taps import Taps
from flafka.agent.runner.deadletters.store import DeadLetter, DeadLetterStore
from flafka.agent.runner.worker import Worker
from flafka.plugins import Batch, Channel, Metric, Reader, RebalanceListener, Rejected, Retry

Enqueued = Callable[[], None]
"""Callback for a batch that is enqueued: no later batch can overtake it."""


def no_callback() -> None:
    """Do nothing: the `Enqueued` callback of a batch that is in flight alone."""


class PutResult(NamedTuple):
    """Result of a put: the events that the channel has stored, and those that it can never take."""

    stored: Batch
    rejected: Sequence[DeadLetter]
    """Events that the channel can never take. They are stored as dead letters before the batch counts as stored."""


@dataclass(eq=False)
class PendingPut:
    """Put of a batch into one channel. The caller repeats `ChannelRunner.complete` with it until that returns."""

    batch: Batch
    owners: Sequence[str]
    """Path of the source of each row; a single path stands for all rows."""
    result: PutResult | None = None
    """Result once the channel has stored the batch, after which another put would duplicate the events."""
    overflow: PendingPut | None = None
    """Put into the overflow that replaces this put."""


class ChannelRunner(Worker):
    """Runner of a channel with its audit."""

    declared_metrics: ClassVar[tuple[Metric, ...]] = ()
    """Metrics of the runner, besides the metrics of every channel and the channel's own."""

    def __init__(self, path: str, name: str, channel: Channel, audit: Audit | None = None) -> None:
        """`name` is the channel's name, `path` its full path. `audit` is None if the channel is not audited."""
        super().__init__(path, channel)
        self.name, self.channel, self.audit = name, channel, audit
        self.taps = Taps()
        self.ready = threading.Event()
        self.may_close = threading.Event()
        channel.stopping = threading.Event()  # its own event, as puts in flight continue while the agent drains

    def work(self) -> None:
        """Open the channel and its audit, set `ready`, and report to the audit periodically until `may_close` is set.

        Raises the errors of both, after which `run` closes the channel and calls this again.
        """
        self.channel.open()
        if self.audit is not None:
            self.audit.open()
        self.retries.recovered()
        self.ready.set()
        while not self.may_close.wait(AUDIT_INTERVAL_SECONDS):
            if self.audit is not None:
                self.audit.report_alive()

    def wait_until_open(self, stopping: threading.Event, timeout: float | None = None) -> bool:
        """Block until the channel is open, or for `timeout` seconds; None waits without limit.

        Return False only if `stopping` is set before. Return True also after the timeout, with a channel that is not
        open.
        """
        return wait_for(self.ready, stopping, timeout)

    def wait_until_accepting(self, stopping: threading.Event, timeout: float | None = None) -> bool:
        """Block until events can be put, or for `timeout` seconds; None waits without limit.

        Return False only if `stopping` is set before. Return True also after the timeout, when puts still fail.
        """
        return self.wait_until_open(stopping, timeout)

    def reader(self, owner: RebalanceListener, *, group: str | None, member: str) -> Reader:
        """Return a new reader of the channel for a consumer group; a `group` of None is the channel's default.

        `owner` is notified of assigned, revoked and lost partitions. `member` is the static member ID. Raises Retry.
        """
        return self.channel.reader(owner, group=group, member=member)

    def complete(self, pending: PendingPut, store: DeadLetterStore, enqueued: Enqueued = no_callback) -> int:
        """Store a batch in the channel, and rejected events as dead letters. Return the number of dead letters.

        Raises the errors of the channel and of the dead letter store. Another call with the same `pending` then does
        only the remaining steps. `enqueued` is called at the latest at the return, once no later batch can overtake
        this one.
        """
        if pending.result is None:
            pending.result = self._put(pending, enqueued)
        stored, rejected = pending.result
        if rejected:
            store.put(rejected)
        if self.audit is not None:
            self.audit.put(stored)
        return len(rejected)

    def _put(self, pending: PendingPut, enqueued: Enqueued) -> PutResult:
        """Put a batch into the channel once, and return stored and rejected events.

        Raises Retry, also if it is not open.
        """
        if not self.ready.is_set():
            raise Retry(f"channel {self.name} is not open yet")
        batch, owners, refused = pending.batch, pending.owners, list[DeadLetter]()
        since = time.monotonic()
        try:
            self.channel.put_in_order(batch, enqueued)
        except Rejected as e:
            reasons = {id.index: reason for id, reason in sorted(e.reasons.items())}
            rejected = pa.array([row in reasons for row in range(len(batch))])
            refused = [
                DeadLetter(owners[row % len(owners)], None, event, reason)
                for event, (row, reason) in zip(batch.where(rejected), reasons.items(), strict=True)
            ]
            batch = batch.where(pc.invert(rejected))
        record_batch_duration(self.metrics, since)
        return PutResult(batch, refused)

    def stop_forwarding(self) -> None:
        """Stop the puts that the runner makes by itself: none in this class. Called once all sources have ended."""


def wait_for(event: threading.Event, stopping: threading.Event, timeout: float | None) -> bool:
    """Block until the event is set, or for `timeout` seconds; None waits without limit.

    Return False only if `stopping` is set before, which is noticed within 0.2 s. Return True also after the timeout.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    while not event.wait(0.2):
        if stopping.is_set():
            return False
        if deadline is not None and time.monotonic() > deadline:
            break
    return True
