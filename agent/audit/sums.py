"""The audit of a pipeline: how many events each stage had, minute by minute, and a checksum of what they were.

Events are added up, so that neither their order nor how they are put in batches matters: a stage that lost an event,
had one twice or had another one in its place has another sum. Counts alone would miss a loss beside a duplicate.
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
"""Milliseconds that are added up together, by the header `timestamp`; events without one are in minute 0."""
DAY = 1440 * MINUTE
END = 10**14
"""No event is of that time, in the year 5138, or later: dates end in 9999."""
PUT = "put"
"""The stage before the channel: what sources put into it. Every other stage is a consumer group."""

Hashes = npt.NDArray[np.uint64]

KEPT = 20
"""Reports of each chain that may still be replaced: more than there are between two commits."""

_ODD = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
_ALL = (1 << 64) - 1


class Sum(NamedTuple):
    """Number and checksum of some events."""

    events: int = 0
    checksum: int = 0
    """The sum of the events' hashes, modulo 2⁶⁴."""

    def plus(self, other: Sum, times: int = 1) -> Sum:
        """The sum of both; with -1 `other` is taken away again."""
        return Sum(self.events + times * other.events, (self.checksum + times * other.checksum) & _ALL)


Minutes = Mapping[int, Sum]
"""Sums by the start of their minute, in milliseconds since the epoch."""


def tally(batch: Batch) -> dict[int, Sum]:
    """Return the sums of a batch by minute."""
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
    """Add to sums by minute."""
    for minute, sum_ in more.items():
        sums[minute] = sums.get(minute, Sum()).plus(sum_)


def hashes(batch: Batch) -> Hashes:
    """A hash of each event, of its body and all its headers, whatever their order."""
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
    """CRC-32 of each, one by one: numpy takes longer over bytes of different lengths."""
    return np.fromiter(map(zlib.crc32, texts.to_pylist(), repeat(start)), np.uint64, len(texts))


def _mixed(values: Hashes) -> Hashes:
    """Every bit depends on every bit: sums of these tell what sums of CRCs, which are linear, would not."""
    values = (values ^ (values >> np.uint64(32))) * _ODD[0]
    values = (values ^ (values >> np.uint64(29))) * _ODD[1]
    return values ^ (values >> np.uint64(32))


def _minutes(batch: Batch) -> npt.NDArray[np.int64]:
    column = batch.header("timestamp")
    numbers = pc.match_substring_regex(column.dictionary, "^[0-9]{1,14}$")  # before END
    times = pc.if_else(numbers, column.dictionary, "0").cast(pa.int64())
    minutes = pc.multiply(pc.divide(times, MINUTE), MINUTE)
    found: npt.NDArray[np.int64] = minutes.take(column.indices).fill_null(0).to_numpy(zero_copy_only=False)
    return found


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """Report of one stage, a JSON record of the audit's topic.

    A producer's report stands for itself. A consumer's names the records it covers: `start` up to, not including,
    `end` of a `chain`, which is one partition as one group reads it. It is published before these records are
    committed, so one that is delivered again reports again, and replaces what was reported from its `start` on.
    Where that commit certainly did not come about, a report of the same records that is `withdrawn` takes it away.
    An agent at work that has nothing to report says so now and then, with an empty stage.
    """

    topic: str
    stage: str
    minutes: dict[int, Sum]
    chain: str = ""
    start: int = 0
    end: int = 0
    by: str = ""
    """Id of the reader that reports, among all readers of its group: it withdraws reports of its own only."""
    withdrawn: bool = False


def read(body: bytes) -> Report | None:
    """The report in a record; None where it is something else."""
    try:
        report = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return report if all(0 <= minute < END for minute in report.minutes) else None


_decoder = msgspec.json.Decoder(Report)


class Discrepancy(NamedTuple):
    """A stage in a minute, against what was put in."""

    minute: int
    stage: str
    put: Sum
    had: Sum

    @property
    def text(self) -> str:
        """`3 missing`, `2 too many`, `as many, but altered`; empty where there is none."""
        more = self.had.events - self.put.events
        if more:
            return f"{-more:,} missing" if more < 0 else f"{more:,} too many"
        return "" if self.had == self.put else "as many, but altered"


class Ledger(msgspec.Struct):
    """Reports of all stages of one topic, from an audit's topic that is read in order."""

    minutes: dict[int, dict[str, Sum]] = msgspec.field(default_factory=dict)
    """By minute and stage."""
    stages: list[str] = msgspec.field(default_factory=list)
    """Every stage that has ever reported."""
    changed: dict[int, int] = msgspec.field(default_factory=dict)
    """By minute: time of the latest report on it, in milliseconds since the epoch."""
    latest: dict[str, list[Report]] = msgspec.field(default_factory=dict)
    """The last reports of each stage and chain: those that may still be replaced."""
    before: dict[str, tuple[int, dict[int, int]]] = msgspec.field(default_factory=dict)
    """By stage and chain: the time of the latest report, and `changed` of its minutes before it."""
    told: dict[str, str] = msgspec.field(default_factory=dict)
    """By minute and stage: text that `news` has returned."""

    def add(self, report: Report, time: int) -> None:
        """Enter a report, published at that time."""
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
            self.before[name] = time, {at: self.changed[at] for at in report.minutes if at in self.changed}
            while chain and chain[-1].start >= report.start:
                self._enter(chain.pop(), -1, time)
            chain.append(report)
            del chain[:-KEPT]
        self._enter(report, 1, time)

    def _withdraw(self, report: Report) -> None:
        """Undo the latest report of a chain. The minutes are as quiet as before it, so that each try of a commit that
        fails does not defer what is missing.
        """
        name = f"{report.stage} {report.chain}"
        chain = self.latest.get(name)
        if not chain or (chain[-1].start, chain[-1].end, chain[-1].by) != (report.start, report.end, report.by):
            return  # another reader has reported these records since
        latest = chain.pop()
        time, before = self.before.pop(name, (0, dict[int, int]()))
        changed = {minute: self.changed.get(minute, time) for minute in latest.minutes}
        self._enter(latest, -1, time)
        self.changed |= {minute: before.get(minute, at) if at == time else at for minute, at in changed.items()}

    def _enter(self, report: Report, times: int, time: int) -> None:
        for minute, sum_ in report.minutes.items():
            stages = self.minutes.setdefault(minute, {})
            stages[report.stage] = stages.get(report.stage, Sum()).plus(sum_, times)
            self.changed[minute] = time

    def compared(self, groups: Iterable[str] = ()) -> Iterator[Discrepancy]:
        """Every minute and group; also groups that must be there and were never heard of. Nothing before
        anything was put: what another program writes into a topic is in no report."""
        if PUT not in self.stages:
            return
        expected = sorted({*self.stages, *groups} - {PUT})
        for minute, stages in sorted(self.minutes.items()):
            for stage in expected:
                yield Discrepancy(minute, stage, stages.get(PUT, Sum()), stages.get(stage, Sum()))

    def news(self, since: int) -> list[Discrepancy]:
        """Differences in minutes that are quiet since then, each once, and once more when it is another or none.

        A minute that was quiet for a day is forgotten: what comes later is compared by itself.
        """
        found = []
        for difference in self.compared():
            minute, text, key = difference.minute, difference.text, f"{difference.minute} {difference.stage}"
            forgotten = PUT not in self.minutes[minute] and minute <= since - DAY
            if self.quiet(minute, since) and not forgotten and text != self.told.get(key, ""):
                self.told[key] = text
                found.append(difference)
        for minute in [minute for minute in self.minutes if self.quiet(minute, since - DAY)]:
            del self.minutes[minute], self.changed[minute]
            for stage in self.stages:
                self.told.pop(f"{minute} {stage}", None)
        return found

    def quiet(self, minute: int, since: int) -> bool:
        """Return True if nothing was reported on that minute since then: what is missing is not on its way."""
        return self.changed.get(minute, 0) <= since
