"""Channel selectors, which divide the batches of a source among its channels, and puts into optional channels."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from flafka.agent.topology import Route, SelectorSpec
from flafka.plugins import Batch


class Routed(NamedTuple):
    """Events of a batch that go to one channel."""

    channel: str
    batch: Batch
    required: bool


class Selector:
    """Channel selector of one source. Thread-safe."""

    def __init__(self, spec: SelectorSpec) -> None:
        self._spec = spec
        self._values = pa.array(list(spec.routes), pa.string())
        self._routes = [*spec.routes.values(), spec.default]  # the last for events with any other value
        self._counter = itertools.count()

    def route(self, batch: Batch) -> list[Routed]:
        """Return the parts of a batch by channel: those for required channels first, each channel at most once.

        A load-balancing selector gives the whole batch to one channel. A multiplexing selector divides it by the
        value of a header. A replicating selector gives all events to each channel. Events without a channel are in no
        part.
        """
        spec = self._spec
        if spec.kind == "load_balancing":
            names = spec.default.required
            index = random.randrange(len(names)) if spec.policy == "random" else next(self._counter) % len(names)
            return [Routed(names[index], batch, True)]
        if not len(self._values):
            return _route_all(batch, spec.default)
        column = batch.header(spec.header)
        values = pc.index_in(column.dictionary, self._values).take(column.indices)
        route_numbers = values.fill_null(len(self._values))
        used = [self._routes[number] for number in sorted(route_numbers.unique().to_pylist())]
        if len(used) == 1:
            return _route_all(batch, used[0])
        routed = []
        for required in (True, False):
            for name in dict.fromkeys(name for route in used for name in route.channels(required=required)):
                includes = [name in route.channels(required=required) for route in self._routes]
                routed.append(Routed(name, batch.where(pa.array(includes).take(route_numbers)), required))
        return routed

    def unrouted(self, batch: Batch) -> int:
        """Return the number of events in the batch whose header value leads to no channel."""
        spec = self._spec
        if all(route.required or route.optional for route in self._routes):
            return 0
        values = pc.index_in(batch.header(spec.header).dictionary_decode(), self._values)
        has_no_channel = [not (route.required or route.optional) for route in self._routes]
        return int(pc.sum(pa.array(has_no_channel).take(values.fill_null(len(self._values)))).as_py() or 0)


def _route_all(batch: Batch, route: Route) -> list[Routed]:
    """Return the whole batch once for each channel of the route, required channels first."""
    return [
        *(Routed(name, batch, True) for name in route.required),
        *(Routed(name, batch, False) for name in route.optional),
    ]


OPTIONAL_PUT_SECONDS = 3.0
"""Longest wait for a put into an optional channel: the time for which Flume's channels wait for room."""


class PutTimeout(TimeoutError):
    """Error for a put that takes too long, and may still succeed."""

    def __init__(self, put: Future[None]) -> None:
        super().__init__(f"a put has not ended within {OPTIONAL_PUT_SECONDS:.0f} s: the channel may have no room")
        self.put = put


class OptionalPuts:
    """Puts of one source into one optional channel. Thread-safe.

    The source waits for each put, up to `OPTIONAL_PUT_SECONDS`. After such a timeout further puts fail at once until
    the late put has ended, so a channel that hangs delays the source only once.
    """

    def __init__(self, name: str, limit: int) -> None:
        """`name` begins the names of threads. `limit` is the maximum number of concurrent puts."""
        self._new_pool = partial(ThreadPoolExecutor, limit, thread_name_prefix=f"{name}-optional")
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._late: set[Future[None]] = set()

    def __call__(self, put: Callable[[], None]) -> None:
        """Run `put` on a thread, and block until it ends, for at most `OPTIONAL_PUT_SECONDS`.

        Raises the errors of `put`. Raises PutTimeout after that time, when the put still runs. Raises TimeoutError,
        without a call of `put`, while an earlier put is late.
        """
        with self._lock:
            if self._late:
                raise TimeoutError("it is still busy with a put that takes too long")
            self._pool = self._pool or self._new_pool()
            future = self._pool.submit(put)
        try:
            future.result(OPTIONAL_PUT_SECONDS)
        except FutureTimeoutError:
            with self._lock:
                if not future.done():
                    self._late.add(future)
                    future.add_done_callback(self._forget_late)
            raise PutTimeout(future) from None

    def close(self) -> None:
        """End idle threads without blocking.

        A thread that hangs in a put ends after that put. A later put starts new threads.
        """
        with self._lock:
            if self._pool is not None:
                self._pool.shutdown(wait=False)
                self._pool = None

    def _forget_late(self, put: Future[None]) -> None:
        with self._lock:
            self._late.discard(put)
