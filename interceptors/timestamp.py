"""Interceptor `timestamp`: a header with the time at which the agent receives an event."""

from __future__ import annotations

import time
from collections.abc import Collection

from flafka.interceptors.patterns import preserve_existing_option
from flafka.plugins import Batch, Config, Interceptor, option


class TimestampConfig(Config):
    """Options of the interceptor `timestamp`."""

    header_name: str = option("timestamp", name="headerName", min_length=1, description="Name of the header to set.")
    preserve_existing: bool = preserve_existing_option(False)


class TimestampInterceptor(Interceptor[TimestampConfig]):
    """Sets a header to the time of arrival, in milliseconds since the epoch; no event is lost or changed otherwise.

    Not pure: a repeated event gets another time.
    """

    type_name = "timestamp"
    aliases = (
        "org.apache.flume.interceptor.TimestampInterceptor$Builder",
        "org.apache.flume.interceptor.TimestampInterceptor",
    )
    pure = False
    clock = staticmethod(time.time)
    """Function that returns the time in seconds since the epoch."""

    def sets_headers(self) -> Collection[str]:
        """Return the name of the header."""
        return (self.config.header_name,)

    def intercept(self, batch: Batch) -> Batch:
        """Return the events with the present time as header, in milliseconds since the epoch.

        With `preserveExisting`, an event that has the header keeps its value.
        """
        now = str(int(self.clock() * 1000))
        return batch.with_header(self.config.header_name, now, preserve_existing=self.config.preserve_existing)
