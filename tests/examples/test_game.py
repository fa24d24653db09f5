"""Example of the game: the rule as a table of cases, and histories over micro-batches that end anywhere."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.streaming.tws_tester import TwsTester

from conf.examples.game import chart, play
from conf.examples.game import game as example
from flafka.agent.testing import run_processor, session
from flafka.plugins import Event

Guard: Any = example.Guard
History: Any = example.History
DAY_MILLISECONDS = example.DAY_MILLISECONDS
CONFIGURATION = Path(__file__).parents[2] / "conf/examples/game/game.conf"
Action = dict[str, Any]
HOME, AWAY = "192.0.2.1", "203.0.113.9"
BEGIN = 1_769_860_800_000


def login(second: float, address: str = HOME, **fields: Any) -> Action:
    return {"id": f"login-{second}", "kind": "login", "at": BEGIN + int(second * 1000), "address": address} | fields


def trade(second: float, amount: float = 10, **fields: Any) -> Action:
    return {"id": f"trade-{second}", "kind": "trade", "at": BEGIN + int(second * 1000), "amount": amount} | fields


def logins(*addresses: str) -> list[Action]:
    """Return a login each second from 1 on."""
    return [login(second, address) for second, address in enumerate(addresses, 1)]


def trades(*amounts: float) -> list[Action]:
    """Return a trade each second from 50 on."""
    return [trade(second, amount) for second, amount in enumerate(amounts, 50)]


def numbered(count: int) -> list[str]:
    """Return that many different addresses."""
    return [f"198.51.100.{number}" for number in range(count)]


TRADES = trades(*[8, 12] * 10)  # the mean is 10 and the standard deviation 2, so that 16 is the limit
PAST = [*logins(*[HOME] * 20), *TRADES]
THEFT = [login(100, AWAY), trade(101, 50)]

CASES: dict[str, tuple[list[list[Action]], list[str]]] = {
    # name: (micro-batches, ids of suspicious trades)
    # --- the amount
    "a large amount from a new address": ([[*PAST, *THEFT]], ["trade-101"]),
    "a usual amount from a new address": ([[*PAST, login(100, AWAY), trade(101, 12)]], []),
    "exactly the limit": ([[*PAST, login(100, AWAY), trade(101, 16)]], []),
    "a cent above the limit": ([[*PAST, login(100, AWAY), trade(101, 16.01)]], ["trade-101"]),
    "equal amounts, and another one": ([[*logins(HOME), *trades(*[10] * 20), login(100, AWAY), trade(101, 10)]], []),
    "a cent above equal amounts": (
        [[*logins(HOME), *trades(*[10] * 20), login(100, AWAY), trade(101, 10.01)]],
        ["trade-101"],
    ),
    "no trade before": ([[*logins(HOME), *THEFT]], []),
    "4 trades before": ([[*logins(HOME), *TRADES[:4], *THEFT]], []),
    "5 trades before": ([[*logins(HOME), *TRADES[:5], *THEFT]], ["trade-101"]),
    "a large trade, 20 trades ago": ([[*logins(HOME), *trades(1000, *[8, 12] * 9, 10), *THEFT]], []),
    "a large trade, 21 trades ago": ([[*logins(HOME), *trades(1000, *[8, 12] * 10), *THEFT]], ["trade-101"]),
    "a gift counts as a trade": ([[*logins(HOME), *TRADES[:4], trade(90, 0), *THEFT]], ["trade-101"]),
    "a second theft, as large": ([[*PAST, *THEFT, trade(102, 50)]], ["trade-101", "trade-102"]),
    "a second theft is compared with the first": ([[*PAST, *THEFT, trade(102, 30)]], ["trade-101"]),
    # --- the address
    "a large amount from a known address": ([[*PAST, login(100), trade(101, 50)]], []),
    "the address of 20 logins ago": ([[*logins(AWAY, *[HOME] * 19), *TRADES, *THEFT]], []),
    "the address of 21 logins ago": ([[*logins(AWAY, *[HOME] * 20), *TRADES, *THEFT]], ["trade-101"]),
    "a new address each time": ([[*logins(*numbered(20)), *TRADES, *THEFT]], ["trade-101"]),
    "no login": ([[*TRADES, trade(101, 50)]], []),
    "no login before the trade": ([[*TRADES, trade(101, 50), login(102, AWAY)]], []),
    "the first login ever": ([[*TRADES, *THEFT]], []),
    "the second login ever": ([[*logins(HOME), *TRADES, *THEFT]], ["trade-101"]),
    "a login at the time of the trade": ([[*PAST, login(101, AWAY), trade(101, 50)]], ["trade-101"]),
    "a login just after the trade": ([[*PAST, login(101.001, AWAY), trade(101, 50)]], []),
    "a later login from home": ([[*PAST, login(99, AWAY), login(100), trade(101, 50)]], []),
    "a second login from the new address": ([[*PAST, login(99, AWAY), *THEFT]], []),
    # --- order and repetition
    "any order in a micro-batch": ([[*reversed([*PAST, *THEFT])]], ["trade-101"]),
    "of trades at one time the smaller id is the first": (
        [[*logins(HOME), *TRADES[:4], login(100, AWAY), trade(101, 50, id="b"), trade(101, 9, id="a")]],
        ["b"],
    ),
    "a late trade at the time of another": (
        [[*PAST, login(100, AWAY), trade(101, 90, id="b")], [trade(101, 50, id="a")]],
        ["b", "a"],
    ),
    "a late login re-judges nothing": ([[*PAST, trade(101, 50)], [login(100, AWAY)]], []),
    "a late login counts from then on": (
        [[*PAST, trade(101, 50)], [login(100, AWAY)], [trade(102, 90)]],
        ["trade-102"],
    ),
    "a late login from home counts": ([[*PAST, login(99, AWAY)], [login(100)], [trade(101, 50)]], []),
    "a late trade is compared with what is before it": (
        [[*PAST, login(100, AWAY)], [login(200), trade(201, 90)], [trade(101, 50)]],
        ["trade-101"],
    ),
    "a late trade has its place by its time": ([[*PAST, trade(102, 10)], [trade(49, 1000)], THEFT], ["trade-101"]),
    "a late large trade counts from then on": ([[*PAST], [trade(90, 1000)], THEFT], []),
    "a trade too late: its history is dropped": (
        [[*PAST, login(100, AWAY)], [trade(second) for second in range(200, 240)], [trade(101, 50)]],
        [],
    ),
    "a trade too late: its logins are dropped": (
        [[*PAST, login(100, AWAY)], [login(second) for second in range(200, 221)], [trade(101, 50)]],
        [],
    ),
    "a repeated theft": ([[*PAST, *THEFT, THEFT[1]], THEFT, THEFT], ["trade-101"]),
    "a repeated login": ([[*PAST, THEFT[0], THEFT[0]], [THEFT[0]], THEFT], ["trade-101"]),
    "a repeated trade is no history": ([[*logins(HOME), *TRADES[:4], TRADES[0]], [TRADES[1]], THEFT], []),
    "all of it repeated": ([[*PAST, *THEFT], [*PAST, *THEFT]], ["trade-101"]),
    "a theft repeated after its history is dropped": (
        [[*PAST, *THEFT], [trade(second) for second in range(200, 260)], THEFT],
        ["trade-101"],
    ),
    "a first event with the id counts": ([[*PAST, *THEFT], [trade(300, 900, id="trade-101")]], ["trade-101"]),
}
MALFORMED: dict[str, Any] = {
    "no JSON": b"trade of eve",
    "invalid UTF-8": b'{"id": "\xff"}',
    "nothing": b"",
    "an array": [1, 2],
    "no fields": {},
    "no id": trade(101, 50) | {"id": None},
    "an empty id": trade(101, 50, id=""),
    "no kind": trade(101, 50) | {"kind": None},
    "an unknown kind": trade(101, 50, kind="gift"),
    "no time": trade(101, 50) | {"at": None},
    "a time as text": trade(101, 50, at="noon"),
    "no amount": trade(101, 50) | {"amount": None},
    "an amount as text": trade(101) | {"amount": "much"},
    "a negative amount": trade(101, -50),
    "NaN": trade(101, math.nan),
    "an infinite amount": trade(101, math.inf),
    "an amount whose sums overflow": trade(101, 1.7e308),
    "an amount beyond numbers": json.dumps(trade(101, 50, user="an amount beyond numbers")).replace("50", "5e999"),
    "a login without an address": login(101) | {"address": None},
}
"""Events between login and trade of a theft, which do not change its alert."""


def rows(actions: Sequence[Action], user: str = "eve") -> list[Row]:
    fields = {"user": user, "address": None, "amount": None}
    return [Row(**fields | action) for action in actions]


def guard(**options: Any) -> Any:
    """Return Spark's harness with the processor, and the options of game.conf."""
    return TwsTester(Guard(**{"deviations": 3, "least": 5, "days": 30} | options), timeMode="ProcessingTime")


def alerts(tester: Any, *batches: Sequence[Action]) -> list[str]:
    return [alert.id for batch in batches for alert in tester.test("eve", rows(batch))]


@pytest.mark.parametrize("name", CASES)
def test_rule(name: str) -> None:
    batches, expected = CASES[name]
    history = History()
    assert [alert["id"] for batch in batches for alert in history.add(rows(batch))] == expected


@pytest.mark.parametrize("name", CASES)
def test_rule_in_the_harness_of_spark(name: str) -> None:
    batches, expected = CASES[name]
    assert alerts(guard(), *batches) == expected


def test_an_alert_says_why() -> None:
    *_, alert = guard().test("eve", rows([*PAST, *THEFT]))
    assert alert.asDict() == {
        "id": "trade-101",
        "user": "eve",
        "at": BEGIN + 101_000,
        "amount": 50,
        "usual": 10,
        "limit": 16,
        "address": AWAY,
    }


def test_significance_is_an_option() -> None:
    assert alerts(guard(deviations=20), [*PAST, *THEFT]) == []
    assert alerts(guard(deviations=19.9), [*PAST, *THEFT]) == ["trade-101"]
    assert alerts(guard(least=6), [*logins(HOME), *TRADES[:5], *THEFT]) == []
    assert alerts(guard(least=6), [*logins(HOME), *TRADES[:6], *THEFT]) == ["trade-101"]


def test_players_who_are_gone_are_forgotten() -> None:
    tester = guard(days=30)
    assert alerts(tester, PAST) == []
    tester.setProcessingTime(29 * DAY_MILLISECONDS)
    assert alerts(tester, THEFT[:1]) == []
    tester.setProcessingTime(31 * DAY_MILLISECONDS)  # 2 days after the latest event
    assert tester.peekValueState("history", "eve") is not None
    assert alerts(tester, THEFT[1:]) == ["trade-101"]
    tester.setProcessingTime(61 * DAY_MILLISECONDS)
    assert tester.peekValueState("history", "eve") is None
    assert alerts(tester, THEFT) == []


def test_a_history_is_limited() -> None:
    tester = guard()
    alerts(tester, [step(second) for second in range(1000) for step in (login, trade)])
    assert [len(entries) for entries in tester.peekValueState("history", "eve")] == [40, 40]


# --- streams of any events


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[Action], list[Action], list[list[Action]]]:
    """Return events in order, the same with repetitions, and those in micro-batches that end anywhere."""
    addresses = st.sampled_from([HOME, *numbered(4)]) | st.sampled_from(numbered(30))
    amounts = st.sampled_from([8, 9, 11, 12]) | st.sampled_from([20, 50, 400])
    least = draw(st.sampled_from([0, 50, 120]))
    steps = draw(st.lists(st.tuples(st.integers(0, 1), addresses | amounts), min_size=least, max_size=least + 30))
    second, ordered = 0, list[Action]()
    for number, (passed, value) in enumerate(steps):
        second += passed
        make = login if isinstance(value, str) else trade
        ordered.append(make(second, value, id=f"{number:03}"))
    ordered.sort(key=lambda action: (action["at"], action["kind"], action["id"]))
    sent = ordered[:]
    for end in draw(st.lists(st.integers(0, len(ordered)), max_size=5)):
        sent[end:end] = sent[max(0, end - draw(st.integers(1, 60))) : end]  # a client that repeats its last requests
    ends = sorted(draw(st.lists(st.integers(0, len(sent)), max_size=8)))
    return ordered, sent, [sent[start:end] for start, end in zip([0, *ends], [*ends, len(sent)], strict=True)]


def by_the_story(ordered: Sequence[Action]) -> Iterator[str]:
    """Yield the ids of suspicious trades, from the whole past of each."""
    for number, action in enumerate(ordered):
        if action["kind"] == "trade":
            addresses = [past["address"] for past in ordered[:number] if past["kind"] == "login"]
            amounts = [past["amount"] for past in ordered[:number] if past["kind"] == "trade"][-20:]
            if len(addresses) < 2 or len(amounts) < 5 or addresses[-1] in addresses[-21:-1]:
                continue
            if action["amount"] > fmean(amounts) + 3 * pstdev(amounts):
                yield action["id"]


@settings(max_examples=100, deadline=None)
@given(streams())
def test_alerts_do_not_depend_on_micro_batches_and_repetitions(
    stream: tuple[list[Action], list[Action], list[list[Action]]],
) -> None:
    ordered, _, batches = stream
    assert alerts(guard(), *batches) == [*by_the_story(ordered)]


# --- the small game server


@pytest.mark.parametrize("seed", range(20))
def test_a_game_has_as_many_thefts_as_it_says(seed: int) -> None:
    actions = play.game(seed, players=12, thefts=4, begin=BEGIN / 1000, rate=40)
    histories = {str(action.body["user"]): History() for action in actions}
    reported = [
        alert["id"]
        for action in actions
        for alert in histories[str(action.body["user"])].add(rows([action.body], str(action.body["user"])))
    ]
    assert reported == [action.id for action in actions if action.role == "theft"]
    assert len(reported) == 4
    assert len({action.id for action in actions}) == len(actions)
    assert {"travel", "bargain"} < {action.role for action in actions}
    assert play.game(seed, players=12, thefts=4, begin=BEGIN / 1000, rate=40) == actions


def test_a_chart_has_a_ring_for_each_alert() -> None:
    actions = play.game(1, players=3, thefts=2, begin=0, rate=1)
    thefts = [action.id for action in actions if action.role == "theft"]
    picture = chart.draw(actions, {*thefts[:1]})
    assert "1 of 2 thefts reported, and 0 other trades" in picture
    assert picture.count("<circle") == 2  # one of them in the legend
    ElementTree.fromstring(picture)


# --- on Spark


@contextlib.contextmanager
def settings_of_the_example() -> Iterator[None]:
    """Give the session of this process the settings of game.conf, until the end."""
    spark = session().conf
    found = dict(re.findall(r"^a1\.spark\.conf\.(\S+) = (\S+)$", CONFIGURATION.read_text(), re.MULTILINE))
    assert len(found) == 2
    before = {name: spark.get(name) for name in found}
    try:
        for name, value in found.items():
            spark.set(name, value)
        yield
    finally:
        for name, value in before.items():
            spark.set(name, value)


@pytest.mark.usefixtures("spark_session")
def test_rule_on_spark() -> None:
    """Each case is a player of one stream, and each malformed event is in the way of one theft."""
    longest = max(len(batches) for batches, _ in CASES.values())
    stream: list[list[Event]] = [[] for _ in range(longest)]
    for name, (batches, _) in CASES.items():
        for batch, actions in zip(stream, batches, strict=False):
            batch += [Event(json.dumps(action | {"user": name}).encode()) for action in actions]
    for name, malformed in MALFORMED.items():
        around = [json.dumps(action | {"user": name}) for action in (*PAST, *THEFT)]
        if isinstance(malformed, dict):
            malformed = json.dumps(malformed | {"user": name})
        body = malformed if isinstance(malformed, str | bytes) else json.dumps(malformed)
        between = body if isinstance(body, bytes) else body.encode()
        stream[0] += [*(Event(text.encode()) for text in around[:-1]), Event(between), Event(around[-1].encode())]
    stream[0].append(Event(json.dumps(trade(101, 50)).encode()))  # no player
    with settings_of_the_example():
        written = run_processor(example.suspicious, *stream)
    got: dict[str, list[str]] = {name: [] for name in (*CASES, *MALFORMED)}
    for row in written:
        alert = json.loads(row.body)
        assert row.key == alert["user"]
        got[alert["user"]].append(alert["id"])
    assert got == {name: ids for name, (_, ids) in CASES.items()} | {name: ["trade-101"] for name in MALFORMED}
