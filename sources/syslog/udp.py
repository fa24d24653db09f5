"""Syslog over UDP: RFC 3164 and RFC 5424, one message a datagram."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator

import numpy as np

from flafka.plugins import Batch
from flafka.sources.connections import plain
from flafka.sources.datagrams import DatagramConfig, DatagramSource
from flafka.sources.listening import FAREWELL, MAX_BYTES
from flafka.sources.syslog.compatibility import DATAGRAMS, PORTS, SYSLOG
from flafka.sources.syslog.config import SyslogPortConfig
from flafka.sources.syslog.decoder import INCOMPLETE, Decoder
from flafka.sources.syslog.framing import LEAST_ROOM, MAX_EVENTS, Intake
from flafka.sources.syslog.names import Sender


class SyslogUdpConfig(DatagramConfig, SyslogPortConfig):
    """Options of syslogudp."""


class SyslogUdp(DatagramSource[SyslogUdpConfig]):
    """Receives syslog over UDP: a datagram once read is never dropped, and those that the kernel drops are counted.

    It does not read while channels are full; the kernel's buffer fills, and `KernelDropCount` counts what is lost.
    """

    type_name = "syslogudp"
    aliases = ("org.apache.flume.source.SyslogUDPSource",)
    compatibility_notes = (*SYSLOG, *PORTS, *DATAGRAMS)
    declared_metrics = (*DatagramSource.declared_metrics, INCOMPLETE)
    in_flight = 4

    def __init__(self, config: SyslogUdpConfig, name: str = "") -> None:
        super().__init__(config, name, config.host, config.port)
        self._intake = Intake(MAX_BYTES + LEAST_ROOM)
        self._decoder = Decoder(config, format=config.format)

    def close(self) -> None:
        """Stop listening."""
        super().close()
        self._decoder.close()

    def sets_headers(self) -> Collection[str] | None:
        """Names of the headers that the decoder sets."""
        return self._decoder.sets_headers()

    def batches(self) -> Iterator[Batch]:
        """Yield what is sent here; after `stopping`, also what had arrived by then."""
        while not self.stopping.is_set():
            if there := self._wait(self._intake.patience()):
                self._read()
            self._count_drops()
            if self._intake.due(quiet=not there):
                yield from self._flush()
        deadline = time.monotonic() + FAREWELL
        while time.monotonic() < deadline and self._read():
            yield from self._flush()
        yield from self._flush()
        self._count_drops()

    def _flush(self) -> Iterator[Batch]:
        """Return what has been gathered, as batches."""
        return self._decoder.batches(*self._intake.take(), self)

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
