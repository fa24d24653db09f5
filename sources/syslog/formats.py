"""A message format of the user's own, tried before the two known ones: Flume's `format.*`, which its guide omits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flafka.plugins import Batch
from flafka.plugins.problems import suggestion
from flafka.plugins.shared.octets import slices
from flafka.plugins.shared.regex import Regex
from flafka.plugins.shared.simpledate import SimpleDateFormat
from flafka.sources.syslog.columns import Array, Bytes, numbers, unpack
from flafka.sources.syslog.parser import REST, STATUS, parse, priorities, statuses, without_terminator
from flafka.sources.syslog.reading import Reading

KEYS = ("regex", "search", "replace", "dateFormat")
_GROUPS = 5
"""Priority, version, timestamp, host, body: what the groups of the regular expression hold, in this order."""
_AHEAD, _BEHIND = 31, 335
"""Days around now in which a date without a year lies."""
_FRACTION = re.compile(r"[.,:]([0-9]{1,3})$")
"""Milliseconds at the end of a time."""


class Format:
    """One format, from the properties `format.*`. ValueError, in words for the user, for wrong ones."""

    def __init__(self, properties: Mapping[str, str], zone: tzinfo | None) -> None:
        for key in properties:
            if key not in KEYS:
                raise ValueError(f"{key}: no such option{suggestion(key, list(KEYS))}")
        if "regex" not in properties:
            raise ValueError("regex: is required where there is another format option")
        self._regex = Regex(f"^(?:{properties['regex']})$")
        if len(self._regex.groups) < _GROUPS:
            raise ValueError(
                f"regex: needs {_GROUPS} groups: priority, version, timestamp, host and body; "
                f"it has {len(self._regex.groups)}"
            )
        self._search = Regex(properties["search"]) if "search" in properties else None
        self._replacement = self._search.replacement(properties.get("replace", "")) if self._search else ()
        pattern = properties.get("dateFormat", "")
        self._time, self._yearless = _time_format(pattern, zone)
        self._fraction = re.search(r"[.,:]S+$", pattern) is not None

    def parse(self, frames: Array, now: float, reading: Reading, marks: Bytes) -> Batch:
        """Return the events of these frames; `parse` reads those that the format does not match in full."""
        data, starts, ends = unpack(frames)
        priority, _, valid = priorities(data, starts, ends)
        ends = without_terminator(data, starts, ends, marks)
        lines = slices(data, starts, ends)
        found, groups = self._regex.extract(lines)
        mine = found.to_numpy(zero_copy_only=False) & valid & (marks < REST)
        if not mine.any():
            return parse(frames, now, reading, marks)
        others = parse(frames.filter(pa.array(~mine)), now, reading, marks[~mine])
        mask = pa.array(mine)
        ours = self._events(
            lines.filter(mask), [g.filter(mask) for g in groups], priority[mine], marks[mine], now, reading
        )
        places = np.empty(len(mine), np.int64)
        places[np.flatnonzero(mine)] = np.arange(len(ours))
        places[np.flatnonzero(~mine)] = np.arange(len(others)) + len(ours)
        return Batch(Batch.concat([ours, others]).records.take(pa.array(places)))

    def _events(
        self, lines: Array, groups: list[Array], priority: Bytes, marks: Bytes, now: float, reading: Reading
    ) -> Batch:
        first, version, stamp, host = (pc.if_else(pc.equal(group, ""), None, group) for group in groups[:4])
        text = self._regex.replace(lines, (_GROUPS,))
        kept = []
        if "priority" in reading.keep:
            kept.append(pc.binary_join_element_wise("<", first, ">", "", null_handling="replace"))
        for name, column in ("version", version), ("timestamp", stamp), ("hostname", host):
            if name in reading.keep:
                kept.append(pc.binary_join_element_wise(column, "", " ", null_handling="emit_null").fill_null(""))
        body = pc.binary_join_element_wise(*(part.cast(pa.binary()) for part in kept), text, b"")
        whole = pc.equal(body, b"")
        headers = {
            "Facility": numbers(priority >> 3),
            "Severity": numbers(priority & 7),
            "priority": first,
            "version": version,
            "timestamp": self._times(stamp, now),
            "host": host,
            STATUS: statuses(np.ones(len(lines), np.bool_), marks),
        }
        if reading.raw_timestamp is not None:
            headers[reading.raw_timestamp] = stamp
        return Batch.of_columns(
            lines if reading.keep_all else pc.if_else(whole, lines, body),
            {name: column for name, column in headers.items() if column.null_count < len(column)},
        )

    def _times(self, stamps: Array, now: float) -> Array:
        """Milliseconds since the epoch as text, each different second read once; null for what is no time."""
        if self._search is not None:
            stamps = self._search.replace(stamps, self._replacement)
        encoded = stamps.dictionary_encode()
        seconds: dict[str, int | None] = {}
        times = [self._millis(text, now, seconds) for text in encoded.dictionary.to_pylist()]
        return pa.array([None if time is None else str(time) for time in times], pa.string()).take(encoded.indices)

    def _millis(self, text: str, now: float, seconds: dict[str, int | None]) -> int | None:
        """`seconds` holds times of this format without their milliseconds, where it ends in these."""
        if self._time is None:
            return None
        if self._fraction and (fraction := _FRACTION.search(text)):
            second = f"{text[: fraction.start(1)]}0"
            if second not in seconds:
                seconds[second] = self._read(self._time, second, now, whole=True)
            if (millis := seconds[second]) is not None:
                return millis + int(fraction[1])
        return self._read(self._time, text, now, whole=False)

    def _read(self, time: SimpleDateFormat, text: str, now: float, *, whole: bool) -> int | None:
        if not self._yearless:
            return time.parse(text, whole=whole)
        year, day = datetime.fromtimestamp(now, UTC).year, 86_400_000
        known = []
        for candidate in (year, year - 1, year + 1):
            if (millis := time.parse(f"{candidate} {text}", whole=whole)) is not None:
                if -_BEHIND * day <= millis - now * 1000 <= _AHEAD * day:
                    return millis
                known.append(millis)
        return next(iter(known), None)


def _time_format(pattern: str, zone: tzinfo | None) -> tuple[SimpleDateFormat | None, bool]:
    """Return what reads `format.dateFormat`, and whether that has no year, which then stands before the text."""
    if not pattern:
        return None, False
    yearless = re.search("[yY]", re.sub(r"'[^']*'", "", pattern)) is None
    century = datetime.now(UTC) - timedelta(days=80 * 365.25)  # as in Java
    try:
        return SimpleDateFormat(f"yyyy {pattern}" if yearless else pattern, zone, century=century), yearless
    except ValueError as e:
        raise ValueError(f"dateFormat: {e}") from None
