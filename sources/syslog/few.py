"""A few usual messages, one by one: to read one by columns takes as long as to read hundreds."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from flafka.plugins import Batch
from flafka.sources.syslog.columns import Array, Bytes
from flafka.sources.syslog.reading import Reading, is_host
from flafka.sources.syslog.times import rfc3164_second

FEW, FEW_BYTES = 64, 256 << 10
"""Limits of messages and of bytes, beyond which columns are the faster way."""

_USUAL = re.compile(
    rb"<(\d{1,3})>(?:([A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d)"
    rb"|(\d) (\d{4}-\d\d-\d\dT(?:[01]\d|2[0-3]):\d\d:\d\d(?:\.\d+)?(?:[+-]\d\d:\d\d|Z)))"
    rb" ([!-~]{1,255}) (?=[^\n]|\n.)",
    re.DOTALL,
)
"""A head that is well formed in every dialect, but for the numbers in it and the host, and text behind it."""
_MOMENTS = 4
"""Limit of different dates without a year, which take a while each."""
_Texts = list[str | None]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def read(frames: Array, now: float, reading: Reading, marks: Bytes | None) -> Batch | None:
    """Return what `parser.parse` makes of them; None where one is not usual, or is to be read in a special way."""
    if not 0 < len(frames) <= FEW or frames.nbytes > FEW_BYTES:
        return None
    if reading.special or (marks is not None and marks.any()):
        return None
    dialect = reading.dialect
    bodies: list[bytes] = []
    moments = set()
    facilities, severities, priorities, versions, stamps, hosts = (_Texts() for _ in range(6))
    for whole in frames.to_pylist():
        frame = whole.removesuffix(b"\0")
        head = _USUAL.match(frame)
        if head is None or (reading.charset is not None and not frame.isascii()):
            return None
        priority, old, version, new, host = head.groups()
        code = int(priority)
        moments.add(old)
        if len(moments) > _MOMENTS:
            return None
        stamp = _milliseconds(old, new, now, reading)
        if stamp is None or code > 191 or host == b"-" or (old and not is_host(host, dialect.host)):
            return None
        if dialect.strict and version not in (None, b"1"):
            return None
        bodies.append(frame[head.end() : -1] if frame.endswith(b"\n") else frame[head.end() :])
        facilities.append(str(code >> 3))
        severities.append(str(code & 7))
        priorities.append(priority.decode())
        versions.append(version.decode() if version else None)
        stamps.append(str(stamp))
        hosts.append(host.decode())
    headers = {"Facility": facilities, "Severity": severities, dialect.priority: priorities}
    if any(versions):
        headers[dialect.version] = versions
    headers |= {"timestamp": stamps, "host": hosts}
    return Batch.of_columns(pa.array(bodies, pa.binary()), headers)


def _milliseconds(old: bytes | None, new: bytes | None, now: float, reading: Reading) -> int | None:
    """Since the epoch; None where there is no such day or time."""
    if old is not None:
        second = rfc3164_second(old, now, reading.zone)
        return None if second is None else 1000 * second
    assert new is not None
    try:
        return (datetime.fromisoformat(new.decode()) - _EPOCH) // _MILLISECOND
    except ValueError:
        return None
