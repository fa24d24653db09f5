"""Frames to batches: what the messages hold, and who sent them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plugins import Batch, Metrics
from sources.syslog.columns import Bytes
from sources.syslog.config import SyslogConfig
from sources.syslog.formats import Format
from sources.syslog.framing import MAX_EVENTS
from sources.syslog.names import HostNames, Sender
from sources.syslog.parser import STATUS, parse
from sources.syslog.reading import SINGLE, Dialect, Reading

SenderHeader = Callable[[list[Sender]], list[str]]
"""The header's value for each of some senders."""


class Decoder:
    """Makes events of frames, as the options of one source say.

    `format` holds the properties of a format tried before those of `dialect`. `charsets` are those of messages to
    some ports, `charset` that of all others, None for any bytes. `port_header` is for the port that was sent to.
    """

    clock: Callable[[], float] = staticmethod(time.time)
    """Now, in seconds since the epoch: RFC 3164 dates take their year from it."""

    def __init__(
        self,
        config: SyslogConfig,
        *,
        format: Mapping[str, str] | None = None,
        dialect: Dialect = SINGLE,
        charset: str | None = None,
        charsets: Mapping[int, str] | None = None,
        port_header: str | None = None,
    ) -> None:
        self._reading = Reading.of(
            config.keep_fields,
            config.zone,
            raw_timestamp=config.raw_timestamp_header,
            structured=config.rfc5424_headers,
            dialect=dialect,
            charset=charset,
        )
        self._format = Format(format, config.zone) if format else None
        self._charset, self._charsets = charset, charsets or {}
        self._names = HostNames()
        headers: list[tuple[str | None, SenderHeader]] = [
            (config.client_ip_header, lambda senders: [sender.address for sender in senders]),
            (config.client_hostname_header, self._host_names),
            (port_header, lambda senders: [str(sender.port) for sender in senders]),
        ]
        self._sender_headers = {header: values for header, values in headers if header}
        self.needs_senders = bool(self._sender_headers or self._charsets)
        """Whether anything depends on who sent a frame."""

    def sets_headers(self) -> Collection[str] | None:
        """Names of the headers that its events may have; None where senders choose names, of structured data."""
        reading = self._reading
        if reading.structured:
            return None
        dialect = reading.dialect
        names = ("Facility", "Severity", dialect.priority, dialect.version, "timestamp", "host", STATUS)
        return {*names, *self._sender_headers, reading.raw_timestamp or STATUS}

    def close(self) -> None:
        """Forget host names, and end looking them up."""
        self._names.forget()

    def batches(self, frames: Any, marks: Bytes, senders: list[Sender], metrics: Metrics) -> Iterator[Batch]:
        """The events of these frames (a binary array); `senders` holds one for each where `needs_senders`.

        Those that are no whole message are counted.
        """
        now = self.clock()
        for start in range(0, len(frames), MAX_EVENTS):
            rows = slice(start, start + MAX_EVENTS)
            for batch in self._by_charset(frames[rows], marks[rows], senders[rows], now):
                if STATUS in batch.header_names:
                    counts = pc.value_counts(batch.header(STATUS)).to_pylist()
                    statuses = {entry["values"]: entry["counts"] for entry in counts}
                    metrics.add("EventReadFail", statuses.get("Invalid", 0))
                    metrics.add("EventIncompleteCount", statuses.get("Incomplete", 0))
                yield batch

    def _by_charset(self, frames: Any, marks: Bytes, senders: list[Sender], now: float) -> Iterator[Batch]:
        if not self._charsets:
            yield self._batch(frames, marks, senders, now, self._reading)
            return
        charsets = np.array([self._charsets.get(sender.port, self._charset) for sender in senders])
        for charset in dict.fromkeys(charsets.tolist()):
            rows = np.flatnonzero(charsets == charset)
            reading = dataclasses.replace(self._reading, charset=charset)
            yield self._batch(frames.take(pa.array(rows)), marks[rows], [senders[row] for row in rows], now, reading)

    def _batch(self, frames: Any, marks: Bytes, senders: list[Sender], now: float, reading: Reading) -> Batch:
        if self._format is not None:
            batch = self._format.parse(frames, now, reading, marks)
        else:
            batch = parse(frames, now, reading, marks)
        if self._sender_headers:
            codes = {sender: code for code, sender in enumerate(dict.fromkeys(senders))}
            indices = pa.array([codes[sender] for sender in senders], pa.int32())
            for header, values in self._sender_headers.items():
                texts = pa.array(values(list(codes)), pa.string()).dictionary_encode()
                column = pa.DictionaryArray.from_arrays(texts.indices.take(indices), texts.dictionary)
                batch = batch.with_header(header, column)
        return batch

    def _host_names(self, senders: list[Sender]) -> list[str]:
        names = self._names.of(sender.address for sender in senders)
        return [names[sender.address] for sender in senders]
