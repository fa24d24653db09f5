"""Batches for a sink without an agent, and the events that it rejects."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from flafka.plugins import Batch, Event, Origin, Rejected, Sink

TIME_MS = 1_700_000_000_000
"""Time of the first record, in milliseconds."""


def batch(*events: Event, offset: int = 0) -> Batch:
    """Return one record for each event, each a millisecond after the one before."""
    numbers = np.arange(offset, offset + len(events))
    return Batch.of(events, Origin("app", 0, numbers, np.zeros(len(events), np.int32), TIME_MS + numbers))


def deliver(sink: Sink[Any], *batches: Batch) -> dict[str, str]:
    """Write and flush; return the rejected events by id."""
    rejected: dict[str, str] = {}

    @contextlib.contextmanager
    def rejecting() -> Iterator[None]:
        try:
            yield
        except Rejected as e:
            rejected.update({str(id): reason for id, reason in e.reasons.items()})

    for batch in batches:
        with rejecting():
            sink.write(batch)
    with rejecting():
        sink.flush()
    return rejected
