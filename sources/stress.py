"""Source `org.apache.flume.source.StressSource`: events of one size, to measure channels and sinks."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator

from flafka.plugins import Batch, Config, Event, Source, option


class StressConfig(Config):
    """Options of Flume's StressSource."""

    size: int = option(500, name="size", unit="bytes", ge=0, le=16 << 20, description="Size of each event's body.")
    total: int = option(
        -1,
        name="maxTotalEvents",
        unit="events",
        description="Number of events to generate; negative: no limit.",
    )
    successful: int = option(
        -1,
        name="maxSuccessfulEvents",
        unit="events",
        description="The source ends once this many events are stored; negative: no limit. Every generated event is "
        "stored here, so the smaller of this and maxTotalEvents counts.",
    )
    batch_size: int = option(1, name="batchSize", unit="events", ge=1, description="Number of events in a batch.")
    rate: int = option(
        0, name="maxEventsPerSecond", unit="events/s", description="Maximum rate; 0 or less: no limit."
    )


class StressSource(Source[StressConfig]):
    """Generate identical events as fast as they are stored; none is lost while the agent runs."""

    type_name = "stress"
    aliases = ("org.apache.flume.source.StressSource",)

    def sets_headers(self) -> Collection[str]:
        """Return no names: the source sets no headers."""
        return ()

    def batches(self) -> Iterator[Batch]:
        """Yield batches of events whose bytes are 127, as in Flume, at most `maxEventsPerSecond`.

        End at the smaller limit of `maxTotalEvents` and `maxSuccessfulEvents`, or when the agent stops.
        """
        config = self.config
        total = min((limit for limit in (config.total, config.successful) if limit >= 0), default=None)
        full_batch = Batch.of([Event(b"\x7f" * config.size)] * config.batch_size)
        started, generated = time.monotonic(), 0
        while not self.stopping.is_set() and (total is None or generated < total):
            if config.rate > 0 and self.stopping.wait(max(0.0, started + generated / config.rate - time.monotonic())):
                return
            batch = full_batch if total is None else full_batch.slice(0, total - generated)
            generated += len(batch)
            yield batch
        if total is not None:
            self.log.info("generated all %d events", generated)
