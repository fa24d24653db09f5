"""Rules for reading messages: the well-formed head of either dialect, and the use of its fields."""

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
"""A blank as Java has it; RE2 leaves the vertical tab out."""
_STAMP_3164 = rf"[A-Z][a-z][a-z]{_S}{{1,2}}\d{{1,2}}{_S}\d\d:\d\d:\d\d"
_BEYOND_ASCII = (
    r"(?:[\xc2-\xdf]|(?:\xe0[\xa0-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]|\xed[\x80-\x9f]"
    r"|(?:\xf0[\x90-\xbf]|[\xf1-\xf3][\x80-\xbf]|\xf4[\x80-\x8f])[\x80-\xbf]))[\x80-\xbf]"
)
"""A character of UTF-8 that is none of ASCII: a header is text."""
_IPV6 = r"\[?(?:[\da-fA-F:]*::[\da-fA-F:.]*|(?:[\da-fA-F]{1,4}:){6}[\da-fA-F:.]+)(?:%[\w.-]+)?\]?"
_HOST = rf"(?:(?:\w|{_BEYOND_ASCII})(?:[\w.@-]|{_BEYOND_ASCII})*|{_IPV6})"
"""Host of a message that may have none: what ends in a colon or a bracket is not a host but the name of a program."""
_HOST_5424 = rf"(?:[!-~]|{_BEYOND_ASCII})+"
_HEAD = (
    rf"^<\d{{1,3}}>(?:\d?{_S}?(?:(?:{_STAMP_5424}|-){_S}(?:{_HOST}|-)|{_STAMP_3164}{_S}{_HOST})"
    rf"|\d{_S}(?:{_STAMP_5424}|-){_S}{_HOST_5424}){_S}"
)
_HOST_STRICT = r"[^\x00-\x20]+"
_HEAD_STRICT = rf"^<\d{{1,3}}>(?:1 )?(?:{_STAMP_STRICT}|{_STAMP_3164}|-) {_HOST_STRICT} "


@dataclass(frozen=True)
class Dialect:
    """Rules that differ between Flume's two kinds of syslog source."""

    head: str
    """A well-formed head, as a regular expression on bytes."""
    host: str
    """Regular expression for a host behind a timestamp of RFC 3164."""
    priority: str
    version: str
    strict: bool
    """True: without a well-formed head an event is Invalid and has no header but its status. Every well-formed one
    has a host, if only `-`, and a timestamp: now where it sends none, or one that does not exist."""


SINGLE = Dialect(_HEAD, _HOST, "priority", "version", strict=False)
"""Dialect of syslogtcp and syslogudp."""
MULTIPORT = Dialect(_HEAD_STRICT, _HOST_STRICT, "Priority", "Version", strict=True)
"""Dialect of multiport_syslogtcp: headers of other names, no timestamp without a zone, any characters in a host."""


@dataclass(frozen=True)
class Reading:
    """Rules for reading messages."""

    keep: frozenset[str] = frozenset()
    """Fields that stay in the body, of `FIELDS`."""
    keep_all: bool = False
    """The body is the whole message as it came."""
    zone: tzinfo | None = None
    """Zone of timestamps that name none; None is the zone of this machine."""
    dialect: Dialect = SINGLE
    charset: str | None = None
    """Frames that are no text of this character set are Invalid; it has ASCII in it. None: any bytes will do."""
    raw_timestamp: str | None = None
    """Header for the timestamp as it was sent."""
    structured: bool = False
    """True: application, process, message id and structured data of RFC 5424 become headers."""

    @property
    def special(self) -> bool:
        """Return True where more is wanted of a message, or more of it stays in the body, than usually."""
        return bool(self.keep or self.keep_all or self.raw_timestamp is not None or self.structured)

    @classmethod
    def of(cls, keep_fields: str, zone: tzinfo | None = None, **others: Any) -> Reading:
        """From Flume's `keepFields`: none, false, all, true, or names of fields. ValueError for another name."""
        text = keep_fields.strip().lower()
        if text in ("all", "true"):
            return cls(keep_all=True, zone=zone, **others)
        names = [] if text in ("none", "false") else re.findall(r"[^\W_]+", text)
        if unknown := [name for name in names if name not in FIELDS]:
            raise ValueError(f"must be none, all, or some of {' '.join(FIELDS)}, not {' '.join(unknown)!r}")
        return cls(frozenset(names), zone=zone, **others)


@lru_cache(maxsize=65536)
def is_host(name: bytes, pattern: str) -> bool:
    """Return True for a host's name. Cached, as consecutive batches most often have the same hosts."""
    return re.fullmatch(pattern.encode(), name) is not None
