"""Syslog frames to events, a column at a time: RFC 5424 and RFC 3164 as Flume reads them.

One regular expression decides whether the head of a frame is well formed. Where its fields lie is then plain
arithmetic on bytes, done for all frames at once, so that no step costs Python time per event.
"""

from __future__ import annotations

import calendar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from plugins import Batch

Array = Any
Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

STATUS = "flume.syslog.status"
"""Header of an event that is not one whole message: `Invalid` or `Incomplete`."""

CUT, REST = 1, 2
"""Marks of a frame, added up: its end is missing; it is what followed a cut, and so no message by itself."""

FIELDS = ("priority", "version", "timestamp", "hostname")
"""What `keepFields` can name, in the order of a message."""

_STAMP_5424 = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:[+-]\d\d:\d\d|Z)?"
_STAMP_3164 = r"[A-Z][a-z][a-z]\s{1,2}\d{1,2}\s\d\d:\d\d:\d\d"
_HOST = r"\w[\w.@-]*"
_HEAD = rf"^<\d{{1,3}}>\d?\s?(?:(?:{_STAMP_5424}|-)\s(?:{_HOST}|-)|{_STAMP_3164}\s{_HOST})\s"
_STAMP = 40
"""Bytes to look at a timestamp in: 32, the separator, and up to a multiple of 8."""
_HOST_USUAL, _HOST_MAX = 48, 256
"""Bytes to look for the end of a host name in. RFC 5424 gives it 255; a longer one is none."""
_BLANK = 32
"""No byte up to this one occurs in a field of a well-formed head: the first to come ends it."""
_NONE = 255
LOOK_AHEAD = 320
"""Room behind the last frame, in bytes, that spares `parse` a copy of them all."""

_MONTHS = sorted((int.from_bytes(name.encode()), number) for number, name in enumerate(calendar.month_abbr) if number)
_MONTH_KEYS, _MONTH_NUMBERS = np.array(_MONTHS).T
_EPOCH = datetime(1970, 1, 1)
_FIRST_MINUTE, _LAST_MINUTE = (int((datetime(year, 1, 1) - _EPOCH) / timedelta(minutes=1)) for year in (1900, 2200))
"""Outside these years a zone keeps the offset it has at their edge."""

_STATUSES = pa.array(["Incomplete", "Invalid"])


@dataclass(frozen=True)
class Reading:
    """How messages are read."""

    keep: frozenset[str] = frozenset()
    """Fields that stay in the body, of `FIELDS`."""
    keep_all: bool = False
    """The body is the whole message as it came."""
    zone: tzinfo | None = None
    """Of timestamps that name none; None is the zone of this machine."""

    @classmethod
    def of(cls, keep_fields: str, zone: tzinfo | None = None) -> Reading:
        """From Flume's `keepFields`: none, false, all, true, or names of fields. ValueError for another name."""
        word = keep_fields.strip().lower()
        if word in ("all", "true"):
            return cls(keep_all=True, zone=zone)
        names = [] if word in ("none", "false") else keep_fields.replace(",", " ").split()
        if unknown := [name for name in names if name not in FIELDS]:
            raise ValueError(f"must be none, all, or some of {' '.join(FIELDS)}, not {' '.join(unknown)!r}")
        return cls(frozenset(names), zone=zone)


@dataclass(frozen=True)
class _Heads:
    """Where the fields of each frame lie in the data; all at its start where the head is not well formed."""

    formed: Mask
    version: Bytes
    """The digit itself; `_NONE` without one."""
    window: Bytes
    """The bytes from the timestamp on, `_STAMP` of them."""
    stamp: Ints
    stamp_end: Ints
    host: Ints
    host_end: Ints


def parse(frames: Array, now: float, reading: Reading, marks: Bytes | None = None) -> Batch:
    """The events of these frames (a binary array without nulls), one for each, in order.

    A newline that ends a frame is not part of it. `now` (seconds since the epoch) gives RFC 3164 dates the year that
    puts them between 11 months ago and a month ahead. `marks` holds `CUT` and `REST`, added up, for each frame.
    A frame without a priority of 0 to 191, written without leading zeros, has the status `Invalid` and is its body.
    Where the rest of the head is not well formed, the priority alone becomes headers and the body is the frame.
    """
    data, starts, ends = _unpack(frames)
    if marks is None:
        marks = np.zeros(len(frames), np.uint8)
    ends = ends - ((data[ends - 1] == ord("\n")) & (ends > starts) & (marks & CUT == 0))
    priority, after, valid = _priorities(data, starts, ends)
    valid &= marks < REST
    priority *= valid
    matches = pc.match_substring_regex(frames, _HEAD)
    heads = _locate(data, starts, ends, after, valid & matches.to_numpy(zero_copy_only=False))

    hosts = _slices(data, heads.host, heads.host_end)
    if reading.keep and not reading.keep_all:
        bodies = _with_fields(data, starts, ends, heads, hosts, priority, reading.keep)
    else:
        whole = reading.keep_all | ~heads.formed | (heads.host_end + 1 == ends)
        bodies = _slices(data, np.where(whole, starts, heads.host_end + 1), ends)
    named = hosts.view(pa.string()).dictionary_encode()
    headers = {
        "Facility": _numbers(priority >> 3),
        "Severity": _numbers(priority & 7),
        "priority": _numbers(priority, heads.formed),
        "version": _numbers(heads.version, heads.version != _NONE),
        "timestamp": _timestamps(data, heads, now, reading.zone),
        "host": _coded(named.indices.to_numpy(), named.dictionary, heads.formed & (data[heads.host] != ord("-"))),
        STATUS: _coded(~valid, _STATUSES, ~valid | (marks != 0)),
    }
    return Batch.of_columns(
        bodies, {name: column for name, column in headers.items() if column.null_count < len(column)}
    )


# --- bytes and columns


def _unpack(frames: Array) -> tuple[Bytes, Ints, Ints]:
    """The bytes that hold the frames, and where each frame starts and ends. There is always room to look ahead."""
    _, offsets, values = frames.buffers()
    bounds = np.frombuffer(offsets, np.int32, len(frames) + 1, 4 * frames.offset).astype(np.int64)
    data = np.frombuffer(values or b"", np.uint8)
    if bounds[-1] + LOOK_AHEAD > len(data):
        data = np.concatenate((data[: bounds[-1]], np.zeros(LOOK_AHEAD, np.uint8)))
    return data, bounds[:-1], bounds[1:]


def _windows(data: Bytes, starts: Ints, width: int) -> Bytes:
    """The `width` bytes from each start, a row each."""
    everywhere = np.ndarray((len(data) - width + 1,), f"V{width}", data, strides=(1,))
    return everywhere[starts].view(np.uint8).reshape(-1, width)


def _slices(data: Bytes, starts: Ints, ends: Ints) -> Array:
    """A binary array of these slices, which come in order and do not overlap; one copy."""
    bounds = np.zeros(2 * len(starts) + 1, np.int32)
    bounds[1::2], bounds[2::2] = starts, ends
    alternate = pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    return alternate.take(pa.array(np.arange(1, len(bounds), 2, dtype=np.int32)))


def _coded(codes: npt.NDArray[Any], texts: Array, present: Mask) -> Array:
    """A header column: for each event the text of that number, null where not present."""
    indices = pa.array(codes.astype(np.int32), mask=_absent(present))
    return pa.DictionaryArray.from_arrays(indices, texts, safe=False)


def _numbers(numbers: npt.NDArray[Any], present: Mask | None = None) -> Array:
    """A header column: the numbers as text, null where not present."""
    encoded = pa.array(numbers, mask=_absent(present)).dictionary_encode()
    return pa.DictionaryArray.from_arrays(encoded.indices, encoded.dictionary.cast(pa.string()))


def _absent(present: Mask | None) -> Mask | None:
    """The mask as Arrow takes it, which has a shorter way for none."""
    return None if present is None or present.all() else ~present


def _digit(window: Bytes) -> Mask:
    return window - ord("0") < 10


def _two(window: Bytes, column: int) -> Bytes:
    """The number of two digits in these columns."""
    return (window[:, column] - ord("0")) * 10 + (window[:, column + 1] - ord("0"))


# --- heads


def _priorities(data: Bytes, starts: Ints, ends: Ints) -> tuple[Bytes, Ints, Mask]:
    """The priority of each frame, the position after it, and whether it is valid."""
    window = _windows(data, starts, 5)
    digits = window[:, 1:4] - ord("0")
    first, two, three = digits[:, 0], _two(window, 1), _two(window, 2)
    closes_1, closes_2, closes_3 = (window[:, column] == ord(">") for column in (2, 3, 4))
    valid = closes_1 | (first > 0) & (digits[:, 1] < 10) & (
        closes_2 | closes_3 & (digits[:, 2] < 10) & (first == 1) & (three < 92)
    )
    after = starts + np.where(closes_1, 3, np.where(closes_2, 4, 5))
    valid &= (window[:, 0] == ord("<")) & (first < 10) & (after <= ends)
    return np.where(closes_1, first, np.where(closes_2, two, 100 + three)), after, valid


def _locate(data: Bytes, starts: Ints, ends: Ints, after: Ints, formed: Mask) -> _Heads:
    """Where the fields of well-formed heads lie: as the grammar is known to hold, single bytes tell."""
    one, two = data[after], data[after + 1]
    # A digit is the version unless it is the first of a year.
    version = _digit(one) & ~(_digit(two) & (data[after + 4] == ord("-")))
    stamp = after + version + (np.where(version, two, one) <= _BLANK)
    window = _windows(data, stamp, _STAMP)
    early, late = window[:, 8] == ord(":"), window[:, 10] == ord(":")  # the first colon of RFC 3164; usually at 9
    stamp_end = stamp + 15 - early + late
    if (rows := _rows(window[:, 0] <= ord("9"))) is not None:
        stamp_end[rows] = stamp[rows] + (window[rows] <= _BLANK).argmax(axis=1)
    host = stamp_end + 1
    length = (_windows(data, host, _HOST_USUAL) <= _BLANK).argmax(axis=1)
    if len(long := np.flatnonzero(formed & (length == 0))):
        length[long] = (_windows(data, host[long], _HOST_MAX) <= _BLANK).argmax(axis=1)
    host_end = host + length
    formed = formed & (length > 0) & (host_end < ends)
    at = [stamp, stamp_end, host, host_end]
    if not formed.all():
        at = [np.where(formed, place, starts) for place in at]
    return _Heads(formed, np.where(version & formed, one - ord("0"), _NONE), window, *at)


def _with_fields(
    data: Bytes, starts: Ints, ends: Ints, heads: _Heads, hosts: Array, priority: Bytes, keep: frozenset[str]
) -> Array:
    """Bodies that begin with the fields to keep, put together as Flume does: `<34>1 2024-05-01T10:00:00Z h text`."""
    parts = []
    if "priority" in keep:
        parts.append(pc.binary_join_element_wise("<", _numbers(priority).cast(pa.string()), ">", ""))
    if "version" in keep:
        version = _numbers(heads.version, heads.version != _NONE).cast(pa.string())
        parts.append(pc.binary_join_element_wise(version, "", " ", null_handling="skip"))
    if "timestamp" in keep:
        stamps = _slices(data, heads.stamp, heads.stamp_end).view(pa.string())
        parts.append(pc.binary_join_element_wise(stamps, "", " "))
    if "hostname" in keep:
        parts.append(pc.binary_join_element_wise(hosts.view(pa.string()), "", " "))
    text = _slices(data, np.where(heads.formed, heads.host_end + 1, starts), ends)
    kept = pc.binary_join_element_wise(*(part.view(pa.binary()) for part in parts), text, b"")
    return pc.if_else(pa.array(heads.formed), kept, text)


# --- time


def _timestamps(data: Bytes, heads: _Heads, now: float, zone: tzinfo | None) -> Array:
    """The header column `timestamp`: milliseconds since the epoch; null where there is none or no such month."""
    first = heads.window[:, 0]
    known = heads.formed & (first != ord("-"))
    iso = known & (first <= ord("9"))
    old = known ^ iso
    seconds, millis = np.zeros((2, len(first)), np.int64)
    local = np.zeros(len(first), np.bool_)
    if (rows := _rows(iso)) is not None:
        tails = _windows(data, heads.stamp_end[rows] - 6, 6)
        seconds[rows], millis[rows], local[rows] = _rfc5424_times(heads.window[rows], tails)
    if (rows := _rows(local)) is not None:
        seconds[rows] -= _offsets(seconds[rows], zone)
    if (rows := _rows(old)) is not None:
        seconds[rows], known[rows] = _rfc3164_times(data, heads.window[rows], heads.stamp_end[rows], now, zone)
    return _numbers(seconds * 1000 + millis, known)


def _rows(mask: Mask) -> Any:
    """An index of the rows where the mask is true, the cheapest there is; None where it nowhere is."""
    return slice(None) if mask.all() else np.flatnonzero(mask) if mask.any() else None


def _rfc5424_times(window: Bytes, tail: Bytes) -> tuple[Ints, Ints, Mask]:
    """Seconds and milliseconds of `2003-10-11T22:14:15.003Z`, and whether no zone is named: then they are local."""
    year = _two(window, 0).astype(np.int64) * 100 + _two(window, 2)
    seconds = _seconds(year, _two(window, 5), _two(window, 8), _two(window, 11), _two(window, 14), _two(window, 17))
    millis = np.zeros(len(window), np.int64)
    fraction = window[:, 19] == ord(".")
    for column, weight in (20, 100), (21, 10), (22, 1):
        fraction &= _digit(window[:, column])
        millis += (fraction * (window[:, column] - ord("0"))).astype(np.int64) * weight
    ahead, behind = tail[:, 0] == ord("+"), tail[:, 0] == ord("-")
    if (named := ahead | behind).any():
        offset = (_two(tail, 1).astype(np.int64) * 60 + _two(tail, 4)) * 60
        seconds -= offset * ahead - offset * behind
    return seconds, millis, ~(named | (tail[:, 5] == ord("Z")))


def _rfc3164_times(data: Bytes, window: Bytes, end: Ints, now: float, zone: tzinfo | None) -> tuple[Ints, Mask]:
    """Seconds of `Oct 11 22:14:15` in the year that is right for now, and whether there is such a month."""
    # Whole seconds come in runs of equals. One of each run is worked out; the 16 bytes that tell are two numbers.
    words = window.view(np.uint64)
    changes = np.ones(len(words), np.bool_)
    changes[1:] = (words[1:, 0] != words[:-1, 0]) | (words[1:, 1] != words[:-1, 1])
    runs = np.cumsum(changes) - 1
    window, tail = window[changes], _windows(data, end[changes] - 11, 11)  # from the day on, of one digit or two
    keys = window[:, 0].astype(np.int64) << 16 | window[:, 1].astype(np.int64) << 8 | window[:, 2]
    places = np.searchsorted(_MONTH_KEYS, keys) % 12
    day = np.where(_digit(tail[:, 0]), _two(tail, 0), tail[:, 1] - ord("0"))
    fields = _MONTH_NUMBERS[places], day, _two(tail, 3), _two(tail, 6), _two(tail, 9)
    here = datetime.fromtimestamp(now, UTC).astimezone(zone).replace(tzinfo=None)
    year = np.full(len(window), here.year)
    seconds = _seconds(year, *fields)
    early, late = seconds < _wall_seconds(here, -11), seconds > _wall_seconds(here, 1)
    if (early | late).any():
        seconds = _seconds(year + early - late, *fields)
    seconds -= _offsets(seconds, zone)
    return seconds[runs], (_MONTH_KEYS[places] == keys)[runs]


def _seconds(year: Ints, month: Any, day: Any, hour: Any, minute: Any, second: Any) -> Ints:
    """Seconds since the epoch. A field too large carries over into the next, as Java's lenient calendar has it."""
    months = ((year - 1970) * 12 + month - 1).view("datetime64[M]")
    days = months.astype("datetime64[D]").view(np.int64) + day - 1
    seconds: Ints = ((days * 24 + hour) * 60 + minute) * 60 + second
    return seconds


def _wall_seconds(here: datetime, months: int) -> int:
    """That many months from here; the last day where that month is shorter."""
    year, month = divmod(here.year * 12 + here.month - 1 + months, 12)
    day = min(here.day, calendar.monthrange(year, month + 1)[1])
    return int((here.replace(year=year, month=month + 1, day=day) - _EPOCH).total_seconds())


def _offsets(seconds: Ints, zone: tzinfo | None) -> Ints:
    """How far the zone is ahead of UTC at these local times, in seconds."""
    minutes = pa.array(np.clip(seconds // 60, _FIRST_MINUTE, _LAST_MINUTE)).dictionary_encode()
    offsets = np.array([_offset(minute, zone) for minute in minutes.dictionary.to_pylist()], np.int64)
    spread: Ints = offsets[minutes.indices.to_numpy()]
    return spread


@lru_cache(maxsize=16384)
def _offset(minute: int, zone: tzinfo | None) -> int:
    """The same for one minute. A time that the clock shows twice is the later one, as Java has it."""
    wall = (_EPOCH + timedelta(minutes=minute)).replace(tzinfo=zone)
    return minute * 60 - int(max(wall.replace(fold=fold).timestamp() for fold in (0, 1)))
