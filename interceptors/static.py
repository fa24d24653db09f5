"""Interceptor `static`: a fixed header for every event."""

from __future__ import annotations

from collections.abc import Collection

from flafka.interceptors.patterns import preserve_existing_option
from flafka.plugins import Batch, Config, Interceptor, option


class StaticConfig(Config):
    """Options of the interceptor `static`."""

    key: str = option("key", name="key", min_length=1, description="Name of the header to set.")
    value: str = option("value", name="value", description="Value of the header.")
    preserve_existing: bool = preserve_existing_option(True)


class StaticInterceptor(Interceptor[StaticConfig]):
    """Sets a header to a fixed value; pure, and no event is lost or changed otherwise."""

    type_name = "static"
    aliases = (
        "org.apache.flume.interceptor.StaticInterceptor$Builder",
        "org.apache.flume.interceptor.StaticInterceptor",
    )

    def sets_headers(self) -> Collection[str]:
        """Return the name of the header."""
        return (self.config.key,)

    def intercept(self, batch: Batch) -> Batch:
        """Return the events with the header; with `preserveExisting`, an event that has it keeps its value."""
        return batch.with_header(self.config.key, self.config.value, preserve_existing=self.config.preserve_existing)
