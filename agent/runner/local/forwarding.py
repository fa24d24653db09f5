"""Puts what an overflow holds into its channel, in order, once the channel takes it."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from flafka.agent.runner.deadletters.letters import DeadLetters, letters_of_records
from flafka.agent.runner.local.channels import ChannelRunner, PendingPut
from flafka.agent.runner.local.outage import GATE_SECONDS, LatePut, Outage
from flafka.agent.runner.retries import Backoff, Retries, told
from flafka.plugins import Assignment, Batch, FlafkaError, PolledBatch, Reader
from flafka.plugins.errors import ANY_FAILURE
from flafka.plugins.threads import start_thread

FORWARDER_CHECK_SECONDS = 0.2
"""Interval at which the threads of an overflow check whether they have to stop."""
NEARLY_EMPTY = 2
"""Sources can wait for what is left where it is so many times what was just forwarded, or less."""
SETTLE_SECONDS = 5.0
"""Longest wait of a stop for the batch that is being forwarded."""


class Forwarder:
    """The one reader of an overflow, on a thread of its own.

    It forwards one batch after another, and commits each once the channel holds it, or dead letters do. Where a put
    of the batch was late it waits for that put, and leaves the batch out if that comes to a good end.
    """

    def __init__(
        self,
        channel: ChannelRunner,
        overflow: ChannelRunner,
        outage: Outage,
        letters: DeadLetters,
        puts: ThreadPoolExecutor,
        seconds: float,
    ) -> None:
        """`puts` runs the puts into the channel; rejected events are dead letters; `seconds` is `overflowTimeout`."""
        self._channel, self._overflow, self._outage = channel, overflow, outage
        self._letters, self._puts, self._seconds = letters, puts, seconds
        self.looked = threading.Event()
        """Set once it is known whether the overflow holds anything."""
        self._ending = threading.Event()
        self._column = ""
        """Name of the header that has the source of an event in the overflow, and the mark of its late put.

        It stands for version 1 of such events; a later one has a dot and its number behind it.
        """
        self._inherited = False
        """True while the next batch may have been forwarded before, by an earlier agent or reader."""
        self._retries = Retries(f"{channel.path}.overflow")
        self._thread = threading.Thread(target=self._forward_all, name=f"{channel.path}-overflow", daemon=True)

    def start(self) -> None:
        """Look at what the overflow holds, and forward it."""
        start_thread(self._thread)

    def stop(self) -> None:
        """Finish the batch that is being forwarded, unless it takes long; what is left stays in the overflow."""
        self._ending.set()
        self._outage.wake()
        if self._thread.is_alive():
            self._thread.join(2 * SETTLE_SECONDS)

    def marked(self, batch: Batch, owner: str, mark: str) -> Batch:
        """The batch as it goes into the overflow, once `looked` is set; `mark` is that of its late put, or empty."""
        return batch.with_header(self._column, f"{owner} {mark}".rstrip())

    def _forward_all(self) -> None:
        while not self._ending.is_set():
            try:
                self._forward()
                return
            except _Ended:
                return
            except ANY_FAILURE as e:  # whatever it is: what the overflow holds must not stay there
                seconds = self._retries.failed(e, what=f"{self._overflow.path} is not forwarded")
            finally:
                self._outage.open_gate()
            self._ending.wait(seconds)

    def _forward(self) -> None:
        if not self._overflow.wait_until_open(self._ending):
            return
        reader = self._overflow.channel.reader(self, group=None, member=self._channel.path)
        try:
            taken = reader.take(0)
            if taken is not None:
                self._inherited = True
                self._outage.begin("events of an earlier outage are left")
            self.looked.set()
            while not self._ending.is_set():
                if taken is None:
                    taken = self._next(reader)
                else:
                    self._pass_on(taken)
                    reader.commit([taken.assignment.at(taken.offsets.end)])
                    self._retries.recovered()
                    held = self._outage.held()
                    self._channel.metrics.set("OverflowSize", held)
                    nearly = held <= NEARLY_EMPTY * len(taken.batch)
                    taken = self._outage.end_or_take(reader) if nearly else None
        finally:
            reader.close()

    def _next(self, reader: Reader) -> PolledBatch | None:
        """Return the next records to forward; None where there are none now."""
        if not self._outage.wait(self._ending):
            return None
        taken = reader.take(FORWARDER_CHECK_SECONDS)
        if taken is None and self._channel.ready.is_set():
            self._outage.well()
        return taken or self._outage.end_or_take(reader)

    def _pass_on(self, taken: PolledBatch) -> None:
        """Return when the channel holds it, or the dead letters do. Raises _Ended."""
        if taken.undecodable:
            letters = letters_of_records(self._overflow.path, taken)
            self._insist(partial(self._puts.submit, self._letters.put, letters))
        inherited, self._inherited = self._inherited, False
        metrics = self._channel.metrics
        for batch, owners, mark in self._pieces(taken.batch):
            late = self._outage.late(mark)
            if inherited or (mark and late is None):
                metrics.add("OverflowRepeatedCount", len(batch))
            self._insist_on(PendingPut(batch, owners), late)
            metrics.add("OverflowForwardedCount", len(batch))

    def _pieces(self, batch: Batch) -> Iterator[tuple[Batch, Sequence[str], str]]:
        """Split a batch by late put: each part with the source of each row, and the mark of its put.

        Raises FlafkaError for events of another version.
        """
        names = [name for name in batch.header_names if name.startswith(self._column)]
        if len(batch) and names != [self._column]:
            version = names[0].removeprefix(f"{self._column}.") if names else "0"
            raise FlafkaError(
                f"{self._overflow.path} holds events of version {version}, and this agent reads version 1: let the "
                "agent that wrote them forward them, with brokers that answer, and start this agent after that"
            )
        told = [text.partition(" ") for text in batch.header(self._column).to_pylist()]
        whole = Batch(batch.without_header(self._column).records)
        start = 0
        for mark, rows in itertools.groupby(told, key=lambda parts: parts[2]):
            owners = [owner for owner, _, _ in rows]
            yield whole.slice(start, len(owners)), owners, mark
            start += len(owners)

    def _insist_on(self, pending: PendingPut, late: LatePut | None) -> None:
        """Wait for the put that is late, and for others of the batch until one of them comes to a good end."""

        def failed() -> None:
            nonlocal pending
            if late is not None and late.pending.result is not None:
                pending = late.pending  # the brokers hold it: only its dead letters are left
            if pending.result is None:
                self._channel.metrics.add("OverflowRepeatedCount", len(pending.batch))

        def begin() -> Future[Any]:
            # Not the channel's own `complete`, which would put it into the overflow.
            return self._puts.submit(ChannelRunner.complete, self._channel, pending, self._letters)

        self._insist(begin, late.put if late is not None else None, failed)

    def _insist(
        self,
        begin: Callable[[], Future[Any]],
        put: Future[Any] | None = None,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        """Wait for `put`, and for others that `begin` begins until one of them comes to a good end."""
        backoff = Backoff()
        while True:
            if put is None:
                self._wait_until_ready()
                put = begin()
            error = self._outcome(put)
            if error is None:
                self._outage.well()
                return
            if not isinstance(error, Exception):
                raise error
            seconds = self._retries.failed(error, backoff)
            failed()
            self._outage.trouble(told(error))
            put = None
            if self._ending.wait(seconds):
                raise _Ended

    def _outcome(self, put: Future[Any]) -> BaseException | None:
        began = time.monotonic()
        while not has_ended(put, FORWARDER_CHECK_SECONDS):
            waited = time.monotonic() - began
            if waited > GATE_SECONDS:
                self._outage.open_gate()
            if waited > self._seconds:
                self._outage.trouble("")
            if self._ending.is_set() and waited > SETTLE_SECONDS:
                raise _Ended
        return put.exception()

    def _wait_until_ready(self) -> None:
        while not self._channel.ready.wait(FORWARDER_CHECK_SECONDS):
            self._outage.open_gate()
            if self._ending.is_set():
                raise _Ended

    # --- RebalanceListener

    def assigned(self, committed: Sequence[Assignment]) -> Sequence[Assignment]:
        """Take all partitions. The topic ID is secret, so that no sender can name the header that is made of it."""
        # Up to the dot it is the channel's id; behind it is the run, and what an earlier run has stored comes, too.
        self._column = f"flafka.{committed[0].topic_partition.topic_id.partition('.')[0]}"
        return committed

    def revoked(self, partitions: Collection[int]) -> None:
        """Nobody else reads it."""

    lost = revoked


class _Ended(Exception):
    """The agent stops."""


def has_ended(put: Future[Any], seconds: float) -> bool:
    """Return True if the put ends within so many seconds."""
    try:
        put.exception(seconds)
    except TimeoutError:
        return False
    return True
