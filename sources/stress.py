"""The source `org.apache.flume.source.StressSource`: events of one size, to measure what comes after it."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator

from flafka.plugins import Batch, Config, Event, Source, option


class StressConfig(Config):
    """Options of Flume's StressSource."""

    size: int = option(500, name="size", unit="bytes", ge=0, le=16 << 20, description="Size of each event's body.")
    total: int = option(
        -1, name="maxTotalEvents", unit="events", description="Number of events to make; negative: without an end."
    )
    successful: int = option(
        -1,
        name="maxSuccessfulEvents",
        unit="events",
        description="The source ends once so many events are stored; negative: without an end. Events that are made "
        "are stored here, so the smaller one of this and maxTotalEvents counts.",
    )
    batch_size: int = option(1, name="batchSize", unit="events", ge=1, description="Number of events in a batch.")
    rate: int = option(
        0, name="maxEventsPerSecond", unit="events/s", description="Upper bound of the rate; 0 or less: none."
    )


class StressSource(Source[StressConfig]):
    """Makes events that are all alike, as fast as they are stored: none is lost while the agent runs."""

    type_name = "stress"
    aliases = ("org.apache.flume.source.StressSource",)

    def sets_headers(self) -> Collection[str]:
        """None."""
        return ()

    def batches(self) -> Iterator[Batch]:
        """Events of bytes 127, as Flume's, until all are made or the agent stops."""
        config = self.config
        left = min((limit for limit in (config.total, config.successful) if limit >= 0), default=None)
        whole = Batch.of([Event(b"\x7f" * config.size)] * config.batch_size)
        started, made = time.monotonic(), 0
        while not self.stopping.is_set() and (left is None or made < left):
            if config.rate > 0 and self.stopping.wait(max(0.0, started + made / config.rate - time.monotonic())):
                return
            batch = whole if left is None else whole.slice(0, left - made)
            made += len(batch)
            yield batch
        if left is not None:
            self.log.info("made all %d events", made)
