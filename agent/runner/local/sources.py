"""Runner of one source: iterate over its batches, intercept, store in channels, and call `stored`."""

from __future__ import annotations

import functools
import itertools
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import FrameType

from flafka.agent.monitoring.definitions import RECEIVED_BYTES
from flafka.agent.monitoring.latency import LatencyWindow, record_batch_duration
from flafka.agent.monitoring.taps import Taps
from flafka.agent.runner.deadletters.store import DeadLetter, DeadLetterStore
from flafka.agent.runner.delivery import intercept
from flafka.agent.runner.local.channels import ChannelRunner, Enqueued, PendingPut
from flafka.agent.runner.local.inflight import InFlight, Sequencer
from flafka.agent.runner.local.routing import OPTIONAL_PUT_SECONDS, OptionalPuts, PutTimeout, Routed, Selector
from flafka.agent.runner.retries import Backoff, describe_error
from flafka.agent.runner.worker import Worker, close_component
from flafka.agent.topology import SourceSpec
from flafka.plugins import Batch, Interceptor, Metrics, Source, Unwritable
from flafka.plugins.errors import ANY_FAILURE, ContractViolation
from flafka.plugins.installed import current_call, describe_class, describe_method


class SourceRunner(Worker):
    """Runner of a source with its interceptors and its channel selector."""

    def __init__(
        self,
        spec: SourceSpec,
        channels: Mapping[str, ChannelRunner],
        dead_letters: Mapping[str, DeadLetterStore],
    ) -> None:
        """`channels` are all channels of the agent by name, of which the source uses those in its configuration.

        `dead_letters` are the stores for events that a channel can never take, by name of the channel.
        """
        source: Source = spec.make()
        super().__init__(spec.path, source)
        self.source, self.spec = source, spec
        self.dead_letters = dead_letters
        self.give_up = threading.Event()
        """Set when the agent stops waiting for its channels: batches in flight are not retried any more."""
        self.channels = {name: channels[name] for name in spec.channels}
        self.selector = Selector(spec.selector)
        self.taps = Taps()
        self.routed = {name: Metrics() for name in spec.channels}
        """Metrics of the routes by channel: `EventRoutedCount` is the number of events put into it."""
        self.optional = {name: OptionalPuts(f"{spec.path}-{name}", source.in_flight) for name in spec.channels}
        self.was_open = threading.Event()
        """Set once the source has opened for the first time."""
        self._in_flight: dict[int, float] = {}
        """Time of `time.monotonic` at which each batch in flight was yielded, by number of the batch."""
        self._restart_numbers()
        self.metrics.set_function("UnacknowledgedSeconds", self._oldest_seconds)
        self._latency = LatencyWindow(self.metrics)
        self.refusing: set[str] = set()
        """Optional channels whose latest put failed."""
        self.interceptors: list[Interceptor] = [interceptor.make() for interceptor in spec.interceptors]
        for interceptor in self.interceptors:
            interceptor.stopping = self.stopping

    def _restart_numbers(self) -> None:
        """Restart batch numbers at 0, with a new sequencer for each channel. Call it while no batch is in flight."""
        self._numbers = itertools.count()
        """Numbers of batches, in the order of the yields."""
        self._sequencers = {name: Sequencer() for name in self.channels}

    def work(self) -> None:
        """Open the interceptors and the source, and deliver batches until the source ends or the agent gives up.

        Before that, wait until all required channels take events, and up to `OPTIONAL_PUT_SECONDS` for each optional
        one. Return at once if `stopping` is set meanwhile. Raises the errors of the source.
        """
        self._restart_numbers()
        for interceptor in self.interceptors:
            interceptor.open()
        required = self.spec.selector.required()
        for name, channel in self.channels.items():
            timeout = None if name in required else OPTIONAL_PUT_SECONDS
            if not channel.wait_until_accepting(self.stopping, timeout):
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
            self._deliver_in_flight(self.source.in_flight)

    def _batches(self) -> Iterator[Batch]:
        """Yield the source's batches.

        Raises ContractViolation for a result that is not iterable, or yields no Batch.
        """
        batches: object = self.source.batches()
        if not isinstance(batches, Iterable):
            raise self._contract_violation(f"returns {batches!r:.60}", None)
        for batch in batches:
            if not isinstance(batch, Batch):
                raise self._contract_violation(f"yields {batch!r:.60}", getattr(batches, "gi_frame", None))
            yield batch

    def _contract_violation(self, what: str, frame: FrameType | None) -> ContractViolation:
        """Return the error for a source whose `batches` does `what`, with the line of `frame` if there is one."""
        place = (frame.f_code.co_filename, frame.f_lineno) if frame is not None else None
        source = type(self.source)
        cls = describe_class(source, place) if place is not None else describe_method(source, "batches")
        message = f"batches() of {cls} must yield batches, such as Batch.of([Event(…)]), and {what}"
        return ContractViolation(message)

    def stop(self) -> None:
        """Set `stopping`, and wake the source. Does not block."""
        self.stopping.set()
        try:
            self.source.wake()
        except ANY_FAILURE as e:  # of a plugin
            self.log.warning("waking failed: %s", describe_error(e))

    def close(self) -> None:
        """Close the source, its interceptors, and the threads of puts into optional channels.

        Errors are only logged.
        """
        super().close()
        for puts in self.optional.values():
            puts.close()
        for interceptor in self.interceptors:
            close_component(interceptor, self.log)

    def _deliver_in_flight(self, limit: int) -> None:
        """Deliver up to `limit` batches at once, on threads that also call the source's `stored` in order.

        Blocks until the source ends, or a batch fails. Raises the first error of these threads.
        """
        in_flight = InFlight(limit, self.path, self.deliver, self.source.stored)
        try:
            for batch in self._batches():
                if not in_flight.put(batch, next(self._numbers)):
                    break
        finally:
            in_flight.close()
        for error in in_flight.failures:
            raise error

    def deliver(self, batch: Batch, number: int | None = None) -> bool:
        """Store one batch in its channels, with retries until all required ones have it, and return True.

        Return False if the agent stops waiting before that. An empty batch returns True at once. `number` is the
        position among the batches in flight; None is the next number. The caller calls the source's `stored`.
        Thread-safe.
        """
        number = next(self._numbers) if number is None else number
        since = self._in_flight[number] = time.monotonic()
        try:
            if not len(batch):
                return True
            stored = self._deliver(batch, number)
            if stored:
                record_batch_duration(self.metrics, since)
                self._latency.add(time.monotonic() - since)
            return stored
        finally:
            self._release(number)
            del self._in_flight[number]

    def _release(self, number: int, except_channels: Collection[str] = ()) -> None:
        """Let later batches pass the batch `number` into all channels except `except_channels`."""
        for name, sequencer in self._sequencers.items():
            if name not in except_channels:
                sequencer.release(number)

    def why_not_stopped(self) -> str:
        """Return the reason why a stopped source does not end: the call in which its own code blocks.

        Empty if the source was not stopped, has ended, or waits for a channel with a batch in flight.
        """
        if not (self.stopping.is_set() and self.thread.is_alive()) or self._in_flight:
            return ""
        who, what = describe_method(type(self.source), "batches"), current_call(self.thread)
        return (
            f"{who} does not stop: it is in {what}; what blocks has to end soon after "
            "`stopping` is set, such as by a timeout of a second"
        )

    def is_refused(self) -> bool:
        """Return True if batches are in flight, and the latest attempt to intercept or put one has failed."""
        return bool(self._in_flight) and bool(self.metrics.last_error)

    def _oldest_seconds(self) -> float:
        """Return the age in seconds of the oldest batch that is not stored yet; 0 if no batch is in flight."""
        oldest = min(self._in_flight.copy().values(), default=None)
        return 0.0 if oldest is None else round(time.monotonic() - oldest, 3)

    def _deliver(self, batch: Batch, number: int) -> bool:
        """Intercept, store dead letters, route and put, each step repeated alone until it succeeds; then return True.

        Return False after a failure if the agent stops waiting. A full disk is not waited for once the source stops.
        """
        metrics = self.metrics
        metrics.add("EventReceivedCount", len(batch))
        metrics.add(RECEIVED_BYTES.name, batch.nbytes)
        metrics.add("AppendBatchReceivedCount")
        backoff = Backoff()
        accepted: Batch | None = None
        rejected: list[DeadLetter] = []
        filtered = 0
        puts: list[Callable[[], object]] | None = None
        while True:
            try:
                if accepted is None:
                    rejected.clear()  # of a failed attempt, in which a later interceptor raised
                    reject = functools.partial(self._reject, rejected)
                    result = intercept(batch, self.interceptors, self.taps.subscribers, reject)
                    accepted, filtered = result, len(batch) - len(result) - len(rejected)
                if rejected:
                    self._dead_letter_store().put(rejected)
                    metrics.add("EventRejectedCount", len(rejected))
                    rejected.clear()
                if puts is None:
                    routes = self._route(accepted)
                    self._release(number, [routed.channel for routed in routes])
                    puts = [
                        functools.partial(self._put, routed, number, PendingPut(routed.batch, [self.path]))
                        for routed in routes
                    ]
                while puts:
                    puts[0]()
                    puts.pop(0)
                metrics.add("EventFilteredCount", filtered)
                metrics.add("EventAcceptedCount", len(accepted))
                metrics.add("AppendBatchAcceptedCount")
                self.retries.recovered()
                return True
            except ANY_FAILURE as e:  # no error ends the retries, as the source may be unable to send events again
                self._release(number)
                metrics.add("ChannelWriteFail")
                seconds = self.retries.failed(e, backoff)
                # At a stop, a source waits for brokers, but not for a disk that a person has to repair.
                if (self.stopping if isinstance(e, Unwritable) else self.give_up).wait(seconds):
                    self.log.error("stopped before %d events could be stored", len(batch))
                    return False

    def _reject(self, dead_letters: list[DeadLetter], batch: Batch, reasons: Sequence[str]) -> None:
        """Append a dead letter for each event of `batch` to `dead_letters`, with the reason at the same index."""
        dead_letters += [
            DeadLetter(self.path, None, event, reason) for event, reason in zip(batch, reasons, strict=True)
        ]

    def _dead_letter_store(self) -> DeadLetterStore:
        """Return the dead letter store of the first required channel; without any, of the first optional channel."""
        required = [name for name in self.spec.channels if name in self.spec.selector.required()]
        return self.dead_letters[(required or self.spec.channels)[0]]

    def _route(self, batch: Batch) -> list[Routed]:
        """Return the parts of a batch by channel, required channels first, and count events without a channel."""
        if not len(batch):
            return []
        if unrouted := self.selector.unrouted(batch):
            self.metrics.add("EventUnroutedCount", unrouted)
        return self.selector.route(batch)

    def _put(self, routed: Routed, number: int, pending: PendingPut) -> None:
        """Put one part into its channel after all earlier batches are released there.

        Raises the errors of required channels.
        """
        sequencer = self._sequencers[routed.channel]
        sequencer.wait(number)
        try:
            self._put_into_channel(routed, pending, functools.partial(sequencer.release, number))
        finally:
            sequencer.release(number)

    def _put_into_channel(self, routed: Routed, pending: PendingPut, enqueued: Enqueued) -> None:
        """Put one part into its channel.

        An error of an optional channel only counts the events as dropped, and is logged once. Raises the errors of a
        required channel.
        """
        name, _, required = routed
        store = functools.partial(self._store, pending, self.channels[name], enqueued)
        if required:
            store()
            return
        try:
            self.optional[name](store)
        except ANY_FAILURE as e:  # no error of an optional channel fails the batch, or has it retried
            self.metrics.add("OptionalChannelFail")
            if isinstance(e, PutTimeout):
                e.put.add_done_callback(
                    lambda put: self._count_dropped(pending) if put.exception() is not None else None
                )
            else:
                self._count_dropped(pending)
            if name not in self.refusing:
                self.refusing.add(name)
                self.log.warning("optional channel %s does not take events, which are dropped: %s", name, e)
        else:
            if name in self.refusing:
                self.refusing.discard(name)
                self.log.info("optional channel %s takes events again", name)

    def _count_dropped(self, pending: PendingPut) -> None:
        """Count the events of a failed put into an optional channel that no store has."""
        put = pending if pending.overflow is None else pending.overflow
        lost = len(put.batch if put.result is None else put.result.rejected)
        self.metrics.add("OptionalEventDropCount", lost)

    def _store(self, pending: PendingPut, channel: ChannelRunner, enqueued: Enqueued) -> None:
        """Complete a put, count routed and rejected events, and show the batch to the taps of the channel."""
        rejected = channel.complete(pending, self.dead_letters[channel.name], enqueued)
        if rejected:
            self.metrics.add("EventRejectedCount", rejected)
        self.routed[channel.name].add("EventRoutedCount", len(pending.batch) - rejected)
        for subscriber in channel.taps.subscribers:
            subscriber.on_batch(pending.batch)
