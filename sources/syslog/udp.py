"""Syslog over UDP: RFC 3164 and RFC 5424, one message per datagram."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator

import numpy as np

from flafka.plugins import Batch
from flafka.sources.connections import unmap_ipv4
from flafka.sources.datagrams import DatagramConfig, DatagramSource
from flafka.sources.listening import DRAIN_READ_SECONDS, MAX_BATCH_BYTES
from flafka.sources.syslog.compatibility import DATAGRAMS, PORTS, SYSLOG
from flafka.sources.syslog.config import SyslogPortConfig
from flafka.sources.syslog.decoder import INCOMPLETE, Decoder
from flafka.sources.syslog.framing import MAX_BATCH_EVENTS, MIN_READ_BYTES, FrameAccumulator
from flafka.sources.syslog.hostnames import Sender


class SyslogUdpConfig(DatagramConfig, SyslogPortConfig):
    """Options of the source `syslogudp`."""


class SyslogUdp(DatagramSource[SyslogUdpConfig]):
    """Receive syslog over UDP: a datagram once read is never dropped, and those that the kernel drops are counted.

    While channels are full nothing is read: the kernel's buffer fills, and `KernelDropCount` counts lost datagrams.
    """

    type_name = "syslogudp"
    aliases = ("org.apache.flume.source.SyslogUDPSource",)
    compatibility_notes = (*SYSLOG, *PORTS, *DATAGRAMS)
    declared_metrics = (*DatagramSource.declared_metrics, INCOMPLETE)
    in_flight = 4

    def __init__(self, config: SyslogUdpConfig, name: str = "") -> None:
        super().__init__(config, name, config.host, config.port)
        self._accumulator = FrameAccumulator(MAX_BATCH_BYTES + MIN_READ_BYTES)
        self._decoder = Decoder(config, format=config.format)

    def close(self) -> None:
        """Stop listening, and cancel lookups of host names."""
        super().close()
        self._decoder.close()

    def sets_headers(self) -> Collection[str] | None:
        """Return the names of all possible headers; None if senders choose names, with structured data."""
        return self._decoder.sets_headers()

    def batches(self) -> Iterator[Batch]:
        """Yield the messages of all senders until `stopping`, then the messages in the kernel's buffer.

        The buffer is read for at most `DRAIN_READ_SECONDS`.
        """
        while not self.stopping.is_set():
            if has_datagram := self._has_datagram(self._accumulator.timeout()):
                self._read()
            self._count_drops()
            if self._accumulator.is_due(idle=not has_datagram):
                yield from self._flush()
        deadline = time.monotonic() + DRAIN_READ_SECONDS
        while time.monotonic() < deadline and self._read():
            yield from self._flush()
        yield from self._flush()
        self._count_drops()

    def _flush(self) -> Iterator[Batch]:
        """Return the batches of the accumulated datagrams, and clear the accumulator."""
        return self._decoder.batches(*self._accumulator.take(), self)

    def _read(self) -> int:
        """Add the waiting datagrams that fit to the current batch; return their number without empty datagrams."""
        space, position = self._accumulator.free_space, 0
        ends: list[int] = []
        senders: list[Sender] | None = [] if self._decoder.needs_senders else None
        port, receiver = self.port, self._socket
        while len(space) - position >= MIN_READ_BYTES and len(ends) < MAX_BATCH_EVENTS:  # no datagram is truncated
            try:
                if senders is None:
                    size = receiver.recv_into(space[position:])
                else:
                    size, address = receiver.recvfrom_into(space[position:])
            except BlockingIOError:
                break
            position += size
            if size:  # an empty datagram is no event
                ends.append(position)
                if senders is not None:
                    senders.append(Sender(unmap_ipv4(address[0]), port))
        self._accumulator.add(np.array(ends, np.int64), np.zeros(len(ends), np.uint8), senders)
        return len(ends)
