"""A message format of the user's own, tried before the two known ones: Flume's `format.*`, which its guide omits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from plugins import Batch
from plugins.problems import suggestion
from plugins.shared.jodatime import TimePattern
from plugins.shared.octets import slices
from plugins.shared.regex import Regex
from sources.syslog.columns import Array, Bytes, numbers, unpack
from sources.syslog.parser import REST, STATUS, parse, priorities, statuses, without_newline
from sources.syslog.reading import Reading

KEYS = ("regex", "search", "replace", "dateFormat")
_GROUPS = 5
"""Priority, version, timestamp, host, body: what the groups of the regular expression hold, in this order."""
_AHEAD, _BEHIND = 31, 335
"""Days around now in which a date without a year lies."""


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
        pattern = re.sub(r"X+(?=(?:[^']*'[^']*')*[^']*$)", "Z", properties.get("dateFormat", ""))
        self._yearless = bool(pattern) and not re.search("[yY]", re.sub(r"'[^']*'", "", pattern))
        self._time = TimePattern(f"yyyy {pattern}" if self._yearless else pattern, zone) if pattern else None

    def parse(self, frames: Array, now: float, reading: Reading, marks: Bytes) -> Batch:
        """As `sources.syslog.parser.parse`, where the format does not match in full."""
        data, starts, ends = unpack(frames)
        priority, _, valid = priorities(data, starts, ends)
        ends = without_newline(data, starts, ends, marks)
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
        """Each different timestamp is read once; null where it is no time of the format."""
        if self._search is not None:
            stamps = self._search.replace(stamps, self._replacement)
        encoded = stamps.dictionary_encode()
        times = [self._millis(text, now) for text in encoded.dictionary.to_pylist()]
        return pa.array([None if time is None else str(time) for time in times], pa.string()).take(encoded.indices)

    def _millis(self, text: str, now: float) -> int | None:
        if self._time is None:
            return None
        if not self._yearless:
            return self._time.millis(text)
        year, day = datetime.fromtimestamp(now, UTC).year, 86_400_000
        times = [self._time.millis(f"{y} {text}") for y in (year - 1, year, year + 1)]
        known = [time for time in times if time is not None]
        near = [time for time in known if -_BEHIND * day <= time - now * 1000 <= _AHEAD * day]
        return next(iter(near or known), None)
