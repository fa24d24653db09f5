"""Source `netcatudp`: lines of text over UDP, one event each."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator

from flafka.plugins import Batch, CompatibilityNote, Event, option
from flafka.sources.batching import STOP_CHECK_SECONDS
from flafka.sources.connections import unmap_ipv4
from flafka.sources.datagrams import MAX_DATAGRAM_BYTES, DatagramConfig, DatagramSource
from flafka.sources.listening import DRAIN_READ_SECONDS, MAX_BATCH_BYTES

MAX_BATCH_EVENTS = 10_000
"""Number of events from which a batch takes no further datagram."""


class NetcatUdpConfig(DatagramConfig):
    """Options of the source `netcatudp`."""

    bind: str = option(name="bind", description="Address to listen on, or 0.0.0.0 for all.")
    port: int = option(name="port", ge=0, le=65535, description="UDP port to listen on.")
    remote_address: str = option(
        "REMOTE_ADDRESS",
        name="remoteAddress",
        min_length=1,
        description="Header for the sender's address and port, written `/192.0.2.1:40000`.",
    )


class NetcatUdpSource(DatagramSource[NetcatUdpConfig]):
    """Receive lines over UDP: a datagram once read is never dropped, and those that the kernel drops are counted.

    Each line of a datagram is an event. While channels are full nothing is read; the kernel's buffer fills, and
    `KernelDropCount` counts the lost datagrams.
    """

    type_name = "netcatudp"
    aliases = ("org.apache.flume.source.NetcatUdpSource",)
    compatibility_notes = (
        CompatibilityNote(
            flume="only the first line of a datagram is read",
            here="each line is an event",
        ),
    )
    in_flight = 4

    def __init__(self, config: NetcatUdpConfig, name: str = "") -> None:
        super().__init__(config, name, config.bind, config.port)

    def sets_headers(self) -> Collection[str]:
        """Return the name of the header for the sender's address."""
        return {self.config.remote_address}

    def batches(self) -> Iterator[Batch]:
        """Yield the lines of all senders until `stopping`, then the lines in the kernel's buffer.

        The buffer is read for at most `DRAIN_READ_SECONDS`.
        """
        while not self.stopping.is_set():
            if self._has_datagram(STOP_CHECK_SECONDS) and (events := self._read()):
                yield Batch.of(events)
            self._count_drops()
        deadline = time.monotonic() + DRAIN_READ_SECONDS
        while time.monotonic() < deadline and (events := self._read()):
            yield Batch.of(events)
        self._count_drops()

    def _read(self) -> list[Event]:
        """Read waiting datagrams up to the limits of a batch; return an event for each line, with its sender.

        Empty if no datagram waits. Does not block.
        """
        events: list[Event] = []
        size = 0
        while len(events) < MAX_BATCH_EVENTS and size < MAX_BATCH_BYTES:
            try:
                data, address = self._socket.recvfrom(MAX_DATAGRAM_BYTES)
            except BlockingIOError:
                break
            size += len(data)
            sender = f"/{unmap_ipv4(address[0])}:{address[1]}"
            # A final newline begins no empty line. An empty datagram is an event, as in Flume.
            lines = data.removesuffix(b"\n").split(b"\n")
            events += (Event(line, {self.config.remote_address: sender}) for line in lines)
        return events
