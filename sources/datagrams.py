"""A UDP port: what waits there, and how much of it the kernel had to drop."""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Iterator
from typing import Any

from plugins import Component, Config, option
from sources.listening import Endpoint

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


class Datagrams:
    """The port of one source, which holds it. Nothing is read while channels are full: the kernel's buffer fills."""

    def __init__(self, source: Component[Any], host: str, port: int, buffer: int) -> None:
        """`buffer` bytes are asked of the kernel."""
        self._source, self._buffer = source, buffer
        self._endpoint = Endpoint(host, [port], kind=socket.SOCK_DGRAM)
        self._poll = select.poll()
        self._drops = 0

    @property
    def port(self) -> int:
        """The one configured, or the one it was given for 0."""
        return self._endpoint.ports[0]

    @property
    def socket(self) -> socket.socket:
        """Where to receive from; it never waits."""
        return self._endpoint.sockets[0]

    def open(self) -> None:
        """Listen. Retry says why that is not possible."""
        self._endpoint.open(self._source.log)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._buffer)
        granted = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2  # the kernel doubles it
        if granted < self._buffer:
            self._source.log.warning(
                "receive buffer of %d bytes granted, not %d: raise net.core.rmem_max to lose less in bursts",
                granted,
                self._buffer,
            )
        self._poll.register(self.socket, select.POLLIN)
        self._drops = 0

    def close(self) -> None:
        """Stop listening."""
        for listener in self._endpoint.sockets:
            self._poll.unregister(listener)
        self._endpoint.close()

    def probe(self) -> Iterator[str]:
        """Whether the address and the port can be had."""
        return self._endpoint.probe()

    def wait(self, seconds: float) -> bool:
        """Whether a datagram is there, or comes within so many seconds."""
        return bool(self._poll.poll(seconds * 1000))

    def count_drops(self) -> None:
        """Count what the kernel had no room for: `KernelDropCount`."""
        (drops,) = _DROPS.unpack(self.socket.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _DROPS.size))
        if new := (drops - self._drops) % 2**32:
            self._drops = drops
            self._source.metrics.add("KernelDropCount", new)
            text = "the kernel dropped %d datagrams: they came faster than they were stored"
            self._source.complain("drops", text, new)
