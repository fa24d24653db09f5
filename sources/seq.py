"""Source `seq`: numbered events, to test and measure a configuration."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import pyarrow as pa

from flafka.plugins import Batch, Config, Source, option


class SeqConfig(Config):
    """Options of the source `seq`."""

    total_events: int | None = option(
        None,
        name="totalEvents",
        unit="events",
        ge=0,
        description="Number of events to generate. If unset, the source generates events until the agent stops.",
    )
    batch_size: int = option(1000, name="batchSize", unit="events", ge=1, description="Number of events in a batch.")


class SeqSource(Source[SeqConfig]):
    """Generate events 0, 1, 2, …: none is lost or repeated while the agent runs; a new run starts at 0."""

    type_name = "seq"
    aliases = ("org.apache.flume.source.SequenceGeneratorSource",)

    def __init__(self, config: SeqConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._next = 0

    def sets_headers(self) -> Collection[str]:
        """Return no names: the source sets no headers."""
        return ()

    def batches(self) -> Iterator[Batch]:
        """Yield batches of consecutive decimal numbers until `totalEvents` is reached or the agent stops.

        A batch has `batchSize` events; the last one may have fewer.
        """
        total = self.config.total_events
        while not self.stopping.is_set():
            end = self._next + self.config.batch_size
            if total is not None and end >= total:
                end = total
            if end == self._next:
                self.log.info("generated all %d events", end)
                return
            numbers = pa.array(np.arange(self._next, end))
            yield Batch.of_columns(numbers.cast(pa.string()).cast(pa.binary()), {})
            self._next = end
