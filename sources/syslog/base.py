"""What syslog over TCP and over UDP share: options, listening, and turning frames into batches."""

from __future__ import annotations

import errno
import os
import socket
import time
import zoneinfo
from collections.abc import Callable, Iterator
from typing import ClassVar, TypeVar

import pyarrow.compute as pc
import pydantic

from plugins import Batch, Config, Retry, Source, option
from sources.syslog.framing import Intake
from sources.syslog.parser import STATUS, Reading, parse

MAX_EVENTS = 10_000
"""Events in one batch."""
MAX_BYTES = 768 * 1024
"""Bytes gathered for one batch: with its headers it still fits into one Kafka record of the usual size."""
READ_SIZE = 64 * 1024
"""Room there is, at least, for one read; any datagram fits."""
MAX_WAIT = 0.02
"""Seconds that a batch waits for more after its first byte."""
TICK = 0.2
"""Seconds after which an idle source looks whether it shall stop."""
FAREWELL = 1.0
"""Seconds that a stopping source goes on reading what the kernel still holds."""


class SyslogConfig(Config):
    """Options of both."""

    host: str = option(name="host", description="Address or name to listen on; 0.0.0.0 or :: for all addresses.")
    port: int = option(name="port", description="Port to listen on; 0 takes a free one.", ge=0, le=65535)
    keep_fields: str = option(
        "none",
        name="keepFields",
        description="What of the head stays in the body: none, all, or some of priority version timestamp hostname.",
    )
    time_zone: str | None = option(
        None,
        name="timeZone",
        description="Zone of timestamps that name none, such as Europe/Berlin; without it, that of this machine.",
    )

    @pydantic.field_validator("keep_fields")
    @classmethod
    def _known_fields(cls, value: str) -> str:
        Reading.of(value)
        return value

    @pydantic.field_validator("time_zone")
    @classmethod
    def _known_zone(cls, value: str | None) -> str | None:
        try:
            return value and zoneinfo.ZoneInfo(value).key
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(f"must be a time zone such as Europe/Berlin, not {value!r}") from None


C = TypeVar("C", bound=SyslogConfig)


class SyslogSource(Source[C]):
    """One listening socket, and a batch in the making."""

    in_flight = 4
    kind: ClassVar[socket.SocketKind]
    clock: Callable[[], float] = staticmethod(time.time)
    """Now, in seconds since the epoch: RFC 3164 dates take their year from it."""

    def __init__(self, config: C, name: str = "", *, reserve: int = 0) -> None:
        super().__init__(config, name)
        zone = zoneinfo.ZoneInfo(config.time_zone) if config.time_zone else None
        self._reading = Reading.of(config.keep_fields, zone)
        self._intake = Intake(MAX_BYTES + reserve)
        self._socket: socket.socket | None = None
        self._complained: dict[str, float] = {}

    @property
    def port(self) -> int:
        """The port it listens on: the one configured, or the one it was given for 0."""
        return int(self._socket.getsockname()[1]) if self._socket is not None else self.config.port

    def open(self) -> None:
        """Listen. Retry says why that is not possible."""
        self._socket = self._listen()
        self.log.info("listening on %s port %d", self.config.host, self.port)

    def close(self) -> None:
        """Stop listening."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def probe(self) -> Iterator[str]:
        """Whether the address and the port can be had."""
        try:
            self._listen().close()
        except Retry as e:
            yield str(e)

    def _listen(self) -> socket.socket:
        host, port = self.config.host, self.config.port
        listener = None
        try:
            family, *_, address = socket.getaddrinfo(host, port, type=self.kind, flags=socket.AI_PASSIVE)[0]
            listener = socket.socket(family, self.kind)
            listener.setblocking(False)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            if self.kind == socket.SOCK_STREAM:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            if self.kind == socket.SOCK_STREAM:
                listener.listen(socket.SOMAXCONN)
        except OSError as e:
            if listener is not None:
                listener.close()
            protocol = "TCP" if self.kind == socket.SOCK_STREAM else "UDP"
            raise Retry(f"cannot listen on {host}:{port} ({protocol}): {_reason(e)}") from e
        return listener

    def _patience(self) -> float:
        """Seconds to wait for more: 0 when the batch in the making is due."""
        if not self._intake.pieces:
            return TICK
        if self._intake.pieces >= MAX_EVENTS or len(self._intake.room) < READ_SIZE:
            return 0
        return max(0.0, self._intake.since + MAX_WAIT - time.monotonic())

    def _flush(self) -> Iterator[Batch]:
        """What has been gathered, as batches."""
        frames, marks = self._intake.take()
        now = self.clock()
        for start in range(0, len(frames), MAX_EVENTS):
            rows = slice(start, start + MAX_EVENTS)
            batch = parse(frames[rows], now, self._reading, marks[rows])
            if STATUS in batch.header_names:
                self._count(batch)
            yield batch

    def _count(self, batch: Batch) -> None:
        counts = {entry["values"]: entry["counts"] for entry in pc.value_counts(batch.header(STATUS)).to_pylist()}
        self.metrics.add("EventReadFail", counts.get("Invalid", 0))
        self.metrics.add("EventIncompleteCount", counts.get("Incomplete", 0))

    def _complain(self, about: str, message: str, *args: object) -> None:
        """Log a warning, one a minute about the same: anyone who can connect can cause them."""
        now = time.monotonic()
        if now - self._complained.get(about, -60.0) >= 60:
            self._complained[about] = now
            self.log.warning(message, *args)


def _reason(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another program listens there; stop it or choose another port"
    if error.errno == errno.EACCES:
        return "ports below 1024 need root or the capability CAP_NET_BIND_SERVICE; choose a higher one"
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine has no such address"
    return error.strerror or os.strerror(error.errno or 0)
