"""Decoder of syslog frames to batches, with headers of the senders."""

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
from flafka.sources.syslog import rowwise
from flafka.sources.syslog.columns import Bytes
from flafka.sources.syslog.config import SyslogConfig
from flafka.sources.syslog.dialects import SINGLE, Dialect, ParserOptions
from flafka.sources.syslog.formats import CustomFormat
from flafka.sources.syslog.framing import MAX_BATCH_EVENTS
from flafka.sources.syslog.hostnames import HostNames, Sender
from flafka.sources.syslog.parser import STATUS, parse

INCOMPLETE = Metric(
    *("EventIncompleteCount", "counter", "events"),
    "Messages that were cut, because they were too long or their connection ended.",
    "known",
)
_SAMPLE_BYTES = 100
"""Length of the beginning of a message in log lines."""
_PRIORITY = re.compile(rb"<([0-9]{1,3})>")
SenderHeader = Callable[[list[Sender]], list[str]]
"""Function from senders to their header values."""


class Decoder:
    """Decoder of the frames of one source, as its options require.

    `format` holds the properties of a custom format, which is tried before the dialect. `charsets` maps ports to the
    character sets of their messages; `charset` applies to all other ports, and None allows any bytes. `port_header`
    names the header for the port that a message was sent to.
    """

    clock: Callable[[], float] = staticmethod(time.time)
    """Clock in seconds since the epoch, which determines the year of RFC 3164 dates."""

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
        self._options = ParserOptions.from_keep_fields(
            config.keep_fields,
            config.zone,
            raw_timestamp=config.raw_timestamp_header,
            structured=config.rfc5424_headers,
            dialect=dialect,
            charset=charset,
        )
        self._format = CustomFormat(format, config.zone) if format else None
        self._charset, self._charsets = charset, charsets or {}
        self._names = HostNames()
        headers: list[tuple[str | None, SenderHeader]] = [
            (config.client_ip_header, lambda senders: [sender.address for sender in senders]),
            (config.client_hostname_header, self._host_names),
            (port_header, lambda senders: [str(sender.port) for sender in senders]),
        ]
        self._sender_headers = {header: values for header, values in headers if header}
        self.needs_senders = bool(self._sender_headers or self._charsets)
        """True if events depend on the senders of their frames."""

    def sets_headers(self) -> Collection[str] | None:
        """Return the names of all possible headers; None if senders choose names, with structured data."""
        options = self._options
        if options.structured:
            return None
        dialect = options.dialect
        names = ("Facility", "Severity", dialect.priority, dialect.version, "timestamp", "host", STATUS)
        return {*names, *self._sender_headers, options.raw_timestamp or STATUS}

    def close(self) -> None:
        """Clear the cache of host names, and cancel lookups."""
        self._names.close()

    def few(self, frames: list[bytes]) -> Batch | None:
        """Return the events of few complete frames; None if only `batches` can read them."""
        if self._format is not None or self.needs_senders:
            return None
        return rowwise.parse_frames(frames, self.clock(), self._options)

    def batches(self, frames: Any, marks: Bytes, senders: list[Sender], source: Source[Any]) -> Iterator[Batch]:
        """Yield the events of these frames (a binary array), at most `MAX_BATCH_EVENTS` a batch.

        `senders` has one entry per frame if `needs_senders`. With character sets by port, a batch has the frames of
        one set. Invalid and Incomplete events are counted in the metrics of `source`. A warning shows the first
        Invalid one.
        """
        now = self.clock()
        for start in range(0, len(frames), MAX_BATCH_EVENTS):
            rows = slice(start, start + MAX_BATCH_EVENTS)
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
                            *_explain_invalid(batch.bodies.filter(rows)[0].as_py()),
                        )
                    incomplete = pc.equal(statuses, "Incomplete").true_count
                    source.metrics.add("EventIncompleteCount", incomplete)
                yield batch

    def _by_charset(self, frames: Any, marks: Bytes, senders: list[Sender], now: float) -> Iterator[Batch]:
        """Yield one batch for each character set of the senders' ports; one for all frames without `charsets`."""
        if not self._charsets:
            yield self._batch(frames, marks, senders, now, self._options)
            return
        charsets = np.array([self._charsets.get(sender.port, self._charset) for sender in senders])
        for charset in dict.fromkeys(charsets.tolist()):
            rows = np.flatnonzero(charsets == charset)
            options = dataclasses.replace(self._options, charset=charset)
            yield self._batch(frames.take(pa.array(rows)), marks[rows], [senders[row] for row in rows], now, options)

    def _batch(self, frames: Any, marks: Bytes, senders: list[Sender], now: float, options: ParserOptions) -> Batch:
        """Return the events of these frames, in order, with the headers of their senders."""
        if self._format is not None:
            batch = self._format.parse(frames, now, options, marks)
        else:
            batch = parse(frames, now, options, marks)
        if self._sender_headers:
            codes = {sender: code for code, sender in enumerate(dict.fromkeys(senders))}
            indices = pa.array([codes[sender] for sender in senders], pa.int32())
            for header, values in self._sender_headers.items():
                texts = pa.array(values(list(codes)), pa.string()).dictionary_encode()
                column = pa.DictionaryArray.from_arrays(texts.indices.take(indices), texts.dictionary)
                batch = batch.with_header(header, column)
        return batch

    def _host_names(self, senders: list[Sender]) -> list[str]:
        """Return the host name of each sender, or its address if the lookup fails or takes too long."""
        names = self._names.resolve(sender.address for sender in senders)
        return [names[sender.address] for sender in senders]


def _explain_invalid(body: bytes) -> tuple[str, bytes]:
    """Return the first error in a message, as a predicate, and its first `_SAMPLE_BYTES` bytes."""
    priority = _PRIORITY.match(body)
    if priority is None:
        reason = "does not begin with a priority such as <13>"
    elif int(priority[1]) > 191:
        reason = "has a priority above 191"
    else:
        reason = "has no timestamp or host behind its priority, or text that cannot be read"
    return reason, body[:_SAMPLE_BYTES]
