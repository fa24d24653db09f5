"""Runs one source: iterate it, intercept, store in its channels, tell it."""

from __future__ import annotations

import functools
import itertools
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import FrameType

from flafka.agent.monitoring.latency import took
from flafka.agent.monitoring.taps import Taps
from flafka.agent.runner.deadletters.letters import DeadLetter, DeadLetters
from flafka.agent.runner.delivery import intercepted
from flafka.agent.runner.local.channels import ChannelRunner, Enqueued, PendingPut
from flafka.agent.runner.local.inflight import InFlight, Turns
from flafka.agent.runner.local.routing import OPTIONAL_PUT_SECONDS, Late, OptionalPuts, Routed, Selector
from flafka.agent.runner.retries import Backoff
from flafka.agent.runner.supervise import Worker, close
from flafka.agent.topology import SourceSpec
from flafka.plugins import Batch, Interceptor, Metrics, Source, Unwritable
from flafka.plugins.errors import ANY_FAILURE, ContractViolation
from flafka.plugins.installed import at_work, described, described_method


class SourceRunner(Worker):
    """A source, its interceptors and its selector.

    `dead_letters`, by channel, keep what that channel can never take.
    """

    def __init__(
        self,
        spec: SourceSpec,
        channels: Mapping[str, ChannelRunner],
        dead_letters: Mapping[str, DeadLetters],
    ) -> None:
        source: Source = spec.make()
        super().__init__(spec.path, source)
        self.source, self.spec = source, spec
        self.dead_letters = dead_letters
        self.give_up = threading.Event()
        """Set when the agent has waited long enough for its channels: batches under way are given up."""
        self.channels = {name: channels[name] for name in spec.channels}
        self.selector = Selector(spec.selector)
        self.taps = Taps()
        self.routed = {name: Metrics() for name in spec.channels}
        """By channel: how many events this source has put into it, as `EventRoutedCount`."""
        self.optional = {name: OptionalPuts(f"{spec.path}-{name}", source.in_flight) for name in spec.channels}
        self.was_open = threading.Event()
        """Set once it takes events for the first time."""
        self._under_way: dict[int, float] = {}
        """Since when the batches are that are not stored yet: by number, in seconds of `time.monotonic`."""
        self._number_anew()
        self.metrics.set_function("UnacknowledgedSeconds", self._waited)
        self.refusing: set[str] = set()
        """Optional channels whose latest put failed."""
        self.interceptors: list[Interceptor] = [i.make() for i in spec.interceptors]
        for interceptor in self.interceptors:
            interceptor.stopping = self.stopping

    def _number_anew(self) -> None:
        """Start numbering at 0, as no batch is in flight."""
        self._numbers = itertools.count()
        """Numbers of batches, in the order of the yields."""
        self._turns = {name: Turns() for name in self.channels}

    def work(self) -> None:
        """Pump batches until the source ends."""
        self._number_anew()
        for interceptor in self.interceptors:
            interceptor.open()
        required = self.spec.selector.required()
        for name, channel in self.channels.items():
            patience = None if name in required else OPTIONAL_PUT_SECONDS
            if not channel.wait_until_it_takes_events(self.stopping, patience):
                return
        self.source.open()
        self.was_open.set()
        self.retries.recovered(tried=False)
        if self.source.in_flight == 1:
            for batch in self._batches():
                if not self.deliver(batch):
                    return
                self.source.stored(batch)
        else:
            self._pump_in_flight(self.source.in_flight)

    def _batches(self) -> Iterator[Batch]:
        """Yield the source's batches. Raises ContractViolation for anything else, which would never be stored."""
        batches: object = self.source.batches()
        if not isinstance(batches, Iterable):
            raise self._no_batch(f"returns {batches!r:.60}", None)
        for batch in batches:
            if not isinstance(batch, Batch):
                raise self._no_batch(f"yields {batch!r:.60}", getattr(batches, "gi_frame", None))
            yield batch

    def _no_batch(self, what: str, frame: FrameType | None) -> ContractViolation:
        place = (frame.f_code.co_filename, frame.f_lineno) if frame is not None else None
        source = type(self.source)
        cls = described(source, place) if place is not None else described_method(source, "batches")
        message = f"batches() of {cls} must yield batches, such as Batch.of([Event(…)]), and {what}"
        return ContractViolation(message)

    def close(self) -> None:
        """Release the source, its interceptors and what waits for optional channels."""
        super().close()
        for puts in self.optional.values():
            puts.close()
        for interceptor in self.interceptors:
            close(interceptor, self.log)

    def _pump_in_flight(self, most: int) -> None:
        """Deliver several batches at once, on threads of their own, which call `stored`."""
        in_flight = InFlight(most, self.path, self.deliver, self.source.stored)
        try:
            for batch in self._batches():
                if not in_flight.put(batch, next(self._numbers)):
                    break
        finally:
            in_flight.close()
        for error in in_flight.failures:
            raise error

    def deliver(self, batch: Batch, number: int | None = None) -> bool:
        """Store one batch in its required channels; tries until it is done. False when the agent gave up.

        `number` is its place among those that are on their way together: behind all others, where none is given.
        """
        number = next(self._numbers) if number is None else number
        since = self._under_way[number] = time.monotonic()
        try:
            if not len(batch):
                return True
            stored = self._deliver(batch, number)
            if stored:
                took(self.metrics, since)
            return stored
        finally:
            self._let_pass(number)
            del self._under_way[number]

    def _let_pass(self, number: int, but: Collection[str] = ()) -> None:
        """Later batches wait for this one no more, except at those channels."""
        for name, turns in self._turns.items():
            if name not in but:
                turns.passed(number)

    def told_to_stop(self) -> str:
        """Explain why the source does not stop; empty where it has ended, or waits for a channel."""
        if not (self.stopping.is_set() and self.thread.is_alive()) or self._under_way:
            return ""
        who, what = described_method(type(self.source), "batches"), at_work(self.thread)
        return (
            f"{who} does not stop: it is in {what}; what blocks has to end soon after "
            "`stopping` is set, such as by a timeout of a second"
        )

    def refused(self) -> bool:
        """Return True while it holds events that a channel has refused to store."""
        return bool(self._under_way) and bool(self.metrics.last_error)

    def _waited(self) -> float:
        oldest = min(self._under_way.copy().values(), default=None)
        return 0.0 if oldest is None else round(time.monotonic() - oldest, 3)

    def _deliver(self, batch: Batch, number: int) -> bool:
        metrics = self.metrics
        metrics.add("EventReceivedCount", len(batch))
        metrics.add("AppendBatchReceivedCount")
        backoff = Backoff()
        kept: Batch | None = None
        rejected: list[DeadLetter] = []
        filtered = 0
        waiting: list[Callable[[], object]] | None = None
        while True:
            try:
                if kept is None:
                    rejected.clear()  # by interceptors of which a later one failed
                    reject = functools.partial(self._reject, rejected)
                    left = intercepted(batch, self.interceptors, self.taps.listeners, reject)
                    kept, filtered = left, len(batch) - len(left) - len(rejected)
                if rejected:
                    self._letters().put(rejected)
                    metrics.add("EventRejectedCount", len(rejected))
                    rejected.clear()
                if waiting is None:
                    routes = self._routed(kept)
                    self._let_pass(number, [routed.channel for routed in routes])
                    waiting = [
                        functools.partial(self._put, routed, number, PendingPut(routed.batch, [self.path]))
                        for routed in routes
                    ]
                while waiting:
                    waiting[0]()
                    waiting.pop(0)
                metrics.add("EventFilteredCount", filtered)
                metrics.add("EventAcceptedCount", len(kept))
                metrics.add("AppendBatchAcceptedCount")
                self.retries.recovered()
                return True
            except ANY_FAILURE as e:  # a batch is given up only when the agent is: not for any error
                self._let_pass(number)
                metrics.add("ChannelWriteFail")
                seconds = self.retries.failed(e, backoff)
                # At a stop, a source waits for brokers to come back, not for a disk that a person has to mend.
                if (self.stopping if isinstance(e, Unwritable) else self.give_up).wait(seconds):
                    self.log.error("stopped before %d events could be stored", len(batch))
                    return False

    def _reject(self, letters: list[DeadLetter], batch: Batch, reasons: Sequence[str]) -> None:
        letters += [DeadLetter(self.path, None, event, reason) for event, reason in zip(batch, reasons, strict=True)]

    def _letters(self) -> DeadLetters:
        """Return the dead letters of the first required channel, or else of the first channel."""
        required = [name for name in self.spec.channels if name in self.spec.selector.required()]
        return self.dead_letters[(required or self.spec.channels)[0]]

    def _routed(self, batch: Batch) -> list[Routed]:
        if not len(batch):
            return []
        if nowhere := self.selector.unrouted(batch):
            self.metrics.add("EventUnroutedCount", nowhere)
        return self.selector.route(batch)

    def _put(self, routed: Routed, number: int, pending: PendingPut) -> None:
        turns = self._turns[routed.channel]
        turns.wait(number)
        try:
            self._put_in_turn(routed, pending, functools.partial(turns.passed, number))
        finally:
            turns.passed(number)

    def _put_in_turn(self, routed: Routed, pending: PendingPut, enqueued: Enqueued) -> None:
        name, _, required = routed
        store = functools.partial(self._store, pending, self.channels[name], enqueued)
        if required:
            store()
            return
        try:
            self.optional[name](store)
        except ANY_FAILURE as e:  # whatever it is, nobody waits for an optional channel
            self.metrics.add("OptionalChannelFail")
            if isinstance(e, Late):
                e.put.add_done_callback(lambda put: self._drop(pending) if put.exception() is not None else None)
            else:
                self._drop(pending)
            if name not in self.refusing:
                self.refusing.add(name)
                self.log.warning("optional channel %s does not take events, which are dropped: %s", name, e)
        else:
            if name in self.refusing:
                self.refusing.discard(name)
                self.log.info("optional channel %s takes events again", name)

    def _drop(self, pending: PendingPut) -> None:
        put = pending if pending.overflow is None else pending.overflow
        lost = len(put.batch if put.result is None else put.result.rejected)
        self.metrics.add("OptionalEventDropCount", lost)

    def _store(self, pending: PendingPut, channel: ChannelRunner, enqueued: Enqueued) -> None:
        rejected = channel.complete(pending, self.dead_letters[channel.name], enqueued)
        if rejected:
            self.metrics.add("EventRejectedCount", rejected)
        self.routed[channel.name].add("EventRoutedCount", len(pending.batch) - rejected)
        for one in channel.taps.listeners:
            one.passed(pending.batch)
