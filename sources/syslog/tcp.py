"""Syslog over TCP: RFC 3164 and RFC 5424, in lines or octet-counted (RFC 6587), also over TLS (RFC 5425).

A listener accepts connections, a framer per connection cuts its stream into frames, and a decoder parses frames.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Collection, Iterator, Sequence
from typing import TypeVar

import numpy as np

from flafka.plugins import Batch
from flafka.sources.connections import CONNECTION_METRICS, Connection, unmap_ipv4
from flafka.sources.listening import (
    CERTIFICATE_METRIC,
    HANDSHAKE_METRIC,
    MAX_BATCH_BYTES,
    Endpoint,
    EndpointSource,
    Listener,
)
from flafka.sources.syslog.columns import Bytes
from flafka.sources.syslog.compatibility import PORTS, STREAMS, SYSLOG
from flafka.sources.syslog.config import SyslogPortConfig, SyslogStreamConfig
from flafka.sources.syslog.decoder import INCOMPLETE, Decoder
from flafka.sources.syslog.framing import (
    MAX_COUNTED_BYTES,
    MIN_READ_BYTES,
    NO_FRAME,
    FrameAccumulator,
    Positions,
    SyslogFramer,
    cut_streams,
    few_lines,
)
from flafka.sources.syslog.hostnames import Sender
from flafka.sources.syslog.parser import CUT

C = TypeVar("C", bound=SyslogStreamConfig)


class _Connection(Connection):
    """Connection of one sender."""

    def __init__(self, accepted: socket.socket, address: tuple[str, int], framer: SyslogFramer) -> None:
        super().__init__(accepted, address)
        self.sender = Sender(unmap_ipv4(address[0]), accepted.getsockname()[1])
        self.framer = framer
        self.partial_frame = b""
        """Beginning of a frame whose end has not arrived."""
        self.partial_since = 0.0
        """Arrival time of the first byte of `partial_frame`, in seconds of the monotonic clock."""


class SyslogStream(EndpointSource[C]):
    """Base of syslog sources over TCP: all connections to all ports are read on one thread."""

    in_flight = 4
    declared_metrics = (*CONNECTION_METRICS, CERTIFICATE_METRIC, HANDSHAKE_METRIC, INCOMPLETE)

    def __init__(self, config: C, name: str, ports: list[int], decoder: Decoder) -> None:
        super().__init__(config, name, Endpoint(config.host, ports, config))
        self._event_size = max(config.event_size, 10)
        self._listener: Listener[_Connection] = Listener(
            self,
            self._endpoint,
            lambda accepted, address: _Connection(accepted, address, SyslogFramer(self._event_size)),
            max_connections=config.max_connections,
            max_per_address=config.max_connections_per_address,
            handshake_timeout=config.handshake_timeout,
        )
        self._accumulator = FrameAccumulator(MAX_BATCH_BYTES + max(self._event_size, MAX_COUNTED_BYTES))
        self._decoder = decoder
        self._timeouts_checked = 0.0

    def open(self) -> None:
        """Load the certificate and listen. Raises `Retry` if either is impossible."""
        self._listener.open()

    def close(self) -> None:
        """Stop listening and close all connections."""
        self._listener.close()
        self._decoder.close()

    def sets_headers(self) -> Collection[str] | None:
        """Return the names of all possible headers; None if senders choose names, with structured data."""
        return self._decoder.sets_headers()

    def batches(self) -> Iterator[Batch]:
        """Yield the messages of all senders until `stopping`, then the messages that had arrived by then.

        Partial frames become Incomplete events at the end.
        """
        while not self.stopping.is_set():
            ready = self._listener.poll(self._accumulator.timeout(), self._accumulator.linger)
            yield from self._read(ready)
            for connection in self._overdue():
                yield from self._end(connection)
            if self._accumulator.is_due(idle=not ready):
                yield from self._flush()
        for ready in self._listener.drain():
            yield from self._read(ready)
        for connection in self._listener.connections:
            yield from self._end(connection)
        yield from self._flush()

    def _flush(self) -> Iterator[Batch]:
        """Return the batches of the accumulated frames, and clear the accumulator."""
        return self._decoder.batches(*self._accumulator.take(), self)

    def _read(self, ready: Sequence[tuple[_Connection, int]]) -> Iterator[Batch]:
        """Read once from each connection in `ready`, cut the data into frames, and add these to the current batch.

        Yields batches only where the data do not fit into the current one. Connections at their end are closed.
        """
        received_from: list[_Connection] = []
        stops: list[int] = []
        ended: list[_Connection] = []
        space, used = self._accumulator.free_space, 0
        for connection, _ in ready:
            partial = len(connection.partial_frame)
            if len(space) - used < partial + MIN_READ_BYTES:
                yield from self._cut(received_from, stops)
                yield from self._flush()
                received_from, stops = [], []
                space, used = self._accumulator.free_space, 0
            space[used : used + partial] = connection.partial_frame
            size = self._listener.read_into(connection, space[used + partial :])
            if size:
                used += partial + size
                received_from.append(connection)
                stops.append(used)
            elif size == 0:
                ended.append(connection)
        if (batch := self._few(received_from, stops)) is not None:
            yield batch
        else:
            yield from self._cut(received_from, stops)
        for connection in ended:
            yield from self._end(connection)

    def _few(self, connections: Sequence[_Connection], stops: Sequence[int]) -> Batch | None:
        """Return few received lines as a batch of their own; None if `_cut` has to be used.

        The data is as for `_cut`.
        """
        if not connections or not self._accumulator.may_leave(stops[-1]):
            return None
        data = bytes(self._accumulator.free_space[: stops[-1]])
        lines: list[bytes] = []
        start = 0
        for connection, stop in zip(connections, stops, strict=True):
            own = few_lines(data[start:stop], connection.framer)
            if own is None:
                return None
            lines += own
            start = stop
        batch = self._decoder.few(lines)
        if batch is not None:
            self._accumulator.record_batch(len(lines), len(data))
            for connection in connections:
                connection.partial_frame = b""
        return batch

    def _cut(self, connections: Sequence[_Connection], stops: Sequence[int]) -> Iterator[Batch]:
        """Cut received data into frames, add these to the current batch, and keep the remainders as partial frames.

        The data of all connections lie in `free_space` without gaps, up to the offset in `stops` for each. A
        connection with wrong octet counts is closed. Yields only if the partial frame of such a connection does not
        fit into the batch.
        """
        if not connections:
            return
        data = self._accumulator.free_space[: stops[-1]]
        cut = cut_streams(data, stops, [connection.framer for connection in connections])
        starts = [0, *stops]
        for connection, start, stop, remainder in zip(connections, starts, stops, cut.remainders, strict=False):
            if remainder > start or not connection.partial_frame:
                connection.partial_since = connection.last_activity
            connection.partial_frame = bytes(data[remainder:stop])
        if (cut.marks & CUT).any():
            for connection, marks in zip(connections, np.split(cut.marks, np.cumsum(cut.counts)), strict=False):
                if (marks & CUT).any():
                    self.warn_rate_limited(
                        "cut",
                        "%s sends messages that are too long: lines are cut at eventSize = %d bytes, counted ones"
                        " at %d",
                        connection.peer,
                        self._event_size,
                        max(self._event_size, MAX_COUNTED_BYTES),
                    )
        if (cut.marks != NO_FRAME).any():
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
        """Add pieces to the current batch; `counts` has the number of pieces of each connection."""
        senders = None
        if self._decoder.needs_senders:
            senders = []
            for connection, count in zip(connections, counts, strict=True):
                senders += [connection.sender] * count
        self._accumulator.add(ends, marks, senders)

    def _overdue(self) -> list[_Connection]:
        """Return the connections past `frameTimeout` or `idleTimeout`, and log them.

        At most one check a second: an empty list in between.
        """
        now = time.monotonic()
        if now < self._timeouts_checked + 1:
            return []
        self._timeouts_checked = now
        config, overdue = self.config, []
        for connection in self._listener.connections:
            if connection.handshake_pending:
                continue
            if connection.partial_frame and now > connection.partial_since + config.frame_timeout:
                overdue.append(connection)
                self.warn_rate_limited(
                    "unfinished",
                    "%s is closed: it left a message unfinished for %g s",
                    connection.peer,
                    config.frame_timeout,
                )
            elif config.idle_timeout and now > connection.last_activity + config.idle_timeout:
                overdue.append(connection)
                self.log.info("%s is closed: it sent nothing for %g s", connection.peer, config.idle_timeout)
        return overdue

    def _end(self, connection: _Connection) -> Iterator[Batch]:
        """Close a connection, and add its partial frame to the current batch as an incomplete frame.

        Yields the current batch first if the partial frame does not fit.
        """
        if size := len(connection.partial_frame):
            if len(self._accumulator.free_space) < size:
                yield from self._flush()
            self._accumulator.free_space[:size] = connection.partial_frame
            self._add([connection], [1], np.array([size]), np.array([connection.framer.final_mark()], np.uint8))
        self._listener.drop(connection)


class SyslogTcpConfig(SyslogStreamConfig, SyslogPortConfig):
    """Options of the source `syslogtcp`."""


class SyslogTcp(SyslogStream[SyslogTcpConfig]):
    """Receive syslog over TCP: a message once read is never dropped, and while channels are full nothing is read.

    Plain syslog has no acknowledgement: messages in flight when the sender, the network or the agent fails are lost.
    """

    type_name = "syslogtcp"
    aliases = ("org.apache.flume.source.SyslogTcpSource",)
    compatibility_notes = (*SYSLOG, *PORTS, *STREAMS)

    def __init__(self, config: SyslogTcpConfig, name: str = "") -> None:
        super().__init__(config, name, [config.port], Decoder(config, format=config.format))
