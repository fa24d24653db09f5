"""Vectorized parser of syslog frames: RFC 5424 and RFC 3164 in Flume's dialects.

A regular expression decides whether the head of a frame is well formed. The positions of the fields follow from
arithmetic on the bytes of all frames at once: no step runs Python code per event.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flafka.plugins import Batch
from flafka.plugins.wire.octets import take_slices
from flafka.sources.syslog import rowwise, structured
from flafka.sources.syslog.columns import (
    Array,
    Bytes,
    Ints,
    Mask,
    dictionary_column,
    is_digit,
    number_column,
    row_index,
    two_digits,
    unpack,
    windows,
)
from flafka.sources.syslog.dialects import Dialect, ParserOptions, is_host
from flafka.sources.syslog.times import rfc3164_times, rfc5424_times, utc_offsets

STATUS = "flume.syslog.status"
"""Header of an event that is no complete, well-formed message: `Invalid` or `Incomplete`."""

CUT, CONTINUATION = 1, 2
"""Flags of a frame: its end is missing; it continues a cut frame, and so is no message by itself."""

_USUAL_STAMP_BOUNDS = np.frombuffer(b"Aaa  0 00:00:00 Zzz 99 99:99:99 ", np.uint64).reshape(2, 2)
"""Least and greatest bytes of the usual timestamp of RFC 3164, as two 64-bit integers each."""
_ISO_STAMP_BOUNDS = np.frombuffer(b"0000-00-00T00:009999-99-99T99:99", np.uint64).reshape(2, 2)
"""Least and greatest bytes of a timestamp of RFC 5424 up to its minute."""
_ZEROS, _NINES = np.frombuffer(b"0000000099999999", np.uint64)
_HIGH_BITS = np.uint64(0x8080808080808080)
_HIGH_BITS_OF_FIRST = np.array([(1 << 8 * n) - 1 & 0x8080808080808080 for n in range(9)], np.uint64)
"""The highest bits of the first 0 to 8 bytes of a 64-bit integer."""
_STAMP_BYTES = 40
"""Window of a timestamp: 32, its separator, and padding to a multiple of 8. A longer one is scanned by itself."""
_HOST_BYTES = 16, 48, 256
"""Increasing windows for the end of a host name, which has at most 255 bytes (RFC 5424, 6.2.4)."""
_SPACE = 32
"""Greatest character that ends a field: a field of a well-formed head has greater ones only."""
_NO_VERSION = 255


@cache
def _constants() -> tuple[pa.Array, pa.Array]:
    """Return the statuses, and the priorities with no, one and two leading zeros.

    Not module constants: the first array of Python values makes pyarrow import pandas, which delays every command.
    """
    priorities = ["0" * zeros + str(priority) for zeros in range(3) for priority in range(192)]
    return pa.array(["Incomplete", "Invalid"]), pa.array(priorities)


@dataclass(frozen=True)
class _Heads:
    """Positions of the head fields of each frame. All are the start of the frame if its head is not well formed."""

    is_well_formed: Mask
    version: Bytes
    """Version digit; `_NO_VERSION` without one."""
    window: Bytes
    """Bytes from the timestamp on: 16 if all timestamps are usual, or else `_STAMP_BYTES`."""
    stamp: Ints
    stamp_end: Ints
    host: Ints
    host_end: Ints


def parse(frames: Array, now: float, options: ParserOptions, marks: Bytes | None = None) -> Batch:
    """Return one event for each of these frames (a binary array without nulls), in order.

    A newline or a NUL that ends a frame is not part of its body. RFC 3164 dates get the year that puts them between
    11 months before `now` (seconds since the epoch) and a month after it. `marks` holds the flags `CUT` and
    `CONTINUATION` of each frame.

    A frame without a well-formed head is its own body, with the status `Invalid`, or `Incomplete` if it was cut. A
    priority from 0 to 191 in at most three digits still becomes headers. In the `MULTIPORT` dialect it does not, and
    such a frame is always `Invalid`.
    """
    if (batch := rowwise.parse(frames, now, options, marks)) is not None:
        return batch
    dialect = options.dialect
    data, starts, ends = unpack(frames)
    if marks is None:
        marks = np.zeros(len(frames), np.uint8)
    ends = without_terminator(data, starts, ends, marks)
    priority, after, valid = priorities(data, starts, ends)
    valid &= marks < CONTINUATION
    if options.charset is not None:
        valid &= _readable(frames, options.charset)
    usual = valid & _has_usual_stamp(data, after)
    formed, width = usual.copy(), _USUAL_STAMP_BOUNDS.nbytes // 2
    iso = np.zeros(len(frames), np.bool_)
    if not dialect.strict and (rows := row_index(valid & ~usual)) is not None:
        iso[rows] = valid[rows] & _has_iso_stamp(data, after[rows])
        formed |= iso
        width = _STAMP_BYTES
    if (rows := row_index(valid & ~formed)) is not None:
        others = frames if isinstance(rows, slice) else frames.take(pa.array(rows))
        formed[rows] = pc.match_substring_regex(others, dialect.head).to_numpy(zero_copy_only=False)
        width = _STAMP_BYTES
    heads = _locate(data, starts, ends, after, formed, width)
    hosts = take_slices(data, heads.host, heads.host_end)
    named = hosts.dictionary_encode()
    has_bad_host = (usual | iso) & heads.is_well_formed & ~_has_valid_host(data[heads.host_end], named, dialect)
    if has_bad_host.any():
        formed &= ~has_bad_host
        if (rows := row_index(iso & has_bad_host)) is not None:  # RFC 5424 allows more
            others = frames if isinstance(rows, slice) else frames.take(pa.array(rows))
            formed[rows] = pc.match_substring_regex(others, dialect.head).to_numpy(zero_copy_only=False)
        heads = _locate(data, starts, ends, after, formed, width)
        hosts = take_slices(data, heads.host, heads.host_end)
        named = hosts.dictionary_encode()
    if dialect.strict:
        valid = heads.is_well_formed
    priority *= valid
    valid = heads.is_well_formed | valid & (marks & CUT != 0)

    text = np.where(heads.is_well_formed, heads.host_end + 1, starts)
    structured_headers: dict[str, Array] = {}
    overflow = None
    empty = text == ends
    if options.structured:
        text, read, structured_headers, overflow = structured.extract(
            data, text, ends, heads.is_well_formed & (heads.version == 1)
        )
        empty &= ~read
    priority_column = _priority_column(priority, after - starts - 2, heads.is_well_formed)
    if options.keep and not options.keep_all:
        is_unparsed = ~heads.is_well_formed | empty & dialect.strict
        bodies = _bodies_with_fields(
            data, starts, ends, text, heads, hosts, priority_column, is_unparsed, options.keep
        )
    else:
        is_unparsed = options.keep_all | ~heads.is_well_formed | empty
        bodies = take_slices(data, np.where(is_unparsed, starts, text), ends)
    every = heads.is_well_formed if dialect.strict else None
    headers = {
        "Facility": number_column(priority >> 3, every),
        "Severity": number_column(priority & 7, every),
        dialect.priority: priority_column,
        dialect.version: number_column(heads.version, heads.version != _NO_VERSION),
        "timestamp": _timestamps(data, heads, now, options),
        "host": dictionary_column(
            named.indices.to_numpy(),
            _texts(named.dictionary, options.charset),
            heads.is_well_formed
            & (dialect.strict | (data[heads.host] != ord("-")) | (heads.host_end - heads.host > 1)),
        ),
        STATUS: statuses(valid, marks),
        **structured_headers,
    }
    if options.raw_timestamp is not None:
        stamps = take_slices(data, heads.stamp, heads.stamp_end).view(pa.string()).dictionary_encode()
        sent = heads.is_well_formed & (data[heads.stamp] != ord("-"))
        headers[options.raw_timestamp] = dictionary_column(stamps.indices.to_numpy(), stamps.dictionary, sent)
    return Batch.of_columns(
        bodies,
        {name: column for name, column in headers.items() if column.null_count < len(column)},
        overflow=overflow,
    )


def without_terminator(data: Bytes, starts: Ints, ends: Ints, marks: Bytes) -> Ints:
    """Return the ends of frames without their terminator: a newline, a NUL, or a NUL and a newline."""
    for terminator in 0, ord("\n"):
        ends = ends - ((data[ends - 1] == terminator) & (ends > starts) & (marks & CUT == 0))
    return ends


def statuses(valid: Mask, marks: Bytes) -> Array:
    """Return the header column `STATUS`: null for a complete, valid frame, Invalid or Incomplete for any other.

    A frame that is not `valid` is Invalid; a valid one with a mark is Incomplete.
    """
    return dictionary_column(~valid, _constants()[0], ~valid | (marks != 0))


def _readable(frames: Array, charset: str) -> Any:
    """Return the mask of frames that are valid in a character set; True if all are."""
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
    """Return byte strings as text, decoded by a character set, or by UTF-8 if it is None.

    The strings are few, as each occurs once.
    """
    if charset in (None, "utf-8"):
        return values.cast(pa.string())
    return pa.array([value.decode(charset, "replace") for value in values.to_pylist()], pa.string())


# --- heads


def priorities(data: Bytes, starts: Ints, ends: Ints) -> tuple[Bytes, Ints, Mask]:
    """Return the priority of each frame, the position behind its `>`, and the mask of frames with a valid priority.

    Valid is a number from 0 to 191 of one to three digits. Other frames have an arbitrary priority and position.
    """
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


def _has_usual_stamp(data: Bytes, after: Ints) -> Mask:
    """Return the mask of frames with `Oct 11 22:14:15 ` behind the priority, as most have.

    Only the host of such a head remains to be validated, without a regular expression over each byte.
    """
    window = windows(data, after, 16)
    usual: Mask = (window[:, 4] == _SPACE) | is_digit(window[:, 4])
    for words, least, greatest in zip(window.view(np.uint64).T, *_USUAL_STAMP_BOUNDS, strict=True):
        usual &= _within(words, least, greatest) == _HIGH_BITS
    return usual


def _has_iso_stamp(data: Bytes, after: Ints) -> Mask:
    """Return the mask of frames with `1 2003-10-11T22:14:15.003Z ` or the like behind the priority.

    The version may be missing; the fraction has at most 8 digits. Other timestamps need the regular expression.
    """
    stamp = after + 2 * (data[after + 1] == _SPACE)
    window = windows(data, stamp, _STAMP_BYTES)
    iso: Mask = (stamp == after) | is_digit(data[after])
    for words, least, greatest in zip(window.view(np.uint64).T, *_ISO_STAMP_BOUNDS, strict=False):
        iso &= _within(words, least, greatest) == _HIGH_BITS
    iso &= (window[:, 16] == ord(":")) & is_digit(window[:, 17]) & is_digit(window[:, 18])
    length = (window[:, 16:] <= _SPACE).argmax(axis=1) + 16
    separator = data[stamp + length]
    iso &= (separator == _SPACE) | (separator - ord("\t") < 5)
    tail = windows(data, stamp + length - 6, 6)
    is_utc = tail[:, 5] == ord("Z")
    offset = ((tail[:, 0] == ord("+")) | (tail[:, 0] == ord("-"))) & (tail[:, 3] == ord(":"))
    for column in 1, 2, 4, 5:
        offset &= is_digit(tail[:, column])
    digits = length - np.where(is_utc, 21, 26)  # of the fraction; -1 without its point
    iso &= (is_utc | offset) & (((window[:, 19] == ord(".")) & (digits > 0) & (digits <= 8)) | (digits == -1))
    fraction = windows(data, stamp + 20, 8).view(np.uint64)[:, 0]
    needed = _HIGH_BITS_OF_FIRST[np.clip(digits, 0, 8)]
    iso &= _within(fraction, _ZEROS, _NINES) & needed == needed
    return iso


def _within(words: npt.NDArray[np.uint64], least: np.uint64, greatest: np.uint64) -> npt.NDArray[np.uint64]:
    """Return for each word of eight bytes the highest bits of those ASCII bytes that are within the bounds."""
    # A byte with its highest bit set keeps the bit if the subtracted byte is not greater.
    return ((words | _HIGH_BITS) - least) & ((greatest | _HIGH_BITS) - words) & ~words & _HIGH_BITS


def _has_valid_host(separators: Bytes, hosts: Array, dialect: Dialect) -> Mask:
    """Return the mask of usual heads whose host, and separator behind it, the dialect allows."""
    is_valid = np.array([is_host(name, dialect.host) for name in hosts.dictionary.to_pylist()], np.bool_)
    ends = separators == _SPACE
    if not dialect.strict:
        ends |= separators - ord("\t") < 5
    named: Mask = ends if is_valid.all() else ends & is_valid[hosts.indices.to_numpy()]
    return named


def _locate(data: Bytes, starts: Ints, ends: Ints, after: Ints, formed: Mask, width: int) -> _Heads:
    """Return the positions of the fields of well-formed heads, whose grammar makes single bytes decisive."""
    if width == _USUAL_STAMP_BOUNDS.nbytes // 2:  # all are usual, or not well formed
        stamp, stamp_end, window = after, after + 15, windows(data, after, width)
        versions = np.full(len(after), _NO_VERSION, np.uint8)
    else:
        first, second = data[after], data[after + 1]
        # A digit is the version unless it is the first of a year.
        version = is_digit(first) & ~(is_digit(second) & (data[after + 4] == ord("-")))
        stamp = after + version + (np.where(version, second, first) <= _SPACE)
        window = windows(data, stamp, width)
        # The first colon of an RFC 3164 time is usually at 9.
        early, late = window[:, 8] == ord(":"), window[:, 10] == ord(":")
        stamp_end = stamp + 15 - early + late
        if (rows := row_index(window[:, 0] <= ord("9"))) is not None:
            length = (window[rows] <= _SPACE).argmax(axis=1)
            stamp_end[rows] = stamp[rows] + length
            if not length.all():
                for row in np.flatnonzero(formed & (stamp_end == stamp)).tolist():
                    stamp_end[row] += (data[stamp[row] : ends[row]] <= _SPACE).argmax()
        versions = np.where(version, first - ord("0"), _NO_VERSION)
    host = stamp_end + 1
    length = np.zeros(len(host), np.int64)
    rows = slice(None)
    for width in _HOST_BYTES:
        length[rows] = (windows(data, host[rows], width) <= _SPACE).argmax(axis=1)
        rows = np.flatnonzero(formed & (length == 0))
        if not len(rows):
            break
    host_end = host + length
    formed = formed & (length > 0) & (host_end < ends)
    positions = [stamp, stamp_end, host, host_end]
    if not formed.all():
        positions = [np.where(formed, position, starts) for position in positions]
    return _Heads(formed, np.where(formed, versions, np.uint8(_NO_VERSION)), window, *positions)


def _priority_column(priority: Bytes, digits: Ints, formed: Mask) -> Array:
    """Return a header column: the priorities with their leading zeros, as Flume keeps them."""
    zeros = np.where(formed, digits - 1 - (priority > 9) - (priority > 99), 0)
    if not zeros.any():
        return number_column(priority, formed)
    return dictionary_column(zeros * 192 + priority, _constants()[1], formed)


def _bodies_with_fields(
    data: Bytes,
    starts: Ints,
    ends: Ints,
    text: Ints,
    heads: _Heads,
    hosts: Array,
    priority: Array,
    is_unparsed: Mask,
    keep: frozenset[str],
) -> Array:
    """Return bodies that begin with the fields to keep, joined as in Flume: `<34>1 2024-05-01T10:00:00Z h text`.

    The body is the frame where `is_unparsed`, and where it would be empty.
    """
    parts = []
    if "priority" in keep:
        parts.append(pc.binary_join_element_wise("<", priority.cast(pa.string()), ">", ""))
    if "version" in keep:
        version = number_column(heads.version, heads.version != _NO_VERSION).cast(pa.string())
        parts.append(pc.binary_join_element_wise(version, "", " ", null_handling="skip"))
    if "timestamp" in keep:
        parts.append(pc.binary_join_element_wise(take_slices(data, heads.stamp, heads.stamp_end), b"", b" "))
    if "hostname" in keep:
        parts.append(pc.binary_join_element_wise(hosts, b"", b" "))
    kept = pc.binary_join_element_wise(
        *(part.cast(pa.binary()) for part in parts), take_slices(data, text, ends), b""
    )
    empty = pc.equal(pc.binary_length(kept), 0).fill_null(True)
    return pc.if_else(pc.or_(pa.array(is_unparsed), empty), take_slices(data, starts, ends), kept)


# --- time


def _timestamps(data: Bytes, heads: _Heads, now: float, options: ParserOptions) -> Array:
    """Return the header column `timestamp`: milliseconds since the epoch; null without a valid timestamp."""
    zone, strict = options.zone, options.dialect.strict
    first = heads.window[:, 0]
    known = heads.is_well_formed & (first != ord("-"))
    iso = known & (first <= ord("9"))
    old = known ^ iso
    seconds, millis = np.zeros((2, len(first)), np.int64)
    local = np.zeros(len(first), np.bool_)
    if (rows := row_index(iso)) is not None:
        tails = windows(data, heads.stamp_end[rows] - 6, 6)
        seconds[rows], millis[rows], local[rows] = rfc5424_times(heads.window[rows], tails)
    if (rows := row_index(local)) is not None:
        seconds[rows] -= utc_offsets(seconds[rows], zone)
    if (rows := row_index(old)) is not None:
        seconds[rows], known[rows] = rfc3164_times(data, heads.window[rows], heads.stamp_end[rows], now, zone, strict)
    if strict:
        return number_column(np.where(known, seconds * 1000 + millis, round(now * 1000)), heads.is_well_formed)
    return number_column(seconds * 1000 + millis, known)
