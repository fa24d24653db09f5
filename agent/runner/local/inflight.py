"""Several batches of one source in flight at once, and their order in a channel."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from flafka.plugins import Batch
from flafka.plugins.threads import THREAD_START_SECONDS, start_thread


@dataclass(eq=False)
class _InFlightBatch:
    number: int
    batch: Batch
    delivered: bool = False
    stored: bool = False
    failure: BaseException | None = None


class InFlight:
    """Threads that deliver batches of one source concurrently, started as they are needed.

    The source's own thread delivers a batch of few events if no other is in flight. No thread has to be woken for it.
    Events that arrive meanwhile form the next batch.

    `stored` is called for batches in the order of `put`, by one thread at a time. That is the thread which has
    delivered the oldest batch, so that no other thread has to be woken. Once a batch fails, `stored` is called for no
    later batch: the source's offset would skip the failed one.
    """

    def __init__(
        self, limit: int, name: str, deliver: Callable[[Batch, int], bool], stored: Callable[[Batch], None]
    ) -> None:
        """Start the first thread, and accept at most `limit` batches at once. `name` begins the names of the threads.

        `deliver` gets a batch and its number. `stored` is called for batches for which `deliver` returns True;
        another result ends the deliveries. Raises RuntimeError if the system refuses the thread.
        """
        self._limit, self._name, self._deliver, self._stored = limit, name, deliver, stored
        self._room = threading.Semaphore(limit)
        self._work: queue.SimpleQueue[_InFlightBatch | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._in_flight: deque[_InFlightBatch] = deque()
        """Batches for which `stored` was not called yet, oldest first."""
        self._free = 0
        """Number of idle threads, less the number of batches that wait for a thread."""
        self._calling = False
        """True while a thread calls `stored`."""
        self.ended = False
        """True once a batch has failed, after which no batch is accepted."""
        self.failures: list[BaseException] = []
        """Errors of `deliver` and `stored`."""
        self._start()  # raises before any batch is accepted, which could not be delivered without a thread

    def put(self, batch: Batch, number: int) -> bool:
        """Give a batch to a thread, or deliver it, and return True; block while `limit` batches are in flight.

        Return False, without the batch, if an earlier batch has failed or was not delivered.
        """
        self._room.acquire()
        if self.ended:
            return False
        in_flight = _InFlightBatch(number, batch)
        with self._lock:
            needs_thread = bool(self._in_flight) or batch.rows is None
            self._in_flight.append(in_flight)
            if needs_thread:
                self._free -= 1
                if self._free < 0 and len(self._threads) < self._limit:
                    with contextlib.suppress(RuntimeError):  # the present threads can deliver the batch as well
                        self._start()
        if needs_thread:
            self._work.put(in_flight)
        else:
            self._deliver_and_call(in_flight)
        return True

    def close(self) -> None:
        """Block until all accepted batches have been tried, and end the threads.

        `stored` was then called for all batches before the first failure.
        """
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()

    def _start(self) -> None:
        """Start one more thread.

        Raises RuntimeError if the system refuses it: at once, or after 5 s for the first thread.
        """
        name = f"{self._name}-deliver_{len(self._threads)}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        start_thread(thread, THREAD_START_SECONDS if not self._threads else 0)
        self._threads.append(thread)
        self._free += 1

    def _run(self) -> None:
        """Deliver batches until None comes."""
        while (in_flight := self._work.get()) is not None:
            self._deliver_and_call(in_flight)
            with self._lock:
                self._free += 1

    def _deliver_and_call(self, in_flight: _InFlightBatch) -> None:
        """Deliver a batch. Then call `stored` for all delivered batches that are the oldest ones. Never raises."""
        try:
            in_flight.stored = self._deliver(in_flight.batch, in_flight.number)
        except BaseException as e:  # noqa: BLE001  # the source's thread raises it
            in_flight.failure = e
        with self._lock:
            in_flight.delivered = True
            is_caller = not self._calling
            self._calling = True
        while is_caller and (oldest := self._pop_oldest()) is not None:
            self._call_stored(oldest)
            self._room.release()

    def _pop_oldest(self) -> _InFlightBatch | None:
        """Remove and return the oldest batch if it is delivered.

        Otherwise return None: the thread that delivers this batch continues the calls of `stored`.
        """
        with self._lock:
            self._calling = bool(self._in_flight) and self._in_flight[0].delivered
            return self._in_flight.popleft() if self._calling else None

    def _call_stored(self, in_flight: _InFlightBatch) -> None:
        """Call `stored` for a batch, unless it or an earlier one has failed; keep an error in `failures`.

        Never raises.
        """
        try:
            if in_flight.failure is not None:
                raise in_flight.failure
            self.ended = self.ended or not in_flight.stored
            if not self.ended:
                self._stored(in_flight.batch)
        except BaseException as e:  # noqa: BLE001  # the source's thread raises it
            self.ended = True
            self.failures.append(e)


class Sequencer:
    """Order of batches into one channel: batches have the numbers 0, 1, 2… and enter the channel in this order.

    A batch waits until all earlier batches are released: they are enqueued there, do not go there, or have failed.
    A failed batch is retried out of order, so that it blocks no other batch meanwhile. Thread-safe.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._next = 0
        self._released: set[int] = set()
        """Numbers after `_next` that are released already."""

    def wait(self, number: int) -> None:
        """Block without a timeout until all smaller numbers, or this number itself, are released."""
        with self._changed:
            self._changed.wait_for(lambda: number <= self._next or number in self._released)

    def release(self, number: int) -> None:
        """Mark the batch `number` as released, so that later batches need not wait for it. Idempotent."""
        with self._changed:
            if number < self._next:
                return
            self._released.add(number)
            while self._next in self._released:
                self._released.remove(self._next)
                self._next += 1
            self._changed.notify_all()
