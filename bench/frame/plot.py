"""Bar charts of results in SVG: a bar for each contestant of a measure, and a line for the range of its rounds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from bench.frame.report import describe_machine, short_number

WIDTH, LABEL, BAR, GAP = 760, 300, 16, 14
INK, OURS, PEER = "#444444", "#2a6f97", "#b0b7bd"


def draw(result: Mapping[str, Any]) -> str:
    """Return an SVG picture with the bars of each unit, and the machine at the end."""
    body: list[str] = []
    top = 10.0
    for unit in dict.fromkeys(row["unit"] for row in result["rows"]):
        rows = [row for row in result["rows"] if row["unit"] == unit]
        bars = list(_bars(rows))
        maximum = max(max(values) for _, _, values in bars) or 1.0
        top += 18
        body.append(_text(0, top, unit, "font-weight='bold'"))
        top += 8
        previous = None
        for measure, name, values in bars:
            if measure != previous:
                top += GAP
                body.append(_text(0, top, measure))
                top += 6
            previous = measure
            body.append(_bar(top, name, values, maximum))
            top += BAR + 3
        top += GAP
    for line in _lines(describe_machine(result["machine"]), 118):
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
    """Return measure, contestant and values of the rounds; Flafka occurs once for each measure."""
    bars: list[tuple[str, str, list[float]]] = []
    for row in rows:
        ours = [own for own, _ in row["runs"]]
        if not any(measure == row["measure"] for measure, *_ in bars):
            bars.append((row["measure"], "Flafka", ours))
        if row["peer_name"]:
            bars.append((row["measure"], row["peer_name"], [peer for _, peer in row["runs"]]))
    return bars


def _bar(top: float, name: str, values: Sequence[float], maximum: float) -> str:
    """Return a bar of the median, with a line for the range and the median as text, at the height `top`."""
    room = WIDTH - LABEL - 90
    middle = statistics.median(values)
    left, right = (LABEL + room * value / maximum for value in (min(values), max(values)))
    length, y = room * middle / maximum, top + BAR / 2
    colour = OURS if name == "Flafka" else PEER
    return (
        f"<text x='{LABEL - 8}' y='{y + 4:.1f}' text-anchor='end'>{escape(name)}</text>"
        f"<rect x='{LABEL}' y='{top:.1f}' width='{length:.1f}' height='{BAR}' fill='{colour}'/>"
        f"<path d='M{left:.1f} {y:.1f}H{right:.1f}' stroke='{INK}'/>"
        f"<text x='{LABEL + room * max(values) / maximum + 6:.1f}' y='{y + 4:.1f}'>{short_number(middle)}</text>"
    )


def _text(x: float, y: float, text: str, attributes: str = "") -> str:
    """Return a text element of SVG."""
    return f"<text x='{x:g}' y='{y:.1f}' {attributes}>{escape(text)}</text>"


def _lines(text: str, width: int) -> list[str]:
    """Return a text in lines of at most about `width` characters, broken at blanks."""
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] += f"{word} "
    return lines
