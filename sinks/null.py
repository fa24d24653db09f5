"""The null sink."""

from __future__ import annotations

from types import MappingProxyType

from flafka.plugins import Batch, Config, Sink


class NullConfig(Config):
    """Options of the null sink."""

    options_without_effect = MappingProxyType({"batchSize": "nothing is sent anywhere"})


class NullSink(Sink[NullConfig]):
    """Drops every event: all that it takes is gone."""

    type_name = "null"
    aliases = ("org.apache.flume.sink.NullSink",)

    def write(self, batch: Batch) -> None:
        """Forget these events."""
