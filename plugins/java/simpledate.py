"""Parser and formatter of times by patterns of Java's `SimpleDateFormat`, such as `MMM d yyyy HH:mm:ss`."""

from __future__ import annotations

import calendar
import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, available_timezones

from flafka.plugins.java.datepattern import DAYS, MONTHS, Field, is_numeric_field, tokenize
from flafka.plugins.java.zones import ZONE_BY_SHORT_NAME

_NUMBER = re.compile(r"-?\d{1,18}")
_ISO_OFFSET = (re.compile(r"([+-])(\d\d)"), re.compile(r"([+-])(\d\d)(\d\d)"), re.compile(r"([+-])(\d\d):(\d\d)"))
_RFC_OFFSET = re.compile(r"([+-])(\d\d)(\d\d)")
_GMT_OFFSET = re.compile(r"GMT(?:([+-])(\d\d?):(\d\d)|(?![+-]))", re.IGNORECASE)
_HALVES = {"am": 0, "pm": 1}
_ZONES = {
    "utc": 0, "gmt": 0, "est": -5, "edt": -4, "cst": -6, "cdt": -5, "mst": -7, "mdt": -6, "pst": -8, "pdt": -7,
    "ast": -4, "adt": -3, "akst": -9, "akdt": -8, "hst": -10, "brt": -3, "clt": -4, "cet": 1, "cest": 2, "met": 1,
    "mest": 2, "bst": 1, "eet": 2, "eest": 3, "wet": 0, "west": 1, "msk": 3, "sast": 2, "eat": 3, "wat": 1, "gst": 4,
    "pkt": 5, "ist": 2, "ict": 7, "wib": 7, "sgt": 8, "hkt": 8, "jst": 9, "kst": 9, "aest": 10, "nzst": 12,
    "nzdt": 13,
}  # fmt: skip
"""Offset from UTC in hours, by the name of a zone in a text.

As in Java 17 with English names, unless the zone of the machine has that name.
"""
_NUMERIC = "yMLdDHkhKmsS"
_KNOWN = f"{_NUMERIC}aEzZX"
_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_CYCLE_YEARS, _CYCLE_MILLIS = 400, 146_097 * 86_400_000
"""Period of the calendar, weekdays included, in years and milliseconds. Python's dates end with 9999."""
_FIRST_MILLIS = (datetime(2000, 1, 1) - _EPOCH) // _MILLISECOND
_FIRST_HISTORIC_YEAR = 1900
"""First year with historic offsets in Java. Before, the standard offset of the zone counts."""


def time_zone(name: str) -> tzinfo:
    """Return the time zone of that name, by Java's rules. Raises ValueError for an unknown name."""
    if name in ("UTC", "GMT"):
        return UTC
    if name not in ZONE_BY_SHORT_NAME and name not in available_timezones():
        raise ValueError(f"has an unknown time zone {name!r}")
    return ZoneInfo(ZONE_BY_SHORT_NAME.get(name, name))


class SimpleDateFormat:
    """A date pattern, lenient as in Java: 2012-02-31 is the second of March.

    Supported fields, with English names:
    - `y` year, `M` `L` month, `d` day, `D` day of the year, `E` day of the week (parsed, not checked).
    - `a` half of the day, `H` `k` `h` `K` hour, `m` minute, `s` second, `S` milliseconds.
    - `z` `Z` `X` zone.

    `'…'` is literal. The calendar is Gregorian also before 1582. `zone` applies to times without a zone; None is the
    zone of this machine. A year of two digits is in the 100 years from `century`; if None, from 2000 to 2099.

    Raises ValueError with a message for the user for an unsupported pattern.
    """

    def __init__(self, pattern: str, zone: tzinfo | None, *, century: datetime | None = None) -> None:
        self._zone = zone
        self._century = century
        try:
            self._parts = tokenize(pattern)
        except ValueError as e:
            raise ValueError(f"has a time format {pattern!r} with {e}") from None
        fields = [part for part in self._parts if isinstance(part, Field)]
        for letter, count in fields:
            if letter not in _KNOWN or (letter == "X" and count > 3):
                hint = ", the year of a week; y is the year of a date" if letter == "Y" else ""
                raise ValueError(
                    f"has a time format {pattern!r} with {letter * count!r}, which is not supported{hint}"
                )
        letters = {field.letter for field in fields}
        if "E" in letters and not letters & set("dD"):
            raise ValueError(
                f"has a time format {pattern!r} with a day of the week and no day, which is not supported"
            )

    def parse(self, text: str, *, whole: bool = True) -> int | None:
        """Return milliseconds since the epoch; None if the text does not match, or is no time that can be computed.

        Unless `whole`, any text may follow the time.
        """
        values: dict[str, int] = {}
        position = 0
        for number, part in enumerate(self._parts, 1):
            if isinstance(part, str):
                if not text.startswith(part, position):
                    return None
                position += len(part)
                continue
            # Before another numeric field, the width of a field is fixed: its number of pattern letters.
            has_fixed_width = is_numeric_field(self._parts, number)
            end = self._parse_field(text, position, part, has_fixed_width, values)
            if end is None:
                return None
            position = end
        if whole and position != len(text):
            return None
        try:
            millis = self._instant(values)
            if values.get("century") and self._century and millis < self._century.timestamp() * 1000:
                values["y"] += 100
                millis = self._instant(values)
            return millis
        except (ValueError, OverflowError):
            return None

    def format(self, millis: int) -> str:
        """Return the text of a time in milliseconds since the epoch. Raises ValueError before year 1."""
        cycles = max(0, (millis - _FIRST_MILLIS) // _CYCLE_MILLIS)
        try:
            time = _EPOCH_UTC + timedelta(milliseconds=millis - cycles * _CYCLE_MILLIS)
            time = time.astimezone(self._zone_in(time.year))
        except OverflowError:
            raise ValueError(f"the time {millis} is before the year 1") from None
        years = cycles * _CYCLE_YEARS
        return "".join(
            part if isinstance(part, str) else self._format_field(time, years, *part) for part in self._parts
        )

    def _parse_field(
        self, text: str, start: int, part: Field, has_fixed_width: bool, values: dict[str, int]
    ) -> int | None:
        """Store the value of one field in `values`; return its end in the text, or None if the text does not match.

        With `has_fixed_width` a number has at most as many characters as the field has in the pattern.
        """
        letter, count = part
        position = start
        while text[position : position + 1] in (" ", "\t"):
            position += 1
        if position >= len(text):
            return None
        if letter in "zZX":
            return _parse_zone(text, start, position, part, values)
        names = {"E": DAYS, "a": _HALVES}.get(letter) or (MONTHS if letter in "ML" and count > 2 else None)
        if names is not None:
            head = text[start : start + 12].lower()  # Java skips blanks before numbers only
            name = max((name for name in names if name and head.startswith(name)), key=len, default=None)
            if name is None:
                return None
            values[letter if letter != "L" else "M"] = names[name]
            return start + len(name)
        if has_fixed_width and start + count > len(text):
            return None
        match = _NUMBER.match(text, position, start + count if has_fixed_width else len(text))
        if match is None:
            return None
        value = int(match[0])
        if letter == "y" and count <= 2 and len(match[0]) == 2 and value >= 0:
            first = self._century.year if self._century else 2000
            values["century"] = value == first % 100  # the year is the first of the 100 years, or the one after them
            value += first // 100 * 100 + 100 * (value < first % 100)
        values["M" if letter == "L" else letter] = value
        return match.end()

    def _zone_in(self, year: int) -> tzinfo | None:
        """Return the zone for times of a year: before 1900, its present standard offset.

        None is the machine's zone.
        """
        if year >= _FIRST_HISTORIC_YEAR:
            return self._zone
        modern = datetime(2000, 1, 1, tzinfo=self._zone)
        modern = modern if self._zone else modern.astimezone()
        return timezone((modern.utcoffset() or timedelta()) - (modern.dst() or timedelta()))

    def _instant(self, values: dict[str, int]) -> int:
        """Return milliseconds since the epoch from the values of fields. Raises ValueError or OverflowError."""
        month = 0 if "D" in values and "d" not in values else values.get("M", 1) - 1
        year, month = values.get("y", 1970) + month // 12, month % 12 + 1
        cycles = max(0, (year - 2000) // _CYCLE_YEARS)
        year -= cycles * _CYCLE_YEARS
        day = values.get("d", values.get("D", 1)) - 1
        hour = 0
        if "H" in values or "k" in values:
            hour = values.get("H", values.get("k", 0) % 24 if values.get("k") == 24 else values.get("k", 0))
        elif "h" in values or "K" in values:
            hour = values.get("K", 0 if values.get("h") == 12 else values.get("h", 0)) + 12 * values.get("a", 0)
        elif "a" in values:
            hour = 12 * values["a"]
        seconds = ((day * 24 + hour) * 60 + values.get("m", 0)) * 60 + values.get("s", 0)
        millis = (datetime(year, month, 1) - _EPOCH) // _MILLISECOND + seconds * 1000 + values.get("S", 0)
        more_cycles = max(0, (millis - _FIRST_MILLIS) // _CYCLE_MILLIS)
        cycles_millis = (cycles + more_cycles) * _CYCLE_MILLIS
        if "zone" in values:
            return millis - values["zone"] * 60_000 + cycles * _CYCLE_MILLIS
        wall = _EPOCH + timedelta(milliseconds=millis - more_cycles * _CYCLE_MILLIS)
        # Java takes the later of two times in an overlap of daylight saving, and the offset before a gap.
        zone = self._zone_in(wall.year)
        time = wall.replace(tzinfo=zone, fold=1)
        if time.astimezone(UTC).astimezone(zone).replace(tzinfo=None) != wall:
            time = time.replace(fold=0)
        return (time.astimezone(UTC) - _EPOCH_UTC) // _MILLISECOND + cycles_millis

    def _format_field(self, time: datetime, years: int, letter: str, count: int) -> str:
        """Return the text of one field.

        `count` is its length in the pattern, and `years` are added to the year of `time`.
        """
        match letter:
            case "y":
                return f"{time.year % 100:02}" if count == 2 else f"{time.year + years:0{count}}"
            case "M" | "L" if count > 2:
                return (calendar.month_name if count > 3 else calendar.month_abbr)[time.month]
            case "E":
                return (calendar.day_name if count > 3 else calendar.day_abbr)[time.weekday()]
            case "a":
                return "PM" if time.hour >= 12 else "AM"
            case "Z":
                return time.strftime("%z")[:5]
            case "X":
                offset = time.strftime("%z")[:5]
                if offset == "+0000":
                    return "Z"
                return (offset[:3], offset, f"{offset[:3]}:{offset[3:]}")[count - 1]
            case "z":
                return time.tzname() or ""
        values = {
            "M": time.month, "L": time.month, "d": time.day, "D": time.timetuple().tm_yday, "H": time.hour,
            "k": time.hour or 24, "h": time.hour % 12 or 12, "K": time.hour % 12, "m": time.minute, "s": time.second,
            "S": time.microsecond // 1000,
        }  # fmt: skip
        return f"{values[letter]:0{count}}"


def _parse_zone(text: str, start: int, position: int, part: Field, values: dict[str, int]) -> int | None:
    """Store the offset of a zone, in minutes, as `values["zone"]`, and return the end of its text.

    Return None if the text does not match.
    """
    letter, count = part
    if letter == "X":
        if text[position] == "Z":
            values["zone"] = 0
            return position + 1
        match = _ISO_OFFSET[count - 1].match(text, position)
    elif text[position] in "+-":
        match = _RFC_OFFSET.match(text, position)
    elif position == start and text[position : position + 3].upper() == "GMT":
        match = _GMT_OFFSET.match(text, position)
        if match is None:
            return None
        if match[1] is None:
            values["zone"] = 0
            return match.end()
    else:
        name = max((name for name in _ZONES if text[position:].lower().startswith(name)), key=len, default=None)
        if name is None:
            return None
        values["zone"] = _ZONES[name] * 60
        return position + len(name)
    if match is None:
        return None
    hours, minutes = int(match[2]), int(match[3]) if match.lastindex == 3 else 0
    if hours > 23 or minutes > 59:
        return None
    values["zone"] = (hours * 60 + minutes) * (-1 if match[1] == "-" else 1)
    return match.end()
