"""The null sink."""

from __future__ import annotations

from plugins import Batch, Config, Sink, option


class NullConfig(Config):
    """Options of the null sink."""

    batch_size: int = option(
        100, name="batchSize", unit="events", gt=0, description="Accepted from Flume's files; batches form themselves"
    )


class NullSink(Sink[NullConfig]):
    """Drops every event: what it takes is gone."""

    type_name = "null"
    aliases = ("org.apache.flume.sink.NullSink",)

    def write(self, batch: Batch) -> None:
        """Forget these events."""
