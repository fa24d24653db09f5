"""Parser of times by patterns of Joda-Time, such as `yyyy-MM-dd HH:mm`, for Flume's `regex_extractor`."""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import UTC, datetime, timedelta, tzinfo

from flafka.plugins.java.datepattern import DAYS, MONTHS, Field, is_numeric_field, tokenize

_FIELDS = {
    "M": ("month", 2), "d": ("day", 2), "D": ("day_of_year", 3), "H": ("hour", 2), "k": ("clock_hour", 2),
    "h": ("clock_half", 2), "K": ("half_hour", 2), "m": ("minute", 2), "s": ("second", 2),
}  # fmt: skip
_MINIMA = {"month": 1, "day": 1, "day_of_year": 1, "clock_hour": 1, "clock_half": 1}
_MAXIMA = {
    "month": 12, "day": 31, "day_of_year": 366, "hour": 23, "clock_hour": 24, "half_hour": 11, "clock_half": 12,
    "minute": 59, "second": 59,
}  # fmt: skip
_OFFSET = (
    "[+-](?:[01][0-9]|2[0-3])(?::[0-5][0-9](?::[0-5][0-9](?:[.,][0-9]{1,3})?)?"
    "|[0-5][0-9](?:[0-5][0-9](?:[0-9]{1,3})?)?)?"
)
"""Hours, with optional minutes, seconds and fraction."""
_MAX_CACHED_SECONDS = 10_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class TimePattern:
    """A pattern of Joda-Time that parses times. Raises ValueError with a message for the user if unsupported.

    Supported fields, with English names:
    - `y` `Y` year, `M` month (`MMM` its name), `d` day of the month, `D` day of the year.
    - `E` day of the week, which moves the time to that day of the same week.
    - `a` half of the day, `H` `k` hour, `h` `K` hour of the half day.
    - `m` minute, `s` second, `S` fraction of the second, `Z` offset such as +0100.

    `'…'` is literal. A time without offset is in `zone`; None is the zone of this machine. A missing field is as on
    1970-01-01T00:00, but the year is 2000 if there is a month or a day.
    """

    def __init__(self, pattern: str, zone: tzinfo | None = None) -> None:
        self._zone = zone
        self._has_short_year = False
        try:
            fields = tokenize(pattern)
        except ValueError as e:
            raise ValueError(f"the time {pattern!r} has {e}") from None
        parts = (
            self._group(pattern, field, is_numeric_field(fields, number))
            if isinstance(field, Field)
            else re.escape(field)
            for number, field in enumerate(fields, 1)
        )
        try:
            self._regex = re.compile("".join(parts), re.ASCII | re.IGNORECASE)
        except re.error:
            raise ValueError(f"the time {pattern!r} names a part of it twice") from None
        named = self._regex.groupindex.keys()
        if {"hour", "clock_hour"} <= named or {"half_hour", "clock_half"} <= named:
            raise ValueError(f"the time {pattern!r} names the hour twice")
        self._fraction = self._regex.groupindex.get("fraction", 0)
        self._seconds: dict[tuple[str, ...], int | None] = {}
        """Cache of parsed times without fraction: a log has many lines per second."""

    def millis(self, text: str) -> int | None:
        """Return milliseconds since the epoch; None if the whole text does not match, or a field is out of range.

        Safe for several threads.
        """
        match = self._regex.fullmatch(text)
        if match is None:
            return None
        parts, fraction = match.groups(), 0
        if self._fraction:
            fraction = int(parts[self._fraction - 1][:3].ljust(3, "0"))
            parts = parts[: self._fraction - 1] + parts[self._fraction :]
        try:
            second = self._seconds[parts]
        except KeyError:  # another thread may clear the cache at any time
            if len(self._seconds) >= _MAX_CACHED_SECONDS:
                self._seconds.clear()
            second = self._seconds[parts] = self._second(match)
        return None if second is None else second + fraction

    def _second(self, match: re.Match[str]) -> int | None:
        """Return milliseconds since the epoch without the fraction; None for a field out of range."""
        values = {name: value for name, value in match.groupdict().items() if value is not None}
        numbers = {name: int(values[name]) for name in _MAXIMA if values.get(name, "").isdigit()}
        if any(not _MINIMA.get(name, 0) <= n <= _MAXIMA[name] for name, n in numbers.items()):
            return None
        try:
            return self._millis_of(values, numbers)
        except (ValueError, OverflowError):
            return None

    def _millis_of(self, values: dict[str, str], numbers: dict[str, int]) -> int:
        """Return milliseconds since the epoch, without the fraction.

        `values` has the text of each field, and `numbers` the numeric ones. Raises ValueError or OverflowError for no
        such time.
        """
        has_date = "month" in values or "day" in values
        year = int(values.get("year", 2000 if has_date else 1970))
        if self._has_short_year and len(values["year"]) == 2:
            pivot = datetime.now(UTC).year - 30
            year += (pivot + 49 - year) // 100 * 100
        month = numbers.get("month") or MONTHS[values["month"].lower()] if "month" in values else 1
        hour = numbers.get("hour", numbers.get("clock_hour", 0))
        half = numbers.get("half_hour", numbers.get("clock_half"))
        if half is not None:
            hour = half % 12 + 12 * (values.get("half", "").lower() == "pm")
        time = datetime(
            year, month, numbers.get("day", 1), hour % 24, numbers.get("minute", 0), numbers.get("second", 0)
        )
        if "day_of_year" in numbers:
            time = datetime(year, 1, 1, time.hour, time.minute, time.second) + timedelta(numbers["day_of_year"] - 1)
            if time.year != year:
                raise ValueError("day of the year")
        if "weekday" in values:  # as in Joda-Time: that day in the week of the date
            time += timedelta(DAYS[values["weekday"].lower()] - time.weekday())
        offset = values.get("offset")
        if offset is None:
            local = time.replace(tzinfo=self._zone) if self._zone else time.astimezone()
            return (local - _EPOCH) // timedelta(milliseconds=1)
        offset_millis = 0
        if offset not in "zZ":
            digits = re.sub("[^0-9]", "", offset).ljust(9, "0")
            offset_millis = ((int(digits[:2]) * 60 + int(digits[2:4])) * 60 + int(digits[4:6])) * 1000 + int(
                digits[6:]
            )
        millis = (time.replace(tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
        return millis + offset_millis if offset[0] == "-" else millis - offset_millis

    def _group(self, pattern: str, field: Field, digits_follow: bool) -> str:
        """Return the regular expression of a field.

        `digits_follow` fixes its width. Raises ValueError if unsupported.
        """
        letter, count = field
        if letter in "yY":
            self._has_short_year = count == 2
            return rf"(?P<year>[0-9]{{{count}}})" if digits_follow else "(?P<year>[+-]?[0-9]{1,9})"
        if letter == "M" and count > 2:
            return f"(?P<month>{_any_of(MONTHS)})"
        if letter in _FIELDS:
            name, most = _FIELDS[letter]
            return rf"(?P<{name}>[0-9]{{{f'{min(count, most)}' if digits_follow else f'1,{most}'}}})"
        match letter:
            case "S":
                return rf"(?P<fraction>[0-9]{{1,{count}}})"
            case "a":
                return "(?P<half>am|pm)"
            case "E":
                return f"(?P<weekday>{_any_of(DAYS)})"
            case "Z" if count < 3:
                return f"(?P<offset>z|{_OFFSET})"
        supported = "y M d D E a H k h K m s S Z"
        raise ValueError(
            f"the time {pattern!r} has {letter * count!r}, which is not supported; supported are: {supported}"
        )


def _any_of(names: Collection[str]) -> str:
    """Return a regular expression for one of these names, the longest first."""
    longest_first = sorted((re.escape(name) for name in names if name), key=len, reverse=True)
    return f"(?:{'|'.join(longest_first)})"
