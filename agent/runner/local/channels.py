"""Opens one channel, keeps it open, and puts into it."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from flafka.agent.audit.publishing import AUDIT_INTERVAL_SECONDS, Audit
from flafka.agent.monitoring.latency import took
from flafka.agent.monitoring.taps import Taps
from flafka.agent.runner.deadletters.letters import DeadLetter, DeadLetters
from flafka.agent.runner.supervise import Worker
from flafka.plugins import Batch, Channel, FlafkaError, Metric, Reader, RebalanceListener, Rejected, Retry

Placed = Callable[[], None]


def nobody_waits() -> None:
    """`placed` of a batch that is on its way alone."""


class HalfStored(Retry):
    """A batch that the channel holds, but for its dead letters, which could not be kept.

    Another put would store the events twice. `rest()` keeps the dead letters; it returns and raises as
    `ChannelRunner.put` does.
    """

    def __init__(self, message: str, rest: Callable[[], Any]) -> None:
        super().__init__(message)
        self.rest = rest


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

    def put(self, batch: Batch, letters: DeadLetters, owner: str, placed: Placed = nobody_waits) -> int:
        """Store a batch from the source with path `owner`, and return the number of its dead letters.

        Returns when the channel holds the batch, and the events that it can never take are dead letters. Raises
        Retry, and HalfStored where the channel holds the batch and the dead letters are not kept. `placed` may be
        called before, see `Channel.put_in_turn`.
        """
        return self.store(batch, letters, [owner], placed)

    def store(self, batch: Batch, letters: DeadLetters, owners: Sequence[str], placed: Placed = nobody_waits) -> int:
        """Store a batch as `put` does; `owners` is the source of each row, or one source of all rows."""
        if not self.ready.is_set():
            raise Retry(f"channel {self.name} is not open yet")
        refused: list[DeadLetter] = []
        since = time.monotonic()
        try:
            self.channel.put_in_turn(batch, placed)
        except Rejected as e:
            reasons = {id.index: reason for id, reason in sorted(e.reasons.items())}
            rejected = pa.array([row in reasons for row in range(len(batch))])
            refused = [
                DeadLetter(owners[row % len(owners)], None, event, reason)
                for event, (row, reason) in zip(batch.where(rejected), reasons.items(), strict=True)
            ]
            batch = batch.where(pc.invert(rejected))
        took(self.metrics, since)
        return self._finish(batch, refused, letters)

    def _finish(self, stored: Batch, refused: list[DeadLetter], letters: DeadLetters) -> int:
        """Keep the dead letters of a stored batch, and report the batch to the audit. Raises HalfStored."""
        if refused:
            try:
                letters.put(refused)
            except FlafkaError as e:
                raise HalfStored(str(e), functools.partial(self._finish, stored, refused, letters)) from e
        if self.audit is not None:
            self.audit.put(stored)
        return len(refused)

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
