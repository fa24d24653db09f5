"""Null sink."""

from __future__ import annotations

from types import MappingProxyType

from flafka.plugins import Batch, Config, Sink


class NullConfig(Config):
    """Options of the null sink."""

    options_without_effect = MappingProxyType({"batchSize": "events are dropped"})


class NullSink(Sink[NullConfig]):
    """Drops every event."""

    type_name = "null"
    aliases = ("org.apache.flume.sink.NullSink",)

    def write(self, batch: Batch) -> None:
        """Drop the events."""
