"""Puts into a channel that nobody waits for long."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from functools import partial

OPTIONAL_PUT_SECONDS = 3.0
"""How long a put may take, as long as Flume's channels wait for room."""


class Late(TimeoutError):
    """A put that takes too long, and may still succeed."""

    def __init__(self, put: Future[None]) -> None:
        super().__init__(f"a put has not ended within {OPTIONAL_PUT_SECONDS:.0f} s: the channel may have no room")
        self.put = put


class OptionalPuts:
    """The puts of one source into one optional channel.

    While the channel takes events, the source goes at its pace. Once a put takes too long, what comes is refused at
    once, until that put has ended one way or the other: a channel that hangs costs the source this one wait.
    """

    def __init__(self, name: str, at_once: int) -> None:
        self._begin = partial(ThreadPoolExecutor, at_once, thread_name_prefix=f"{name}-optional")
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._late: set[Future[None]] = set()

    def __call__(self, put: Callable[[], None]) -> None:
        """Run `put`. Raises what it raises; Late where it takes too long, TimeoutError while one before does."""
        with self._lock:
            if self._late:
                raise TimeoutError("it is still busy with a put that takes too long")
            self._pool = self._pool or self._begin()
            under_way = self._pool.submit(put)
        try:
            under_way.result(OPTIONAL_PUT_SECONDS)
        except NotYet:
            with self._lock:
                if not under_way.done():
                    self._late.add(under_way)
                    under_way.add_done_callback(self._ended)
            raise Late(under_way) from None

    def close(self) -> None:
        """End its threads, but for one that hangs in a put; the next put begins others."""
        with self._lock:
            if self._pool is not None:
                self._pool.shutdown(wait=False)
                self._pool = None

    def _ended(self, put: Future[None]) -> None:
        with self._lock:
            self._late.discard(put)
