"""A UDP port: what waits there, and how much of it the kernel had to drop."""

from __future__ import annotations

import select
import socket
import struct
from typing import ClassVar, TypeVar

from flafka.plugins import Config, Metric, option
from flafka.sources.listening import Endpoint, EndpointSource

LARGEST = 1 << 16
"""Bytes: no datagram is larger."""
_SO_MEMINFO = 55
_DROPS = struct.Struct("32xI")
"""Of what that socket option tells, the ninth number: datagrams dropped since the socket was made, modulo 2³²."""


class DatagramConfig(Config):
    """Options of every source that listens on a UDP port."""

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
    """A source that listens on a UDP port. While channels are full it does not read: the kernel's buffer fills."""

    declared_metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("KernelDropCount", "counter", "datagrams", "Datagrams that the kernel had no room for."),
    )

    def __init__(self, config: D, name: str, host: str, port: int) -> None:
        super().__init__(config, name, Endpoint(host, [port], kind=socket.SOCK_DGRAM))

    @property
    def _socket(self) -> socket.socket:
        """Where to receive from; it never waits."""
        return self._endpoint.sockets[0]

    def open(self) -> None:
        """Listen. Retry says why that is not possible."""
        self._endpoint.open(self.log)
        wanted = self.config.receive_buffer
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, wanted)
        granted = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2  # the kernel doubles it
        if granted < wanted:
            self.log.warning(
                "receive buffer of %d bytes granted, not %d: raise net.core.rmem_max to lose less in bursts",
                granted,
                wanted,
            )
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._drops = 0

    def close(self) -> None:
        """Stop listening."""
        self._endpoint.close()

    def _wait(self, seconds: float) -> bool:
        """Whether a datagram is there, or comes within so many seconds."""
        return bool(self._poll.poll(seconds * 1000))

    def _count_drops(self) -> None:
        """Count what the kernel had no room for: `KernelDropCount`."""
        (drops,) = _DROPS.unpack(self._socket.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _DROPS.size))
        if new := (drops - self._drops) % 2**32:
            self._drops = drops
            self.metrics.add("KernelDropCount", new)
            text = "the kernel dropped %d datagrams: they came faster than they were stored"
            self.warn_rate_limited("drops", text, new)
