"""Syslog over UDP: RFC 3164 and RFC 5424, one message a datagram."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Iterator

import numpy as np

from plugins import Batch, option
from sources.syslog.base import FAREWELL, MAX_EVENTS, READ_SIZE, SyslogPortConfig, SyslogSource
from sources.syslog.formats import Format
from sources.syslog.names import Sender, plain

_SO_MEMINFO = 55
_DROPS = struct.Struct("32xI")
"""Of what that socket option tells, the ninth number: datagrams dropped since the socket was made, modulo 2³²."""


class SyslogUdpConfig(SyslogPortConfig):
    """Options of syslogudp."""

    receive_buffer: int = option(
        4 * 1024 * 1024,
        name="receiveBufferSize",
        description="Room in the kernel for datagrams not yet read; the kernel grants at most net.core.rmem_max.",
        unit="bytes",
        ge=4096,
        le=2**30,
    )


class SyslogUdp(SyslogSource[SyslogUdpConfig]):
    """Receives syslog over UDP: a datagram once read is never dropped, and those that the kernel drops are counted.

    It does not read while channels are full; the kernel's buffer fills, and `KernelDropCount` tells what is lost.
    """

    type_name = "syslogudp"
    aliases = ("org.apache.flume.source.SyslogUDPSource",)
    kind = socket.SOCK_DGRAM

    def __init__(self, config: SyslogUdpConfig, name: str = "") -> None:
        super().__init__(config, name, reserve=READ_SIZE)
        self._poll = select.poll()
        self._drops = 0
        self._format = Format(config.format, self._reading.zone) if config.format else None

    @property
    def wanted_ports(self) -> list[int]:
        """The one port configured."""
        return [self.config.port]

    def open(self) -> None:
        """Listen. Retry says why that is not possible."""
        super().open()
        wanted = self.config.receive_buffer
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, wanted)
        granted = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2  # the kernel doubles it
        if granted < wanted:
            self.log.warning(
                "receive buffer of %d bytes, not %d: raise net.core.rmem_max to lose less in bursts", granted, wanted
            )
        self._poll.register(self._socket, select.POLLIN)
        self._drops = 0

    def close(self) -> None:
        """Stop listening."""
        for listener in self._sockets:
            self._poll.unregister(listener)
        super().close()

    @property
    def _socket(self) -> socket.socket:
        return self._sockets[0]

    def batches(self) -> Iterator[Batch]:
        """What is sent here; after `stopping`, also what had arrived by then."""
        while not self.stopping.is_set():
            if self._poll.poll(self._patience() * 1000):
                self._read()
            self._count_drops()
            if not self._patience():
                yield from self._flush()
        deadline = time.monotonic() + FAREWELL
        while time.monotonic() < deadline and self._read():
            yield from self._flush()
        yield from self._flush()
        self._count_drops()

    def _read(self) -> int:
        """Read the datagrams that wait, as many as fit, and tell how many those were."""
        room, position = self._intake.room, 0
        ends: list[int] = []
        senders: list[Sender] | None = [] if self._tells_senders else None
        port, receiver = self.port, self._socket
        while len(room) - position >= READ_SIZE and len(ends) < MAX_EVENTS:  # no datagram is larger, so none is cut
            try:
                if senders is None:
                    size = receiver.recv_into(room[position:])
                else:
                    size, address = receiver.recvfrom_into(room[position:])
            except BlockingIOError:
                break
            position += size
            if size:  # a datagram may be empty, an event not
                ends.append(position)
                if senders is not None:
                    senders.append(Sender(plain(address[0]), port))
        self._intake.add(np.array(ends, np.int64), np.zeros(len(ends), np.uint8), senders)
        return len(ends)

    def _count_drops(self) -> None:
        (drops,) = _DROPS.unpack(self._socket.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _DROPS.size))
        if new := (drops - self._drops) % 2**32:
            self._drops = drops
            self.metrics.add("KernelDropCount", new)
            self.complain("drops", "the kernel dropped %d datagrams: they came faster than they were stored", new)
