"""A channel in Kafka whose events go to the disk of this host while its brokers are away."""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

from flafka.agent.audit.publishing import Audit
from flafka.agent.monitoring.definitions import OVERFLOW
from flafka.agent.runner.deadletters.letters import DeadLetters
from flafka.agent.runner.local.channels import ChannelRunner, Enqueued, PendingPut, nobody_waits, wait_for
from flafka.agent.runner.local.forwarding import FORWARDER_CHECK_SECONDS, Forwarder, has_ended
from flafka.agent.runner.local.outage import GATE_SECONDS, LatePut, Outage
from flafka.agent.runner.retries import log_failure, told
from flafka.plugins import Channel, Retry, Unreachable
from flafka.plugins.kafka.topic import KafkaBackedChannel

MOST_PUTS = 1000
"""Threads for puts at once, made as they are needed: a source has its own bound."""
AWAY_AT_START_SECONDS = 30.0
"""At the start brokers count as away after so long, also where it is not known yet what is wrong."""


class OverflowingChannel(ChannelRunner):
    """A channel that puts what its brokers do not acknowledge in time into another one, the overflow.

    The overflow has one reader, which forwards its events in their order. While it holds any, all puts go there, so
    that no event overtakes one that its source has brought before. A late put is not cancelled: its batch is in the
    overflow, too, and is not forwarded if that put succeeds. So an event is in the channel twice only where the
    outcome of an earlier put is unknown: after a kill, a stop amid an outage, or an error of the client.
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
        """Events that the channel can never take become dead letters; `seconds` is `overflowTimeout`."""
        super().__init__(path, name, channel, audit)
        self.overflow = overflow
        self._seconds = seconds
        self._puts = ThreadPoolExecutor(MOST_PUTS, thread_name_prefix=f"{path}-put")
        self._outage = Outage(self.metrics, self.log, overflow, seconds)
        self._forwarder = Forwarder(self, overflow, self._outage, letters, self._puts, seconds)
        self._run, self._numbers = uuid.uuid4().hex, itertools.count()
        """Parts of a mark, which names a late put: id of this run, and serial numbers."""
        self.metrics.degraded = self._outage.told

    # --- life

    def start(self) -> None:
        """Open it, and forward what the overflow holds."""
        super().start()
        self._forwarder.start()

    def wait_until_it_takes_events(self, stopping: threading.Event, patience: float | None = None) -> bool:
        """Block until the channel or its overflow takes events, or for `patience` seconds. Return False if `stopping`
        is set before.

        For brokers that are away the outage begins after `overflowTimeout`, but not before they were asked once.
        Brokers that refuse the client are waited for.
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
        """Return the channel's error if that is no outage; empty also while no error is known."""
        last = self.retries.last
        if last is None or isinstance(last, Unreachable):
            return ""
        return told(last)

    def _refused(self) -> str:
        return self.channel.refusal if isinstance(self.channel, KafkaBackedChannel) else ""

    def _why_not_open(self) -> str:
        return self.metrics.last_error or "no broker has answered yet"

    # --- in

    def complete(self, pending: PendingPut, letters: DeadLetters, enqueued: Enqueued = nobody_waits) -> int:
        """Return when the brokers hold the batch, or, where they are away, this host's disk."""
        if pending.overflow is not None:
            return self._complete_overflow(pending.overflow, letters, enqueued)
        if pending.result is not None:
            return super().complete(pending, letters, enqueued)
        if not self._forwarder.looked.is_set():
            raise Retry(f"channel {self.overflow.name} is not open yet")
        if self._outage.enter(self._why_untried):
            return self._keep(pending, letters, enqueued)
        under_way = PendingPut(pending.batch, pending.owners)
        try:
            put = self._puts.submit(self._put_now, under_way, letters, enqueued)
        except RuntimeError as e:  # a source that did not end in time goes on after `stop_forwarding`
            raise Retry(f"channel {self.name} is closed") from e
        try:
            error = put.exception(self._seconds)
        except TimeoutError:
            return self._keep_late(pending, letters, enqueued, LatePut(put, under_way))
        if error is None:
            return put.result()
        if isinstance(error, Unreachable):
            self._outage.begin(str(error))
        pending.result = under_way.result
        if pending.result is not None or not isinstance(error, Retry) or not self._outage.enter(self._why_untried):
            raise error
        log_failure(self.log, logging.DEBUG, f"not stored, and put into {self.overflow.path}: {error}", error)
        self.metrics.add("OverflowRepeatedCount", len(pending.batch))
        return self._keep(pending, letters, enqueued)

    def _why_untried(self) -> str:
        """Return the reason to put into the overflow at once; empty if the channel is open.

        Raises Retry for an error that is no outage.
        """
        if self.ready.is_set():
            return ""
        if refusal := self._refusal():
            raise Retry(refusal)
        return self._why_not_open()

    def _put_now(self, pending: PendingPut, letters: DeadLetters, enqueued: Enqueued) -> int:
        self._outage.count_under_way(len(pending.batch))
        try:
            return super().complete(pending, letters, enqueued)
        finally:
            self._outage.count_under_way(-len(pending.batch))

    def _keep(self, pending: PendingPut, letters: DeadLetters, enqueued: Enqueued, mark: str = "") -> int:
        """Put it into the overflow, which it has entered. Raises Retry."""
        marked = self._forwarder.marked(pending.batch, pending.owners[0], mark)
        kept = PendingPut(marked, pending.owners)
        try:
            return self._complete_overflow(kept, letters, enqueued)
        finally:
            if kept.result is not None:
                pending.overflow = kept
            self.metrics.set("OverflowSize", self._outage.held())
            self._outage.left()

    def _complete_overflow(self, kept: PendingPut, letters: DeadLetters, enqueued: Enqueued) -> int:
        rejected = self.overflow.complete(kept, letters, enqueued)
        self.metrics.add("OverflowEventCount", len(kept.batch) - rejected)
        return rejected

    def _keep_late(self, pending: PendingPut, letters: DeadLetters, enqueued: Enqueued, late: LatePut) -> int:
        """Put it into the overflow, unless the put that is late ends while that is not possible."""
        mark, put = f"{self._run}-{next(self._numbers)}", late.put
        while True:
            while not self._outage.overflowing and self._refused() and not has_ended(put, FORWARDER_CHECK_SECONDS):
                pass  # that is no outage
            if not self._outage.enter_late(mark, late):
                pending.result = late.pending.result
                return put.result()
            try:
                return self._keep(pending, letters, enqueued, mark)
            except Retry as e:
                if pending.overflow is not None:
                    raise
                log_failure(self.log, logging.DEBUG, f"a put that is late is not kept, trying again: {e}", e)
                has_ended(put, GATE_SECONDS)
