"""Duration of batches: a gauge of every component, on both runners."""

from __future__ import annotations

import time

from flafka.agent.monitoring.definitions import BATCH
from flafka.plugins import Metrics


def record_batch_duration(metrics: Metrics, since: float) -> None:
    """Set the gauge BatchMilliseconds to the time since `since`, in seconds of `time.monotonic`."""
    metrics.set(BATCH.name, round(1000 * (time.monotonic() - since), 2))
