"""Paths with Flume's escape sequences, such as `%Y/%m/%d/%{host}`."""

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
from flafka.plugins.java.zones import ZONE_BY_SHORT_NAME

Codes = npt.NDArray[np.int64]

_ESCAPE = re.compile(r"%([A-Za-z0-9_%])|%\{([A-Za-z0-9_.-]+)\}|%\[([A-Za-z0-9_]+)\]")
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_MAX_ROUNDING = {"second": 60, "minute": 60, "hour": 24}
_CYCLE_SECONDS = 146_097 * 86_400
"""Length of 400 years, after which the Gregorian calendar repeats, with the days of the week."""
_FIRST_SECOND, _LAST_SECOND = -12_219_292_800, 253_402_128_000
"""Range of times that are formatted directly: from 15 October 1582 to two days before the year 10000."""
_WHOLE_MINUTES_SINCE_MS = 94_694_400_000
"""Begin of 1973. Before, offsets of zones were no whole minutes, and changed within a minute."""
_MAX_CACHED_TIMES = 10_000
_MISSING = "it has no header 'timestamp', which the path needs (a timestamp interceptor on the source sets it)"


class Buckets(NamedTuple):
    """Paths of the events of a batch."""

    paths: list[str | ValueError]
    """Distinct paths. An event without a path has an error instead, whose text is a sentence about the event."""
    codes: Codes
    """Index in `paths` for each row."""


def literal_text(pattern: str) -> str:
    """Return the pattern without its escapes: only the text that is the same for all events."""
    return _ESCAPE.sub("", pattern)


class BucketPath:
    """Text with Flume's escape sequences, which resolves to a text for each event.

    `%{name}` is a header (empty if the event has none), `%[localhost]`, `%[IP]` and `%[FQDN]` this host, `%%` a
    percent sign. `%Y`, `%m`, `%d`, `%H` … are parts of the event's time, which its header `timestamp` has in
    milliseconds.

    Raises ValueError for a rounding value out of bounds, and for an incomplete or unknown escape: `%{host` without
    its end, `%[…]` with another word, an unknown character. Flume makes these a directory, or nothing.
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
        """Parse the pattern.

        - `time_zone` is a Java zone id; None: the machine's zone.
        - `rounding` is `(unit, value)`, such as `("minute", 10)`. Times are rounded down, in that zone, for all
          escapes but `%t`. A unit that Flume does not know rounds nothing.
        - `local_time` takes the time of `now`, in seconds since the epoch, instead of the header `timestamp`.
        - `as_path` refuses header values that lead out of a path, or that no path may contain. A `/` in a value makes
          directories, as in Flume.
        """
        self.pattern = pattern
        self._zone = parse_zone(time_zone)
        self._rounding = (rounding[0], max(rounding[1], 1)) if rounding and rounding[0] in _MAX_ROUNDING else None
        self._local_time, self._as_path, self._now = local_time, as_path, now
        escapes = list(_ESCAPE.finditer(pattern))
        _check_escapes(pattern)
        if self._rounding:
            _check_rounding(*self._rounding)
        self.fixed_prefix = pattern[: escapes[0].start()] if escapes else pattern
        """Text before the first escape."""
        self._letters = {escape[1] for escape in escapes if escape[1]} - {"%"}
        headers = [escape[2] for escape in escapes if escape[2]]
        if "t" in self._letters and not local_time:
            headers.append("timestamp")
        self._headers = tuple(dict.fromkeys(headers))
        needs_timestamp = ["timestamp"] * bool(self._letters and not local_time)
        self.headers = frozenset((*headers, *needs_timestamp))
        """Headers of an event on which the text depends."""
        self._resolution_ms = 1_000 if self._letters & {"S", "s", "c"} else 60_000
        self._cached_times: dict[int, Mapping[str, str] | ValueError] = {}

    def resolve(self, headers: Mapping[str, str]) -> str:
        """Return the text for an event with these headers. Raises ValueError, with a sentence about the event.

        That is for a time that is needed and missing or invalid, or, with `as_path`, a forbidden header value.
        """
        time_texts: Mapping[str, str] = {}
        if self._letters:
            millis = int(self._now() * 1000) if self._local_time else _millis(headers.get("timestamp"))
            time_texts = self._format_time(millis)
        return self._substitute(headers, time_texts)

    def resolve_batch(self, batch: Batch) -> Buckets:
        """Return the texts for all events of a batch; an event without a text has a ValueError in its place.

        The cost grows with the number of distinct texts. All events of a batch have the same time with `local_time`.
        """
        columns = {name: batch.header(name) for name in self._headers}
        time_texts: list[Mapping[str, str] | ValueError] = [{}]
        times = np.zeros(len(batch), np.int64)
        if self._letters and self._local_time:
            time_texts = [self._format_time(int(self._now() * 1000))]
        elif self._letters:
            times, time_texts = self._format_times(batch.header("timestamp"))
        codes = times
        for column in columns.values():
            codes = _combine(codes, _codes(column))
        if codes.min(initial=0) == codes.max(initial=0):
            firsts, codes = np.zeros(min(len(batch), 1), np.int64), np.zeros(len(batch), np.int64)
        else:
            _, firsts, codes = np.unique(codes, return_index=True, return_inverse=True)
        paths: list[str | ValueError] = []
        for row in firsts.tolist():
            texts = time_texts[times[row]]
            headers = {name: value for name, c in columns.items() if (value := c[row].as_py()) is not None}
            try:
                paths.append(texts if isinstance(texts, ValueError) else self._substitute(headers, texts))
            except ValueError as e:
                paths.append(e)
        return Buckets(paths, codes)

    def _substitute(self, headers: Mapping[str, str], time_texts: Mapping[str, str]) -> str:
        """Return the pattern with its escapes replaced; `time_texts` has the time escapes, by character.

        Raises ValueError for a forbidden header value, or if this host cannot find its own address.
        """

        def replace(escape: re.Match[str]) -> str:
            letter, header, host = escape.groups()
            if letter == "%":
                return letter
            if letter == "t" and not self._local_time:
                return headers["timestamp"]
            if letter:
                return time_texts[letter]
            if host:
                return _host(host.lower())
            value = headers.get(header, "")
            if self._as_path:
                _check_path(header, value)
            return value

        return _ESCAPE.sub(replace, self.pattern)

    def _format_time(self, millis: int) -> dict[str, str]:
        """Return the text of each time escape of this pattern, by its character.

        `millis` is the time in milliseconds since the epoch. Raises ValueError for a time that cannot be formatted or
        rounded.
        """
        rounded = round_down(millis, *self._rounding, self._zone) if self._rounding else millis
        moment = _Moment(rounded, self._zone)
        return {letter: str(millis) if letter == "t" else _LETTERS[letter](moment) for letter in self._letters}

    def _format_times(self, column: Any) -> tuple[Codes, list[Mapping[str, str] | ValueError]]:
        """Return, for each row of a column of timestamps, an index into the second result: time texts or errors.

        `column` is dictionary-encoded text. Equal texts have one index.
        """
        millis, errors = _times(column.dictionary)
        is_old = millis.min(initial=_WHOLE_MINUTES_SINCE_MS) < _WHOLE_MINUTES_SINCE_MS
        resolution = 1 if is_old else self._resolution_ms
        keys, inverse = np.unique(millis // resolution, return_inverse=True)
        indexes: dict[tuple[str, ...] | str, int] = {}
        time_texts: list[Mapping[str, str] | ValueError] = []

        def index_of(texts: Mapping[str, str] | ValueError) -> int:
            key = str(texts) if isinstance(texts, ValueError) else tuple(texts.values())
            index = indexes.setdefault(key, len(indexes))
            time_texts.extend([texts] if index == len(time_texts) else [])
            return index

        codes = [index_of(self._format_cached(key * resolution)) for key in keys.tolist()]
        of_value = np.array(codes, np.int64)[inverse]
        for code, error in errors.items():
            of_value[code] = index_of(error)
        missing = index_of(ValueError(_MISSING)) if column.null_count else 0
        return np.append(of_value, missing)[_codes(column)], time_texts

    def _format_cached(self, millis: int) -> Mapping[str, str] | ValueError:
        """Return the texts of `_format_time`, or its error. Cached, as consecutive batches have similar times."""
        if len(self._cached_times) > _MAX_CACHED_TIMES:
            self._cached_times.clear()
        if millis not in self._cached_times:
            try:
                self._cached_times[millis] = self._format_time(millis)
            except ValueError as e:
                self._cached_times[millis] = e
        return self._cached_times[millis]


def round_down(millis: int, unit: str, value: int, zone: tzinfo | None = None) -> int:
    """Return a time in milliseconds, rounded down to a multiple of `value` units on the clock of a zone.

    `unit` is `second`, `minute` or `hour`, and the zone None is the machine's. Raises ValueError for a value out of
    bounds, or a time up to the begin of 1970.
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
    return (_seconds(rounded) + cycles * _CYCLE_SECONDS) * 1000


def parse_zone(name: str | None) -> tzinfo | None:
    """Return the zone of a Java zone id, UTC for an unknown one, as in Java.

    None stands for the machine's zone, as argument and result.
    """
    return None if name is None else find_zone(name) or UTC


def find_zone(name: str) -> tzinfo | None:
    """Return the zone of a Java zone id, such as `Europe/Paris`, `PST` or `GMT+5:30`; None if it is unknown."""
    custom = re.fullmatch(r"GMT([+-])([0-9]{1,2})(?::?([0-5][0-9]))?", name)
    if custom and int(custom[2]) < 24:
        offset = timedelta(hours=int(custom[2]), minutes=int(custom[3] or 0))
        return timezone(-offset if custom[1] == "-" else offset)
    try:
        return ZoneInfo(ZONE_BY_SHORT_NAME.get(name, name))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None


class _Moment:
    """Time on the clock of a zone."""

    def __init__(self, millis: int, zone: tzinfo | None) -> None:
        self.millis = millis
        self.local, cycles = _local(millis // 1000, zone)
        self.year = self.local.year + 400 * cycles

    def offset(self) -> str:
        """Return the offset of the zone from UTC, such as `+0530`."""
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
    """Return the name or address of this host for the escape `localhost`, `ip` or `fqdn`, cached.

    Raises ValueError if it cannot be found out.
    """
    try:
        return _HOST[key]()
    except OSError as e:
        raise ValueError(f"this host cannot find its own address for %[{key}]: {e}") from e


def _local(seconds: int, zone: tzinfo | None) -> tuple[datetime, int]:
    """Return the time on the clock of a zone, less some cycles of 400 years, and the number of these cycles.

    `datetime` ends with the year 9999, and timestamps do not. Raises ValueError for a time before the Gregorian
    calendar.
    """
    if seconds < _FIRST_SECOND:
        raise ValueError(f"its header 'timestamp' is {seconds}000, a time before the Gregorian calendar")
    cycles = max(0, (seconds - _LAST_SECOND) // _CYCLE_SECONDS + 1)
    return datetime.fromtimestamp(seconds - cycles * _CYCLE_SECONDS, zone), cycles


def _seconds(local: datetime) -> int:
    """Return the seconds since the epoch of a local time.

    As in Java, of an hour that a clock shows twice this is the second one, and of a skipped hour the next.
    """
    return int(max(local.replace(fold=fold).timestamp() for fold in (0, 1)))


def _check_rounding(unit: str, value: int) -> None:
    """Raise ValueError if a rounding value is not between 1 and the units in the next greater unit."""
    if not 0 < value <= _MAX_ROUNDING[unit]:
        raise ValueError(f"times can be rounded down to 1 to {_MAX_ROUNDING[unit]} {unit}s, not to {value}")


def _check_escapes(pattern: str) -> None:
    """Raise ValueError for the first percent sign that is no part of an escape."""
    masked = _ESCAPE.sub(lambda escape: "x" * len(escape[0]) if _is_known(escape) else escape[0], pattern)
    if (index := masked.find("%")) < 0:
        return
    rest = pattern[index:]
    if rest.startswith("%{"):
        name, closed, _ = rest[2:].partition("}")
        if not closed:
            raise ValueError(f"{rest!r} has no closing brace: a header is written %{{name}}")
        raise ValueError(f"%{{{name}}} is no escape: names there have letters, digits, '.', '_' and '-'")
    if rest.startswith("%["):
        raise ValueError(f"%[{rest[2:].partition(']')[0]}] is none of %[localhost], %[IP] and %[FQDN]")
    letters = " ".join(
        f"%{letter}" for letter in sorted((*_LETTERS, "t"), key=lambda escape: (escape.lower(), escape))
    )
    raise ValueError(f"{rest[:2]!r} is no escape: a header is %{{name}}, a percent sign %%, of the time: {letters}")


def _is_known(escape: re.Match[str]) -> bool:
    """Return True if a match of `_ESCAPE` is an escape that Flume has."""
    letter, _, host = escape.groups()
    return letter in (None, "%", "t", *_LETTERS) and (host is None or host.lower() in _HOST)


def _check_path(header: str, value: str) -> None:
    """Raise ValueError for a header value that leads out of a path, or that no path may contain."""
    if any(len(name.encode()) > 255 for name in value.split("/")):
        raise ValueError(f"its header {header!r} has more than 255 bytes, too many for a name in a path")
    if ".." in value or any(c < " " or "\x7f" <= c <= "\x9f" for c in value):
        raise ValueError(
            f"its header {header!r} is {value!r}: a path may contain neither '..' nor control characters"
        )


def parse_milliseconds(text: str, header: str = "timestamp") -> int:
    """Return the time in a header's text, in milliseconds. Raises ValueError, with a sentence about the event."""
    if not re.fullmatch(r"[+-]?[0-9]{1,19}", text) or not -(1 << 63) <= (millis := int(text)) < 1 << 63:
        raise ValueError(f"its header {header!r} is {text[:40]!r}, not a number of milliseconds")
    return millis


def _millis(text: str | None) -> int:
    """Return the time in a header's text, in milliseconds. Raises ValueError for None and for any other text."""
    if text is None:
        raise ValueError(_MISSING)
    return parse_milliseconds(text)


def _times(values: Any) -> tuple[npt.NDArray[np.int64], dict[int, ValueError]]:
    """Return timestamps as milliseconds, 0 for invalid ones, and the errors of the invalid ones by index."""
    if pc.all(pc.ascii_is_decimal(values)).as_py() is not False:
        try:
            return values.cast(pa.int64()).to_numpy(zero_copy_only=False), {}
        except pa.ArrowInvalid:
            pass  # a timestamp has too many digits
    millis, errors = np.zeros(len(values), np.int64), {}
    for code, text in enumerate(values.to_pylist()):
        try:
            millis[code] = _millis(text)
        except ValueError as e:
            errors[code] = e
    return millis, errors


def _codes(column: Any) -> Codes:
    """Return the index in the dictionary of the column for each row, -1 for null."""
    codes: Codes = pc.fill_null(column.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    return codes


def _combine(codes: Codes, more: Codes) -> Codes:
    """Return for each row a code that is unique for the pair of its codes. Codes need not be consecutive."""
    if not len(codes) or more.min() == more.max():
        return codes
    if codes.min() == codes.max():
        return more
    _, more = np.unique(more, return_inverse=True)
    _, codes = np.unique(codes, return_inverse=True)
    return codes.reshape(-1) * (int(more.max()) + 1) + more.reshape(-1)
