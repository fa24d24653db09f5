"""Times read and written in patterns of Java's `SimpleDateFormat`: `MMM d yyyy HH:mm:ss`."""

from __future__ import annotations

import calendar
import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, available_timezones

from flafka.plugins.shared.datepattern import DAYS, MONTHS, Field, is_number, tokens
from flafka.plugins.shared.javazones import SHORT_NAMES

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
"""Hours east of Greenwich by the name of a zone in a text. Java 17 reads them so in English, unless the machine's own
zone has that name."""
_NUMERIC = "yMLdDHkhKmsS"
_KNOWN = f"{_NUMERIC}aEzZX"
_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_CYCLE, _CYCLE_MILLIS = 400, 146_097 * 86_400_000
"""The calendar repeats itself, days of the week included, after so many years: Python's ends with 9999."""
_FIRST_MILLIS = (datetime(2000, 1, 1) - _EPOCH) // _MILLISECOND
_FIRST_OFFSETS = 1900
"""Java knows no offsets before that year but the zone's own."""


def zone(name: str) -> tzinfo:
    """The time zone of that name, by Java's rules. ValueError for an unknown one."""
    if name in ("UTC", "GMT"):
        return UTC
    if name not in SHORT_NAMES and name not in available_timezones():
        raise ValueError(f"has an unknown time zone {name!r}")
    return ZoneInfo(SHORT_NAMES.get(name, name))


class SimpleDateFormat:
    """One pattern, lenient as Java's: 2012-02-31 is the second of March.

    A pattern may have `y` year, `M` `L` month, `d` day, `D` day of the year and `E` day of the week (read, not
    checked). `a` is the half of the day, `H` `k` `h` `K` the hour, `m` the minute, `s` the second, `S` milliseconds.
    `z` `Z` `X` are zones; `'…'` is literal. Names are English. The calendar is today's also before 1582.

    `zone` is that of times that name none; None: of this machine. `century` is the time from which on a year of two
    digits is the first that ends in them. Without it, such a year is one of 2000 to 2099. Raises ValueError, in words
    for the user, for a pattern that is not built.
    """

    def __init__(self, pattern: str, zone: tzinfo | None, *, century: datetime | None = None) -> None:
        self._zone = zone
        self._century = century
        try:
            self._parts = tokens(pattern)
        except ValueError as e:
            raise ValueError(f"has a time format {pattern!r} with {e}") from None
        fields = [part for part in self._parts if isinstance(part, Field)]
        for letter, count in fields:
            if letter not in _KNOWN or (letter == "X" and count > 3):
                hint = ", the year of a week; y is the year of a date" if letter == "Y" else ""
                raise ValueError(f"has a time format {pattern!r} with {letter * count!r}, which is not built{hint}")
        letters = {field.letter for field in fields}
        if "E" in letters and not letters & set("dD"):
            raise ValueError(f"has a time format {pattern!r} with a day of the week and no day, which is not built")

    def parse(self, text: str, *, whole: bool = True) -> int | None:
        """Milliseconds since the epoch; None for a text that is no time of this format.

        Unless `whole`, any text may follow the time.
        """
        found: dict[str, int] = {}
        position = 0
        for number, part in enumerate(self._parts, 1):
            if isinstance(part, str):
                if not text.startswith(part, position):
                    return None
                position += len(part)
                continue
            # Where a number follows at once, a field has as many characters as it has letters.
            beside = is_number(self._parts, number)
            end = self._field(text, position, part, beside, found)
            if end is None:
                return None
            position = end
        if whole and position != len(text):
            return None
        try:
            millis = self._instant(found)
            if found.get("century") and self._century and millis < self._century.timestamp() * 1000:
                found["y"] += 100
                millis = self._instant(found)
            return millis
        except (ValueError, OverflowError):
            return None

    def format(self, millis: int) -> str:
        """The text of that time. ValueError for one before year 1."""
        cycles = max(0, (millis - _FIRST_MILLIS) // _CYCLE_MILLIS)
        try:
            at = _EPOCH_UTC + timedelta(milliseconds=millis - cycles * _CYCLE_MILLIS)
            at = at.astimezone(self._zone_in(at.year))
        except OverflowError:
            raise ValueError(f"the time {millis} is before the year 1") from None
        years = cycles * _CYCLE
        return "".join(part if isinstance(part, str) else self._written(at, years, *part) for part in self._parts)

    def _field(self, text: str, start: int, part: Field, beside: bool, found: dict[str, int]) -> int | None:
        """Read one field into `found`; answer where it ends."""
        letter, count = part
        position = start
        while text[position : position + 1] in (" ", "\t"):
            position += 1
        if position >= len(text):
            return None
        if letter in "zZX":
            return _zone_field(text, start, position, part, found)
        names = {"E": DAYS, "a": _HALVES}.get(letter) or (MONTHS if letter in "ML" and count > 2 else None)
        if names is not None:
            rest = text[start : start + 12].lower()  # Java skips blanks before numbers only
            name = max((name for name in names if name and rest.startswith(name)), key=len, default=None)
            if name is None:
                return None
            found[letter if letter != "L" else "M"] = names[name]
            return start + len(name)
        if beside and start + count > len(text):
            return None
        match = _NUMBER.match(text, position, start + count if beside else len(text))
        if match is None:
            return None
        value = int(match[0])
        if letter == "y" and count <= 2 and len(match[0]) == 2 and value >= 0:
            start = self._century.year if self._century else 2000
            found["century"] = value == start % 100  # the year is the first of the century, or the one after its last
            value += start // 100 * 100 + 100 * (value < start % 100)
        found["M" if letter == "L" else letter] = value
        return match.end()

    def _zone_in(self, year: int) -> tzinfo | None:
        if year >= _FIRST_OFFSETS:
            return self._zone
        modern = datetime(2000, 1, 1, tzinfo=self._zone)
        modern = modern if self._zone else modern.astimezone()
        return timezone((modern.utcoffset() or timedelta()) - (modern.dst() or timedelta()))

    def _instant(self, found: dict[str, int]) -> int:
        month = 0 if "D" in found and "d" not in found else found.get("M", 1) - 1
        year, month = found.get("y", 1970) + month // 12, month % 12 + 1
        cycles = max(0, (year - 2000) // _CYCLE)
        year -= cycles * _CYCLE
        day = found.get("d", found.get("D", 1)) - 1
        hour = 0
        if "H" in found or "k" in found:
            hour = found.get("H", found.get("k", 0) % 24 if found.get("k") == 24 else found.get("k", 0))
        elif "h" in found or "K" in found:
            hour = found.get("K", 0 if found.get("h") == 12 else found.get("h", 0)) + 12 * found.get("a", 0)
        elif "a" in found:
            hour = 12 * found["a"]
        seconds = ((day * 24 + hour) * 60 + found.get("m", 0)) * 60 + found.get("s", 0)
        millis = (datetime(year, month, 1) - _EPOCH) // _MILLISECOND + seconds * 1000 + found.get("S", 0)
        over = max(0, (millis - _FIRST_MILLIS) // _CYCLE_MILLIS)
        later = (cycles + over) * _CYCLE_MILLIS
        if "zone" in found:
            return millis - found["zone"] * 60_000 + cycles * _CYCLE_MILLIS
        wall = _EPOCH + timedelta(milliseconds=millis - over * _CYCLE_MILLIS)
        # Of a time that the clock shows twice, Java takes the later one; of one that it skips, the offset before it.
        zone = self._zone_in(wall.year)
        at = wall.replace(tzinfo=zone, fold=1)
        if at.astimezone(UTC).astimezone(zone).replace(tzinfo=None) != wall:
            at = at.replace(fold=0)
        return (at.astimezone(UTC) - _EPOCH_UTC) // _MILLISECOND + later

    def _written(self, at: datetime, years: int, letter: str, count: int) -> str:
        match letter:
            case "y":
                return f"{at.year % 100:02}" if count == 2 else f"{at.year + years:0{count}}"
            case "M" | "L" if count > 2:
                return (calendar.month_name if count > 3 else calendar.month_abbr)[at.month]
            case "E":
                return (calendar.day_name if count > 3 else calendar.day_abbr)[at.weekday()]
            case "a":
                return "PM" if at.hour >= 12 else "AM"
            case "Z":
                return at.strftime("%z")[:5]
            case "X":
                offset = at.strftime("%z")[:5]
                if offset == "+0000":
                    return "Z"
                return (offset[:3], offset, f"{offset[:3]}:{offset[3:]}")[count - 1]
            case "z":
                return at.tzname() or ""
        values = {
            "M": at.month, "L": at.month, "d": at.day, "D": at.timetuple().tm_yday, "H": at.hour,
            "k": at.hour or 24, "h": at.hour % 12 or 12, "K": at.hour % 12, "m": at.minute, "s": at.second,
            "S": at.microsecond // 1000,
        }  # fmt: skip
        return f"{values[letter]:0{count}}"


def _zone_field(text: str, start: int, position: int, part: Field, found: dict[str, int]) -> int | None:
    letter, count = part
    if letter == "X":
        if text[position] == "Z":
            found["zone"] = 0
            return position + 1
        match = _ISO_OFFSET[count - 1].match(text, position)
    elif text[position] in "+-":
        match = _RFC_OFFSET.match(text, position)
    elif position == start and text[position : position + 3].upper() == "GMT":
        match = _GMT_OFFSET.match(text, position)
        if match is None:
            return None
        if match[1] is None:
            found["zone"] = 0
            return match.end()
    else:
        name = max((name for name in _ZONES if text[position:].lower().startswith(name)), key=len, default=None)
        if name is None:
            return None
        found["zone"] = _ZONES[name] * 60
        return position + len(name)
    if match is None:
        return None
    hours, minutes = int(match[2]), int(match[3]) if match.lastindex == 3 else 0
    if hours > 23 or minutes > 59:
        return None
    found["zone"] = (hours * 60 + minutes) * (-1 if match[1] == "-" else 1)
    return match.end()
