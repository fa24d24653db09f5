"""Interceptor `host`: a header with the host of the agent."""

from __future__ import annotations

import socket
from collections.abc import Collection

from flafka.interceptors.patterns import preserve_existing_option
from flafka.plugins import Batch, Config, Interceptor, option


class HostConfig(Config):
    """Options of the interceptor `host`."""

    host_header: str = option("host", name="hostHeader", min_length=1, description="Name of the header to set.")
    use_ip: bool = option(
        True,
        name="useIP",
        description="Set the address that this host's name resolves to (often 127.0.1.1 on Debian). If false, set "
        "the host's full name.",
    )
    preserve_existing: bool = preserve_existing_option(False)


class HostInterceptor(Interceptor[HostConfig]):
    """Sets a header to this host's address or name; no event is lost or changed otherwise.

    Not pure: another agent gives another value. If the host's name does not resolve, the interceptor logs it once and
    events pass unchanged.
    """

    type_name = "host"
    aliases = (
        "org.apache.flume.interceptor.HostInterceptor$Builder",
        "org.apache.flume.interceptor.HostInterceptor",
    )
    pure = False
    host: str | None = None
    """Value of the header. Looked up by `open` if None."""

    def open(self) -> None:
        """Look up the address, or with `useIP = false` the full name, of this host.

        If the name does not resolve, log a warning and show the error in the health; there is no exception.
        """
        if self.host is None:
            try:
                self.host = _address() if self.config.use_ip else socket.getfqdn()
            except OSError as e:
                message = f"the name of this host, {socket.gethostname()!r}, does not resolve to an address ({e}): "
                self.log.warning("%s", message + "events get no host header; useIP = false sets the name instead")
                self.metrics.set_error(message + "events get no host header")

    def sets_headers(self) -> Collection[str]:
        """Return the name of the header."""
        return (self.config.host_header,)

    def intercept(self, batch: Batch) -> Batch:
        """Return the events with the header; unchanged if this host's address is unknown.

        With `preserveExisting`, an event that has the header keeps its value.
        """
        if self.host is None:
            return batch
        return batch.with_header(self.config.host_header, self.host, preserve_existing=self.config.preserve_existing)


def _address() -> str:
    """Return the address that this host's name resolves to, preferably IPv4. Raises OSError if there is none."""
    addresses = socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM)
    return str(min(addresses, key=lambda entry: entry[0] != socket.AF_INET)[4][0])
