"""Bars of a result in SVG: for each measure ours and the peers, the range of the rounds as a line."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from bench.frame.report import named, short

WIDTH, LABEL, BAR, GAP = 760, 300, 16, 14
INK, OURS, PEER = "#444444", "#2a6f97", "#b0b7bd"


def drawing(result: Mapping[str, Any]) -> str:
    """A picture of each unit's bars, one below the other, with the machine at the end."""
    body: list[str] = []
    top = 10.0
    for unit in dict.fromkeys(row["unit"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["unit"] == unit]
        bars = list(_bars(rows))
        most = max(max(values) for _, _, values in bars) or 1.0
        top += 18
        body.append(_text(0, top, unit, "font-weight='bold'"))
        top += 8
        before = None
        for measure, name, values in bars:
            if measure != before:
                top += GAP
                body.append(_text(0, top, measure))
                top += 6
            before = measure
            body.append(_bar(top, name, values, most))
            top += BAR + 3
        top += GAP
    for line in _lines(named(result["machine"]), 118):
        top += 14
        body.append(_text(0, top, line, "font-size='10'"))
    content = "\n".join(body)
    title = f"Results of ./dev bench {result['name']}"
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {top + 10:.0f}' role='img' "
        f"font-family='sans-serif' font-size='12' fill='{INK}'>\n<title>{escape(title)}</title>\n"
        f"<rect width='100%' height='100%' fill='#ffffff'/>\n{content}\n</svg>\n"
    )


def _bars(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, list[float]]]:
    """Measure, name, values of the rounds; ours once for each measure."""
    bars: list[tuple[str, str, list[float]]] = []
    for row in rows:
        ours = [mine for mine, _ in row["runs"]]
        if not any(measure == row["measure"] for measure, *_ in bars):
            bars.append((row["measure"], "Flafka", ours))
        if row["peer_name"]:
            bars.append((row["measure"], row["peer_name"], [peer for _, peer in row["runs"]]))
    return bars


def _bar(top: float, name: str, values: Sequence[float], most: float) -> str:
    room = WIDTH - LABEL - 90
    middle = statistics.median(values)
    left, right = (LABEL + room * value / most for value in (min(values), max(values)))
    length, y = room * middle / most, top + BAR / 2
    colour = OURS if name == "Flafka" else PEER
    return (
        f"<text x='{LABEL - 8}' y='{y + 4:.1f}' text-anchor='end'>{escape(name)}</text>"
        f"<rect x='{LABEL}' y='{top:.1f}' width='{length:.1f}' height='{BAR}' fill='{colour}'/>"
        f"<path d='M{left:.1f} {y:.1f}H{right:.1f}' stroke='{INK}'/>"
        f"<text x='{LABEL + room * max(values) / most + 6:.1f}' y='{y + 4:.1f}'>{short(middle)}</text>"
    )


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f"<text x='{x:g}' y='{y:.1f}' {more}>{escape(text)}</text>"


def _lines(text: str, width: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] += f"{word} "
    return lines
