"""Syslog over TCP: RFC 3164 and RFC 5424, in lines or octet-counted (RFC 6587), also over TLS (RFC 5425).

A listener takes connections, a framer for each cuts what it sends into frames, a decoder makes events of frames.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Collection, Iterator, Sequence
from typing import TypeVar

import numpy as np

from flafka.plugins import Batch
from flafka.sources.connections import CONNECTION_METRICS, Connection, plain
from flafka.sources.listening import CERTIFICATE, HANDSHAKES, MAX_BYTES, Endpoint, EndpointSource, Listener
from flafka.sources.syslog.columns import Bytes
from flafka.sources.syslog.compatibility import PORTS, STREAMS, SYSLOG
from flafka.sources.syslog.config import SyslogPortConfig, SyslogStreamConfig
from flafka.sources.syslog.decoder import INCOMPLETE, Decoder
from flafka.sources.syslog.framing import (
    BETWEEN,
    COUNTED_MAX,
    LEAST_ROOM,
    Intake,
    Positions,
    SyslogFramer,
    cut_together,
)
from flafka.sources.syslog.names import Sender
from flafka.sources.syslog.parser import CUT

C = TypeVar("C", bound=SyslogStreamConfig)


class _Connection(Connection):
    """One sender."""

    def __init__(self, taken: socket.socket, address: tuple[str, int], framer: SyslogFramer) -> None:
        super().__init__(taken, address)
        self.sender = Sender(plain(address[0]), taken.getsockname()[1])
        self.framer = framer
        self.held = b""
        """The beginning of a frame that has not come to its end."""
        self.since = 0.0
        """Arrival time of its first byte, in seconds of the monotonic clock."""


class SyslogStream(EndpointSource[C]):
    """Syslog from connections to some ports, all on one thread."""

    in_flight = 4
    declared_metrics = (*CONNECTION_METRICS, CERTIFICATE, HANDSHAKES, INCOMPLETE)

    def __init__(self, config: C, name: str, ports: list[int], decoder: Decoder) -> None:
        super().__init__(config, name, Endpoint(config.host, ports, config))
        self._event_size = max(config.event_size, 10)
        self._listener: Listener[_Connection] = Listener(
            self,
            self._endpoint,
            lambda taken, address: _Connection(taken, address, SyslogFramer(self._event_size)),
            most=config.max_connections,
            most_per_address=config.max_connections_per_address,
            handshake_timeout=config.handshake_timeout,
        )
        self._intake = Intake(MAX_BYTES + max(self._event_size, COUNTED_MAX))
        self._decoder = decoder
        self._inspected = 0.0

    def open(self) -> None:
        """Load the certificate, and listen. Retry says why that is not possible."""
        self._listener.open()

    def close(self) -> None:
        """Stop listening and end all connections."""
        self._listener.close()
        self._decoder.close()

    def sets_headers(self) -> Collection[str] | None:
        """Names of the headers that the decoder sets."""
        return self._decoder.sets_headers()

    def batches(self) -> Iterator[Batch]:
        """Yield what the senders send; after `stopping`, also what had arrived by then."""
        while not self.stopping.is_set():
            ready = self._listener.ready(self._intake.patience(), self._intake.rest)
            yield from self._read(ready)
            for connection in self._overdue():
                yield from self._end(connection)
            if self._intake.due(quiet=not ready):
                yield from self._flush()
        for ready in self._listener.last():
            yield from self._read(ready)
        for connection in self._listener.connections:
            yield from self._end(connection)
        yield from self._flush()

    def _flush(self) -> Iterator[Batch]:
        """Return what has been gathered, as batches."""
        return self._decoder.batches(*self._intake.take(), self)

    def _read(self, ready: Sequence[tuple[_Connection, int]]) -> Iterator[Batch]:
        """Read once from each of these connections, which have something to read, and cut what came into frames."""
        arrived: list[_Connection] = []
        stops: list[int] = []
        ended: list[_Connection] = []
        room, used = self._intake.room, 0
        for connection, _ in ready:
            held = len(connection.held)
            if len(room) - used < held + LEAST_ROOM:
                yield from self._cut(arrived, stops)
                yield from self._flush()
                arrived, stops = [], []
                room, used = self._intake.room, 0
            room[used : used + held] = connection.held
            size = self._listener.read_into(connection, room[used + held :])
            if size:
                used += held + size
                arrived.append(connection)
                stops.append(used)
            elif size == 0:
                ended.append(connection)
        yield from self._cut(arrived, stops)
        for connection in ended:
            yield from self._end(connection)

    def _cut(self, connections: Sequence[_Connection], stops: Sequence[int]) -> Iterator[Batch]:
        """Keep the frames of what came from these connections: it lies in the intake's room, up to these places."""
        if not connections:
            return
        data = self._intake.room[: stops[-1]]
        cut = cut_together(data, stops, [connection.framer for connection in connections])
        starts = [0, *stops]
        for connection, start, stop, left in zip(connections, starts, stops, cut.left, strict=False):
            if left > start or not connection.held:
                connection.since = connection.heard
            connection.held = bytes(data[left:stop])
        if (cut.marks & CUT).any():
            for connection, marks in zip(connections, np.split(cut.marks, np.cumsum(cut.counts)), strict=False):
                if (marks & CUT).any():
                    self.warn_rate_limited(
                        "cut",
                        "%s sends messages that are too long: lines are cut at eventSize = %d bytes, counted ones"
                        " at %d",
                        connection.peer,
                        self._event_size,
                        max(self._event_size, COUNTED_MAX),
                    )
        if (cut.marks != BETWEEN).any():
            self._add(connections, cut.counts, cut.ends, cut.marks)
        for connection in connections:
            if connection.framer.fault:
                self.metrics.add("EventReadFail")
                self.warn_rate_limited(
                    "framing",
                    "%s is closed, its octet counts are wrong: %s",
                    connection.peer,
                    connection.framer.fault,
                )
                yield from self._end(connection)

    def _add(self, connections: Sequence[_Connection], counts: Sequence[int], ends: Positions, marks: Bytes) -> None:
        senders = None
        if self._decoder.needs_senders:
            senders = []
            for connection, count in zip(connections, counts, strict=True):
                senders += [connection.sender] * count
        self._intake.add(ends, marks, senders)

    def _overdue(self) -> list[_Connection]:
        """Connections that have left a message unfinished, or have been silent, for too long."""
        now = time.monotonic()
        if now < self._inspected + 1:
            return []
        self._inspected = now
        config, overdue = self.config, []
        for connection in self._listener.connections:
            if connection.shaking:
                continue
            if connection.held and now > connection.since + config.frame_timeout:
                overdue.append(connection)
                self.warn_rate_limited(
                    "unfinished",
                    "%s is closed: it left a message unfinished for %g s",
                    connection.peer,
                    config.frame_timeout,
                )
            elif config.idle_timeout and now > connection.heard + config.idle_timeout:
                overdue.append(connection)
                self.log.info("%s is closed: it sent nothing for %g s", connection.peer, config.idle_timeout)
        return overdue

    def _end(self, connection: _Connection) -> Iterator[Batch]:
        """End a connection; what it left unfinished is a frame."""
        if size := len(connection.held):
            if len(self._intake.room) < size:
                yield from self._flush()
            self._intake.room[:size] = connection.held
            self._add([connection], [1], np.array([size]), np.array([connection.framer.end()], np.uint8))
        self._listener.drop(connection)


class SyslogTcpConfig(SyslogStreamConfig, SyslogPortConfig):
    """Options of syslogtcp."""


class SyslogTcp(SyslogStream[SyslogTcpConfig]):
    """Receives syslog over TCP: what it has read is never dropped, and while channels are full it does not read.

    Plain syslog has no acknowledgement: what is on its way when the sender, the network or the agent dies is lost.
    """

    type_name = "syslogtcp"
    aliases = ("org.apache.flume.source.SyslogTcpSource",)
    compatibility_notes = (*SYSLOG, *PORTS, *STREAMS)

    def __init__(self, config: SyslogTcpConfig, name: str = "") -> None:
        super().__init__(config, name, [config.port], Decoder(config, format=config.format))
