"""Doubles of `time`, `threading`, `queue` and `concurrent.futures` in a simulation."""

from __future__ import annotations

import concurrent.futures
import math
import queue as real_queue
import threading as real_threading
import time as real_time
from collections import deque
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from greenlet import getcurrent

from tests.simulator.futures import Future, ThreadPoolExecutor, as_completed, wait
from tests.simulator.processes import Process, Signal, Thread
from tests.simulator.world import world


def monotonic() -> float:
    """Simulated."""
    return world().now


def wall() -> float:
    """Simulated, with the error of the machine's clock."""
    return world().wall()


def sleep(seconds: float) -> None:
    """Simulated."""
    world().sleep(seconds)


LONGEST_IDLE_SECONDS = 10.0
"""Longest time for which a thread that polls at short intervals skips its polls (`Signal.idle`)."""
LOOKS_SECONDS = 0.05
"""Interval at which threads with shorter waits poll."""


class Lock:
    """`threading.Lock`."""

    def __init__(self) -> None:
        self._owner: Any = None
        self._freed = Signal(world())

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._owner is None:
            self._owner = True
            return True
        here = world()
        deadline = here.now + timeout if timeout >= 0 else None
        while self._owner is not None:
            if not blocking:
                return False
            remaining = None if deadline is None else deadline - here.now
            if remaining is not None and remaining <= 0:
                return False
            self._freed.wait(remaining)
        self._owner = True
        return True

    def release(self) -> None:
        self._owner = None
        if self._freed.waiting:
            self._freed.fire()

    def locked(self) -> bool:
        return self._owner is not None

    def __enter__(self) -> bool:
        if self._owner is None:
            self._owner = True
            return True
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self._owner = None
        if self._freed.waiting:
            self._freed.fire()


class RLock(Lock):
    """`threading.RLock`."""

    def __init__(self) -> None:
        super().__init__()
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        current, owner = getcurrent(), self._owner
        if owner is not current:
            if owner is not None and not super().acquire(blocking, timeout):
                return False
            self._owner = current
        self._depth += 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
            if self._freed.waiting:
                self._freed.fire()

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        self.release()


class Condition:
    """`threading.Condition`."""

    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = lock or RLock()
        self._notified = Signal(world())
        self._idle = 0.0
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        return self._wait(timeout, 0.0)

    def _wait(self, timeout: float | None, longest: float) -> bool:
        lock = self._lock
        depth = getattr(lock, "_depth", 1)
        for _ in range(depth):
            lock.release()
        fired = self._notified.wait() if timeout is None else self._notified.idle(timeout, longest)
        for _ in range(depth):
            lock.acquire()
        return fired

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        """A thread that waits in vain repeatedly is idle."""
        here = world()
        begun = here.now
        while not (result := predicate()):
            if timeout is None:
                self._wait(None, 0.0)
                continue
            remaining = begun + timeout - here.now
            if remaining <= 0:
                self._idle = min(LONGEST_IDLE_SECONDS, 2 * max(self._idle, timeout))
                return result
            self._wait(remaining, begun + self._idle - here.now)
        self._idle = 0.0
        return result

    def notify(self, n: int = 1) -> None:
        self._notified.fire()

    def notify_all(self) -> None:
        self._notified.fire()


class Event:
    """`threading.Event`."""

    def __init__(self) -> None:
        self._flag = False
        self._signal = Signal(world())
        self._looked = -math.inf

    def is_set(self) -> bool:
        return self._flag

    def set(self) -> None:
        self._flag = True
        self._signal.fire()

    def clear(self) -> None:
        self._flag = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._flag:
            here = world()
            if timeout is not None and timeout < LOOKS_SECONDS:
                if here.now - self._looked > LOOKS_SECONDS:  # once, not again and again
                    self._signal.wait(timeout)
                else:
                    self._signal.idle(LOOKS_SECONDS, LONGEST_IDLE_SECONDS)
                self._looked = here.now
            else:
                here.process.stir()
                self._signal.wait(timeout)
        return self._flag


class Semaphore:
    """`threading.Semaphore`."""

    def __init__(self, value: int = 1) -> None:
        self._value = value
        self._freed = Signal(world())

    def acquire(self) -> bool:
        while not self._value:
            self._freed.wait()
        self._value -= 1
        return True

    def release(self) -> None:
        self._value += 1
        self._freed.fire()

    __enter__ = acquire

    def __exit__(self, *_: object) -> None:
        self.release()


class SimulatedThread:
    """`threading.Thread`."""

    ident: int | None = None
    """The system has no thread for it."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., Any] | None = None,
        name: str | None = None,
        args: Iterable[Any] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self.name, self.daemon = name or "thread", daemon
        self._target, self._args, self._kwargs = target, args, kwargs or {}
        self._process: Process = world().process
        self._thread: Thread | None = None

    def start(self) -> None:
        self._thread = world().spawn(self.run, self.name, world().process)

    def run(self) -> None:
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def join(self, timeout: float | None = None) -> None:
        thread = self._thread
        assert thread is not None, "joined before it was started"
        if not thread.done:
            world().process.stir()
            thread.finished.wait(timeout)

    def is_alive(self) -> bool:
        return self._thread is not None and not self._thread.done


class SimpleQueue:
    """`queue.SimpleQueue`, and `queue.Queue` as far as it is used."""

    def __init__(self, maxsize: int = 0) -> None:
        self._items: deque[Any] = deque()
        self._most = maxsize
        self._changed = Signal(world())

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        deadline = world().now + timeout if timeout is not None else None
        while self._most and len(self._items) >= self._most:
            if not block or (deadline is not None and world().now >= deadline):
                raise real_queue.Full
            self._changed.wait(None if deadline is None else deadline - world().now)
        self._items.append(item)
        self._changed.fire()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        deadline = world().now + timeout if timeout is not None else None
        while not self._items:
            if not block or (deadline is not None and world().now >= deadline):
                raise real_queue.Empty
            self._changed.wait(None if deadline is None else deadline - world().now)
        item = self._items.popleft()
        self._changed.fire()
        return item

    def put_nowait(self, item: Any) -> None:
        self.put(item, block=False)

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def qsize(self) -> int:
        return len(self._items)

    def empty(self) -> bool:
        return not self._items


time = SimpleNamespace(
    **{name: getattr(real_time, name) for name in ("strftime", "gmtime", "localtime", "mktime", "timezone")},
    monotonic=monotonic,
    process_time=lambda: 0.0,
    perf_counter=monotonic,
    monotonic_ns=lambda: int(monotonic() * 1e9),
    time=wall,
    time_ns=lambda: int(wall() * 1e9),
    sleep=sleep,
)
threading = SimpleNamespace(
    Lock=Lock,
    RLock=RLock,
    Condition=Condition,
    Event=Event,
    Semaphore=Semaphore,
    Thread=SimulatedThread,
    current_thread=lambda: world().current,
    get_ident=lambda: id(world().current),
    active_count=lambda: 1,
    main_thread=real_threading.main_thread,
    local=real_threading.local,
)
queue = SimpleNamespace(SimpleQueue=SimpleQueue, Queue=SimpleQueue, Empty=real_queue.Empty, Full=real_queue.Full)

REPLACED: dict[int, Any] = {
    id(real): double
    for real, double in (
        (real_time, time),
        (real_threading, threading),
        (real_queue, queue),
        (real_threading.Event, Event),
        (concurrent.futures.Future, Future),
        (concurrent.futures.ThreadPoolExecutor, ThreadPoolExecutor),
        (concurrent.futures.wait, wait),
        (concurrent.futures.as_completed, as_completed),
    )
}
"""By the real thing's identity: what a module of the project that names it is given instead."""
