"""Channel in Kafka with disk overflow: its events go to a disk of this host during an outage of its brokers."""

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
from flafka.agent.runner.deadletters.store import DeadLetterStore
from flafka.agent.runner.local.channels import ChannelRunner, Enqueued, PendingPut, no_callback, wait_for
from flafka.agent.runner.local.forwarding import FORWARDER_CHECK_SECONDS, Forwarder, has_ended
from flafka.agent.runner.local.outage import BARRIER_SECONDS, InDoubtPut, Outage
from flafka.agent.runner.retries import describe_error, log_failure
from flafka.plugins import Channel, Retry, Unreachable
from flafka.plugins.kafka.topic import KafkaBackedChannel

MAX_PUTS = 1000
"""Maximum number of threads for puts, started as needed. The sources limit their concurrent puts."""
START_OUTAGE_SECONDS = 30.0
"""Time after the start at which brokers count as away even if no error is known yet."""


class OverflowingChannel(ChannelRunner):
    """Channel that puts batches which its brokers do not acknowledge in time into another channel, the overflow.

    The overflow has a single reader, which forwards its events in order. While it holds events, all puts go there, so
    events of a source keep their order. An in-doubt put is not cancelled: its batch goes into the overflow as well,
    and is not forwarded if the put succeeds. Events are therefore duplicated only if the outcome of a put stays
    unknown: after a kill, a stop during an outage, or an error of the client.
    """

    declared_metrics = OVERFLOW

    def __init__(
        self,
        path: str,
        name: str,
        channel: Channel,
        audit: Audit | None,
        overflow: ChannelRunner,
        store: DeadLetterStore,
        seconds: float,
    ) -> None:
        """`channel` is the channel in Kafka, and `overflow` the runner of the channel on disk.

        `store` is for events that the channel can never take. `seconds` is `overflowTimeout`. `audit` may be None.
        """
        super().__init__(path, name, channel, audit)
        self.overflow = overflow
        self._seconds = seconds
        self._puts = ThreadPoolExecutor(MAX_PUTS, thread_name_prefix=f"{path}-put")
        self._outage = Outage(self.metrics, self.log, overflow, seconds)
        self._forwarder = Forwarder(self, overflow, self._outage, store, self._puts, seconds)
        self._run, self._numbers = uuid.uuid4().hex, itertools.count()
        """Parts of the correlation ID of an in-doubt put: ID of this run, and serial numbers."""
        self.metrics.degradation = self._outage.describe

    # --- start and stop

    def start(self) -> None:
        """Start the threads of the channel and of the forwarder."""
        super().start()
        self._forwarder.start()

    def wait_until_accepting(self, stopping: threading.Event, timeout: float | None = None) -> bool:
        """Block until the channel or its overflow takes events, or for `timeout` seconds; None waits without limit.

        Return False only if `stopping` is set before; True also after the timeout. If brokers are away, the outage
        starts after `overflowTimeout`, but not before the first attempt to open the channel has failed. It does not
        start while brokers refuse the client.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        if not wait_for(self._forwarder.scanned, stopping, timeout):
            return False
        began = time.monotonic()
        while not self.ready.wait(FORWARDER_CHECK_SECONDS):
            if stopping.is_set():
                return False
            waited = time.monotonic() - began
            has_failed = self.retries.last is not None or waited > START_OUTAGE_SECONDS
            if waited > self._seconds and has_failed and not self._refusal():
                self._outage.start(self._why_not_open())
            if self._outage.overflowing or time.monotonic() > deadline:
                return True
        return True

    def stop_forwarding(self) -> None:
        """Finish the batch that is being forwarded, and accept no further puts into Kafka.

        Other events stay in the overflow until the next start, with a warning that has their number.
        """
        self._forwarder.stop()
        self._puts.shutdown(wait=False)
        if size := self._outage.overflow_size():
            self.log.warning(
                "%s holds %d events, which are put into %s at the next start", self.overflow.path, size, self.path
            )

    def _refusal(self) -> str:
        """Return the error that keeps the channel from opening; empty if brokers are away or no error is known."""
        last = self.retries.last
        if last is None or isinstance(last, Unreachable):
            return ""
        return describe_error(last)

    def _refused(self) -> str:
        """Return the reason why brokers refuse the puts of the open channel; empty if they do not."""
        return self.channel.refusal if isinstance(self.channel, KafkaBackedChannel) else ""

    def _why_not_open(self) -> str:
        """Return the channel's latest error, or that no broker has answered yet."""
        return self.metrics.last_error or "no broker has answered yet"

    # --- puts

    def complete(self, pending: PendingPut, store: DeadLetterStore, enqueued: Enqueued = no_callback) -> int:
        """Store a batch in Kafka, or in the overflow during an outage. Return the number of dead letters.

        A put that Kafka does not acknowledge within `overflowTimeout` goes into the overflow as well. Raises the
        errors of the channel and of the dead letter store, and Retry until the overflow was read once. Another call
        with the same `pending` then does only the remaining steps.
        """
        if pending.overflow is not None:
            return self._complete_overflow(pending.overflow, store, enqueued)
        if pending.result is not None:
            return super().complete(pending, store, enqueued)
        if not self._forwarder.scanned.is_set():
            raise Retry(f"channel {self.overflow.name} is not open yet")
        if self._outage.enter(self._outage_reason):
            return self._put_into_overflow(pending, store, enqueued)
        attempt = PendingPut(pending.batch, pending.owners)
        try:
            put = self._puts.submit(self._put_into_kafka, attempt, store, enqueued)
        except RuntimeError as e:  # a source that did not end in time may still put after `stop_forwarding`
            raise Retry(f"channel {self.name} is closed") from e
        try:
            error = put.exception(self._seconds)
        except TimeoutError:
            return self._complete_in_doubt(pending, store, enqueued, InDoubtPut(put, attempt))
        if error is None:
            return put.result()
        if isinstance(error, Unreachable):
            self._outage.start(str(error))
        pending.result = attempt.result
        if pending.result is not None or not isinstance(error, Retry) or not self._outage.enter(self._outage_reason):
            raise error
        log_failure(self.log, logging.DEBUG, f"not stored, and put into {self.overflow.path}: {error}", error)
        self.metrics.add("OverflowRepeatedCount", len(pending.batch))
        return self._put_into_overflow(pending, store, enqueued)

    def _outage_reason(self) -> str:
        """Return the reason why puts have to go into the overflow: the channel is not open; empty if it is open.

        Raises Retry if another error than unreachable brokers keeps it from opening, such as refused credentials.
        """
        if self.ready.is_set():
            return ""
        if refusal := self._refusal():
            raise Retry(refusal)
        return self._why_not_open()

    def _put_into_kafka(self, pending: PendingPut, store: DeadLetterStore, enqueued: Enqueued) -> int:
        """Put a batch into the channel in Kafka, counted as in flight meanwhile.

        Return the number of dead letters.
        """
        self._outage.add_in_flight(len(pending.batch))
        try:
            return super().complete(pending, store, enqueued)
        finally:
            self._outage.add_in_flight(-len(pending.batch))

    def _put_into_overflow(
        self, pending: PendingPut, store: DeadLetterStore, enqueued: Enqueued, correlation_id: str = ""
    ) -> int:
        """Put a batch into the overflow, after `Outage.enter` or `enter_in_doubt`. Return the number of dead letters.

        `correlation_id` is that of the batch's in-doubt put; empty without one. Raises Retry.
        """
        tagged = self._forwarder.tag(pending.batch, pending.owners[0], correlation_id)
        overflow = PendingPut(tagged, pending.owners)
        try:
            return self._complete_overflow(overflow, store, enqueued)
        finally:
            if overflow.result is not None:
                pending.overflow = overflow
            self.metrics.set("OverflowSize", self._outage.overflow_size())
            self._outage.leave()

    def _complete_overflow(self, overflow: PendingPut, store: DeadLetterStore, enqueued: Enqueued) -> int:
        """Do the remaining steps of a put into the overflow, and return the number of dead letters. Raises Retry."""
        rejected = self.overflow.complete(overflow, store, enqueued)
        self.metrics.add("OverflowEventCount", len(overflow.batch) - rejected)
        return rejected

    def _complete_in_doubt(
        self, pending: PendingPut, store: DeadLetterStore, enqueued: Enqueued, in_doubt: InDoubtPut
    ) -> int:
        """Put the batch of an in-doubt put into the overflow, unless the put ends first.

        Return the number of dead letters. Blocks while brokers refuse the client, and until either store has the
        batch. Raises the error of an ended put, and errors of the dead letter store.
        """
        correlation_id, put = f"{self._run}-{next(self._numbers)}", in_doubt.put
        while True:
            while not self._outage.overflowing and self._refused() and not has_ended(put, FORWARDER_CHECK_SECONDS):
                pass  # brokers that refuse the client are no outage
            if not self._outage.enter_in_doubt(correlation_id, in_doubt):
                pending.result = in_doubt.pending.result
                return put.result()
            try:
                return self._put_into_overflow(pending, store, enqueued, correlation_id)
            except Retry as e:
                if pending.overflow is not None:
                    raise
                log_failure(self.log, logging.DEBUG, f"the overflow does not take an in-doubt put, retrying: {e}", e)
                has_ended(put, BARRIER_SECONDS)
