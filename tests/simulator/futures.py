"""Double of `concurrent.futures` in a simulation."""

from __future__ import annotations

import concurrent.futures
import logging
from collections import deque
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from tests.simulator.processes import Signal
from tests.simulator.world import world


class Future:
    """`concurrent.futures.Future`."""

    def __init__(self) -> None:
        self._done = self._cancelled = self._begun = False
        self._result: Any = None
        self._error: BaseException | None = None
        self._signal = Signal(world())
        self._calls: list[Callable[[Future], None]] = []

    def set_result(self, result: Any) -> None:
        self._done, self._result = True, result
        self._tell()

    def set_exception(self, error: BaseException) -> None:
        self._done, self._error = True, error
        self._tell()

    def add_done_callback(self, call: Callable[[Future], None]) -> None:
        self._calls.append(call)
        if self._done:
            self._tell()

    def _tell(self) -> None:
        self._signal.fire()
        calls, self._calls = self._calls, []
        for call in calls:
            try:
                call(self)
            except Exception:
                logging.getLogger("concurrent.futures").exception("exception calling callback for %r", self)

    def set_running_or_notify_cancel(self) -> bool:
        self._begun = not self._cancelled
        return self._begun

    def cancel(self) -> bool:
        if not self._done and not self._begun:
            self._done = self._cancelled = True
            self._signal.fire()
        return self._cancelled

    def cancelled(self) -> bool:
        return self._cancelled

    def done(self) -> bool:
        return self._done

    def _await(self, timeout: float | None) -> None:
        deadline = world().now + timeout if timeout is not None else None
        if not self._done:
            world().process.stir()
        while not self._done:
            remaining = None if deadline is None else deadline - world().now
            if remaining is not None and remaining <= 0:
                raise TimeoutError
            self._signal.wait(remaining)
        if self._cancelled:
            raise concurrent.futures.CancelledError

    def result(self, timeout: float | None = None) -> Any:
        self._await(timeout)
        if self._error is not None:
            raise self._error
        return self._result

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._await(timeout)
        return self._error


class ThreadPoolExecutor:
    """`concurrent.futures.ThreadPoolExecutor`: a thread for each piece of work, so many of them at once."""

    def __init__(self, max_workers: int = 8, thread_name_prefix: str = "pool") -> None:
        self._most, self._name = max_workers, thread_name_prefix
        self._busy = 0
        self._waiting: deque[tuple[Future, Callable[[], Any]]] = deque()
        self._idle = Signal(world())

    def submit(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Future:
        future = Future()
        self._waiting.append((future, lambda: function(*args, **kwargs)))
        if self._busy < self._most:
            self._busy += 1
            world().spawn(self._work, self._name)
        return future

    def _work(self) -> None:
        while self._waiting:
            future, call = self._waiting.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call())
            except Exception as e:  # belongs to who asked
                future.set_exception(e)
        self._busy -= 1
        self._idle.fire()

    def map(self, function: Callable[..., Any], *items: Iterable[Any]) -> Iterable[Any]:
        futures = [self.submit(function, *each) for each in zip(*items, strict=False)]
        return (future.result() for future in futures)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        if cancel_futures:
            for future, _ in self._waiting:
                future.cancel()
        while wait and self._busy:
            self._idle.wait()

    def __enter__(self) -> ThreadPoolExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


def wait(futures: Iterable[Future], timeout: float | None = None, return_when: str = "ALL_COMPLETED") -> Any:
    """`concurrent.futures.wait`."""
    futures = list(futures)
    deadline = world().now + timeout if timeout is not None else None
    for future in futures:
        while not future._done:
            if return_when == "FIRST_EXCEPTION" and any(f._error is not None for f in futures):
                break
            if deadline is not None and world().now >= deadline:
                break
            future._signal.wait(None if deadline is None else deadline - world().now)
    done = {f for f in futures if f._done}
    return SimpleNamespace(done=done, not_done=set(futures) - done)


def as_completed(futures: Iterable[Future]) -> Iterable[Future]:
    """`concurrent.futures.as_completed`, in the order given."""
    for future in futures:
        while not future._done:
            future._signal.wait()
        yield future
