"""Suspicious trades of a game: the amount is unusual for the player, and so is the address of the login.

Each player has a history of logins and trades. A trade is compared with the part of it that is before the trade.
"""

from bisect import bisect_left, insort
from statistics import fmean, pstdev

from pyspark.sql import Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

from flafka.plugins.dataframe import json_body

COMPARED = 20
"""Number of earlier logins, and of earlier trades, with which a trade is compared."""
KEPT = 2 * COMPARED
"""Number of logins, and of trades, in a history: late trades need older ones."""
DAY_MILLISECONDS = 24 * 60 * 60 * 1000

EVENT = "id string, kind string, user string, at bigint, address string, amount double"
VALID = """
    id != '' AND user != '' AND at IS NOT NULL
    AND (kind = 'login' AND address != '' OR kind = 'trade' AND amount BETWEEN 0 AND 1e15)
"""
HISTORY = """
    logins array<struct<at: bigint, id: string, address: string>>,
    trades array<struct<at: bigint, id: string, amount: double>>
"""
ALERT = "id string, user string, at bigint, amount double, usual double, limit double, address string"


def suspicious(events, options):
    """An alert for each suspicious trade, as JSON with the trade's id. Its key is the player."""
    actions = events.select(json_body(EVENT).alias("event")).select("event.*").where(VALID)
    guard = Guard(
        deviations=float(options.get("deviations", 3)),
        least=int(options.get("trades", 5)),
        days=float(options.get("days", 30)),
    )
    alerts = actions.groupBy("user").transformWithState(guard, ALERT, "Append", "ProcessingTime")
    return alerts.select(F.col("user").alias("key"), F.to_json(F.struct("*")).alias("body"))


class History:
    """Latest logins and trades of one player, in the order of their own times: at most `KEPT` of each."""

    def __init__(self, logins=(), trades=()):
        self.logins = [tuple(login) for login in logins]  # (time, id, address)
        self.trades = [tuple(trade) for trade in trades]  # (time, id, amount)

    def add(self, events, deviations=3, least=5):
        """Insert events whose ids are new, and yield an alert, as a dict, for each suspicious trade of them."""
        known = {id for _, id, _ in self.logins + self.trades}
        for event in sorted(events, key=lambda event: (event.at, event.kind, event.id)):  # a login is before a trade
            if event.id in known:
                continue
            known.add(event.id)
            if event.kind == "login":
                insort(self.logins, (event.at, event.id, event.address))
            else:
                if alert := self.judge(event, deviations, least):
                    yield alert
                insort(self.trades, (event.at, event.id, event.amount))
            del self.logins[:-KEPT], self.trades[:-KEPT]

    def judge(self, trade, deviations, least):
        """Return the alert for a trade that is not inserted yet; None if it is usual, or too little is known."""
        amounts = latest(self.trades, (trade.at, trade.id), COMPARED)
        addresses = latest(self.logins, (trade.at + 1,), COMPARED + 1)  # a login at the same time is before the trade
        if len(amounts) < least or len(addresses) < 2:
            return None
        *earlier, address = addresses
        usual = fmean(amounts)
        limit = usual + deviations * pstdev(amounts)
        if trade.amount <= limit or address in earlier:
            return None
        alert = {"id": trade.id, "user": trade.user, "at": trade.at, "amount": trade.amount}
        return alert | {"usual": usual, "limit": limit, "address": address}


def latest(entries, end, count):
    """Return the values of the last `count` entries before `end`.

    A player may have fewer. The result is empty if the history has dropped some of them.
    """
    before = entries[: bisect_left(entries, end)]
    if len(before) < count and len(entries) == KEPT:
        return []
    return [value for _, _, value in before[-count:]]


class Guard(StatefulProcessor):
    """Spark's processor: it keeps the history of each player, and forgets players that are gone for `days`."""

    def __init__(self, deviations, least, days):
        self.rule = {"deviations": deviations, "least": least}
        self.forget_milliseconds = int(days * DAY_MILLISECONDS)

    def init(self, handle):
        """Open the state. Called by Spark."""
        self.handle = handle
        self.state = handle.getValueState("history", HISTORY)

    def handleInputRows(self, key, rows, timerValues):
        """Yield the alerts of one player's events in a micro-batch. Called by Spark."""
        history = History(*(self.state.get() or ()))
        for alert in history.add(rows, **self.rule):
            yield Row(**alert)
        self.state.update((history.logins, history.trades))
        for timer in list(self.handle.listTimers()):
            self.handle.deleteTimer(timer)
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + self.forget_milliseconds)

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        """Forget a player. Called by Spark."""
        self.state.clear()
        return iter(())
