"""Batches for a sink that is used without an agent, and what it rejects of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from flafka.plugins import Batch, Event, Origin, Rejected, Sink

TIME = 1_700_000_000_000
"""When the first record came."""


def batch(*events: Event, offset: int = 0) -> Batch:
    """One record for each event, each a millisecond later."""
    numbers = np.arange(offset, offset + len(events))
    return Batch.of(events, Origin("app", 0, numbers, np.zeros(len(events), np.int32), TIME + numbers))


def deliver(sink: Sink[Any], *batches: Batch) -> dict[str, str]:
    """Write and flush; what was rejected, by id."""
    rejected: dict[str, str] = {}

    @contextlib.contextmanager
    def rejecting() -> Iterator[None]:
        try:
            yield
        except Rejected as e:
            rejected.update({str(id): reason for id, reason in e.reasons.items()})

    for some in batches:
        with rejecting():
            sink.write(some)
    with rejecting():
        sink.flush()
    return rejected
