"""Frames to batches: what the messages hold, and who sent them."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flafka.plugins import Batch, Metric, Source
from flafka.sources.syslog.columns import Bytes
from flafka.sources.syslog.config import SyslogConfig
from flafka.sources.syslog.formats import Format
from flafka.sources.syslog.framing import MAX_EVENTS
from flafka.sources.syslog.names import HostNames, Sender
from flafka.sources.syslog.parser import STATUS, parse
from flafka.sources.syslog.reading import SINGLE, Dialect, Reading

INCOMPLETE = Metric(
    *("EventIncompleteCount", "counter", "events"),
    "Messages that were cut, because they were too long or their connection ended.",
    "known",
)
_SAMPLE_BYTES = 100
"""Bytes of a message that a log line shows."""
_PRIORITY = re.compile(rb"<([0-9]{1,3})>")
SenderHeader = Callable[[list[Sender]], list[str]]
"""The header's value for each of some senders."""


class Decoder:
    """Makes events of frames, as the options of one source say.

    `format` holds the properties of a format that is tried before the dialect's. `charsets` has the character sets of
    messages to some ports, `charset` is that of all others, None for any bytes. `port_header` is the header for the
    port that was sent to.
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
        """True where an event depends on who sent its frame."""

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

    def batches(self, frames: Any, marks: Bytes, senders: list[Sender], source: Source[Any]) -> Iterator[Batch]:
        """Yield the events of these frames (a binary array); `senders` holds one for each where `needs_senders`.

        `source` counts those that are no whole message, and logs a warning with one of them.
        """
        now = self.clock()
        for start in range(0, len(frames), MAX_EVENTS):
            rows = slice(start, start + MAX_EVENTS)
            for batch in self._by_charset(frames[rows], marks[rows], senders[rows], now):
                if STATUS in batch.header_names:
                    statuses = batch.header(STATUS).dictionary_decode()
                    if invalid := (rows := pc.equal(statuses, "Invalid").fill_null(False)).true_count:
                        source.metrics.add("EventReadFail", invalid)
                        source.warn_rate_limited(
                            "invalid",
                            "%d of %d messages are marked Invalid; the first one %s: %r",
                            invalid,
                            len(batch),
                            *_why_invalid(batch.bodies.filter(rows)[0].as_py()),
                        )
                    incomplete = pc.equal(statuses, "Incomplete").true_count
                    source.metrics.add("EventIncompleteCount", incomplete)
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


def _why_invalid(body: bytes) -> tuple[str, bytes]:
    """Return what a message lacks, and its beginning."""
    priority = _PRIORITY.match(body)
    if priority is None:
        why = "does not begin with a priority such as <13>"
    elif int(priority[1]) > 191:
        why = "has a priority above 191"
    else:
        why = "has no timestamp or host behind its priority, or text that cannot be read"
    return why, body[:_SAMPLE_BYTES]
