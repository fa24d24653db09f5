"""Syslog frames to events, a column at a time: RFC 5424 and RFC 3164 as Flume reads them.

One regular expression decides whether the head of a frame is well formed. Where its fields lie is then plain
arithmetic on bytes, done for all frames at once, so that no step costs Python time per event.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flafka.plugins import Batch
from flafka.plugins.shared.octets import slices
from flafka.sources.syslog import few, structured
from flafka.sources.syslog.columns import (
    Array,
    Bytes,
    Ints,
    Mask,
    coded,
    is_digit,
    numbers,
    rows_of,
    two_digits,
    unpack,
    windows,
)
from flafka.sources.syslog.reading import Dialect, Reading, is_host
from flafka.sources.syslog.times import offsets, rfc3164_times, rfc5424_times

STATUS = "flume.syslog.status"
"""Header of an event that is not one whole message: `Invalid` or `Incomplete`."""

CUT, REST = 1, 2
"""Marks of a frame, added up: its end is missing; it is what followed a cut, and so no message by itself."""

_USUAL = np.frombuffer(b"Aaa  0 00:00:00 Zzz 99 99:99:99 ", np.uint64).reshape(2, 2)
"""The least and the greatest bytes of the usual timestamp of RFC 3164, as two numbers each."""
_HIGH_BITS = np.uint64(0x8080808080808080)
_STAMP = 40
"""Bytes to look at a timestamp in: 32, the separator, and up to a multiple of 8. A longer one is looked for alone."""
_HOST_WIDTHS = 16, 48, 256
"""Bytes to look for the end of a host name in, one after the other. RFC 5424 gives it 255; a longer one is none."""
_BLANK = 32
"""No byte up to this one occurs in a field of a well-formed head: the first to come ends it."""
_NONE = 255


@cache
def _constants() -> tuple[pa.Array, pa.Array]:
    """The statuses, and the priorities with no, one and two zeros before them. The first array that pyarrow makes of
    Python's values imports pandas where it is installed: commands that parse nothing need not wait for that."""
    priorities = ["0" * zeros + str(priority) for zeros in range(3) for priority in range(192)]
    return pa.array(["Incomplete", "Invalid"]), pa.array(priorities)


@dataclass(frozen=True)
class _Heads:
    """Positions of the fields of each frame in the data; all at its start where the head is not well formed."""

    formed: Mask
    version: Bytes
    """The digit itself; `_NONE` without one."""
    window: Bytes
    """The bytes from the timestamp on: 16 where all are usual ones, else `_STAMP`."""
    stamp: Ints
    stamp_end: Ints
    host: Ints
    host_end: Ints


def parse(frames: Array, now: float, reading: Reading, marks: Bytes | None = None) -> Batch:
    """The events of these frames (a binary array without nulls), one for each, in order.

    A newline or a NUL that ends a frame is not part of it. RFC 3164 dates get the year that puts them between 11
    months before `now` (seconds since the epoch) and a month after it. `marks` holds `CUT` and `REST`, added up, for
    each frame.
    A frame whose head is not well formed has the status `Invalid`, or `Incomplete` if it was cut, and is its body.
    A priority from 0 to 191 in at most three digits still becomes headers. In the `MULTIPORT` dialect it does not:
    there such a frame is always `Invalid`.
    """
    if (batch := few.read(frames, now, reading, marks)) is not None:
        return batch
    dialect = reading.dialect
    data, starts, ends = unpack(frames)
    if marks is None:
        marks = np.zeros(len(frames), np.uint8)
    ends = without_terminator(data, starts, ends, marks)
    priority, after, valid = priorities(data, starts, ends)
    valid &= marks < REST
    if reading.charset is not None:
        valid &= _readable(frames, reading.charset)
    usual = valid & _usual(data, after)
    formed, width = usual.copy(), _USUAL.nbytes // 2
    if (rows := rows_of(valid & ~usual)) is not None:
        others = frames if isinstance(rows, slice) else frames.take(pa.array(rows))
        formed[rows] = pc.match_substring_regex(others, dialect.head).to_numpy(zero_copy_only=False)
        width = _STAMP
    heads = _locate(data, starts, ends, after, formed, width)
    hosts = slices(data, heads.host, heads.host_end)
    named = hosts.dictionary_encode()
    if (wrong := usual & heads.formed & ~_named_well(data[heads.host_end], named, dialect)).any():
        heads = _locate(data, starts, ends, after, formed & ~wrong, width)
        hosts = slices(data, heads.host, heads.host_end)
        named = hosts.dictionary_encode()
    if dialect.strict:
        valid = heads.formed
    priority *= valid
    valid = heads.formed | valid & (marks & CUT != 0)

    text = np.where(heads.formed, heads.host_end + 1, starts)
    more: dict[str, Array] = {}
    overflow = None
    empty = text == ends
    if reading.structured:
        text, read, more, overflow = structured.read(data, text, ends, heads.formed & (heads.version == 1))
        empty &= ~read
    as_sent = _as_sent(priority, after - starts - 2, heads.formed)
    if reading.keep and not reading.keep_all:
        whole = ~heads.formed | empty & dialect.strict
        bodies = _with_fields(data, starts, ends, text, heads, hosts, as_sent, whole, reading.keep)
    else:
        whole = reading.keep_all | ~heads.formed | empty
        bodies = slices(data, np.where(whole, starts, text), ends)
    every = heads.formed if dialect.strict else None
    headers = {
        "Facility": numbers(priority >> 3, every),
        "Severity": numbers(priority & 7, every),
        dialect.priority: as_sent,
        dialect.version: numbers(heads.version, heads.version != _NONE),
        "timestamp": _timestamps(data, heads, now, reading),
        "host": coded(
            named.indices.to_numpy(),
            _texts(named.dictionary, reading.charset),
            heads.formed & (dialect.strict | (data[heads.host] != ord("-")) | (heads.host_end - heads.host > 1)),
        ),
        STATUS: statuses(valid, marks),
        **more,
    }
    if reading.raw_timestamp is not None:
        stamps = slices(data, heads.stamp, heads.stamp_end).view(pa.string()).dictionary_encode()
        sent = heads.formed & (data[heads.stamp] != ord("-"))
        headers[reading.raw_timestamp] = coded(stamps.indices.to_numpy(), stamps.dictionary, sent)
    return Batch.of_columns(
        bodies,
        {name: column for name, column in headers.items() if column.null_count < len(column)},
        overflow=overflow,
    )


def without_terminator(data: Bytes, starts: Ints, ends: Ints, marks: Bytes) -> Ints:
    """Return the ends of frames without the newline, the NUL, or the newline and the NUL, that end them."""
    for terminator in 0, ord("\n"):
        ends = ends - ((data[ends - 1] == terminator) & (ends > starts) & (marks & CUT == 0))
    return ends


def statuses(valid: Mask, marks: Bytes) -> Array:
    """The header column `STATUS`."""
    return coded(~valid, _constants()[0], ~valid | (marks != 0))


def _readable(frames: Array, charset: str) -> Any:
    """Return the mask of frames that are text of that character set, or True for all."""
    if charset == "utf-8":
        try:
            frames.cast(pa.string())
        except pa.ArrowInvalid:
            pass
        else:
            return True
    readable = pc.string_is_ascii(frames.cast(pa.string(), safe=False)).to_numpy(zero_copy_only=False).copy()
    for row in np.flatnonzero(~readable).tolist():
        try:
            frames[row].as_py().decode(charset)
        except UnicodeError:
            continue
        readable[row] = True
    return readable


def _texts(values: Array, charset: str | None) -> Array:
    """A few byte strings as text."""
    if charset in (None, "utf-8"):
        return values.cast(pa.string())
    return pa.array([value.decode(charset, "replace") for value in values.to_pylist()], pa.string())


# --- heads


def priorities(data: Bytes, starts: Ints, ends: Ints) -> tuple[Bytes, Ints, Mask]:
    """The priority of each frame, the position after it, and whether it is valid."""
    window = windows(data, starts, 5)
    digits = window[:, 1:4] - ord("0")
    first, two, three = digits[:, 0], two_digits(window, 1), two_digits(window, 2)
    closes_1, closes_2, closes_3 = (window[:, column] == ord(">") for column in (2, 3, 4))
    valid = closes_1 | (digits[:, 1] < 10) & (
        closes_2 | closes_3 & (digits[:, 2] < 10) & ((first == 0) | (first == 1) & (three < 92))
    )
    after = starts + np.where(closes_1, 3, np.where(closes_2, 4, 5))
    valid &= (window[:, 0] == ord("<")) & (first < 10) & (after <= ends)
    return np.where(closes_1, first, np.where(closes_2, two, 100 * first + three)), after, valid


def _usual(data: Bytes, after: Ints) -> Mask:
    """Return the mask of frames with `Oct 11 22:14:15 ` behind the priority, as most have. Only the host of such a
    head remains to be checked, without an expression over each byte."""
    window = windows(data, after, 16)
    usual: Mask = (window[:, 4] == _BLANK) | is_digit(window[:, 4])
    # Eight bytes at once: with its high bit set, a byte keeps it when another one up to it is taken away.
    for words, least, greatest in zip(window.view(np.uint64).T, *_USUAL, strict=True):
        within = ((words | _HIGH_BITS) - least) & ((greatest | _HIGH_BITS) - words) & ~words & _HIGH_BITS
        usual &= within == _HIGH_BITS
    return usual


def _named_well(separators: Bytes, hosts: Array, dialect: Dialect) -> Mask:
    """Return the mask of usual heads whose host, and what follows it, the dialect allows."""
    good = np.array([is_host(name, dialect.host) for name in hosts.dictionary.to_pylist()], np.bool_)
    ends = separators == _BLANK
    if not dialect.strict:
        ends |= separators - ord("\t") < 5
    named: Mask = ends if good.all() else ends & good[hosts.indices.to_numpy()]
    return named


def _locate(data: Bytes, starts: Ints, ends: Ints, after: Ints, formed: Mask, width: int) -> _Heads:
    """Return the positions of the fields of well-formed heads. Single bytes suffice, as the grammar holds."""
    one, two = data[after], data[after + 1]
    # A digit is the version unless it is the first of a year.
    version = is_digit(one) & ~(is_digit(two) & (data[after + 4] == ord("-")))
    stamp = after + version + (np.where(version, two, one) <= _BLANK)
    window = windows(data, stamp, width)
    early, late = window[:, 8] == ord(":"), window[:, 10] == ord(":")  # the first colon of RFC 3164; usually at 9
    stamp_end = stamp + 15 - early + late
    if (rows := rows_of(window[:, 0] <= ord("9"))) is not None:
        length = (window[rows] <= _BLANK).argmax(axis=1)
        stamp_end[rows] = stamp[rows] + length
        if not length.all():
            for row in np.flatnonzero(formed & (stamp_end == stamp)).tolist():
                stamp_end[row] += (data[stamp[row] : ends[row]] <= _BLANK).argmax()
    host = stamp_end + 1
    length = np.zeros(len(host), np.int64)
    rows = slice(None)
    for width in _HOST_WIDTHS:
        length[rows] = (windows(data, host[rows], width) <= _BLANK).argmax(axis=1)
        rows = np.flatnonzero(formed & (length == 0))
        if not len(rows):
            break
    host_end = host + length
    formed = formed & (length > 0) & (host_end < ends)
    at = [stamp, stamp_end, host, host_end]
    if not formed.all():
        at = [np.where(formed, place, starts) for place in at]
    return _Heads(formed, np.where(version & formed, one - ord("0"), _NONE), window, *at)


def _as_sent(priority: Bytes, digits: Ints, formed: Mask) -> Array:
    """A header column: the priorities with the zeros before them, as Flume keeps them."""
    zeros = np.where(formed, digits - 1 - (priority > 9) - (priority > 99), 0)
    if not zeros.any():
        return numbers(priority, formed)
    return coded(zeros * 192 + priority, _constants()[1], formed)


def _with_fields(
    data: Bytes,
    starts: Ints,
    ends: Ints,
    text: Ints,
    heads: _Heads,
    hosts: Array,
    priority: Array,
    whole: Mask,
    keep: frozenset[str],
) -> Array:
    """Bodies that begin with the fields to keep, put together as Flume does: `<34>1 2024-05-01T10:00:00Z h text`.

    Where `whole`, and where nothing else is left, the body is the frame.
    """
    parts = []
    if "priority" in keep:
        parts.append(pc.binary_join_element_wise("<", priority.cast(pa.string()), ">", ""))
    if "version" in keep:
        version = numbers(heads.version, heads.version != _NONE).cast(pa.string())
        parts.append(pc.binary_join_element_wise(version, "", " ", null_handling="skip"))
    if "timestamp" in keep:
        parts.append(pc.binary_join_element_wise(slices(data, heads.stamp, heads.stamp_end), b"", b" "))
    if "hostname" in keep:
        parts.append(pc.binary_join_element_wise(hosts, b"", b" "))
    kept = pc.binary_join_element_wise(*(part.cast(pa.binary()) for part in parts), slices(data, text, ends), b"")
    empty = pc.equal(pc.binary_length(kept), 0).fill_null(True)
    return pc.if_else(pc.or_(pa.array(whole), empty), slices(data, starts, ends), kept)


# --- time


def _timestamps(data: Bytes, heads: _Heads, now: float, reading: Reading) -> Array:
    """The header column `timestamp`: milliseconds since the epoch; null where there is none or no such month."""
    zone, strict = reading.zone, reading.dialect.strict
    first = heads.window[:, 0]
    known = heads.formed & (first != ord("-"))
    iso = known & (first <= ord("9"))
    old = known ^ iso
    seconds, millis = np.zeros((2, len(first)), np.int64)
    local = np.zeros(len(first), np.bool_)
    if (rows := rows_of(iso)) is not None:
        tails = windows(data, heads.stamp_end[rows] - 6, 6)
        seconds[rows], millis[rows], local[rows] = rfc5424_times(heads.window[rows], tails)
    if (rows := rows_of(local)) is not None:
        seconds[rows] -= offsets(seconds[rows], zone)
    if (rows := rows_of(old)) is not None:
        seconds[rows], known[rows] = rfc3164_times(data, heads.window[rows], heads.stamp_end[rows], now, zone, strict)
    if strict:
        return numbers(np.where(known, seconds * 1000 + millis, round(now * 1000)), heads.formed)
    return numbers(seconds * 1000 + millis, known)
