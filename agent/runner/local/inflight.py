"""Several batches of one source in flight at once, and the order in which they come into a channel."""

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
class _UnderWay:
    number: int
    batch: Batch
    delivered: bool = False
    stored: bool = False
    failure: BaseException | None = None


class InFlight:
    """Threads that deliver batches, as many as are needed.

    `stored` is called for batches in the order in which they came, by one thread at a time: the one that has
    delivered the oldest, so that no other thread has to be woken. Once a batch is not stored, `stored` is called for
    no later one: the source's position would pass over it.
    """

    def __init__(
        self, most: int, name: str, deliver: Callable[[Batch, int], bool], stored: Callable[[Batch], None]
    ) -> None:
        """Take at most `most` batches. `deliver` returns True once a batch is stored; then `stored` is called."""
        self._most, self._name, self._deliver, self._stored = most, name, deliver, stored
        self._room = threading.Semaphore(most)
        self._work: queue.SimpleQueue[_UnderWay | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._under_way: deque[_UnderWay] = deque()
        """Batches for which `stored` was not called, the oldest first."""
        self._free = 0
        """Threads that neither deliver nor tell, less the batches that wait for one."""
        self._telling = False
        self.ended = False
        """True once a batch was not stored: no more batches are taken."""
        self.failures: list[BaseException] = []
        """Errors of `deliver` and `stored`."""
        self._start()  # before any batch is taken, which could not be delivered without a thread

    def put(self, batch: Batch, number: int) -> bool:
        """Have it delivered; waits for room. False where one before was not stored: then it is not taken."""
        self._room.acquire()
        if self.ended:
            return False
        one = _UnderWay(number, batch)
        with self._lock:
            self._under_way.append(one)
            self._free -= 1
            if self._free < 0 and len(self._threads) < self._most:
                with contextlib.suppress(RuntimeError):  # the system starts no thread: fewer do it
                    self._start()
        self._work.put(one)
        return True

    def close(self) -> None:
        """Return when all that was put is stored, or has failed."""
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()

    def _start(self) -> None:
        """Start one more thread. Raises RuntimeError where the system starts none."""
        name = f"{self._name}-deliver_{len(self._threads)}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        start_thread(thread, THREAD_START_SECONDS if not self._threads else 0)
        self._threads.append(thread)
        self._free += 1

    def _run(self) -> None:
        while (one := self._work.get()) is not None:
            try:
                one.stored = self._deliver(one.batch, one.number)
            except BaseException as e:  # noqa: BLE001  # the source's thread raises it
                one.failure = e
            with self._lock:
                one.delivered = True
                tells = not self._telling
                self._telling = True
            while tells and (oldest := self._oldest()) is not None:
                self._tell(oldest)
                self._room.release()
            with self._lock:
                self._free += 1

    def _oldest(self) -> _UnderWay | None:
        """Return the oldest batch if it is delivered; otherwise the thread that delivers it continues."""
        with self._lock:
            self._telling = bool(self._under_way) and self._under_way[0].delivered
            return self._under_way.popleft() if self._telling else None

    def _tell(self, one: _UnderWay) -> None:
        try:
            if one.failure is not None:
                raise one.failure
            self.ended = self.ended or not one.stored
            if not self.ended:
                self._stored(one.batch)
        except BaseException as e:  # noqa: BLE001  # the source's thread raises it
            self.ended = True
            self.failures.append(e)


class Turns:
    """Sequencing of batches into one channel: batches have the numbers 0, 1, 2… and enter the channel in this order.

    A batch waits until all earlier ones have passed: they are enqueued there, do not go there, or have failed.
    A failed batch is retried out of turn, so that it blocks no other batch meanwhile.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._next = 0
        self._passed: set[int] = set()
        """Later ones than the next that have passed already."""

    def wait(self, number: int) -> None:
        """Return when it is this batch's turn, or that has passed."""
        with self._changed:
            self._changed.wait_for(lambda: number <= self._next or number in self._passed)

    def passed(self, number: int) -> None:
        """Release the batches that wait for this one. Idempotent."""
        with self._changed:
            if number < self._next:
                return
            self._passed.add(number)
            while self._next in self._passed:
                self._passed.remove(self._next)
                self._next += 1
            self._changed.notify_all()
