"""Syslog over UDP: RFC 3164 and RFC 5424, one message a datagram."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Collection, Iterator

import numpy as np

from plugins import Batch, option
from sources.connections import plain
from sources.listening import FAREWELL, MAX_BYTES, Endpoint, EndpointSource
from sources.syslog.config import SyslogPortConfig
from sources.syslog.decoder import Decoder
from sources.syslog.framing import LEAST_ROOM, MAX_EVENTS, Intake
from sources.syslog.names import Sender

_SO_MEMINFO = 55
_DROPS = struct.Struct("32xI")
"""Of what that socket option tells, the ninth number: datagrams dropped since the socket was made, modulo 2³²."""


class SyslogUdpConfig(SyslogPortConfig):
    """Options of syslogudp."""

    receive_buffer: int = option(
        4 * 1024 * 1024,
        name="receiveBufferSize",
        description="Kernel buffer for datagrams not yet read. The kernel grants at most `net.core.rmem_max`.",
        unit="bytes",
        ge=4096,
        le=2**30,
    )


class SyslogUdp(EndpointSource[SyslogUdpConfig]):
    """Receives syslog over UDP: a datagram once read is never dropped, and those that the kernel drops are counted.

    It does not read while channels are full; the kernel's buffer fills, and `KernelDropCount` tells what is lost.
    """

    type_name = "syslogudp"
    aliases = ("org.apache.flume.source.SyslogUDPSource",)
    in_flight = 4

    def __init__(self, config: SyslogUdpConfig, name: str = "") -> None:
        super().__init__(config, name, Endpoint(config.host, [config.port], kind=socket.SOCK_DGRAM))
        self._intake = Intake(MAX_BYTES + LEAST_ROOM)
        self._decoder = Decoder(config, format=config.format)
        self._poll = select.poll()
        self._drops = 0

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
        self._poll.register(self._socket, select.POLLIN)
        self._drops = 0

    def close(self) -> None:
        """Stop listening."""
        for listener in self._endpoint.sockets:
            self._poll.unregister(listener)
        self._endpoint.close()
        self._decoder.close()

    @property
    def _socket(self) -> socket.socket:
        return self._endpoint.sockets[0]

    def sets_headers(self) -> Collection[str] | None:
        """What its decoder makes of messages and of who sent them."""
        return self._decoder.sets_headers()

    def batches(self) -> Iterator[Batch]:
        """What is sent here; after `stopping`, also what had arrived by then."""
        while not self.stopping.is_set():
            if self._poll.poll(self._intake.patience() * 1000):
                self._read()
            self._count_drops()
            if not self._intake.patience():
                yield from self._flush()
        deadline = time.monotonic() + FAREWELL
        while time.monotonic() < deadline and self._read():
            yield from self._flush()
        yield from self._flush()
        self._count_drops()

    def _flush(self) -> Iterator[Batch]:
        """What has been gathered, as batches."""
        return self._decoder.batches(*self._intake.take(), self.metrics)

    def _read(self) -> int:
        """Read the datagrams that wait, as many as fit, and tell how many those were."""
        room, position = self._intake.room, 0
        ends: list[int] = []
        senders: list[Sender] | None = [] if self._decoder.needs_senders else None
        port, receiver = self.port, self._socket
        while len(room) - position >= LEAST_ROOM and len(ends) < MAX_EVENTS:  # no datagram is larger, so none is cut
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
