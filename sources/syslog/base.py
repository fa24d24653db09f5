"""What all syslog sources share: options, listening, and turning frames into batches."""

from __future__ import annotations

import socket
import time
import zoneinfo
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pydantic

from plugins import Batch, Config, Retry, Source, option
from sources.listening import listen
from sources.syslog.columns import Bytes
from sources.syslog.formats import Format
from sources.syslog.framing import Intake
from sources.syslog.names import HostNames, Sender
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
    """Options of all."""

    host: str = option(name="host", description="Address or name to listen on; 0.0.0.0 or :: for all addresses.")
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
    client_ip_header: str | None = option(
        None, name="clientIPHeader", description="Header for the address of the sender.", min_length=1
    )
    client_hostname_header: str | None = option(
        None,
        name="clientHostnameHeader",
        description="Header for the sender's host name, from a reverse lookup; its address where that finds none or "
        "takes longer than a second.",
        min_length=1,
    )
    raw_timestamp_header: str | None = option(
        None,
        name="rawTimestampHeader",
        description="Header for the timestamp as it was sent, with its zone and all its digits.",
        min_length=1,
    )
    rfc5424_headers: bool = option(
        False,
        name="rfc5424Headers",
        description="Turn what RFC 5424 has before the message into headers: appName, procId, msgId, and "
        "`sd.<SD-ID>.<name>` for structured data. Without it all that stays in the body, as in Flume.",
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


class SyslogPortConfig(SyslogConfig):
    """Options of those that listen on one port."""

    port: int = option(name="port", description="Port to listen on; 0 takes a free one.", ge=0, le=65535)
    format: dict[str, str] = option(
        {},
        name="format.",
        description="A format tried before RFC 5424 and RFC 3164. `format.regex` matches a whole message; its groups "
        "are priority, version, timestamp, host and body. `format.dateFormat`: how it writes timestamps, such as "
        "yyyy-MM-dd HH:mm:ss; without a year, the one that is near. `format.search`, `format.replace`: a replacement "
        "in the timestamp before that.",
    )

    @pydantic.field_validator("format")
    @classmethod
    def _known_format(cls, value: dict[str, str]) -> dict[str, str]:
        if value:
            Format(value, None)
        return value


C = TypeVar("C", bound=SyslogConfig)


class SyslogSource(Source[C]):
    """Listening sockets, and a batch in the making."""

    in_flight = 4
    kind: ClassVar[socket.SocketKind]
    clock: Callable[[], float] = staticmethod(time.time)
    """Now, in seconds since the epoch: RFC 3164 dates take their year from it."""

    def __init__(self, config: C, name: str = "", *, reserve: int = 0) -> None:
        super().__init__(config, name)
        zone = zoneinfo.ZoneInfo(config.time_zone) if config.time_zone else None
        self._reading = Reading.of(
            config.keep_fields, zone, raw_timestamp=config.raw_timestamp_header, structured=config.rfc5424_headers
        )
        self._format: Format | None = None
        self._names = HostNames()
        self._sender_headers: dict[str, Callable[[list[Sender]], list[str]]] = {}
        """Headers that depend on who sent an event, and how to tell them for some senders."""
        if config.client_ip_header:
            self._sender_headers[config.client_ip_header] = lambda senders: [sender.address for sender in senders]
        if config.client_hostname_header:
            self._sender_headers[config.client_hostname_header] = self._host_names
        self._intake = Intake(MAX_BYTES + reserve)
        self._sockets: list[socket.socket] = []

    @property
    def _tells_senders(self) -> bool:
        """Whether anything depends on who sent an event."""
        return bool(self._sender_headers)

    @property
    @abstractmethod
    def wanted_ports(self) -> list[int]:
        """The ports configured."""

    @property
    def ports(self) -> list[int]:
        """The ports it listens on: those configured, or those it was given for 0."""
        return [int(listener.getsockname()[1]) for listener in self._sockets] or self.wanted_ports

    @property
    def port(self) -> int:
        """The first of them."""
        return self.ports[0]

    def open(self) -> None:
        """Listen. Retry says why that is not possible."""
        for port in self.wanted_ports:
            self._sockets.append(self._listen(port))
        self.log.info("listening on %s port %s", self.config.host, " ".join(map(str, self.ports)))

    def close(self) -> None:
        """Stop listening."""
        for listener in self._sockets:
            listener.close()
        self._sockets.clear()
        self._names.forget()

    def probe(self) -> Iterator[str]:
        """Whether the address and the ports can be had."""
        for port in self.wanted_ports:
            try:
                self._listen(port).close()
            except Retry as e:
                yield str(e)

    def _listen(self, port: int) -> socket.socket:
        return listen(self.config.host, port, self.kind)

    def _patience(self) -> float:
        """Seconds to wait for more: 0 when the batch in the making is due."""
        if not self._intake.pieces:
            return TICK
        if self._intake.pieces >= MAX_EVENTS or len(self._intake.room) < READ_SIZE:
            return 0
        return max(0.0, self._intake.since + MAX_WAIT - time.monotonic())

    def _flush(self) -> Iterator[Batch]:
        """What has been gathered, as batches."""
        frames, marks, senders = self._intake.take()
        now = self.clock()
        for start in range(0, len(frames), MAX_EVENTS):
            rows = slice(start, start + MAX_EVENTS)
            yield from self._batches(frames[rows], marks[rows], senders[rows], now)

    def _batches(self, frames: Any, marks: Bytes, senders: list[Sender], now: float) -> Iterator[Batch]:
        """The events of these frames."""
        yield self._batch(frames, marks, senders, now, self._reading)

    def _batch(self, frames: Any, marks: Bytes, senders: list[Sender], now: float, reading: Reading) -> Batch:
        if self._format is not None:
            batch = self._format.parse(frames, now, reading, marks)
        else:
            batch = parse(frames, now, reading, marks)
        if STATUS in batch.header_names:
            self._count(batch)
        if self._sender_headers:
            codes = {sender: code for code, sender in enumerate(dict.fromkeys(senders))}
            indices = pa.array([codes[sender] for sender in senders], pa.int32())
            for header, texts_of in self._sender_headers.items():
                texts = pa.array(texts_of(list(codes)), pa.string()).dictionary_encode()
                column = pa.DictionaryArray.from_arrays(texts.indices.take(indices), texts.dictionary)
                batch = batch.with_header(header, column)
        return batch

    def _host_names(self, senders: list[Sender]) -> list[str]:
        names = self._names.of(sender.address for sender in senders)
        return [names[sender.address] for sender in senders]

    def _count(self, batch: Batch) -> None:
        counts = {entry["values"]: entry["counts"] for entry in pc.value_counts(batch.header(STATUS)).to_pylist()}
        self.metrics.add("EventReadFail", counts.get("Invalid", 0))
        self.metrics.add("EventIncompleteCount", counts.get("Incomplete", 0))
