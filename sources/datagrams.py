"""Base of sources that receive datagrams: reading a UDP port, and counting datagrams that the kernel dropped."""

from __future__ import annotations

import select
import socket
import struct
from typing import ClassVar, TypeVar

from flafka.plugins import Config, Metric, option
from flafka.sources.listening import Endpoint, EndpointSource

MAX_DATAGRAM_BYTES = 1 << 16
"""Upper bound of the size of a datagram."""
_SO_MEMINFO = 55
_DROP_COUNT = struct.Struct("32xI")
"""Ninth number of the value of `SO_MEMINFO`: datagrams dropped since the socket was created, modulo 2³²."""


class DatagramConfig(Config):
    """Options of sources that listen on a UDP port."""

    receive_buffer: int = option(
        4 * 1024 * 1024,
        name="receiveBufferSize",
        description="Kernel buffer for datagrams not yet read. The kernel grants at most `net.core.rmem_max`.",
        unit="bytes",
        ge=4096,
        le=2**30,
    )


D = TypeVar("D", bound=DatagramConfig)


class DatagramSource(EndpointSource[D]):
    """A source that listens on a UDP port. While channels are full, it does not read: the kernel's buffer fills."""

    declared_metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("KernelDropCount", "counter", "datagrams", "Datagrams that the kernel had no room for."),
    )

    def __init__(self, config: D, name: str, host: str, port: int) -> None:
        super().__init__(config, name, Endpoint(host, [port], kind=socket.SOCK_DGRAM))

    @property
    def _socket(self) -> socket.socket:
        """Non-blocking socket that receives the datagrams."""
        return self._endpoint.sockets[0]

    def open(self) -> None:
        """Listen with a receive buffer of `receiveBufferSize`; log a warning if the kernel grants less.

        Raises `Retry` if listening is impossible.
        """
        self._endpoint.open(self.log)
        requested = self.config.receive_buffer
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, requested)
        granted = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2  # the kernel doubles it
        if granted < requested:
            self.log.warning(
                "receive buffer of %d bytes granted, not %d: raise net.core.rmem_max to lose less in bursts",
                granted,
                requested,
            )
        assert self._endpoint.waker is not None
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._poll.register(self._endpoint.waker, select.POLLIN)
        self._drops = 0

    def close(self) -> None:
        """Stop listening; datagrams that were not read are lost."""
        self._endpoint.close()

    def _has_datagram(self, timeout: float) -> bool:
        """Return True if a datagram is available, or arrives within `timeout` seconds. `wake` ends the wait."""
        return any(fd == self._socket.fileno() for fd, _ in self._poll.poll(timeout * 1000))

    def _count_drops(self) -> None:
        """Add the datagrams dropped since the last call to `KernelDropCount`, and log a warning if there are any."""
        (drops,) = _DROP_COUNT.unpack(self._socket.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _DROP_COUNT.size))
        if new := (drops - self._drops) % 2**32:
            self._drops = drops
            self.metrics.add("KernelDropCount", new)
            text = "the kernel dropped %d datagrams, which arrived faster than they were stored"
            self.warn_rate_limited("drops", text, new)
