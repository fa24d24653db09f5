"""Timestamps of syslog messages, a column at a time: bytes to seconds since the epoch, in a zone."""

from __future__ import annotations

import calendar
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from flafka.sources.syslog.columns import Bytes, Ints, Mask, is_digit, two_digits, windows

_MONTHS = sorted((int.from_bytes(name.encode()), number) for number, name in enumerate(calendar.month_abbr) if number)
_MONTH_KEYS, _MONTH_NUMBERS = np.array(_MONTHS).T
_EPOCH = datetime(1970, 1, 1)
_FIRST_MINUTE, _LAST_MINUTE = (int((datetime(year, 1, 1) - _EPOCH) / timedelta(minutes=1)) for year in (1900, 2200))
"""Outside these years a zone keeps the offset it has at their edge."""

_DAYS_IN_MONTH = np.array([0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])


def rfc5424_times(window: Bytes, tail: Bytes) -> tuple[Ints, Ints, Mask]:
    """Seconds and milliseconds of `2003-10-11T22:14:15.003Z`, and whether no zone is named: then they are local."""
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
    """Seconds of `Oct 11 22:14:15` in the year that is right for now, and whether there is such a month.

    Where `strict`, also whether there is such a day and such a time.
    """
    # Whole seconds come in runs of equals. One of each run is worked out; the 16 bytes that tell are two numbers.
    words = window.view(np.uint64)
    changes = np.ones(len(words), np.bool_)
    changes[1:] = (words[1:, 0] != words[:-1, 0]) | (words[1:, 1] != words[:-1, 1])
    runs = np.cumsum(changes) - 1
    tail = windows(data, end[changes] - 11, 11)  # from the day on, of one digit or two
    seconds, known = _of_runs(window[changes, :16].tobytes(), tail.tobytes(), int(now), zone, strict)
    return seconds[runs], known[runs]


def rfc3164_second(stamp: bytes, now: float, zone: tzinfo | None) -> int | None:
    """The same of one, with two bytes for its day; None where there is no such month, day, or time."""
    seconds, known = _of_runs(stamp + b" ", stamp[4:], int(now), zone, True)
    return int(seconds[0]) if known[0] else None


@lru_cache(maxsize=8)
def _of_runs(stamps: bytes, tails: bytes, now: int, zone: tzinfo | None, strict: bool) -> tuple[Ints, Mask]:
    """`rfc3164_times` of timestamps of 16 bytes, with the last 11 of each.

    Remembered: the next batch most often has the same, and to work out one takes as long as to work out hundreds.
    """
    window = np.frombuffer(stamps, np.uint8).reshape(-1, 16)
    tail = np.frombuffer(tails, np.uint8).reshape(-1, 11)
    keys = window[:, 0].astype(np.int64) << 16 | window[:, 1].astype(np.int64) << 8 | window[:, 2]
    places = np.searchsorted(_MONTH_KEYS, keys) % 12
    day = np.where(is_digit(tail[:, 0]), two_digits(tail, 0), tail[:, 1] - ord("0"))
    hour, minute, second = (two_digits(tail, column) for column in (3, 6, 9))
    fields = _MONTH_NUMBERS[places], day, hour, minute, second
    here = datetime.fromtimestamp(now, UTC).astimezone(zone).replace(tzinfo=None)
    year = np.full(len(window), here.year)
    seconds = _seconds(year, *fields)
    early, late = seconds < _wall_seconds(here, -11), seconds > _wall_seconds(here, 1)
    if (early | late).any():
        seconds = _seconds(year + early - late, *fields)
    seconds -= offsets(seconds, zone)
    known = _MONTH_KEYS[places] == keys
    if strict:
        known &= (day > 0) & (day <= _DAYS_IN_MONTH[_MONTH_NUMBERS[places]]) & (hour < 24)
        known &= (minute < 60) & (second < 60)
    return seconds, known


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


def offsets(seconds: Ints, zone: tzinfo | None) -> Ints:
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
