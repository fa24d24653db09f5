"""Vectorized parsing of syslog timestamps: bytes to seconds since the epoch, in a time zone."""

from __future__ import annotations

import calendar
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flafka.sources.syslog.columns import Bytes, Ints, Mask, is_digit, two_digits, windows

_MONTHS = sorted((int.from_bytes(name.encode()), number) for number, name in enumerate(calendar.month_abbr) if number)
_MONTH_KEYS, _MONTH_NUMBERS = np.array(_MONTHS).T
_EPOCH = datetime(1970, 1, 1)
_FIRST_MINUTE, _LAST_MINUTE = (int((datetime(year, 1, 1) - _EPOCH) / timedelta(minutes=1)) for year in (1900, 2200))
"""Limits of lookups in a time zone, in minutes. Times outside have the UTC offset of the nearer limit."""

_DAYS_IN_MONTH = np.array([0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])


def rfc5424_times(window: Bytes, tail: Bytes) -> tuple[Ints, Ints, Mask]:
    """Return seconds since the epoch and milliseconds of timestamps such as `2003-10-11T22:14:15.003Z`, and a mask.

    The mask is of local times, which have no zone: their seconds are as in UTC. `window` holds the first bytes of
    each timestamp, `tail` the last six.
    """
    year = two_digits(window, 0).astype(np.int64) * 100 + two_digits(window, 2)
    seconds = _seconds(
        year,
        two_digits(window, 5),
        two_digits(window, 8),
        two_digits(window, 11),
        two_digits(window, 14),
        two_digits(window, 17),
    )
    millis = np.zeros(len(window), np.int64)
    fraction = window[:, 19] == ord(".")
    for column, weight in (20, 100), (21, 10), (22, 1):
        fraction &= is_digit(window[:, column])
        millis += (fraction * (window[:, column] - ord("0"))).astype(np.int64) * weight
    ahead, behind = tail[:, 0] == ord("+"), tail[:, 0] == ord("-")
    if (named := ahead | behind).any():
        offset = (two_digits(tail, 1).astype(np.int64) * 60 + two_digits(tail, 4)) * 60
        seconds -= offset * ahead - offset * behind
    return seconds, millis, ~(named | (tail[:, 5] == ord("Z")))


def rfc3164_times(
    data: Bytes, window: Bytes, end: Ints, now: float, zone: tzinfo | None, strict: bool
) -> tuple[Ints, Mask]:
    """Return the seconds since the epoch of timestamps such as `Oct 11 22:14:15`, and the mask of valid months.

    The year puts a time between 11 months before `now` and one month after it. With `strict`, the mask also requires
    a valid day and time. `end` holds the position behind each timestamp.
    """
    # Timestamps repeat, as many hosts share a second: each different one is parsed once.
    words = window.view(np.uint64)
    codes = _codes(words[:, 1])
    if (words[:, 0] != words[:1, 0]).any():
        codes = _codes(_codes(words[:, 0]) * len(words) + codes)
    row = np.empty(codes.max(initial=-1) + 1, np.int64)
    row[codes] = np.arange(len(codes))
    tail = windows(data, end[row] - 11, 11)  # from the day on, which has one digit or two
    seconds, known = _parse_distinct(window[row, :16].tobytes(), tail.tobytes(), int(now), zone, strict)
    return seconds[codes], known[codes]


def _codes(words: npt.NDArray[Any]) -> Ints:
    """Return the number of each word: different words are numbered from 0 on as they first occur."""
    codes: Ints = pa.array(words).dictionary_encode().indices.to_numpy().astype(np.int64)
    return codes


def rfc3164_second(stamp: bytes, now: float, zone: tzinfo | None) -> int | None:
    """Return one RFC 3164 timestamp, whose day has two bytes, in seconds since the epoch.

    None for an invalid month, day or time.
    """
    seconds, known = _parse_distinct(stamp + b" ", stamp[4:], int(now), zone, True)
    return int(seconds[0]) if known[0] else None


@lru_cache(maxsize=8)
def _parse_distinct(stamps: bytes, tails: bytes, now: int, zone: tzinfo | None, strict: bool) -> tuple[Ints, Mask]:
    """Return `rfc3164_times` of timestamps of 16 bytes each, with their last 11 bytes in `tails`.

    Cached, as consecutive batches often have equal timestamps, and parsing one takes as long as parsing hundreds.
    """
    window = np.frombuffer(stamps, np.uint8).reshape(-1, 16)
    tail = np.frombuffer(tails, np.uint8).reshape(-1, 11)
    keys = window[:, 0].astype(np.int64) << 16 | window[:, 1].astype(np.int64) << 8 | window[:, 2]
    months = np.searchsorted(_MONTH_KEYS, keys) % 12
    day = np.where(is_digit(tail[:, 0]), two_digits(tail, 0), tail[:, 1] - ord("0"))
    hour, minute, second = (two_digits(tail, column) for column in (3, 6, 9))
    fields = _MONTH_NUMBERS[months], day, hour, minute, second
    here = datetime.fromtimestamp(now, UTC).astimezone(zone).replace(tzinfo=None)
    year = np.full(len(window), here.year)
    seconds = _seconds(year, *fields)
    early, late = seconds < _wall_seconds(here, -11), seconds > _wall_seconds(here, 1)
    if (early | late).any():
        seconds = _seconds(year + early - late, *fields)
    seconds -= utc_offsets(seconds, zone)
    known = _MONTH_KEYS[months] == keys
    if strict:
        known &= (day > 0) & (day <= _DAYS_IN_MONTH[_MONTH_NUMBERS[months]]) & (hour < 24)
        known &= (minute < 60) & (second < 60)
    return seconds, known


def _seconds(year: Ints, month: Any, day: Any, hour: Any, minute: Any, second: Any) -> Ints:
    """Return seconds since the epoch. An overflow carries into the next field, as in Java's lenient calendar."""
    months = ((year - 1970) * 12 + month - 1).view("datetime64[M]")
    days = months.astype("datetime64[D]").view(np.int64) + day - 1
    seconds: Ints = ((days * 24 + hour) * 60 + minute) * 60 + second
    return seconds


def _wall_seconds(here: datetime, months: int) -> int:
    """Return the local time `here` moved by `months`, in seconds since the epoch as if in UTC.

    The last day of a shorter month counts for a day that it lacks.
    """
    year, month = divmod(here.year * 12 + here.month - 1 + months, 12)
    day = min(here.day, calendar.monthrange(year, month + 1)[1])
    return int((here.replace(year=year, month=month + 1, day=day) - _EPOCH).total_seconds())


def utc_offsets(seconds: Ints, zone: tzinfo | None) -> Ints:
    """Return the UTC offsets of a time zone at these local times, in seconds."""
    minutes = pa.array(np.clip(seconds // 60, _FIRST_MINUTE, _LAST_MINUTE)).dictionary_encode()
    offsets = np.array([_utc_offset(minute, zone) for minute in minutes.dictionary.to_pylist()], np.int64)
    by_row: Ints = offsets[minutes.indices.to_numpy()]
    return by_row


@lru_cache(maxsize=16384)
def _utc_offset(minute: int, zone: tzinfo | None) -> int:
    """Return the UTC offset at one local minute, in seconds. Ambiguous times are the later ones, as in Java."""
    wall = (_EPOCH + timedelta(minutes=minute)).replace(tzinfo=zone)
    return minute * 60 - int(max(wall.replace(fold=fold).timestamp() for fold in (0, 1)))
