"""Opens one channel, keeps it open, and puts into it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from flafka.agent.audit.publishing import AUDIT_INTERVAL_SECONDS, Audit
from flafka.agent.monitoring.latency import took
from flafka.agent.monitoring.taps import Taps
from flafka.agent.runner.deadletters.letters import DeadLetter, DeadLetters
from flafka.agent.runner.supervise import Worker
from flafka.plugins import Batch, Channel, Metric, Reader, RebalanceListener, Rejected, Retry

Enqueued = Callable[[], None]


def nobody_waits() -> None:
    """`enqueued` of a batch that is on its way alone."""


class PutResult(NamedTuple):
    """Result of a put: the batch is in the channel, but for what it can never take."""

    stored: Batch
    rejected: Sequence[DeadLetter]
    """Events that the channel can never take. They are kept as dead letters before the batch counts as stored."""


@dataclass(eq=False)
class PendingPut:
    """A batch on its way into one channel. `ChannelRunner.complete` is repeated with it until it returns."""

    batch: Batch
    owners: Sequence[str]
    """Path of the source of each row, or of all rows."""
    result: PutResult | None = None
    """Unset while the channel does not hold it. Afterwards another put would store the events twice."""
    overflow: PendingPut | None = None
    """The put into the overflow that has taken its place."""


class ChannelRunner(Worker):
    """A channel with its audit."""

    declared_metrics: ClassVar[tuple[Metric, ...]] = ()
    """Metrics of the runner, besides the ones of every channel and the channel's own."""

    def __init__(self, path: str, name: str, channel: Channel, audit: Audit | None = None) -> None:
        super().__init__(path, channel)
        self.name, self.channel, self.audit = name, channel, audit
        self.taps = Taps()
        self.ready = threading.Event()
        self.may_close = threading.Event()
        channel.stopping = threading.Event()  # puts under way go on while the agent drains

    def work(self) -> None:
        """Open, and wait; tell the audit now and then."""
        self.channel.open()
        if self.audit is not None:
            self.audit.open()
        self.retries.recovered()
        self.ready.set()
        while not self.may_close.wait(AUDIT_INTERVAL_SECONDS):
            if self.audit is not None:
                self.audit.alive()

    def wait_until_open(self, stopping: threading.Event, patience: float | None = None) -> bool:
        """Return when it is open, or after so many seconds of patience; False where `stopping` came first."""
        return wait_for(self.ready, stopping, patience)

    def wait_until_it_takes_events(self, stopping: threading.Event, patience: float | None = None) -> bool:
        """Return when events can be put, as `wait_until_open` does."""
        return self.wait_until_open(stopping, patience)

    def reader(self, owner: RebalanceListener, *, group: str | None, member: str) -> Reader:
        """A consumer of it: see `Channel.reader`."""
        return self.channel.reader(owner, group=group, member=member)

    def complete(self, pending: PendingPut, letters: DeadLetters, enqueued: Enqueued = nobody_waits) -> int:
        """Store a batch, and return the number of its dead letters.

        Returns when the channel holds the batch, and the events that it can never take are dead letters. Raises what
        the channel and the dead letters raise; the next call with the same batch does what is left. `enqueued` may be
        called before, see `Channel.put_in_order`.
        """
        if pending.result is None:
            pending.result = self._put(pending, enqueued)
        stored, rejected = pending.result
        if rejected:
            letters.put(rejected)
        if self.audit is not None:
            self.audit.put(stored)
        return len(rejected)

    def _put(self, pending: PendingPut, enqueued: Enqueued) -> PutResult:
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
        took(self.metrics, since)
        return PutResult(batch, refused)

    def stop_forwarding(self) -> None:
        """No source puts anything any more: whatever puts into the channel on its own ends."""


def wait_for(event: threading.Event, stopping: threading.Event, patience: float | None) -> bool:
    """Return when it is set, or after so many seconds of patience; False where `stopping` came first."""
    deadline = None if patience is None else time.monotonic() + patience
    while not event.wait(0.2):
        if stopping.is_set():
            return False
        if deadline is not None and time.monotonic() > deadline:
            break
    return True
