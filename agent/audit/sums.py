"""Sums for the audit of a pipeline: number and checksum of the events of each stage, minute by minute.

Sums do not depend on the order of events, nor on batches. A stage that lost, duplicated or altered an event has
another sum. Counts alone would miss a loss beside a duplicate.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import repeat
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flafka.plugins.batch import Batch
from flafka.plugins.columns import OVERFLOW_TYPE, Array

MINUTE = 60_000
"""Length of a minute in milliseconds. Events without the header `timestamp` are in minute 0."""
DAY = 1440 * MINUTE
"""Length of a day in milliseconds."""
END_MILLISECONDS = 10**14
"""Exclusive limit of event times in milliseconds, in the year 5138. Reports of later minutes are ignored."""
PUT = "put"
"""Name of the stage before the channel, the events that sources put. Other stages are named by consumer group."""

Hashes = npt.NDArray[np.uint64]

MAX_CHAIN_REPORTS = 20
"""Number of latest reports of each chain that may still be replaced: more than between two commits."""

_ODD = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
_ALL = (1 << 64) - 1


class Sum(NamedTuple):
    """Number and checksum of some events."""

    events: int = 0
    checksum: int = 0
    """Sum of the events' hashes, modulo 2⁶⁴."""

    def plus(self, other: Sum, times: int = 1) -> Sum:
        """Return this sum with `other` added `times` times; -1 subtracts it."""
        return Sum(self.events + times * other.events, (self.checksum + times * other.checksum) & _ALL)


Minutes = Mapping[int, Sum]
"""Sums by start of the minute, in milliseconds since the epoch."""


def tally(batch: Batch) -> dict[int, Sum]:
    """Return the sums of a batch by start of the minute, in ms since the epoch.

    The minute is that of the header `timestamp`, or 0 without a valid one.
    """
    if not len(batch):
        return {}
    minutes, rows = np.unique(_minutes(batch), return_inverse=True)
    checksums = np.zeros(len(minutes), np.uint64)
    np.add.at(checksums, rows, hashes(batch))
    counts = np.bincount(rows, minlength=len(minutes))
    return {
        minute: Sum(events, checksum)
        for minute, events, checksum in zip(minutes.tolist(), counts.tolist(), checksums.tolist(), strict=True)
    }


def add(sums: dict[int, Sum], more: Minutes) -> None:
    """Add the sums in `more` to `sums`, in place, minute by minute."""
    for minute, sum_ in more.items():
        sums[minute] = sums.get(minute, Sum()).plus(sum_)


def hashes(batch: Batch) -> Hashes:
    """Return a 64-bit hash of body and headers of each event, independent of the order of headers."""
    headers = np.zeros(len(batch), np.uint64)
    for name in batch.header_names if OVERFLOW_TYPE not in batch.records.schema.types else ():
        column = batch.header(name)
        known = _mixed(_crc(column.dictionary.cast(pa.binary()), zlib.crc32(name.encode() + b"\0")))
        present = column.is_valid().to_numpy(zero_copy_only=False)
        headers[present] += known[column.indices.drop_null().to_numpy()]
    if OVERFLOW_TYPE in batch.records.schema.types:
        for row, event in enumerate(batch):
            pairs = [zlib.crc32(v.encode(), zlib.crc32(n.encode() + b"\0")) for n, v in event.headers.items()]
            headers[row] = _mixed(np.array(pairs, np.uint64)).sum(dtype=np.uint64)
    lengths = pc.binary_length(batch.bodies).to_numpy(zero_copy_only=False).astype(np.uint64)
    return _mixed(_crc(batch.bodies, 0) + (lengths << np.uint64(32)) ^ _mixed(headers))


def _crc(texts: Array, start: int) -> Hashes:
    """Return the CRC-32 of each text, in a loop: numpy is slower for bytes of different lengths."""
    return np.fromiter(map(zlib.crc32, texts.to_pylist(), repeat(start)), np.uint64, len(texts))


def _mixed(values: Hashes) -> Hashes:
    """Return the values with their bits mixed.

    CRCs are linear: without the mixing, different events may have equal sums.
    """
    values = (values ^ (values >> np.uint64(32))) * _ODD[0]
    values = (values ^ (values >> np.uint64(29))) * _ODD[1]
    return values ^ (values >> np.uint64(32))


def _minutes(batch: Batch) -> npt.NDArray[np.int64]:
    """Return the start of each event's minute in ms since the epoch; 0 without a valid header `timestamp`."""
    column = batch.header("timestamp")
    numbers = pc.match_substring_regex(column.dictionary, "^[0-9]{1,14}$")  # before END_MILLISECONDS
    times = pc.if_else(numbers, column.dictionary, "0").cast(pa.int64())
    minutes = pc.multiply(pc.divide(times, MINUTE), MINUTE)
    by_row: npt.NDArray[np.int64] = minutes.take(column.indices).fill_null(0).to_numpy(zero_copy_only=False)
    return by_row


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """Report of one stage, a JSON record of the audit topic.

    Reports of the stage `put` are independent. A report of a consumer group covers the records from `start` to `end`
    (exclusive) of a `chain`, a partition with an epoch of the group. It is published before these records are
    committed. After a redelivery, a new report replaces all reports of the chain from its `start` on. If the commit
    certainly failed, a `withdrawn` report of the same records cancels the first one. An idle agent publishes reports
    with an empty stage.
    """

    topic: str
    stage: str
    minutes: dict[int, Sum]
    chain: str = ""
    start: int = 0
    end: int = 0
    by: str = ""
    """ID of the reader, which may withdraw only its own reports."""
    withdrawn: bool = False


def decode_report(body: bytes) -> Report | None:
    """Return the report in a record of the audit topic; None for anything else, and for minutes out of range."""
    try:
        report = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return report if all(0 <= minute < END_MILLISECONDS for minute in report.minutes) else None


_decoder = msgspec.json.Decoder(Report)


class Discrepancy(NamedTuple):
    """Comparison of one stage with the events that were put, for one minute."""

    minute: int
    stage: str
    put: Sum
    had: Sum

    @property
    def text(self) -> str:
        """Description such as `3 missing`, `2 too many` or `as many, but altered`, compared with the put.

        Empty for equal sums.
        """
        more = self.had.events - self.put.events
        if more:
            return f"{-more:,} missing" if more < 0 else f"{more:,} too many"
        return "" if self.had == self.put else "as many, but altered"


class Ledger(msgspec.Struct):
    """Ledger of the reports of all stages of one channel, from an audit topic that is read in order.

    Serializable with msgspec, as a state between runs.
    """

    minutes: dict[int, dict[str, Sum]] = msgspec.field(default_factory=dict)
    """Sums by minute and stage."""
    stages: list[str] = msgspec.field(default_factory=list)
    """Names of all stages that have reported."""
    changed: dict[int, int] = msgspec.field(default_factory=dict)
    """Time of the latest report by minute, in milliseconds since the epoch."""
    latest: dict[str, list[Report]] = msgspec.field(default_factory=dict)
    """Latest reports by stage and chain, which may still be replaced."""
    before: dict[str, tuple[int, dict[int, int]]] = msgspec.field(default_factory=dict)
    """Time of the latest report, and `changed` of its minutes before it, by stage and chain."""
    reported: dict[str, str] = msgspec.field(default_factory=dict, name="told")
    """Text that `new_discrepancies` has returned, by minute and stage."""

    def add(self, report: Report, time: int) -> None:
        """Enter a report that was published at `time`, in milliseconds since the epoch.

        Call it in the order of the topic. A report of a chain replaces the chain's reports from its `start` on, of
        which only the latest `MAX_CHAIN_REPORTS` are known. A withdrawn report cancels the latest one.
        """
        if not report.stage:
            return
        if report.stage not in self.stages:
            self.stages.append(report.stage)
        if report.withdrawn:
            self._withdraw(report)
            return
        if report.chain:
            name = f"{report.stage} {report.chain}"
            chain = self.latest.setdefault(name, [])
            changed = {minute: self.changed[minute] for minute in report.minutes if minute in self.changed}
            self.before[name] = time, changed
            while chain and chain[-1].start >= report.start:
                self._enter(chain.pop(), -1, time)
            chain.append(report)
            del chain[:-MAX_CHAIN_REPORTS]
        self._enter(report, 1, time)

    def _withdraw(self, report: Report) -> None:
        """Undo the latest report of a chain, with the times of change of its minutes; no-op for another report.

        Otherwise a commit that fails again and again would defer the discrepancies of these minutes.
        """
        name = f"{report.stage} {report.chain}"
        chain = self.latest.get(name)
        if not chain or (chain[-1].start, chain[-1].end, chain[-1].by) != (report.start, report.end, report.by):
            return  # another reader has reported these records since
        latest = chain.pop()
        time, before = self.before.pop(name, (0, dict[int, int]()))
        changed = {minute: self.changed.get(minute, time) for minute in latest.minutes}
        self._enter(latest, -1, time)
        self.changed |= {
            minute: before.get(minute, change) if change == time else change for minute, change in changed.items()
        }

    def _enter(self, report: Report, times: int, time: int) -> None:
        """Add the sums of a report `times` times, which is 1 or -1, and set the time of change of its minutes."""
        for minute, sum_ in report.minutes.items():
            stages = self.minutes.setdefault(minute, {})
            stages[report.stage] = stages.get(report.stage, Sum()).plus(sum_, times)
            self.changed[minute] = time

    def compare(self, groups: Iterable[str] = ()) -> Iterator[Discrepancy]:
        """Yield a Discrepancy, perhaps with equal sums, for each minute and each stage but `put`, in this order.

        `groups` are compared, too, if they have never reported. Empty without any report of a put, as for a topic
        that another program writes.
        """
        if PUT not in self.stages:
            return
        expected = sorted({*self.stages, *groups} - {PUT})
        for minute, stages in sorted(self.minutes.items()):
            for stage in expected:
                yield Discrepancy(minute, stage, stages.get(PUT, Sum()), stages.get(stage, Sum()))

    def new_discrepancies(self, since: int) -> list[Discrepancy]:
        """Return discrepancies that were not returned before, of minutes without a report after `since`.

        A discrepancy that changes or disappears is returned again, with the new text. Minutes without a report for a
        day before `since` are dropped. `since` is in milliseconds since the epoch.
        """
        discrepancies = []
        for discrepancy in self.compare():
            minute, text, key = discrepancy.minute, discrepancy.text, f"{discrepancy.minute} {discrepancy.stage}"
            was_dropped = PUT not in self.minutes[minute] and minute <= since - DAY
            if self.is_quiet(minute, since) and not was_dropped and text != self.reported.get(key, ""):
                self.reported[key] = text
                discrepancies.append(discrepancy)
        for minute in [minute for minute in self.minutes if self.is_quiet(minute, since - DAY)]:
            del self.minutes[minute], self.changed[minute]
            for stage in self.stages:
                self.reported.pop(f"{minute} {stage}", None)
        return discrepancies

    def is_quiet(self, minute: int, since: int) -> bool:
        """Return True if a minute has had no report after `since`, so that no events of it are in flight.

        `since` is in milliseconds since the epoch.
        """
        return self.changed.get(minute, 0) <= since
