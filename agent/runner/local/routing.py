"""Channel selectors, which divide a batch among the channels of a source, and puts into optional channels."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from functools import partial
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from flafka.agent.topology import Route, SelectorSpec
from flafka.plugins import Batch


class Routed(NamedTuple):
    """Events on their way to one channel."""

    channel: str
    batch: Batch
    required: bool


class Selector:
    """A channel selector at work. Threads may call it at once."""

    def __init__(self, spec: SelectorSpec) -> None:
        self._spec = spec
        self._values = pa.array(list(spec.routes), pa.string())
        self._routes = [*spec.routes.values(), spec.otherwise]  # the last for events whose value is none of these
        self._turn = itertools.count()

    def route(self, batch: Batch) -> list[Routed]:
        """The batch, divided among channels, required ones first. An event may be in none: it has no channel."""
        spec = self._spec
        if spec.kind == "load_balancing":
            names = spec.otherwise.required
            turn = random.randrange(len(names)) if spec.policy == "random" else next(self._turn) % len(names)
            return [Routed(names[turn], batch, True)]
        if not len(self._values):
            return _everything(batch, spec.otherwise)
        column = batch.header(spec.header)
        found = pc.index_in(column.dictionary, self._values).take(column.indices)
        numbers = found.fill_null(len(self._values))
        used = [self._routes[number] for number in sorted(numbers.unique().to_pylist())]
        if len(used) == 1:
            return _everything(batch, used[0])
        routed = []
        for required in (True, False):
            for name in dict.fromkeys(name for route in used for name in route.channels(required=required)):
                takes = [name in route.channels(required=required) for route in self._routes]
                routed.append(Routed(name, batch.where(pa.array(takes).take(numbers)), required))
        return routed

    def unrouted(self, batch: Batch) -> int:
        """Return the number of events in the batch that have no channel at all."""
        spec = self._spec
        if all(route.required or route.optional for route in self._routes):
            return 0
        found = pc.index_in(batch.header(spec.header).dictionary_decode(), self._values)
        none = [not (route.required or route.optional) for route in self._routes]
        return int(pc.sum(pa.array(none).take(found.fill_null(len(self._values)))).as_py() or 0)


def _everything(batch: Batch, route: Route) -> list[Routed]:
    return [
        *(Routed(name, batch, True) for name in route.required),
        *(Routed(name, batch, False) for name in route.optional),
    ]


OPTIONAL_PUT_SECONDS = 3.0
"""Longest time that a put may take, in seconds: as long as Flume's channels wait for room."""


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
