"""Custom message formats: Flume's properties `format.*`, which its user guide omits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flafka.plugins import Batch
from flafka.plugins.java.regex import Regex
from flafka.plugins.java.simpledate import SimpleDateFormat
from flafka.plugins.problems import suggest
from flafka.plugins.wire.octets import take_slices
from flafka.sources.syslog.columns import Array, Bytes, number_column, unpack
from flafka.sources.syslog.dialects import ParserOptions
from flafka.sources.syslog.parser import CONTINUATION, STATUS, parse, priorities, statuses, without_terminator

KEYS = ("regex", "search", "replace", "dateFormat")
_GROUPS = 5
"""Number of groups of the regular expression: priority, version, timestamp, host and body, in this order."""
_MAX_DAYS_AHEAD, _MAX_DAYS_BEHIND = 31, 335
"""Range around the current time for dates without a year."""
_FRACTION = re.compile(r"[.,:]([0-9]{1,3})$")
"""Milliseconds at the end of a timestamp."""


class CustomFormat:
    """Custom format of the properties `format.*`. Raises ValueError, with a text for users, for wrong properties."""

    def __init__(self, properties: Mapping[str, str], zone: tzinfo | None) -> None:
        for key in properties:
            if key not in KEYS:
                raise ValueError(f"{key}: no such option{suggest(key, list(KEYS))}")
        if "regex" not in properties:
            raise ValueError("regex: is required where there is another format option")
        self._regex = Regex(f"^(?:{properties['regex']})$")
        if len(self._regex.groups) < _GROUPS:
            raise ValueError(
                f"regex: needs {_GROUPS} groups: priority, version, timestamp, host and body; "
                f"it has {len(self._regex.groups)}"
            )
        self._search = Regex(properties["search"]) if "search" in properties else None
        self._replacement = self._search.parse_replacement(properties.get("replace", "")) if self._search else ()
        pattern = properties.get("dateFormat", "")
        self._time, self._yearless = _time_format(pattern, zone)
        self._fraction = re.search(r"[.,:]S+$", pattern) is not None

    def parse(self, frames: Array, now: float, options: ParserOptions, marks: Bytes) -> Batch:
        """Return one event for each of these frames, in order.

        The regular expression must match the whole frame, and the frame must begin with a valid priority and continue
        no cut frame. `parser.parse` reads all other frames.
        """
        data, starts, ends = unpack(frames)
        priority, _, valid = priorities(data, starts, ends)
        ends = without_terminator(data, starts, ends, marks)
        lines = take_slices(data, starts, ends)
        matches, groups = self._regex.extract(lines)
        matched = matches.to_numpy(zero_copy_only=False) & valid & (marks < CONTINUATION)
        if not matched.any():
            return parse(frames, now, options, marks)
        unmatched_events = parse(frames.filter(pa.array(~matched)), now, options, marks[~matched])
        mask = pa.array(matched)
        matched_events = self._events(
            lines.filter(mask), [g.filter(mask) for g in groups], priority[matched], marks[matched], now, options
        )
        rows = np.empty(len(matched), np.int64)
        rows[np.flatnonzero(matched)] = np.arange(len(matched_events))
        rows[np.flatnonzero(~matched)] = np.arange(len(unmatched_events)) + len(matched_events)
        return Batch(Batch.concat([matched_events, unmatched_events]).records.take(pa.array(rows)))

    def _events(
        self, lines: Array, groups: list[Array], priority: Bytes, marks: Bytes, now: float, options: ParserOptions
    ) -> Batch:
        """Return the events of matched lines. `groups` has the columns of the regular expression's groups."""
        first, version, stamp, host = (pc.if_else(pc.equal(group, ""), None, group) for group in groups[:4])
        text = self._regex.replace(lines, (_GROUPS,))
        kept = []
        if "priority" in options.keep:
            kept.append(pc.binary_join_element_wise("<", first, ">", "", null_handling="replace"))
        for name, column in ("version", version), ("timestamp", stamp), ("hostname", host):
            if name in options.keep:
                kept.append(pc.binary_join_element_wise(column, "", " ", null_handling="emit_null").fill_null(""))
        body = pc.binary_join_element_wise(*(part.cast(pa.binary()) for part in kept), text, b"")
        whole = pc.equal(body, b"")
        headers = {
            "Facility": number_column(priority >> 3),
            "Severity": number_column(priority & 7),
            "priority": first,
            "version": version,
            "timestamp": self._times(stamp, now),
            "host": host,
            STATUS: statuses(np.ones(len(lines), np.bool_), marks),
        }
        if options.raw_timestamp is not None:
            headers[options.raw_timestamp] = stamp
        return Batch.of_columns(
            lines if options.keep_all else pc.if_else(whole, lines, body),
            {name: column for name, column in headers.items() if column.null_count < len(column)},
        )

    def _times(self, stamps: Array, now: float) -> Array:
        """Return milliseconds since the epoch as text, null for an invalid time. A distinct second is parsed once."""
        if self._search is not None:
            stamps = self._search.replace(stamps, self._replacement)
        encoded = stamps.dictionary_encode()
        seconds: dict[str, int | None] = {}
        times = [self._millis(text, now, seconds) for text in encoded.dictionary.to_pylist()]
        return pa.array([None if time is None else str(time) for time in times], pa.string()).take(encoded.indices)

    def _millis(self, text: str, now: float, seconds: dict[str, int | None]) -> int | None:
        """Return milliseconds since the epoch; None for an invalid time, and without `dateFormat`.

        `seconds` caches the times of a format that ends with milliseconds.
        """
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
        """Return milliseconds since the epoch; None if `text` is no time of the format.

        A time without a year gets the year that puts it at most 335 days before `now` or 31 days after it. Where no
        year does, the first valid of this, the last and the next year counts.
        """
        if not self._yearless:
            return time.parse(text, whole=whole)
        year, day = datetime.fromtimestamp(now, UTC).year, 86_400_000
        known = []
        for candidate in (year, year - 1, year + 1):
            if (millis := time.parse(f"{candidate} {text}", whole=whole)) is not None:
                if -_MAX_DAYS_BEHIND * day <= millis - now * 1000 <= _MAX_DAYS_AHEAD * day:
                    return millis
                known.append(millis)
        return next(iter(known), None)


def _time_format(pattern: str, zone: tzinfo | None) -> tuple[SimpleDateFormat | None, bool]:
    """Return the parser of `format.dateFormat`, and True if the year has to be prepended to the text."""
    if not pattern:
        return None, False
    yearless = re.search("[yY]", re.sub(r"'[^']*'", "", pattern)) is None
    century = datetime.now(UTC) - timedelta(days=80 * 365.25)  # as in SimpleDateFormat
    try:
        return SimpleDateFormat(f"yyyy {pattern}" if yearless else pattern, zone, century=century), yearless
    except ValueError as e:
        raise ValueError(f"dateFormat: {e}") from None
