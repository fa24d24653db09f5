"""Flume's path escapes: `%Y/%m/%d/%{host}` and what they stand for."""

from __future__ import annotations

import functools
import re
import socket
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flafka.plugins.batch import Batch
from flafka.plugins.shared.javazones import SHORT_NAMES

Codes = npt.NDArray[np.int64]

_ESCAPE = re.compile(r"%([A-Za-z0-9_%])|%\{([A-Za-z0-9_.-]+)\}|%\[([A-Za-z0-9_]+)\]")
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_LONGEST = {"second": 60, "minute": 60, "hour": 24}
_CYCLE = 146_097 * 86_400  # the Gregorian calendar repeats itself, days of the week included, after 400 years
_FIRST, _LAST = -12_219_292_800, 253_402_128_000  # seconds: 15 October 1582, and two days before the year 10000
_WHOLE_MINUTES_SINCE = 94_694_400_000  # 1973, in ms: zones changed at, and by, odd seconds before
_MISSING = "it has no header 'timestamp', which the path needs (a timestamp interceptor on the source sets it)"


class Buckets(NamedTuple):
    """The rows of a batch by the path they belong to."""

    paths: list[str | ValueError]
    """Each path once; the error in place of a path that could not be made, its text a sentence about the event."""
    codes: Codes
    """For each row, which of `paths`."""


def literals(pattern: str) -> str:
    """Return the text without its escapes."""
    return _ESCAPE.sub("", pattern)


class BucketPath:
    """A text with Flume's escapes, and the text it becomes for an event.

    `%{name}` is a header (empty where absent), `%[localhost]`, `%[IP]` and `%[FQDN]` this host, `%%` a percent sign,
    and `%Y`, `%m`, `%d`, `%H` … a part of the event's time, which its header `timestamp` holds in milliseconds.

    `time_zone` is a Java zone id, None the machine's own. `rounding` is `(unit, value)`, such as `("minute", 10)`,
    and rounds the time down, in that zone, for all escapes but `%t`; a unit that Flume does not know rounds nothing.
    `local_time` takes `now` instead of the header. `as_path` refuses header values that lead out of a
    path, or that none may hold; a `/` in one makes directories, as in Flume.

    Raises ValueError for what begins like an escape and is none: `%{host` without its end, `%[…]` with another word,
    a letter that means nothing, of which Flume makes nothing or a directory of that name; and for a rounding value
    out of bounds.
    """

    def __init__(
        self,
        pattern: str,
        *,
        time_zone: str | None = None,
        rounding: tuple[str, int] | None = None,
        local_time: bool = False,
        as_path: bool = False,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.pattern = pattern
        self._zone = zone(time_zone)
        self._rounding = (rounding[0], max(rounding[1], 1)) if rounding and rounding[0] in _LONGEST else None
        self._local_time, self._as_path, self._now = local_time, as_path, now
        found = list(_ESCAPE.finditer(pattern))
        _check_escapes(pattern)
        if self._rounding:
            _check_rounding(*self._rounding)
        self.static = pattern[: found[0].start()] if found else pattern
        """What comes before the first escape."""
        self._letters = {escape[1] for escape in found if escape[1]} - {"%"}
        headers = [escape[2] for escape in found if escape[2]]
        if "t" in self._letters and not local_time:
            headers.append("timestamp")
        self._headers = tuple(dict.fromkeys(headers))
        timed = ["timestamp"] * bool(self._letters and not local_time)
        self.headers = frozenset((*headers, *timed))
        """Headers of an event that the text depends on."""
        self._resolution = 1_000 if self._letters & {"S", "s", "c"} else 60_000
        self._stamps: dict[int, Mapping[str, str] | ValueError] = {}

    def resolve(self, headers: Mapping[str, str]) -> str:
        """The text for an event with these headers. ValueError, a sentence about the event, where there is none."""
        stamp: Mapping[str, str] = {}
        if self._letters:
            millis = int(self._now() * 1000) if self._local_time else _millis(headers.get("timestamp"))
            stamp = self._stamp(millis)
        return self._text(headers, stamp)

    def resolve_batch(self, batch: Batch) -> Buckets:
        """The same for all events of a batch, at a cost that grows with the number of different paths."""
        columns = {name: batch.header(name) for name in self._headers}
        stamps: list[Mapping[str, str] | ValueError] = [{}]
        times = np.zeros(len(batch), np.int64)
        if self._letters and self._local_time:
            stamps = [self._stamp(int(self._now() * 1000))]
        elif self._letters:
            times, stamps = self._stamps_of(batch.header("timestamp"))
        codes = times
        for column in columns.values():
            codes = _combine(codes, _codes(column))
        if codes.min(initial=0) == codes.max(initial=0):
            firsts, codes = np.zeros(min(len(batch), 1), np.int64), np.zeros(len(batch), np.int64)
        else:
            _, firsts, codes = np.unique(codes, return_index=True, return_inverse=True)
        paths: list[str | ValueError] = []
        for row in firsts.tolist():
            stamp = stamps[times[row]]
            headers = {name: value for name, c in columns.items() if (value := c[row].as_py()) is not None}
            try:
                paths.append(stamp if isinstance(stamp, ValueError) else self._text(headers, stamp))
            except ValueError as e:
                paths.append(e)
        return Buckets(paths, codes)

    def _text(self, headers: Mapping[str, str], stamp: Mapping[str, str]) -> str:
        def replace(escape: re.Match[str]) -> str:
            letter, header, host = escape.groups()
            if letter == "%":
                return letter
            if letter == "t" and not self._local_time:
                return headers["timestamp"]
            if letter:
                return stamp[letter]
            if host:
                return _host(host.lower())
            value = headers.get(header, "")
            if self._as_path:
                _check_path(header, value)
            return value

        return _ESCAPE.sub(replace, self.pattern)

    def _stamp(self, millis: int) -> dict[str, str]:
        """What the escapes of this pattern that tell the time stand for at that time."""
        rounded = round_down(millis, *self._rounding, self._zone) if self._rounding else millis
        moment = _Moment(rounded, self._zone)
        return {letter: str(millis) if letter == "t" else _LETTERS[letter](moment) for letter in self._letters}

    def _stamps_of(self, column: Any) -> tuple[Codes, list[Mapping[str, str] | ValueError]]:
        """For each row, which of the different stamps, or errors, its timestamp leads to."""
        millis, errors = _times(column.dictionary)
        old = millis.min(initial=_WHOLE_MINUTES_SINCE) < _WHOLE_MINUTES_SINCE
        coarse = 1 if old else self._resolution
        keys, inverse = np.unique(millis // coarse, return_inverse=True)
        found: dict[tuple[str, ...] | str, int] = {}
        stamps: list[Mapping[str, str] | ValueError] = []

        def number(stamp: Mapping[str, str] | ValueError) -> int:
            index = found.setdefault(
                str(stamp) if isinstance(stamp, ValueError) else tuple(stamp.values()), len(found)
            )
            stamps.extend([stamp] if index == len(stamps) else [])
            return index

        of_value = np.array([number(self._known_stamp(key * coarse)) for key in keys.tolist()], np.int64)[inverse]
        for code, error in errors.items():
            of_value[code] = number(error)
        missing = number(ValueError(_MISSING)) if column.null_count else 0
        return np.append(of_value, missing)[_codes(column)], stamps

    def _known_stamp(self, millis: int) -> Mapping[str, str] | ValueError:
        """`_stamp`, or why there is none; remembered, as one batch has much the same times as the next."""
        if len(self._stamps) > 10_000:
            self._stamps.clear()
        if millis not in self._stamps:
            try:
                self._stamps[millis] = self._stamp(millis)
            except ValueError as e:
                self._stamps[millis] = e
        return self._stamps[millis]


def round_down(millis: int, unit: str, value: int, zone: tzinfo | None = None) -> int:
    """The time rounded down to a multiple of `value` seconds, minutes or hours of that zone's clock.

    `unit` is `second`, `minute` or `hour`. ValueError for a value out of bounds, or a time before 1970.
    """
    _check_rounding(unit, value)
    if millis <= 0:
        raise ValueError(f"its header 'timestamp' is {millis}, and only a time after 1970 can be rounded")
    local, cycles = _local(millis // 1000, zone)
    minute, second = local.minute, local.second
    if unit == "hour":
        rounded = local.replace(hour=local.hour - local.hour % value, minute=0, second=0)
    elif unit == "minute":
        rounded = local.replace(minute=minute - minute % value, second=0)
    else:
        rounded = local.replace(second=second - second % value)
    return (_seconds(rounded) + cycles * _CYCLE) * 1000


def zone(name: str | None) -> tzinfo | None:
    """The zone of a Java zone id; None for None, the machine's own. As in Java, an unknown id is GMT."""
    return None if name is None else known_zone(name) or UTC


def known_zone(name: str) -> tzinfo | None:
    """The zone of a Java zone id: `Europe/Paris`, `PST`, `GMT+5:30`; None where there is no such zone."""
    custom = re.fullmatch(r"GMT([+-])([0-9]{1,2})(?::?([0-5][0-9]))?", name)
    if custom and int(custom[2]) < 24:
        offset = timedelta(hours=int(custom[2]), minutes=int(custom[3] or 0))
        return timezone(-offset if custom[1] == "-" else offset)
    try:
        return ZoneInfo(SHORT_NAMES.get(name, name))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None


class _Moment:
    """A time on the clock of a zone."""

    def __init__(self, millis: int, zone: tzinfo | None) -> None:
        self.millis = millis
        self.local, cycles = _local(millis // 1000, zone)
        self.year = self.local.year + 400 * cycles

    def offset(self) -> str:
        """The zone's distance from Greenwich: `+0530`."""
        offset = (self.local if self.local.tzinfo else self.local.astimezone()).utcoffset()
        minutes = int((offset or timedelta()).total_seconds() / 60)
        return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}{abs(minutes) % 60:02}"


_LETTERS: dict[str, Callable[[_Moment], str]] = {
    "a": lambda m: _DAYS[m.local.weekday()][:3],
    "A": lambda m: _DAYS[m.local.weekday()],
    "b": lambda m: _MONTHS[m.local.month - 1][:3],
    "B": lambda m: _MONTHS[m.local.month - 1],
    "c": lambda m: f"{_LETTERS['a'](m)} {_LETTERS['b'](m)} {m.local.day} {m.local:%H:%M:%S} {m.year:04}",
    "d": lambda m: f"{m.local.day:02}",
    "e": lambda m: f"{m.local.day}",
    "D": lambda m: f"{m.local.month:02}/{m.local.day:02}/{m.year % 100:02}",
    "H": lambda m: f"{m.local.hour:02}",
    "I": lambda m: f"{m.local.hour % 12 or 12:02}",
    "j": lambda m: f"{m.local.timetuple().tm_yday:03}",
    "k": lambda m: f"{m.local.hour}",
    "l": lambda m: f"{m.local.hour % 12 or 12}",
    "m": lambda m: f"{m.local.month:02}",
    "M": lambda m: f"{m.local.minute:02}",
    "n": lambda m: f"{m.local.month}",
    "p": lambda m: "AM" if m.local.hour < 12 else "PM",
    "s": lambda m: f"{int(m.millis / 1000)}",
    "S": lambda m: f"{m.local.second:02}",
    "y": lambda m: f"{m.year % 100:02}",
    "Y": lambda m: f"{m.year:04}",
    "z": lambda m: m.offset(),
}

_HOST: dict[str, Callable[[], str]] = {
    "localhost": socket.gethostname,
    "ip": lambda: socket.gethostbyname(socket.gethostname()),
    "fqdn": socket.getfqdn,
}


@functools.cache
def _host(key: str) -> str:
    try:
        return _HOST[key]()
    except OSError as e:
        raise ValueError(f"this host cannot find its own address for %[{key}]: {e}") from e


def _local(seconds: int, zone: tzinfo | None) -> tuple[datetime, int]:
    """The time on the zone's clock, and how many times 400 years later it is: years go further than `datetime`."""
    if seconds < _FIRST:
        raise ValueError(f"its header 'timestamp' is {seconds}000, a time before the calendar of today")
    cycles = max(0, (seconds - _LAST) // _CYCLE + 1)
    return datetime.fromtimestamp(seconds - cycles * _CYCLE, zone), cycles


def _seconds(local: datetime) -> int:
    """The reverse of it. As in Java, an hour that a clock shows twice is the second, and one it skips the next."""
    return int(max(local.replace(fold=fold).timestamp() for fold in (0, 1)))


def _check_rounding(unit: str, value: int) -> None:
    if not 0 < value <= _LONGEST[unit]:
        raise ValueError(f"times can be rounded down to 1 to {_LONGEST[unit]} {unit}s, not to {value}")


def _check_escapes(pattern: str) -> None:
    """ValueError for the first percent sign that is no part of an escape."""
    others = _ESCAPE.sub(lambda escape: "x" * len(escape[0]) if _is_known(escape) else escape[0], pattern)
    if (at := others.find("%")) < 0:
        return
    rest = pattern[at:]
    if rest.startswith("%{"):
        name, closed, _ = rest[2:].partition("}")
        if not closed:
            raise ValueError(f"{rest!r} has no closing brace: a header is written %{{name}}")
        raise ValueError(f"%{{{name}}} is no escape: names there have letters, digits, '.', '_' and '-'")
    if rest.startswith("%["):
        raise ValueError(f"%[{rest[2:].partition(']')[0]}] is none of %[localhost], %[IP] and %[FQDN]")
    letters = " ".join(f"%{letter}" for letter in sorted((*_LETTERS, "t"), key=lambda one: (one.lower(), one)))
    raise ValueError(f"{rest[:2]!r} is no escape: a header is %{{name}}, a percent sign %%, of the time: {letters}")


def _is_known(escape: re.Match[str]) -> bool:
    letter, _, host = escape.groups()
    return letter in (None, "%", "t", *_LETTERS) and (host is None or host.lower() in _HOST)


def _check_path(header: str, value: str) -> None:
    if any(len(name.encode()) > 255 for name in value.split("/")):
        raise ValueError(f"its header {header!r} has more than 255 bytes, too many for a name in a path")
    if ".." in value or any(c < " " or "\x7f" <= c <= "\x9f" for c in value):
        raise ValueError(f"its header {header!r} is {value!r}: a path may hold neither '..' nor control characters")


def milliseconds(text: str, header: str = "timestamp") -> int:
    """The time in that header. ValueError, a sentence about the event, where it is none."""
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", text) or not -(1 << 63) <= (millis := int(text)) < 1 << 63:
        raise ValueError(f"its header {header!r} is {text[:40]!r}, not a number of milliseconds")
    return millis


def _millis(text: str | None) -> int:
    if text is None:
        raise ValueError(_MISSING)
    return milliseconds(text)


def _times(values: Any) -> tuple[npt.NDArray[np.int64], dict[int, ValueError]]:
    """Timestamps as milliseconds, 0 for those that are none, and for these the errors."""
    if pc.all(pc.ascii_is_decimal(values)).as_py() is not False:
        try:
            return values.cast(pa.int64()).to_numpy(zero_copy_only=False), {}
        except pa.ArrowInvalid:
            pass  # one has too many digits
    millis, errors = np.zeros(len(values), np.int64), {}
    for code, text in enumerate(values.to_pylist()):
        try:
            millis[code] = _millis(text)
        except ValueError as e:
            errors[code] = e
    return millis, errors


def _codes(column: Any) -> Codes:
    """Which value of its dictionary each row has; -1 for none."""
    codes: Codes = pc.fill_null(column.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    return codes


def _combine(codes: Codes, more: Codes) -> Codes:
    """One code for each pair of codes."""
    if not len(codes) or more.min() == more.max():
        return codes
    if codes.min() == codes.max():
        return more
    _, more = np.unique(more, return_inverse=True)
    _, codes = np.unique(codes, return_inverse=True)
    return codes.reshape(-1) * (int(more.max()) + 1) + more.reshape(-1)
