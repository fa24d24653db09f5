"""Duration of batches: one gauge of every component, on either runner."""

from __future__ import annotations

import time

from flafka.agent.monitoring.definitions import BATCH
from flafka.plugins import Metrics


def took(metrics: Metrics, since: float) -> None:
    """A batch that began at `since`, of `time.monotonic`, has come to its end."""
    metrics.set(BATCH.name, round(1000 * (time.monotonic() - since), 2))
