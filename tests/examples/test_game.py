"""Example of the game: suspicious trades, over micro-batches that end anywhere."""

from __future__ import annotations

import json

import pytest

from conf.examples.game.game import suspicious
from flafka.agent.testing import run_processor
from flafka.plugins import Event

pytestmark = pytest.mark.usefixtures("spark_session")

OPTIONS = {"limit": "3", "window": "10 seconds", "late": "1 minute"}


def action(topic: str, user: str, second: int, place: str = "Oslo") -> Event:
    at = f"2026-01-31T12:{second // 60:02}:{second % 60:02}Z"
    body = {"user": user, "at": at, "place": place, "item": "sword"}
    return Event(json.dumps(body).encode(), {"topic": topic})


def test_suspicious_trades() -> None:
    batches = (
        # In one micro-batch events of one player may come in any order …
        [action("trades", "eve", 1), action("logins", "amy", 0, "Rome"), action("logins", "eve", 0)],
        [
            action("trades", "eve", 2, "Lima"),
            Event(b"no JSON", {"topic": "trades"}),
            Event(b"{}", {"topic": "trades"}),
        ],
        # … and earlier state counts.
        [action("trades", "eve", 5), action("trades", "eve", 4, "Lima"), action("logins", "eve", 3, "Lima")],
        [action("trades", user, second, "Rome") for user in ("amy", "bob") for second in (6, 12)],
        [action("logins", "amy", second, "Rome") for second in (7, 90)],
        [action("trades", "bob", 91)],
    )
    rows = run_processor(suspicious, *batches, options={"limit": "3", "window": "10 seconds", "late": "1 minute"})
    assert [(row.user, row.at.second, row.reason) for row in rows["elsewhere"]] == [
        ("eve", 2, "a trade from Lima after a login from Oslo"),
        ("eve", 5, "a trade from Oslo after a login from Lima"),
    ]
    assert [(row.user, row.start.second, row.reason) for row in rows["hurried"]] == [
        ("eve", 0, "4 trades within 10 seconds")
    ]
