"""A channel in Kafka whose events go to the disk of this host while its brokers are away."""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ClassVar

from agent.audit.publishing import Audit
from agent.runner.deadletters.letters import DeadLetters, letters_of_records
from agent.runner.local.channels import ChannelRunner, HalfStored, Placed, nobody_waits, wait_for
from agent.runner.retries import Backoff, Retries, told
from plugins import Batch, Channel, KafkaBackedChannel, PartitionClaim, Reader, Retry, Taken, Unreachable
from plugins.errors import ANY_FAILURE

MOST_PUTS = 1000
"""Threads for puts at once, made as they are needed: a source has its own bound."""
LOOK_SECONDS = 0.2
ANSWER_SECONDS = 30.0
"""At the start brokers count as away after so long, also where it is not known yet what is wrong."""
GATE_SECONDS = 1.0
"""The longest time for which sources wait when an overflow is about to end."""
NEARLY_EMPTY = 2
"""Sources can wait for what is left where it is so many times what was just forwarded, or less."""
SETTLE_SECONDS = 5.0
"""How long a stop waits for what is being forwarded."""


class OverflowingChannel(ChannelRunner):
    """A channel that puts what its brokers do not acknowledge in time into another one, the overflow.

    The overflow has one reader, which forwards its events in their order. While it holds any, all puts go there, so
    that no event overtakes one that its source has brought before. A put that was late goes on: its batch is in the
    overflow, too, and left out there if that put comes to a good end. So an event is in the channel twice only where
    it is not known what became of an earlier put: after a kill, a stop amid an outage, or an error of the client.
    """

    counters: ClassVar[tuple[str, ...]] = (
        "Overflowing",
        "OverflowSize",
        "OverflowEventCount",
        "OverflowForwardedCount",
        "OverflowRepeatedCount",
    )

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
        self._letters, self._seconds = letters, seconds
        self._puts = ThreadPoolExecutor(MOST_PUTS, thread_name_prefix=f"{path}-put")
        self._changed = threading.Condition()
        self._looked = threading.Event()
        """Set once it is known whether the overflow holds anything."""
        self._ending = threading.Event()
        self._reason = ""
        """Why puts go into the overflow; empty while they do not."""
        self._began, self._counted = 0.0, (0.0, 0.0, 0.0)
        """When that began, and what was counted before."""
        self._well_since: float | None = None
        """Since when all is acknowledged in time again."""
        self._closed = False
        """Whether puts wait, as the overflow is about to end."""
        self._storing = 0
        """How many puts into the overflow are under way."""
        self._under_way = 0
        """How many events are, in puts into the channel itself."""
        self._late: dict[str, Future[int]] = {}
        """By mark: puts that were late. Their batches are in the overflow."""
        self._run, self._numbers = uuid.uuid4().hex, itertools.count()
        """What marks are made of."""
        self._column = ""
        """The header that says of an event in the overflow which source has brought it, and by which late put."""
        self._claims: dict[int, PartitionClaim] = {}
        self._inherited = False
        """Whether what is forwarded next may have been forwarded before: by an agent that was killed."""
        self._forwarding = Retries(f"{path}.overflow")
        self._forwarder = threading.Thread(target=self._forward_all, name=f"{path}-overflow", daemon=True)
        self.metrics.degraded = self._told

    # --- life

    def start(self) -> None:
        """Open it, and forward what the overflow holds."""
        super().start()
        self._forwarder.start()

    def wait_until_it_takes_events(self, stopping: threading.Event, patience: float | None = None) -> bool:
        """Return when one of the two can be put into; False where `stopping` came first.

        Brokers that are away have as long as a put may take, and at least until they were asked once; those that
        refuse to serve us are waited for.
        """
        if not wait_for(self._looked, stopping, patience):
            return False
        began = time.monotonic()
        while not self.ready.wait(LOOK_SECONDS):
            if stopping.is_set():
                return False
            with self._changed:
                waited = time.monotonic() - began
                asked = self.retries.last is not None or waited > ANSWER_SECONDS
                if not self._reason and waited > self._seconds and asked and not self._refusal():
                    self._begin(self._why_not_open())
                if self._reason or (patience is not None and waited > patience):
                    return True
        return True

    def stop_forwarding(self) -> None:
        """Finish the batch that is being forwarded; what is left waits for the next start."""
        self._ending.set()
        with self._changed:
            self._changed.notify_all()
        self._forwarder.join(2 * SETTLE_SECONDS)
        self._puts.shutdown(wait=False)
        if left := self._held():
            self.log.warning("%s holds %d events, which are put into %s at the next start", *self._names(left))

    def _names(self, events: float) -> tuple[str, float, str]:
        return self.overflow.path, events, self.path

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
        if not self._looked.is_set():
            raise Retry(f"channel {self.overflow.name} is not open yet")
        if self._enter():
            return self._keep(batch, letters, owner, placed)
        put = self._puts.submit(self._store_now, batch, letters, owner, placed)
        try:
            error = put.exception(self._seconds)
        except TimeoutError:
            return self._keep_late(batch, letters, owner, placed, put)
        if error is None:
            return put.result()
        with self._changed:
            if isinstance(error, Unreachable):
                self._begin(str(error))
        if isinstance(error, HalfStored) or not isinstance(error, Retry) or not self._enter():
            raise error
        self.metrics.add("OverflowRepeatedCount", len(batch))
        return self._keep(batch, letters, owner, placed)

    def _enter(self) -> bool:
        """Whether a put goes into the overflow; it is counted as under way then."""
        with self._changed:
            self._changed.wait_for(lambda: not self._closed)
            if not self._reason and not self.ready.is_set():
                if refusal := self._refusal():
                    raise Retry(refusal)
                self._begin(self._why_not_open())
            self._storing += bool(self._reason)
            return bool(self._reason)

    def _store_now(self, batch: Batch, letters: DeadLetters, owner: str, placed: Placed) -> int:
        self._count_under_way(len(batch))
        try:
            return self.store(batch, letters, [owner], placed)
        finally:
            self._count_under_way(-len(batch))

    def _count_under_way(self, change: int) -> None:
        with self._changed:
            self._under_way += change

    def _keep(self, batch: Batch, letters: DeadLetters, owner: str, placed: Placed, mark: str = "") -> int:
        """Put it into the overflow. Raises Retry."""
        try:
            marked = batch.with_header(self._column, f"{owner} {mark}".rstrip())
            return self._count_kept(len(batch), partial(self.overflow.put, marked, letters, owner, placed))
        finally:
            self.metrics.set("OverflowSize", self._held())
            with self._changed:
                self._storing -= 1
                self._changed.notify_all()

    def _count_kept(self, events: int, put: Callable[[], int]) -> int:
        """What `put` answers, which puts so many into the overflow."""
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
            while not self._reason and self._refused() and not _ended(put, LOOK_SECONDS):
                pass  # that is no outage
            with self._changed:
                if put.done():
                    return put.result()
                self._begin(f"no acknowledgement for {self._seconds:.0f} s")
                self._late[mark] = put
                self._storing += 1
            try:
                return self._keep(batch, letters, owner, placed, mark)
            except HalfStored:
                raise
            except Retry:
                _ended(put, GATE_SECONDS)

    def _begin(self, reason: str) -> None:
        """From now on puts go into the overflow; with the lock held."""
        if self._reason:
            return
        self._reason, self._began, self._well_since = reason, time.monotonic(), None
        self._counted = self._counts()
        self.metrics.set("Overflowing", 1)
        self.metrics.covered = True
        self._changed.notify_all()
        self.log.warning(
            "overflows into %s, which holds %d events: %s; %d events are under way. What comes now is as safe as "
            "one disk of this host, until the brokers take it",
            *(self.overflow.path, self._held(), reason, self._under_way),
        )

    def _end(self) -> None:
        """Puts go to the brokers again; with the lock held."""
        stored, forwarded, repeated = (
            now - before for now, before in zip(self._counts(), self._counted, strict=True)
        )
        seconds = time.monotonic() - self._began
        self._reason = ""
        self._late.clear()
        self.metrics.set("Overflowing", 0)
        self.metrics.covered = False
        self.log.info(
            "takes events again after %.0f s: %d events went into %s, %d were forwarded, and %d may be in it twice",
            *(seconds, stored, self.overflow.path, forwarded, repeated),
        )

    def _counts(self) -> tuple[float, float, float]:
        """Events stored in the overflow, forwarded, and perhaps repeated, since the start."""
        stored, forwarded, repeated = (self.metrics.get(name) for name in self.counters[2:])
        return stored, forwarded, repeated

    def _held(self) -> float:
        return self.overflow.metrics.get("ChannelSize")

    def _told(self) -> str:
        if not self._reason:
            return ""
        seconds = time.monotonic() - self._began
        return (
            f"overflows into {self.overflow.path} for {seconds:.0f} s, which holds {self._held():.0f} events: "
            f"{self._reason}"
        )

    # --- out of the overflow

    def _forward_all(self) -> None:
        while not self._ending.is_set():
            try:
                self._forward()
                return
            except _Ended:
                return
            except ANY_FAILURE as e:  # whatever it is: what the overflow holds must not stay there
                seconds = self._forwarding.failed(e, what=f"{self.overflow.path} is not forwarded")
            finally:
                self._open_gate()
            self._ending.wait(seconds)

    def _forward(self) -> None:
        if not self.overflow.wait_until_open(self._ending):
            return
        reader = self.overflow.channel.reader(self, group=None, member=self.path)
        try:
            taken = reader.take(0)
            if taken is not None:
                self._inherited = True
                with self._changed:
                    self._begin("events of an earlier outage are left")
            self._looked.set()
            while not self._ending.is_set():
                if taken is None:
                    taken = self._next(reader)
                else:
                    self._pass_on(taken)
                    reader.commit({self._claims[taken.partition]: taken.end})
                    self._forwarding.recovered()
                    self.metrics.set("OverflowSize", self._held())
                    nearly = self._held() <= NEARLY_EMPTY * len(taken.batch)
                    taken = self._last(reader) if nearly else None
        finally:
            reader.close()

    def _next(self, reader: Reader) -> Taken | None:
        """What is to be forwarded next; None where that is nothing now."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._reason or self._ending.is_set(), GATE_SECONDS):
                return None
        taken = reader.take(LOOK_SECONDS)
        if taken is None and self._well_since is None and self.ready.is_set():
            self._well_since = time.monotonic()
        return taken or self._last(reader)

    def _last(self, reader: Reader) -> Taken | None:
        """End the overflow if brokers are well and nothing is left in it, else what is to be forwarded next.

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

    def _open_gate(self) -> None:
        with self._changed:
            self._closed = False
            self._changed.notify_all()

    def _pass_on(self, taken: Taken) -> None:
        """Return when the channel holds it, or the dead letters do. Raises _Ended."""
        if taken.undecodable:
            letters = letters_of_records(self.overflow.path, self._claims[taken.partition], taken)
            self._insist(partial(self._puts.submit, self._letters.put, letters))
        inherited, self._inherited = self._inherited, False
        for batch, owners, mark in self._pieces(taken.batch):
            put = self._late.get(mark)
            if inherited or (mark and put is None):
                self.metrics.add("OverflowRepeatedCount", len(batch))
            self._insist(partial(self._puts.submit, self.store, batch, self._letters, owners), put, len(batch))
            self.metrics.add("OverflowForwardedCount", len(batch))

    def _pieces(self, batch: Batch) -> Iterator[tuple[Batch, Sequence[str], str]]:
        """What was put by the same late put, or by others, with the source of each row, and the mark of that put."""
        told = [text.partition(" ") for text in batch.header(self._column).to_pylist()]
        whole = Batch(batch.without_header(self._column).records)
        start = 0
        for mark, rows in itertools.groupby(told, key=lambda parts: parts[2]):
            owners = [owner for owner, _, _ in rows]
            yield whole.slice(start, len(owners)), owners, mark
            start += len(owners)

    def _insist(self, begin: Callable[[], Future[Any]], put: Future[Any] | None = None, events: int = 0) -> None:
        """Wait for `put`, and for others that `begin` begins until one of them comes to a good end."""
        backoff = Backoff()
        while True:
            if put is None:
                self._wait_until_ready()
                put = begin()
            error = self._outcome(put)
            if error is None:
                if self._well_since is None:
                    self._well_since = time.monotonic()
                return
            if not isinstance(error, Exception):
                raise error
            seconds = self._forwarding.failed(error, backoff)
            if isinstance(error, HalfStored):  # the brokers hold it: only its dead letters are left
                begin = partial(self._puts.submit, error.rest)
            else:
                self.metrics.add("OverflowRepeatedCount", events)
            self._trouble(told(error))
            put = None
            if self._ending.wait(seconds):
                raise _Ended

    def _outcome(self, put: Future[Any]) -> BaseException | None:
        began = time.monotonic()
        while not _ended(put, LOOK_SECONDS):
            waited = time.monotonic() - began
            if waited > GATE_SECONDS:
                self._open_gate()
            if waited > self._seconds:
                self._trouble("")
            if self._ending.is_set() and waited > SETTLE_SECONDS:
                raise _Ended
        return put.exception()

    def _wait_until_ready(self) -> None:
        while not self.ready.wait(LOOK_SECONDS):
            self._open_gate()
            if self._ending.is_set():
                raise _Ended

    def _trouble(self, reason: str) -> None:
        with self._changed:
            self._well_since = None
            self._reason = reason or self._reason
        self._open_gate()

    # --- RebalanceListener

    def assigned(self, committed: Mapping[PartitionClaim, int | None]) -> Mapping[PartitionClaim, int | None]:
        """All of it is this reader's. Its id, which nobody else knows, makes a header that no sender can name."""
        self._claims |= {claim.partition: claim for claim in committed}
        self._column = f"flafka.{next(iter(committed)).topic_id}"
        return committed

    def revoked(self, partitions: Collection[int]) -> None:
        """Nobody else reads it."""

    lost = revoked


class _Ended(Exception):
    """The agent stops."""


def _ended(put: Future[Any], seconds: float) -> bool:
    """Whether it ends within that time."""
    try:
        put.exception(seconds)
    except TimeoutError:
        return False
    return True
