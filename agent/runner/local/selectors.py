"""Which events of a batch go to which of a source's channels."""

from __future__ import annotations

import itertools
import random
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
        """How many of its events have no channel at all."""
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
