"""How long batches take: one figure of every component, whichever runner has it."""

from __future__ import annotations

import time

from flafka.plugins import Metrics

BATCH = "BatchMilliseconds"
"""Gauge: how long the latest batch took that came to a good end.

Of a source: from when it brought the batch until all required channels held it, retries included. Of an interceptor
and of a channel: one call. Of a sink: from when the first event of it was taken from the channel until all of it was
durable, so that a sink that waits for a file to be full shows that wait, too. On Spark: a micro-batch, from its start
to its commit; what interceptors take there is within it."""


def took(metrics: Metrics, since: float) -> None:
    """A batch that began at `since`, of `time.monotonic`, has come to its end."""
    metrics.set(BATCH, round(1000 * (time.monotonic() - since), 2))
