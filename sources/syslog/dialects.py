"""Dialects of syslog: the well-formed heads of Flume's sources, and the options of the parser."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import tzinfo
from functools import lru_cache
from typing import Any

FIELDS = ("priority", "version", "timestamp", "hostname")
"""Names that `keepFields` takes, in the order of a message."""

_STAMP_5424 = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:[+-]\d\d:\d\d|Z)?"
_LEAP_YEAR = r"(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DAY = (
    r"(?:\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)"
    rf"|02-(?:0[1-9]|1\d|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_STAMP_STRICT = rf"{_DAY}T(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d+)?(?:[+-]\d\d:\d\d|Z)?"
_S = r"[\s\x0b]"
"""Java's whitespace: RE2's `\\s` lacks the vertical tab."""
_STAMP_3164 = rf"[A-Z][a-z][a-z]{_S}{{1,2}}\d{{1,2}}{_S}\d\d:\d\d:\d\d"
_BEYOND_ASCII = (
    r"(?:[\xc2-\xdf]|(?:\xe0[\xa0-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]|\xed[\x80-\x9f]"
    r"|(?:\xf0[\x90-\xbf]|[\xf1-\xf3][\x80-\xbf]|\xf4[\x80-\x8f])[\x80-\xbf]))[\x80-\xbf]"
)
"""Character of UTF-8 outside ASCII."""
_IPV6 = r"\[?(?:[\da-fA-F:]*::[\da-fA-F:.]*|(?:[\da-fA-F]{1,4}:){6}[\da-fA-F:.]+)(?:%[\w.-]+)?\]?"
_HOST = rf"(?:(?:\w|{_BEYOND_ASCII})(?:[\w.@-]|{_BEYOND_ASCII})*|{_IPV6})"
"""Host of a message that may lack one: text that ends in a colon or a bracket is the name of a program."""
_HOST_5424 = rf"(?:[!-~]|{_BEYOND_ASCII})+"
_HEAD = (
    rf"^<\d{{1,3}}>(?:\d?{_S}?(?:(?:{_STAMP_5424}|-){_S}(?:{_HOST}|-)|{_STAMP_3164}{_S}{_HOST})"
    rf"|\d{_S}(?:{_STAMP_5424}|-){_S}{_HOST_5424}){_S}"
)
_HOST_STRICT = r"[^\x00-\x20]+"
_HEAD_STRICT = rf"^<\d{{1,3}}>(?:1 )?(?:{_STAMP_STRICT}|{_STAMP_3164}|-) {_HOST_STRICT} "


@dataclass(frozen=True)
class Dialect:
    """Rules that differ between Flume's two kinds of syslog sources."""

    head: str
    """Regular expression of a well-formed head, on bytes."""
    host: str
    """Regular expression of a host behind an RFC 3164 timestamp."""
    priority: str
    version: str
    strict: bool
    """True if an event without a well-formed head is Invalid, and has no header but its status.

    An event with a well-formed head then has a host, which may be `-`, and a timestamp. A missing or impossible
    timestamp becomes the current time.
    """


SINGLE = Dialect(_HEAD, _HOST, "priority", "version", strict=False)
"""Dialect of `syslogtcp` and `syslogudp`."""
MULTIPORT = Dialect(_HEAD_STRICT, _HOST_STRICT, "Priority", "Version", strict=True)
"""Dialect of `multiport_syslogtcp`: other header names, existing dates only, and any characters in a host."""


@dataclass(frozen=True)
class ParserOptions:
    """Options of the parser."""

    keep: frozenset[str] = frozenset()
    """Fields of `FIELDS` that stay in the body."""
    keep_all: bool = False
    """True if the body is the complete message as it was sent."""
    zone: tzinfo | None = None
    """Time zone of timestamps without one; None for the zone of this machine."""
    dialect: Dialect = SINGLE
    charset: str | None = None
    """Character set, a superset of ASCII. Frames that are not valid in it are Invalid. None allows any bytes."""
    raw_timestamp: str | None = None
    """Name of the header for the timestamp as it was sent."""
    structured: bool = False
    """True if application, process, message ID and structured data of RFC 5424 become headers."""

    @property
    def needs_columns(self) -> bool:
        """True if only the vectorized parser supports these options."""
        return bool(self.keep or self.keep_all or self.raw_timestamp is not None or self.structured)

    @classmethod
    def from_keep_fields(cls, keep_fields: str, zone: tzinfo | None = None, **others: Any) -> ParserOptions:
        """Create options from Flume's `keepFields`: none, false, all, true, or names of fields.

        Raises ValueError for an unknown name.
        """
        text = keep_fields.strip().lower()
        if text in ("all", "true"):
            return cls(keep_all=True, zone=zone, **others)
        names = [] if text in ("none", "false") else re.findall(r"[^\W_]+", text)
        if unknown := [name for name in names if name not in FIELDS]:
            raise ValueError(f"must be none, all, or some of {' '.join(FIELDS)}, not {' '.join(unknown)!r}")
        return cls(frozenset(names), zone=zone, **others)


@lru_cache(maxsize=65536)
def is_host(name: bytes, pattern: str) -> bool:
    """Return True if the name of a host matches `pattern`. Cached, as consecutive batches often have equal hosts."""
    return re.fullmatch(pattern.encode(), name) is not None
