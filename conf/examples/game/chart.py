"""Picture of one game, in SVG: each trade by its time and its amount, and the alerts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence, Set
from html import escape
from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conf.examples.game.play import Action

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 380, 56, 16, 92, 44
LOWEST, HIGHEST = 0.5, 30
"""Ends of the vertical axis: amount, as a multiple of the player's usual one."""
TICKS = (0.5, 1, 2, 5, 10, 20)
KINDS = {
    "trade": "usual amount, known address",
    "travel": "usual amount, new address",
    "bargain": "large amount, known address",
    "theft": "large amount, new address: a planted theft",
}
STYLE = """
    text { font: 13px system-ui, sans-serif; fill: #1f2328 } .note { font-size: 12px; fill: #57606a }
    .ground { fill: #f6f8fa }
    .axis { stroke: #d0d7de } .dots { stroke-width: 9; stroke-linecap: round } .travel { stroke: #1a7f37 }
    .trade { stroke: #8c959f; stroke-opacity: .5; stroke-width: 6 } .bargain { stroke: #0969da }
    .theft { stroke: #cf222e } .alert { fill: none; stroke: #cf222e; stroke-width: 2 }
    @media (prefers-color-scheme: dark) {
      .ground { fill: #161b22 } text { fill: #e6edf3 } .note { fill: #9ea7b3 } .axis { stroke: #30363d }
      .trade { stroke: #8b949e } .travel { stroke: #3fb950 } .bargain { stroke: #58a6ff } .theft { stroke: #ff7b72 }
      .alert { stroke: #ff7b72 }
    }
"""


def draw(actions: Sequence[Action], reported: Set[str]) -> str:
    """Return the picture of a game whose alerts have the ids `reported`."""
    trades = [action for action in actions if action.role != "login"]
    thefts = {action.id for action in trades if action.role == "theft"}
    players = {action.body["user"] for action in trades}
    title = (
        f"{len(trades)} trades of {len(players)} players: {len(thefts & reported)} of {len(thefts)} thefts reported, "
        f"and {len(reported - thefts)} other trades"
    )
    body = [f'<text x="{LEFT}" y="26" font-weight="bold">{escape(title)}</text>', *_legend(), *_axes(trades)]
    usual = _usual_amounts(trades)
    for role in KINDS:  # the rare ones are drawn last
        places = {
            trade.id: (_x(trade, trades), _y(float(trade.body["amount"]) / usual[str(trade.body["user"])]))
            for trade in trades
            if trade.role == role
        }
        body.append(_dots(role, places.values()))
        body += [_ring(*places[id]) for id in places if id in reported]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img">\n  <title>{escape(title)}</title>\n  <style>{STYLE}  </style>\n'
        f'  <rect class="ground" width="{WIDTH}" height="{HEIGHT}" rx="8"/>\n  ' + "\n  ".join(body) + "\n</svg>\n"
    )


def _usual_amounts(trades: Sequence[Action]) -> dict[str, float]:
    """Return the median amount of each player."""
    by_player = sorted(trades, key=lambda trade: str(trade.body["user"]))
    return {
        player: median(float(trade.body["amount"]) for trade in own)
        for player, own in groupby(by_player, key=lambda trade: str(trade.body["user"]))
    }


def _x(trade: Action, trades: Sequence[Action]) -> float:
    """Return the horizontal position of a trade."""
    first, last = int(trades[0].body["at"]), int(trades[-1].body["at"])
    return LEFT + 12 + (WIDTH - LEFT - RIGHT - 24) * (int(trade.body["at"]) - first) / max(1, last - first)


def _y(multiple: float) -> float:
    """Return the vertical position of a multiple of the usual amount."""
    part = math.log(multiple / LOWEST) / math.log(HIGHEST / LOWEST)
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * part


def _dots(role: str, places: Iterable[tuple[float, float]]) -> str:
    """Return the marks of trades, as lines of no length with round ends."""
    return f'<path class="dots {role}" d="{"".join(f"M{x:.0f} {y:.0f}h0" for x, y in places)}"/>'


def _ring(x: float, y: float) -> str:
    """Return the mark of an alert."""
    return f'<circle class="alert" cx="{x:.0f}" cy="{y:.0f}" r="9"/>'


def _legend() -> Iterator[str]:
    """Yield the explanation of the marks, in two lines."""
    for number, (role, text) in enumerate(KINDS.items()):
        x, y = LEFT + 6 + 210 * (number // 2), 50 + 20 * (number % 2)
        yield _dots(role, [(x, y)])
        yield f'<text class="note" x="{x + 12}" y="{y + 4}">{text}</text>'
    yield _ring(LEFT + 520, 50)
    yield f'<text class="note" x="{LEFT + 536}" y="54">an alert</text>'


def _axes(trades: Sequence[Action]) -> Iterator[str]:
    """Yield the lines of the vertical axis, and the texts of both."""
    for tick in TICKS:
        y = _y(tick)
        yield f'<path class="axis" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
        yield f'<text class="note" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:g} ×</text>'
    seconds = (int(trades[-1].body["at"]) - int(trades[0].body["at"])) / 1000
    y = HEIGHT - 16
    yield f'<text class="note" x="{LEFT}" y="{y}">amount, as a multiple of the median of the player</text>'
    yield f'<text class="note" x="{WIDTH - RIGHT}" y="{y}" text-anchor="end">time: {seconds:.0f} seconds</text>'
