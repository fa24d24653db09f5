"""Parser of the time formats that encoders write."""

from __future__ import annotations

import contextlib
import re
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal
from typing import Any

_UNITS = ((10**17, Decimal("1e-6")), (10**14, Decimal("1e-3")), (10**11, Decimal(1)), (10**8, Decimal(1000)))
"""Least number of nanoseconds, microseconds, milliseconds and seconds since the epoch, and milliseconds per unit.

Smaller numbers would be times before 1973, and are no times.
"""
_NUMBER = re.compile(r"[0-9]{9,19}(?:\.[0-9]*)?|[0-9](?:\.[0-9]+)?[eE]\+?[0-9]{1,2}")
_COMPACT = re.compile(r"(?:19|20)[0-9]{10}(?:[0-9]{2}|[0-9]{5})?")
"""yyyyMMddHHmm, optionally with seconds, or with milliseconds as in log4j's pattern COMPACT.

As milliseconds or microseconds since the epoch, these would be times before 1977 or after 2590.
"""
_COMPACTS = {12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S", 17: "%Y%m%d%H%M%S%f"}
_REGION = re.compile(r"\s*\[[^]]*\]$")
"""Java's region name behind an offset."""
_FRACTION = re.compile(r"(?<=:[0-9]{2})[.,]([0-9]+)")
_OFFSET = re.compile(r"\s+([+-][0-9]{2}:?[0-9]{2}|(?!AM\b|PM\b)[A-Z]{3,5}|Z)\b")
_PATTERNS = (
    "%Y-%m-%d %H:%M:%S",
    "%Y-%m-%dT%H:%M:%S",
    "%Y/%m/%d %H:%M:%S",
    "%d %b %Y %H:%M:%S",
    "%d-%b-%Y %H:%M:%S",
    "%d/%b/%Y:%H:%M:%S",
    "%a, %d %b %Y %H:%M:%S",
    "%a %b %d %H:%M:%S %Y",
    "%b %d, %Y %I:%M:%S %p",
    "%b %d, %Y, %I:%M:%S %p",
)
"""Formats of log4j (DATE), Tomcat, web servers, RFC 1123, `Date`, java.util.logging, without fraction and offset."""
_MAX_CHARACTERS = 100
"""Maximum length of a time. The expressions above take quadratic time for longer texts."""
_EPOCH, _MILLISECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)


def epoch_millis(value: Any, zone: tzinfo | None) -> int | None:
    """Return milliseconds since the epoch of a text, a number or an instant of log4j; None if `value` is no time.

    The size of a number decides between seconds, milliseconds, microseconds and nanoseconds.
    `zone` applies to times without one; None is the time zone of this machine.
    """
    if isinstance(value, dict):  # log4j's instant
        second, nano = value.get("epochSecond"), value.get("nanoOfSecond", 0)
        return second * 1000 + nano // 1_000_000 if isinstance(second, int) and isinstance(nano, int) else None
    text = str(value).strip()
    if len(text) > _MAX_CHARACTERS:
        return None
    try:
        if text[4:5] == "-":
            return _parse_text(_REGION.sub("", text), zone)
        if _COMPACT.fullmatch(text):
            return _moment_millis(datetime.strptime(text, _COMPACTS[len(text)]), zone)
        if _NUMBER.fullmatch(text):
            number = Decimal(text)
            return next((int(number * unit) for least, unit in _UNITS if number >= least), None)
        return _parse_text(text, zone) if isinstance(value, str) else None
    except (ValueError, OverflowError):
        return None


def _parse_text(text: str, zone: tzinfo | None) -> int:
    """Return milliseconds since the epoch. Raises ValueError if `text` is no time."""
    try:
        return _moment_millis(datetime.fromisoformat(text), zone)
    except ValueError:
        pass  # a pattern may match
    fraction, offset = _FRACTION.search(text), _OFFSET.search(text)
    text = _OFFSET.sub("", _FRACTION.sub("", text))
    for pattern in _PATTERNS:
        with contextlib.suppress(ValueError):
            moment = datetime.strptime(text, pattern)  # the offset follows
            if offset and offset[1][0] in "+-":
                moment = moment.replace(tzinfo=datetime.strptime(offset[1], "%z").tzinfo)
            elif offset and offset[1] in ("UTC", "GMT", "Z"):
                moment = moment.replace(tzinfo=UTC)
            elif offset:
                moment = moment.replace(tzinfo=zone) if zone else moment.astimezone()
                if moment.tzname() != offset[1]:  # the name of another, unknown zone
                    raise ValueError(text)
            return _moment_millis(moment, zone) + (int(fraction[1][:3].ljust(3, "0")) if fraction else 0)
    raise ValueError(text)


def _moment_millis(moment: datetime, zone: tzinfo | None) -> int:
    """Return milliseconds since the epoch; a moment without a zone is in `zone`, or that of this machine if None."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=zone) if zone else moment.astimezone()
    return (moment - _EPOCH) // _MILLISECOND
