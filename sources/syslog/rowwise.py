"""Row-by-row parser of few usual messages: the vectorized one takes as long for one as for hundreds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from flafka.plugins import Batch, Event
from flafka.sources.syslog.columns import Array, Bytes
from flafka.sources.syslog.dialects import ParserOptions, is_host
from flafka.sources.syslog.times import rfc3164_second

MAX_EVENTS, MAX_BYTES = 64, 256 << 10
"""Limits in events and in bytes, above which the vectorized parser is faster."""

_USUAL_HEAD = re.compile(
    rb"<(\d{1,3})>(?:([A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d)"
    rb"|(\d) (\d{4}-\d\d-\d\dT(?:[01]\d|2[0-3]):\d\d:\d\d(?:\.\d+)?(?:[+-]\d\d:\d\d|Z)))"
    rb" ([!-~]{1,255}) (?=[^\n]|\n.)",
    re.DOTALL,
)
"""Head that every dialect accepts if its numbers and its host are valid, and text behind it."""
_MAX_TIMESTAMPS = 4
"""Limit of different dates without a year, which are slow to parse."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def parse(frames: Array, now: float, options: ParserOptions, marks: Bytes | None) -> Batch | None:
    """Return the result of `parser.parse`; None where the vectorized parser has to be used.

    That is so beyond `MAX_EVENTS` or `MAX_BYTES`, if a frame is unusual or was cut, and if only some frames have a
    version. It is also so if options need columns.
    """
    if len(frames) > MAX_EVENTS or frames.nbytes > MAX_BYTES or (marks is not None and marks.any()):
        return None
    return parse_frames(frames.to_pylist(), now, options)


def parse_frames(frames: Sequence[bytes], now: float, options: ParserOptions) -> Batch | None:
    """Return the result of `parse` for complete frames."""
    if not 0 < len(frames) <= MAX_EVENTS or options.needs_columns:
        return None
    dialect = options.dialect
    events: list[Event] = []
    timestamps = set()
    versions = 0
    for original in frames:
        frame = original.removesuffix(b"\0")
        head = _USUAL_HEAD.match(frame)
        if head is None or (options.charset is not None and not frame.isascii()):
            return None
        priority, old, version, new, host = head.groups()
        code = int(priority)
        timestamps.add(old)
        if len(timestamps) > _MAX_TIMESTAMPS:
            return None
        stamp = _milliseconds(old, new, now, options)
        if stamp is None or code > 191 or host == b"-" or (old and not is_host(host, dialect.host)):
            return None
        if dialect.strict and version not in (None, b"1"):
            return None
        headers = {"Facility": str(code >> 3), "Severity": str(code & 7), dialect.priority: priority.decode()}
        if version:
            versions += 1
            headers[dialect.version] = version.decode()
        headers |= {"timestamp": str(stamp), "host": host.decode()}
        events.append(Event(frame[head.end() : -1] if frame.endswith(b"\n") else frame[head.end() :], headers))
    return Batch.of(events) if versions in (0, len(events)) else None


def _milliseconds(old: bytes | None, new: bytes | None, now: float, options: ParserOptions) -> int | None:
    """Return milliseconds since the epoch; None for an invalid day or time."""
    if old is not None:
        second = rfc3164_second(old, now, options.zone)
        return None if second is None else 1000 * second
    assert new is not None
    try:
        return (datetime.fromisoformat(new.decode()) - _EPOCH) // _MILLISECOND
    except ValueError:
        return None
