"""Audit: sums that ignore order and batches, and detect all else; reports that replace others."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flafka.agent.audit.sums import (
    DAY,
    MAX_CHAIN_REPORTS,
    MINUTE,
    PUT,
    Ledger,
    Report,
    Sum,
    add,
    decode_report,
    tally,
)
from flafka.plugins import Batch, Event

VALUES = st.sampled_from(["", "a", "b", "é", "60001", "120001"])
EVENTS = st.builds(
    Event, st.binary(max_size=5), st.dictionaries(st.sampled_from(["timestamp", "host", "é", "body"]), VALUES)
)


def total(events: list[Event]) -> dict[int, Sum]:
    return tally(Batch.of(events))


def checksum(*events: Event) -> int:
    ((_, minute_sum),) = total(list(events)).items()
    return minute_sum.checksum


@settings(deadline=None)
@given(st.lists(EVENTS, max_size=12), st.randoms(use_true_random=False), st.integers(0, 12))
def test_neither_order_nor_batches_matter(events: list[Event], chance: random.Random, cut: int) -> None:
    shuffled = chance.sample(events, len(events))
    parts: dict[int, Sum] = {}
    for part in (shuffled[:cut], shuffled[cut:]):
        add(parts, total(part))
    assert parts == total(events)
    assert total(list(Batch.concat([Batch.of(events[:cut]), Batch.of(events[cut:])]))) == total(events)


@settings(deadline=None)
@given(EVENTS, EVENTS)
def test_different_events_have_different_sums(event: Event, other: Event) -> None:
    assert (total([event]) == total([other])) == (event == other)


def test_a_part_that_moves_to_another_event_is_detected() -> None:
    assert checksum(Event(b"ab"), Event(b"cd")) != checksum(Event(b"ad"), Event(b"cb"))
    assert checksum(Event(b"a", {"x": "1"}), Event(b"b")) != checksum(Event(b"a"), Event(b"b", {"x": "1"}))
    assert checksum(Event(b"", {"a": "bc"})) != checksum(Event(b"", {"ab": "c"}))


def test_more_headers_than_columns() -> None:
    event = Event(b"x", {f"h{n}": str(n) for n in range(100)})
    alone, among = Batch.of([event]), Batch.of([event, Event(b"y", {"z": "1"})])
    assert tally(alone)[0].plus(tally(Batch.of([Event(b"y", {"z": "1"})]))[0]) == tally(among)[0]
    few = Event(b"y", {"z": "1"})
    assert tally(Batch.of([event, few]).slice(1))[0] == tally(Batch.of([few]))[0]


@pytest.mark.parametrize("odd", ["", "-5", "1e5", "٣", "9" * 30, "9" * 15, "-90000", "60000\n", "no"])
def test_minutes(odd: str) -> None:
    times = ["60000", "119999", "120000", None, odd]
    batch = Batch.of(Event(b"x", {} if time is None else {"timestamp": time}) for time in times)
    assert {minute: sum_.events for minute, sum_ in tally(batch).items()} == {60_000: 2, 120_000: 1, 0: 2}
    assert {minute: sum_.events for minute, sum_ in tally(batch.slice(0, 3)).items()} == {60_000: 2, 120_000: 1}


def sums(*events: int, minute: int = MINUTE) -> dict[int, Sum]:
    return total([Event(b"%d" % n, {"timestamp": str(minute)}) for n in events])


def differences(ledger: Ledger) -> list[str]:
    return [f"{difference.stage}: {difference.text}" for difference in ledger.compare()]


def test_loss_duplicates_and_alterations() -> None:
    ledger = Ledger()
    ledger.add(Report("t", PUT, sums(1, 2)), 0)
    ledger.add(Report("t", PUT, sums(3, 4)), 0)
    for stage, events in {
        "all": (4, 3, 2, 1),
        "lost": (1, 2),
        "twice": (1, 2, 3, 4, 4),
        "altered": (1, 2, 3, 5),
        "one lost, one twice": (1, 2, 3, 3),
    }.items():
        ledger.add(Report("t", stage, sums(*events), "p", 0, 5), 0)
    assert differences(ledger) == [
        "all: ",
        "altered: as many, but altered",
        "lost: 2 missing",
        "one lost, one twice: as many, but altered",
        "twice: 1 too many",
    ]
    assert [d.stage for d in ledger.compare({"never"}) if d.text == "4 missing"] == ["never"]


def test_a_redelivery_replaces_its_report() -> None:
    ledger = Ledger()
    ledger.add(Report("t", PUT, sums(*range(30))), 0)
    for chain, start, end in [
        ("p0", 0, 10),  # then the agent is killed, and its next commit ends elsewhere
        ("p0", 0, 4),
        ("p1", 10, 20),
        ("p0", 4, 8),
        ("p0", 8, 10),  # commits are behind by two
        ("p0", 4, 10),
        ("p1", 20, 30),
    ]:
        ledger.add(Report("t", "g", sums(*range(start, end)), chain, start, end), 0)
    assert differences(ledger) == ["g: "]
    for start in range(100, 100 + 2 * MAX_CHAIN_REPORTS):
        ledger.add(Report("t", "g", {}, "p0", start, start + 1), 0)
    assert len(ledger.latest["g p0"]) == MAX_CHAIN_REPORTS


def test_a_report_is_withdrawn_only_by_its_own_reader() -> None:
    ledger = Ledger()

    def reported(start: int, end: int, by: str, time: int) -> Report:
        report = Report("t", "g", sums(*range(start, end)), "id/0/0", start, end, by)
        ledger.add(report, time)
        return report

    def withdraw(report: Report, time: int) -> None:
        ledger.add(Report("t", "g", {}, report.chain, report.start, report.end, report.by, withdrawn=True), time)

    ledger.add(Report("t", PUT, sums(*range(10))), 1)
    reported(0, 4, "one", 2)
    for time in (1000, 2000):  # a refused commit, and its next attempt
        refused = reported(4, 10, "one", time)
        assert differences(ledger) == ["g: "]
        withdraw(refused, time + 1)
        assert differences(ledger) == ["g: 6 missing"]
        assert ledger.is_quiet(MINUTE, 2)
    late = reported(4, 10, "one", 3000)
    reported(4, 10, "another", 3001)
    withdraw(late, 3002)
    assert differences(ledger) == ["g: "]


def test_differences_are_reported_once_when_a_minute_is_quiet() -> None:
    ledger = Ledger()
    ledger.add(Report("t", PUT, sums(1, 2) | sums(3, minute=2 * MINUTE)), 100)
    ledger.add(Report("t", "g", sums(1) | sums(3, minute=2 * MINUTE), "p", 0, 2), 110)
    ledger.add(Report("t", "", {}), 500)
    assert ledger.new_discrepancies(109) == []
    (discrepancy,) = ledger.new_discrepancies(110)
    assert (discrepancy.minute, discrepancy.stage, discrepancy.text) == (MINUTE, "g", "1 missing")
    assert ledger.new_discrepancies(500) == []
    ledger.add(Report("t", "g", sums(2), "p", 2, 3), 600)
    assert ledger.new_discrepancies(599) == []
    assert [(discrepancy.minute, discrepancy.text) for discrepancy in ledger.new_discrepancies(600)] == [(MINUTE, "")]


def test_a_minute_is_forgotten_after_a_day() -> None:
    ledger = Ledger()
    ledger.add(Report("t", PUT, sums(1, 2)), 100)
    ledger.add(Report("t", "g", sums(1), "p", 0, 2), 100)
    assert len(ledger.new_discrepancies(99 + DAY)) == 1
    assert ledger.minutes.keys() == {MINUTE}
    assert ledger.new_discrepancies(100 + DAY) == []
    assert (ledger.minutes, ledger.changed, ledger.reported) == ({}, {}, {})
    ledger.add(Report("t", "new", sums(1, 2), "p", 0, 2), 2 * DAY)  # a group that begins at the beginning
    assert ledger.new_discrepancies(3 * DAY) == []


def test_other_text_is_no_report() -> None:
    ledger = Ledger()
    ledger.add(Report("t", "g", sums(1), "p", 0, 1), 0)
    assert differences(ledger) == []
    assert ledger.new_discrepancies(10) == []


def test_reports_are_read_back() -> None:
    import msgspec

    report = Report("t", "g", {MINUTE: Sum(1, 2**64 - 1)}, "p", 3, 4)
    assert decode_report(msgspec.json.encode(report)) == report
    assert [decode_report(body) for body in (b"", b"\xff", b"{}", b'{"topic": "t"}')] == [None] * 4
    # Of no date that can be shown.
    assert [
        decode_report(msgspec.json.encode(Report("t", "put", {minute: Sum()}))) for minute in (-60_000, 10**15)
    ] == [None] * 2
    ledger = Ledger()
    ledger.add(report, 5)
    assert msgspec.json.decode(msgspec.json.encode(ledger), type=Ledger) == ledger
