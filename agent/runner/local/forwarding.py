"""Forwarding of events from an overflow into its channel, in order, once the channel takes events again."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from flafka.agent.runner.deadletters.store import DeadLetterStore, undecodable_dead_letters
from flafka.agent.runner.local.channels import ChannelRunner, PendingPut
from flafka.agent.runner.local.outage import BARRIER_SECONDS, InDoubtPut, Outage
from flafka.agent.runner.retries import Backoff, Retries, describe_error
from flafka.plugins import Assignment, Batch, FlafkaError, PolledBatch, Reader
from flafka.plugins.errors import ANY_FAILURE
from flafka.plugins.threads import start_thread

FORWARDER_CHECK_SECONDS = 0.2
"""Interval at which the threads of an overflow check whether they have to stop."""
NEARLY_EMPTY_BATCHES = 2
"""Size of the overflow, in batches like the last one, up to which puts may be blocked to end the outage."""
SETTLE_SECONDS = 5.0
"""Longest wait of a stop for the batch that is being forwarded."""


class Forwarder:
    """The single reader of an overflow, on a thread of its own.

    Batches are forwarded one after another, and each is committed once the channel has stored it. For the batch of an
    in-doubt put, the forwarder waits for that put, and skips the batch if the put succeeds.
    """

    def __init__(
        self,
        channel: ChannelRunner,
        overflow: ChannelRunner,
        outage: Outage,
        store: DeadLetterStore,
        puts: ThreadPoolExecutor,
        seconds: float,
    ) -> None:
        """`channel` is the channel in Kafka, whose events `overflow` has taken during an `outage`.

        `puts` runs the puts into the channel. `store` is for rejected events. `seconds` is `overflowTimeout`.
        """
        self._channel, self._overflow, self._outage = channel, overflow, outage
        self._store, self._puts, self._seconds = store, puts, seconds
        self.scanned = threading.Event()
        """Set once it is known whether the overflow holds events."""
        self._ending = threading.Event()
        self._header = ""
        """Name of the header with the source of an event in the overflow, and the correlation ID of its in-doubt put.

        The name stands for version 1 of such events. Later versions append a dot and their number.
        """
        self._inherited = False
        """True while the next batch may have been forwarded before, by an earlier agent or reader."""
        self._retries = Retries(f"{channel.path}.overflow")
        self._thread = threading.Thread(target=self._forward_all, name=f"{channel.path}-overflow", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        start_thread(self._thread)

    def stop(self) -> None:
        """Have the thread end after the current batch, which gets up to `SETTLE_SECONDS`. Other events stay.

        Blocks until the thread has ended, for at most twice that time.
        """
        self._ending.set()
        self._outage.wake()
        if self._thread.is_alive():
            self._thread.join(2 * SETTLE_SECONDS)

    def tag(self, batch: Batch, source: str, correlation_id: str) -> Batch:
        """Return the batch with a header that has `source` and `correlation_id`, as it goes into the overflow.

        `source` is the path of the source. `correlation_id` is empty without an in-doubt put. Call it only after
        `scanned` is set.
        """
        return batch.with_header(self._header, f"{source} {correlation_id}".rstrip())

    def _forward_all(self) -> None:
        """Forward until `stop`. After a failure, lift the barrier, wait, and start over with a new reader."""
        while not self._ending.is_set():
            try:
                self._forward()
                return
            except _Stopped:
                return
            except ANY_FAILURE as e:  # without the forwarder, events would stay in the overflow
                seconds = self._retries.failed(e, what=f"{self._overflow.path} is not forwarded")
            finally:
                self._outage.lift_barrier()
            self._ending.wait(seconds)

    def _forward(self) -> None:
        """Read the overflow until `stop`, forward and commit each batch, and end the outage once it can end.

        Events that are found at the start begin an outage.
        """
        if not self._overflow.wait_until_open(self._ending):
            return
        reader = self._overflow.channel.reader(self, group=None, member=self._channel.path)
        try:
            taken = reader.take(0)
            if taken is not None:
                self._inherited = True
                self._outage.start("events of an earlier outage are left")
            self.scanned.set()
            while not self._ending.is_set():
                if taken is None:
                    taken = self._take(reader)
                else:
                    self._forward_batch(taken)
                    reader.commit([taken.assignment.with_offset(taken.offsets.end)])
                    self._retries.recovered()
                    size = self._outage.overflow_size()
                    self._channel.metrics.set("OverflowSize", size)
                    is_nearly_empty = size <= NEARLY_EMPTY_BATCHES * len(taken.batch)
                    taken = self._outage.end_or_take(reader) if is_nearly_empty else None
        finally:
            reader.close()

    def _take(self, reader: Reader) -> PolledBatch | None:
        """Return the next records to forward; None after about a second without an outage, or without any records."""
        if not self._outage.wait(self._ending):
            return None
        taken = reader.take(FORWARDER_CHECK_SECONDS)
        if taken is None and self._channel.ready.is_set():
            self._outage.report_success()
        return taken or self._outage.end_or_take(reader)

    def _forward_batch(self, taken: PolledBatch) -> None:
        """Block until the channel or the dead letter store has all events of a batch.

        Raises _Stopped if the agent stops before, and FlafkaError for events of another version.
        """
        if taken.undecodable:
            dead_letters = undecodable_dead_letters(self._overflow.path, taken)
            self._retry_until_success(partial(self._puts.submit, self._store.put, dead_letters))
        inherited, self._inherited = self._inherited, False
        metrics = self._channel.metrics
        for batch, owners, correlation_id in self._split(taken.batch):
            in_doubt = self._outage.in_doubt_put(correlation_id)
            if inherited or (correlation_id and in_doubt is None):
                metrics.add("OverflowRepeatedCount", len(batch))
            self._put_until_success(PendingPut(batch, owners), in_doubt)
            metrics.add("OverflowForwardedCount", len(batch))

    def _split(self, batch: Batch) -> Iterator[tuple[Batch, Sequence[str], str]]:
        """Yield the parts of a batch in order, each with the sources of its rows and its correlation ID.

        The ID is that of an in-doubt put, or empty. The header of the overflow is removed. Raises FlafkaError for
        events of another version.
        """
        names = [name for name in batch.header_names if name.startswith(self._header)]
        if len(batch) and names != [self._header]:
            version = names[0].removeprefix(f"{self._header}.") if names else "0"
            raise FlafkaError(
                f"{self._overflow.path} holds events of version {version}, and this agent reads version 1: let the "
                "agent that wrote them forward them, with brokers that answer, and start this agent after that"
            )
        parts = [text.partition(" ") for text in batch.header(self._header).to_pylist()]
        original = batch.without_header(self._header).with_origin(None)
        start = 0
        for correlation_id, rows in itertools.groupby(parts, key=lambda parts: parts[2]):
            owners = [owner for owner, _, _ in rows]
            yield original.slice(start, len(owners)), owners, correlation_id
            start += len(owners)

    def _put_until_success(self, pending: PendingPut, in_doubt: InDoubtPut | None) -> None:
        """Wait for the in-doubt put, if there is one, and put the batch only if that fails, until a put succeeds.

        Raises _Stopped if the agent stops before.
        """

        def on_failure() -> None:
            nonlocal pending
            if in_doubt is not None and in_doubt.pending.result is not None:
                pending = in_doubt.pending  # the brokers have the batch, only its dead letters are missing
            if pending.result is None:
                self._channel.metrics.add("OverflowRepeatedCount", len(pending.batch))

        def submit() -> Future[Any]:
            # `complete` of the base class: the channel's own would put the batch into the overflow again.
            return self._puts.submit(ChannelRunner.complete, self._channel, pending, self._store)

        self._retry_until_success(submit, in_doubt.put if in_doubt is not None else None, on_failure)

    def _retry_until_success(
        self,
        submit: Callable[[], Future[Any]],
        put: Future[Any] | None = None,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        """Wait for `put`, and after a failure call `submit` for another put, until one succeeds.

        Each failure is reported to the outage, calls `on_failure`, and is followed by a wait. Raises _Stopped if the
        agent stops before.
        """
        backoff = Backoff()
        while True:
            if put is None:
                self._wait_until_ready()
                put = submit()
            error = self._wait_for_outcome(put)
            if error is None:
                self._outage.report_success()
                return
            if not isinstance(error, Exception):
                raise error
            seconds = self._retries.failed(error, backoff)
            on_failure()
            self._outage.report_failure(describe_error(error))
            put = None
            if self._ending.wait(seconds):
                raise _Stopped

    def _wait_for_outcome(self, put: Future[Any]) -> BaseException | None:
        """Block until the put ends, and return its error; None after a success.

        The barrier is lifted after `BARRIER_SECONDS`, and a failure is reported after `overflowTimeout`. Raises
        _Stopped after `SETTLE_SECONDS` if the agent stops.
        """
        began = time.monotonic()
        while not has_ended(put, FORWARDER_CHECK_SECONDS):
            waited = time.monotonic() - began
            if waited > BARRIER_SECONDS:
                self._outage.lift_barrier()
            if waited > self._seconds:
                self._outage.report_failure("")
            if self._ending.is_set() and waited > SETTLE_SECONDS:
                raise _Stopped
        return put.exception()

    def _wait_until_ready(self) -> None:
        """Block until the channel in Kafka is open, with the barrier lifted.

        Raises _Stopped if the agent stops before.
        """
        while not self._channel.ready.wait(FORWARDER_CHECK_SECONDS):
            self._outage.lift_barrier()
            if self._ending.is_set():
                raise _Stopped

    # --- RebalanceListener

    def assigned(self, committed: Sequence[Assignment]) -> Sequence[Assignment]:
        """Accept the partition, and name the header for sources after the topic ID, which no sender can guess."""
        # The part before the dot identifies the channel. The run behind it differs for events of an earlier run.
        self._header = f"flafka.{committed[0].topic_partition.topic_id.partition('.')[0]}"
        return committed

    def revoked(self, partitions: Collection[int]) -> None:
        """Do nothing, as an overflow has no other reader."""

    lost = revoked


class _Stopped(Exception):
    """Signal that the agent stops."""


def has_ended(put: Future[Any], seconds: float) -> bool:
    """Block until the put ends, for at most `seconds`, and return True if it has ended, also with an error."""
    try:
        put.exception(seconds)
    except TimeoutError:
        return False
    return True
