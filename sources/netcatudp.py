"""The source `netcatudp`: lines of text sent over UDP are events."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator

from flafka.plugins import Batch, CompatibilityNote, Event, option
from flafka.sources.connections import plain
from flafka.sources.datagrams import LARGEST, DatagramConfig, DatagramSource
from flafka.sources.listening import FAREWELL, MAX_BYTES
from flafka.sources.pace import STOP_CHECK_SECONDS

MAX_EVENTS = 10_000


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
    """Receives lines over UDP: a datagram once read is never dropped, and those that the kernel drops are counted.

    Each line of a datagram is an event. While channels are full nothing is read; the kernel's buffer fills, and
    `KernelDropCount` tells what is lost.
    """

    type_name = "netcatudp"
    aliases = ("org.apache.flume.source.NetcatUdpSource",)
    compatibility_notes = (
        CompatibilityNote(
            flume="of a datagram only the first line is taken",
            here="each line is an event",
        ),
    )
    in_flight = 4

    def __init__(self, config: NetcatUdpConfig, name: str = "") -> None:
        super().__init__(config, name, config.bind, config.port)

    def sets_headers(self) -> Collection[str]:
        """The sender's address."""
        return {self.config.remote_address}

    def batches(self) -> Iterator[Batch]:
        """What is sent here; after `stopping`, also what had arrived by then."""
        while not self.stopping.is_set():
            if self._wait(STOP_CHECK_SECONDS) and (events := self._read()):
                yield Batch.of(events)
            self._count_drops()
        deadline = time.monotonic() + FAREWELL
        while time.monotonic() < deadline and (events := self._read()):
            yield Batch.of(events)
        self._count_drops()

    def _read(self) -> list[Event]:
        """The events of the datagrams that wait, up to a good size."""
        events: list[Event] = []
        size = 0
        while len(events) < MAX_EVENTS and size < MAX_BYTES:
            try:
                data, address = self._socket.recvfrom(LARGEST)
            except BlockingIOError:
                break
            size += len(data)
            sender = f"/{plain(address[0])}:{address[1]}"
            # What ends with a newline has no empty line after it; an empty datagram is an event, as in Flume.
            lines = data.removesuffix(b"\n").split(b"\n")
            events += (Event(line, {self.config.remote_address: sender}) for line in lines)
        return events
