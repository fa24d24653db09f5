"""A channel in Kafka whose events go to the disk of this host while its brokers are away."""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from flafka.agent.audit.publishing import Audit
from flafka.agent.monitoring.definitions import OVERFLOW
from flafka.agent.runner.deadletters.letters import DeadLetters
from flafka.agent.runner.local.channels import ChannelRunner, HalfStored, Placed, nobody_waits, wait_for
from flafka.agent.runner.local.forwarding import FORWARDER_CHECK_SECONDS, Forwarder, has_ended
from flafka.agent.runner.local.outage import GATE_SECONDS, Outage
from flafka.agent.runner.retries import log_failure, told
from flafka.plugins import Batch, Channel, KafkaBackedChannel, Retry, Unreachable

MOST_PUTS = 1000
"""Threads for puts at once, made as they are needed: a source has its own bound."""
AWAY_AT_START_SECONDS = 30.0
"""At the start brokers count as away after so long, also where it is not known yet what is wrong."""


class OverflowingChannel(ChannelRunner):
    """A channel that puts what its brokers do not acknowledge in time into another one, the overflow.

    The overflow has one reader, which forwards its events in their order. While it holds any, all puts go there, so
    that no event overtakes one that its source has brought before. A put that was late goes on: its batch is in the
    overflow, too, and left out there if that put comes to a good end. So an event is in the channel twice only where
    it is not known what became of an earlier put: after a kill, a stop amid an outage, or an error of the client.
    """

    declared_metrics = OVERFLOW

    def __init__(
        self,
        path: str,
        name: str,
        channel: Channel,
        audit: Audit | None,
        overflow: ChannelRunner,
        letters: DeadLetters,
        seconds: float,
    ) -> None:
        """`letters` keep what the channel can never take; `seconds` is `overflowTimeout`."""
        super().__init__(path, name, channel, audit)
        self.overflow = overflow
        self._seconds = seconds
        self._puts = ThreadPoolExecutor(MOST_PUTS, thread_name_prefix=f"{path}-put")
        self._outage = Outage(self.metrics, self.log, overflow, seconds)
        self._forwarder = Forwarder(self, overflow, self._outage, letters, self._puts, seconds)
        self._run, self._numbers = uuid.uuid4().hex, itertools.count()
        """What marks are made of."""
        self.metrics.degraded = self._outage.told

    # --- life

    def start(self) -> None:
        """Open it, and forward what the overflow holds."""
        super().start()
        self._forwarder.start()

    def wait_until_it_takes_events(self, stopping: threading.Event, patience: float | None = None) -> bool:
        """Return when one of the two can be put into, or after so many seconds of patience; False where `stopping`
        came first.

        Brokers that are away have as long as a put may take, and at least until they were asked once; those that
        refuse to serve us are waited for.
        """
        deadline = math.inf if patience is None else time.monotonic() + patience
        if not wait_for(self._forwarder.looked, stopping, patience):
            return False
        began = time.monotonic()
        while not self.ready.wait(FORWARDER_CHECK_SECONDS):
            if stopping.is_set():
                return False
            waited = time.monotonic() - began
            asked = self.retries.last is not None or waited > AWAY_AT_START_SECONDS
            if waited > self._seconds and asked and not self._refusal():
                self._outage.begin(self._why_not_open())
            if self._outage.overflowing or time.monotonic() > deadline:
                return True
        return True

    def stop_forwarding(self) -> None:
        """Finish the batch that is being forwarded; what is left waits for the next start."""
        self._forwarder.stop()
        self._puts.shutdown(wait=False)
        if left := self._outage.held():
            self.log.warning(
                "%s holds %d events, which are put into %s at the next start", self.overflow.path, left, self.path
            )

    def _refusal(self) -> str:
        """What is wrong with it, where that is no outage; empty while nothing is known, too."""
        last = self.retries.last
        if last is None or isinstance(last, Unreachable):
            return ""
        return told(last)

    def _refused(self) -> str:
        return self.channel.refusal if isinstance(self.channel, KafkaBackedChannel) else ""

    def _why_not_open(self) -> str:
        return self.metrics.last_error or "no broker has answered yet"

    # --- in

    def put(self, batch: Batch, letters: DeadLetters, owner: str, placed: Placed = nobody_waits) -> int:
        """Return when the brokers hold the batch, or, where they are away, this host's disk."""
        if not self._forwarder.looked.is_set():
            raise Retry(f"channel {self.overflow.name} is not open yet")
        if self._outage.enter(self._why_untried):
            return self._keep(batch, letters, owner, placed)
        try:
            put = self._puts.submit(self._store_now, batch, letters, owner, placed)
        except RuntimeError as e:  # a source that did not end in time goes on after `stop_forwarding`
            raise Retry(f"channel {self.name} is closed") from e
        try:
            error = put.exception(self._seconds)
        except TimeoutError:
            return self._keep_late(batch, letters, owner, placed, put)
        if error is None:
            return put.result()
        if isinstance(error, Unreachable):
            self._outage.begin(str(error))
        if isinstance(error, HalfStored) or not isinstance(error, Retry) or not self._outage.enter(self._why_untried):
            raise error
        log_failure(self.log, logging.DEBUG, f"not stored, and put into {self.overflow.path}: {error}", error)
        self.metrics.add("OverflowRepeatedCount", len(batch))
        return self._keep(batch, letters, owner, placed)

    def _why_untried(self) -> str:
        """Why a put goes into the overflow at once; empty where the channel is open. Raises Retry for no outage."""
        if self.ready.is_set():
            return ""
        if refusal := self._refusal():
            raise Retry(refusal)
        return self._why_not_open()

    def _store_now(self, batch: Batch, letters: DeadLetters, owner: str, placed: Placed) -> int:
        self._outage.count_under_way(len(batch))
        try:
            return self.store(batch, letters, [owner], placed)
        finally:
            self._outage.count_under_way(-len(batch))

    def _keep(self, batch: Batch, letters: DeadLetters, owner: str, placed: Placed, mark: str = "") -> int:
        """Put it into the overflow, which it has entered. Raises Retry."""
        try:
            marked = self._forwarder.marked(batch, owner, mark)
            return self._count_kept(len(batch), partial(self.overflow.put, marked, letters, owner, placed))
        finally:
            self.metrics.set("OverflowSize", self._outage.held())
            self._outage.left()

    def _count_kept(self, events: int, put: Callable[[], int]) -> int:
        try:
            rejected = put()
        except HalfStored as e:
            e.rest = partial(self._count_kept, events, e.rest)
            raise
        self.metrics.add("OverflowEventCount", events - rejected)
        return rejected

    def _keep_late(self, batch: Batch, letters: DeadLetters, owner: str, placed: Placed, put: Future[int]) -> int:
        """Put it into the overflow, unless `put` ends while that is not possible."""
        mark = f"{self._run}-{next(self._numbers)}"
        while True:
            while not self._outage.overflowing and self._refused() and not has_ended(put, FORWARDER_CHECK_SECONDS):
                pass  # that is no outage
            if not self._outage.enter_late(mark, put):
                return put.result()
            try:
                return self._keep(batch, letters, owner, placed, mark)
            except HalfStored:
                raise
            except Retry as e:
                log_failure(self.log, logging.DEBUG, f"a put that is late is not kept, trying again: {e}", e)
                has_ended(put, GATE_SECONDS)
