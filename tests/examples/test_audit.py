"""Example of the audit: reports in, a row for each minute in which a group lacks put events."""

from __future__ import annotations

from datetime import datetime

import msgspec
import pytest

from conf.examples.audit.watch import alerts
from flafka.agent.audit.sums import MINUTE, PUT, Report, tally
from flafka.agent.testing import run_processor
from flafka.plugins import Batch, Event

pytestmark = pytest.mark.usefixtures("spark_session")

NOW = 30_000_000
"""Minute of the reports."""


def report(second: int, stage: str, minute: int, *numbers: int, start: int = 0) -> Event:
    events = Batch.of(Event(b"%d" % n, {"timestamp": str((NOW + minute) * MINUTE)}) for n in numbers)
    report = Report("orders", stage, tally(events), "" if stage == PUT else "id/0/0", start, start + 1)
    return Event(msgspec.json.encode(report), at(second))


def at(second: int) -> dict[str, str]:
    return {"timestamp": str(NOW * MINUTE + second * 1000)}


def test_differences_are_reported_once_and_when_they_have_vanished() -> None:
    batches = (
        [report(0, PUT, 1, 1, 2, 3), report(0, PUT, 2, 4, 5), Event(b"\xff", at(1)), Event(b'{"topic": "x"}', at(1))],
        [report(1, "a", 1, 1, 2), report(2, "b", 2, 4, 4, 5), report(3, "b", 1, 1, 2, 3, start=5)],
        [Event(b'{"topic": "orders", "stage": "", "minutes": {}}', at(13))],
        [report(14, "a", 1, 1, 2, 3), report(14, "a", 2, 4, 6, start=5)],  # delivered once more, and altered
        [Event(b'{"topic": "orders", "stage": "", "minutes": {}}', at(24))],
    )
    rows = run_processor(alerts, *batches, options={"grace": "10"})
    assert [(row.minute, row.stage, row.put, row.had, row.difference) for row in rows] == [
        (minute(1), "a", 3, 2, "1 missing"),
        (minute(2), "a", 2, 0, "2 missing"),
        (minute(2), "b", 2, 3, "1 too many"),
        (minute(1), "a", 3, 3, ""),
        (minute(2), "a", 2, 2, "as many, but altered"),
    ]


def minute(number: int) -> datetime:
    return datetime.fromtimestamp((NOW + number) * 60)
