"""Outage of a channel, during which puts go into its overflow: its reason, begin and end."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple

from flafka.agent.runner.local.channels import ChannelRunner, PendingPut
from flafka.plugins import Metrics, PolledBatch, Reader

GATE_SECONDS = 1.0
"""The longest time for which sources wait when an overflow is about to end."""
COUNTED = ("OverflowEventCount", "OverflowForwardedCount", "OverflowRepeatedCount")
"""Counters of the events stored in the overflow, forwarded, and perhaps repeated."""


class LatePut(NamedTuple):
    """Put into the channel that has not ended within `overflowTimeout`, and is still running."""

    put: Future[int]
    pending: PendingPut

    def release(self, put: Future[int]) -> None:
        """Free the batch once the put has ended, unless its dead letters are left to be stored."""
        if put.exception() is None or self.pending.result is None:
            self.pending.batch, self.pending.result = self.pending.batch.slice(0, 0), None


class Outage:
    """State shared by the puts into a channel and the forwarder of its overflow, guarded by one lock.

    A put into the overflow is counted from `enter`, or `enter_late`, to `left`. The forwarder, one thread, says how
    its own puts fare, and alone ends the outage: while no put is under way into the overflow, and nothing is in it.
    """

    def __init__(self, metrics: Metrics, log: logging.Logger, overflow: ChannelRunner, seconds: float) -> None:
        """`metrics` and `log` are the channel's; `seconds` is `overflowTimeout`."""
        self._metrics, self._log, self._overflow, self._seconds = metrics, log, overflow, seconds
        self._changed = threading.Condition()
        self._reason = ""
        """Reason why puts go into the overflow; empty while they do not."""
        self._began, self._counted = 0.0, (0.0, 0.0, 0.0)
        """Monotonic time at which the outage began, and the counters of `COUNTED` at that time."""
        self._well_since: float | None = None
        """Since when all is acknowledged in time again."""
        self._closed = False
        """True while puts wait, as the overflow is about to end."""
        self._storing = 0
        """Number of puts into the overflow that are under way."""
        self._under_way = 0
        """Number of events in puts into the channel itself that are under way."""
        self._late: dict[str, LatePut] = {}
        """By mark: puts that were late. Their batches are in the overflow."""

    @property
    def overflowing(self) -> bool:
        """True while puts go into the overflow."""
        return bool(self._reason)

    def held(self) -> float:
        """Return the number of events in the overflow."""
        return self._overflow.metrics.get("ChannelSize")

    def told(self) -> str:
        """Return the description of the outage for the health check; empty while puts go into the channel."""
        if not self._reason:
            return ""
        seconds = time.monotonic() - self._began
        return (
            f"overflows into {self._overflow.path} for {seconds:.0f} s, which holds {self.held():.0f} events: "
            f"{self._reason}"
        )

    # --- for puts

    def begin(self, reason: str) -> None:
        """From now on puts go into the overflow."""
        with self._changed:
            self._begin(reason)

    def enter(self, why: Callable[[], str]) -> bool:
        """Return True if a put goes into the overflow; the put is then counted as under way.

        While puts go into the channel, `why` is called: a reason that is not empty begins the outage.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._closed)
            if not self._reason and (reason := why()):
                self._begin(reason)
            self._storing += bool(self._reason)
            return bool(self._reason)

    def enter_late(self, mark: str, late: LatePut) -> bool:
        """Enter the overflow with a batch whose put is late. Return False if that put has ended meanwhile."""
        with self._changed:
            if late.put.done():
                return False
            self._begin(f"no acknowledgement for {self._seconds:.0f} s")
            self._late[mark] = late
            late.put.add_done_callback(late.release)
            self._storing += 1
            return True

    def left(self) -> None:
        """A put into the overflow has ended."""
        with self._changed:
            self._storing -= 1
            self._changed.notify_all()

    def count_under_way(self, change: int) -> None:
        """Change the number of events that are on their way into the channel itself."""
        with self._changed:
            self._under_way += change

    # --- for the forwarder

    def wait(self, ending: threading.Event) -> bool:
        """Return True once puts go into the overflow or `ending` is set, False after a second; `wake` rechecks."""
        with self._changed:
            return bool(self._changed.wait_for(lambda: self._reason or ending.is_set(), GATE_SECONDS))

    def wake(self) -> None:
        """Have who waits look again."""
        with self._changed:
            self._changed.notify_all()

    def late(self, mark: str) -> LatePut | None:
        """The put that was late and has this mark, if it is this agent's."""
        with self._changed:
            return self._late.get(mark)

    def well(self) -> None:
        """The channel takes events."""
        with self._changed:
            if self._well_since is None:
                self._well_since = time.monotonic()

    def trouble(self, reason: str) -> None:
        """The channel does not take events in time; the reason stays what it was where this one is empty."""
        with self._changed:
            self._well_since = None
            self._reason = reason or self._reason
        self.open_gate()

    def open_gate(self) -> None:
        """No put waits any longer for the end."""
        with self._changed:
            self._closed = False
            self._changed.notify_all()

    def end_or_take(self, reader: Reader) -> PolledBatch | None:
        """End if brokers are well and nothing is left in the overflow, else answer what is to be forwarded next.

        While sources put all the time it is never empty: they wait until it is, which takes a moment.
        """
        with self._changed:
            if self._well_since is None or time.monotonic() - self._well_since < self._seconds:
                return None
            self._closed = True
            self._changed.wait_for(lambda: not self._storing, GATE_SECONDS)
            taken = None if self._storing else reader.take(0)
            if taken is None:
                if not self._storing and self._reason:
                    self._end()
                self._closed = False
                self._changed.notify_all()
            return taken

    # --- with the lock held

    def _begin(self, reason: str) -> None:
        if self._reason:
            return
        self._reason, self._began, self._well_since = reason, time.monotonic(), None
        self._counted = self._counts()
        self._metrics.set("Overflowing", 1)
        self._metrics.covered = True
        self._changed.notify_all()
        self._log.warning(
            "overflows into %s, which holds %d events: %s; %d events are under way. What comes now is as safe as "
            "one disk of this host, until the brokers take it",
            *(self._overflow.path, self.held(), reason, self._under_way),
        )

    def _end(self) -> None:
        stored, forwarded, repeated = (
            now - before for now, before in zip(self._counts(), self._counted, strict=True)
        )
        seconds = time.monotonic() - self._began
        self._reason = ""
        self._late.clear()
        self._metrics.set("Overflowing", 0)
        self._metrics.covered = False
        self._log.info(
            "takes events again after %.0f s: %d events went into %s, %d were forwarded, and %d may be in it twice",
            *(seconds, stored, self._overflow.path, forwarded, repeated),
        )

    def _counts(self) -> tuple[float, float, float]:
        stored, forwarded, repeated = (self._metrics.get(name) for name in COUNTED)
        return stored, forwarded, repeated
