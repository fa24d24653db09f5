#!/usr/bin/env python
"""A small game server: it sends logins and trades over HTTP, names the thefts among them, and waits for the alerts.

The events follow from the seed and the begin. Some requests are sent twice, as by a client that got no response.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import random
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

NAMES = (
    "ada",
    "ben",
    "cleo",
    "dan",
    "eve",
    "fay",
    "gus",
    "hal",
    "ida",
    "joe",
    "kim",
    "leo",
    "mia",
    "ned",
    "ola",
    "pam",
)
ITEMS = ("sword", "shield", "potion", "map", "horse", "ring")
ALERTS = Path("/tmp/flafka-game")  # noqa: S108  # as in game.conf
ROUNDS = 12
"""Number of logins of each player."""
FIRST_SPECIAL_ROUND = 7
"""Round before which nothing special happens: the rule needs trades to compare with."""
MAX_REQUEST_EVENTS = 10
REQUESTS_PER_REPETITION = 15
"""Number of requests of which the last one is sent twice."""
RETRY_SECONDS = 0.5


@dataclass
class Action:
    """A login or a trade. `role` is `login`, `trade`, `theft`, `travel` or `bargain`."""

    body: dict[str, str | int | float]
    role: str

    @property
    def id(self) -> str:
        """The id of the event, and of its alert."""
        return str(self.body["id"])

    def event(self) -> dict[str, object]:
        """Return the event, as the source `http` reads it."""
        return {"headers": {"key": self.body["user"]}, "body": json.dumps(self.body)}


class Player:
    """A player, who plays from one or two addresses."""

    def __init__(self, name: str, chance: random.Random) -> None:
        self.name, self.chance = name, chance
        self.homes = [f"192.0.2.{chance.randrange(256)}" for _ in range(chance.randint(1, 2))]
        self.usual = round(chance.uniform(20, 500))
        self.smallest = 2.0 * self.usual

    def login(self, address: str) -> tuple[str, dict[str, str | float]]:
        """Return the role and the fields of a login."""
        return "login", {"kind": "login", "user": self.name, "address": address}

    def trade(self, amount: float, role: str = "trade") -> tuple[str, dict[str, str | float]]:
        """Return the role and the fields of a trade."""
        item = self.chance.choice(ITEMS)
        return role, {"kind": "trade", "user": self.name, "amount": round(amount, 2), "item": item}

    def play(self, special: str | None) -> Iterator[tuple[str, dict[str, str | float]]]:
        """Yield role and fields of the events of one round."""
        for address in self.homes if special == "first" else [self.chance.choice(self.homes)]:
            yield self.login(address)
        for _ in range(self.chance.randint(1, 3)):
            amount = round(self.usual * self.chance.uniform(0.6, 1.4), 2)
            self.smallest = min(self.smallest, amount)
            yield self.trade(amount)
        if special == "theft":
            yield self.login(f"203.0.113.{self.chance.randrange(256)}")
            yield self.trade(self.usual * self.chance.uniform(10, 20), special)
        elif special == "travel":  # a new address, and a small amount
            yield self.login(f"198.51.100.{self.chance.randrange(256)}")
            yield self.trade(self.smallest, special)
        elif special == "bargain":  # a large amount, and a known address
            yield self.trade(self.usual * self.chance.uniform(10, 20), special)


def game(seed: int, players: int, thefts: int, begin: float, rate: float) -> list[Action]:
    """Return the events of a game in their order. `begin` is in seconds since the epoch, `rate` in events per second.

    The first `thefts` players are robbed once. Of the others, one half travels, and one half makes a bargain.
    """
    chance = random.Random(seed)
    playing = [Player(f"{NAMES[n % len(NAMES)]}-{seed}-{n}", chance) for n in range(players)]
    specials: dict[tuple[int, int], str] = {(n, 0): "first" for n in range(players)}
    for n in range(players):
        role = "theft" if n < thefts else ("travel", "bargain")[n % 2]
        specials[n, chance.randrange(FIRST_SPECIAL_ROUND, ROUNDS)] = role
    actions = list[Action]()
    for turn in range(ROUNDS):
        for n in chance.sample(range(players), players):
            for role, fields in playing[n].play(specials.get((n, turn))):
                id = str(uuid.UUID(int=chance.getrandbits(128), version=4))
                at = int((begin + len(actions) / rate) * 1000)
                actions.append(Action({"id": id, "at": at, **fields}, role))
    return actions


class Server:
    """Client of the source `http`. It repeats each request until the agent has stored the events."""

    def __init__(self, url: str) -> None:
        self.address = urlsplit(url).netloc
        self.connection = http.client.HTTPConnection(self.address, timeout=60)

    def send(self, actions: Sequence[Action]) -> None:
        """Send events, and block until they are stored."""
        content = json.dumps([action.event() for action in actions])
        for attempt in itertools.count():
            try:
                self.connection.request("POST", "/", content)
                response = self.connection.getresponse()
                response.read()
                if response.status == http.HTTPStatus.OK:
                    return
                reason = f"{response.status} {response.reason}"
            except (OSError, http.client.HTTPException) as error:
                self.connection.close()
                reason = str(error)
            if not attempt:
                print(f"{self.address} has not stored the events, which are sent again: {reason}", file=sys.stderr)
            time.sleep(RETRY_SECONDS)


def play(actions: Sequence[Action], server: Server) -> None:
    """Send events at their times; late ones at once. Print the thefts."""
    for number, start in enumerate(range(0, len(actions), MAX_REQUEST_EVENTS), 1):
        request = actions[start : start + MAX_REQUEST_EVENTS]
        time.sleep(max(0.0, int(request[-1].body["at"]) / 1000 - time.time()))
        for _ in range(1 if number % REQUESTS_PER_REPETITION else 2):
            server.send(request)
        for action in request:
            if action.role == "theft":
                body = action.body
                print(f"theft  {body['id']}  {body['user']}: a {body['item']} for {body['amount']}", flush=True)


def read_alerts(directory: Path) -> set[str]:
    """Return the ids of the alerts in the files of a directory. An alert that was sent again counts once."""
    lines = [line for file in directory.glob("*") for line in file.read_text().splitlines(keepends=True)]
    return {json.loads(line)["id"] for line in lines if line.endswith("\n")}  # the last one may be written just now


def wait_for_alerts(actions: Sequence[Action], directory: Path, seconds: float) -> set[str]:
    """Print each alert of this game until all thefts have theirs, or for `seconds`. Return the ids of the alerts."""
    by_id, deadline, reported = {action.id: action for action in actions}, time.monotonic() + seconds, set[str]()
    thefts = {action.id for action in actions if action.role == "theft"}
    while time.monotonic() < deadline and not thefts <= reported:
        for id in sorted(read_alerts(directory) & by_id.keys() - reported):
            reported.add(id)
            print(f"alert  {id}  {by_id[id].body['user']}", flush=True)
        time.sleep(RETRY_SECONDS)
    others = len(reported - thefts)
    print(f"{len(thefts & reported)} of {len(thefts)} thefts were reported, and {others} other trades")
    return reported


def main() -> None:
    """Play one game; exit with code 1 unless exactly the thefts were reported."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", default="http://127.0.0.1:5090", help="address of the source http")
    parser.add_argument("--players", type=int, default=20)
    parser.add_argument("--thefts", type=int, default=5, help="number of players who are robbed")
    parser.add_argument("--seed", type=int, default=random.randrange(10_000), help="of the events, by default any")
    parser.add_argument("--begin", type=float, default=time.time(), help="time of the first event, by default now")
    parser.add_argument("--rate", type=float, default=40, help="events per second")
    parser.add_argument("--alerts", type=Path, default=ALERTS, help="directory with the files of alerts")
    parser.add_argument("--wait", type=float, default=120, help="seconds to wait for the alerts; 0 does not wait")
    parser.add_argument("--chart", type=Path, help="SVG file to draw, with all trades")
    options = parser.parse_args()
    seed, players, thefts = options.seed, options.players, options.thefts
    actions = game(seed, players, thefts, options.begin, options.rate)
    print(f"seed {seed}: {players} players, {len(actions)} events, {thefts} thefts", flush=True)
    play(actions, Server(options.url))
    print(f"{len(actions)} events are stored", flush=True)
    if options.wait:
        reported = wait_for_alerts(actions, options.alerts, options.wait)
        if options.chart:
            from chart import draw

            options.chart.write_text(draw(actions, reported), "utf-8")
        sys.exit(reported != {action.id for action in actions if action.role == "theft"})


if __name__ == "__main__":
    main()
