"""The source `netcatudp`: lines of text sent over UDP are events."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator

from plugins import Batch, Event, Source, option
from sources.connections import plain
from sources.datagrams import LARGEST, DatagramConfig, Datagrams
from sources.listening import FAREWELL, MAX_BYTES, TICK

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


class NetcatUdpSource(Source[NetcatUdpConfig]):
    """Receives lines over UDP: a datagram once read is never dropped, and those that the kernel drops are counted.

    Each line of a datagram is an event. While channels are full nothing is read; the kernel's buffer fills, and
    `KernelDropCount` tells what is lost.
    """

    type_name = "netcatudp"
    aliases = ("org.apache.flume.source.NetcatUdpSource",)
    in_flight = 4

    def __init__(self, config: NetcatUdpConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._datagrams = Datagrams(self, config.bind, config.port, config.receive_buffer)

    @property
    def port(self) -> int:
        """The port it listens on: the one configured, or the one it was given for 0."""
        return self._datagrams.port

    def open(self) -> None:
        """Listen. Retry says why that is not possible."""
        self._datagrams.open()

    def close(self) -> None:
        """Stop listening."""
        self._datagrams.close()

    def probe(self) -> Iterator[str]:
        """Whether the address and the port can be had."""
        return self._datagrams.probe()

    def sets_headers(self) -> Collection[str]:
        """The sender's address."""
        return {self.config.remote_address}

    def batches(self) -> Iterator[Batch]:
        """What is sent here; after `stopping`, also what had arrived by then."""
        while not self.stopping.is_set():
            if self._datagrams.wait(TICK) and (events := self._read()):
                yield Batch.of(events)
            self._datagrams.count_drops()
        deadline = time.monotonic() + FAREWELL
        while time.monotonic() < deadline and (events := self._read()):
            yield Batch.of(events)
        self._datagrams.count_drops()

    def _read(self) -> list[Event]:
        """The events of the datagrams that wait, up to a good size."""
        events: list[Event] = []
        size = 0
        while len(events) < MAX_EVENTS and size < MAX_BYTES:
            try:
                data, address = self._datagrams.socket.recvfrom(LARGEST)
            except BlockingIOError:
                break
            size += len(data)
            sender = f"/{plain(address[0])}:{address[1]}"
            # What ends with a newline has no empty line after it; an empty datagram is an event, as in Flume.
            lines = data.removesuffix(b"\n").split(b"\n")
            events += (Event(line, {self.config.remote_address: sender}) for line in lines)
        return events
