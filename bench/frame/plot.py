"""Pictures of results in SVG: bar charts, and curves.

A measure has a bar for each contestant, and a line for the range of its rounds. Measures of one curve have names such
as `syslog by connections: 1,000`: they are points of a line for each contestant.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from bench.frame.report import describe_machine, short_number

WIDTH, LABEL, BAR, GAP = 760, 300, 16, 14
INK, OURS, PEER = "#444444", "#2a6f97", "#b0b7bd"
FULL_SPEED = "full speed"
"""Last point of a curve by rate."""
POINT = re.compile(rf"(?P<curve>.+ by .+): (?P<number>\d[\d,]*|{FULL_SPEED})$")
"""Name of a measure that is a point of a curve."""
CURVE_LEFT, CURVE_RIGHT, CURVE_HEIGHT = 60, 20, 200
PEER_LINES = ("#c9772b", "#5c8f5a", "#8a6bb1")
"""Colours of the lines of peers."""
FALL = 10
"""Ratio of the first to the last cost of a curve from which on its axes are logarithmic."""
LARGEST_PEER = 2
"""Top of a picture as a multiple of Flafka's largest value. Larger values of peers are left out."""
MIN_BEND = 0.05
"""Smallest bend that the picture reports. Below it are differences between runs."""
MIN_LABEL_DISTANCE = 36.0
"""Distance between two labels of an axis, in the units of the picture."""
Line = list[tuple[float, float]]
"""Points of one contestant: number, and median."""


def draw(result: Mapping[str, Any]) -> str:
    """Return an SVG picture with the curves, the bars of each unit, and the machine at the end."""
    body: list[str] = []
    top = 10.0
    curves = _curves(result["rows"])
    for title, lines in curves.items():
        body.append(_curve(top, title, lines))
        top += CURVE_HEIGHT + 86
    measures = [row for row in result["rows"] if _curve_title(row) not in curves]
    for unit in dict.fromkeys(row["unit"] for row in measures):
        rows = [row for row in measures if row["unit"] == unit]
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


def _curve_title(row: Mapping[str, Any]) -> str:
    """Return curve and unit of a row that is a point of a curve; else an empty string."""
    match = POINT.match(row["measure"])
    return f"{match['curve']}: {row['unit']}" if match else ""


def _curves(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Line]]:
    """Return curve and unit → contestant → points, by number. The number of full speed is infinite.

    A single point makes no curve.
    """
    curves: dict[str, dict[str, dict[float, float]]] = {}
    for row in rows:
        if match := POINT.match(row["measure"]):
            number = math.inf if match["number"] == FULL_SPEED else float(match["number"].replace(",", ""))
            lines = curves.setdefault(_curve_title(row), {"Flafka": {}})
            lines["Flafka"][number] = statistics.median(own for own, _ in row["runs"])
            if row["peer_name"]:
                peers = [peer for _, peer in row["runs"]]
                lines.setdefault(row["peer_name"], {})[number] = statistics.median(peers)
    return {
        title: {name: sorted(line.items()) for name, line in lines.items()}
        for title, lines in curves.items()
        if len(lines["Flafka"]) > 1
    }


class _Axis:
    """Axis between two places of the picture, linear from 0 on, or logarithmic."""

    def __init__(self, values: Sequence[float], start: float, end: float, *, is_logarithmic: bool) -> None:
        self._start, self._length, self._is_logarithmic = start, end - start, is_logarithmic
        finite = [value for value in values if 0 < value < math.inf] or [1.0]
        # Full speed stands a power of ten behind the largest number.
        self._maximum = max(finite) * (10 if math.inf in values else 1)
        self._minimum = min(finite) if is_logarithmic else 0.0

    def place(self, value: float) -> float:
        """Return the place of a value."""
        value = min(max(value, self._minimum), self._maximum)
        if self._is_logarithmic:
            share = math.log(value / self._minimum) / (math.log(self._maximum / self._minimum) or 1.0)
        else:
            share = value / self._maximum
        return self._start + self._length * share

    def ticks(self) -> list[float]:
        """Return powers of ten, or on a linear axis up to six multiples of 1, 2 or 5 times one."""
        if self._is_logarithmic:
            powers = range(math.ceil(math.log10(self._minimum)), math.floor(math.log10(self._maximum)) + 1)
            return [10.0**power for power in powers]
        power = 10.0 ** (math.floor(math.log10(self._maximum)) - 1)
        step = next(factor * power for factor in (2, 5, 10, 20) if self._maximum <= 5 * factor * power)
        return [step * number for number in range(int(self._maximum / step) + 1)]


def bend(line: Line) -> float:
    """Return how far points are below the straight line between the first and the last one.

    The unit is the largest value. A line that bends upwards has a larger share, any other 0.
    """
    (first, start), *_, (last, end) = line
    largest = max(height for _, height in line) or 1.0
    slope = (end - start) / (last - first)
    return max(0.0, *(start + slope * (number - first) - height for number, height in line)) / largest


def _curve(top: float, title: str, lines: Mapping[str, Line]) -> str:
    """Return the lines of a curve at the height `top`, with axes and a legend.

    Axes are logarithmic if the cost falls by `FALL`. On linear axes, what grows in proportion is a straight line. A
    dashed one joins Flafka's first and last point there: a bend upwards leaves room between both.
    """
    ours, colours = lines["Flafka"], dict(zip(lines, (OURS, *PEER_LINES), strict=False))
    is_logarithmic = ours[0][1] > FALL * ours[-1][1] > 0
    numbers = sorted({number for line in lines.values() for number, _ in line})
    heights = [height for line in lines.values() for _, height in line]
    limit = math.inf if is_logarithmic else LARGEST_PEER * max(height for _, height in ours)
    bottom, left, right = top + 50 + CURVE_HEIGHT, CURVE_LEFT, WIDTH - CURVE_RIGHT
    xs = _Axis(numbers, left + 10, right - 10, is_logarithmic=is_logarithmic)
    ys = _Axis([min(height, limit) for height in heights], bottom, top + 50, is_logarithmic=is_logarithmic)
    parts = [_text(0, top + 18, title, "font-weight='bold'")]
    for position, (name, colour) in enumerate(colours.items()):
        x = left + position * (right - left) / len(colours)
        parts += [f"<path d='M{x:.1f} {top + 32:.1f}h20' stroke='{colour}' stroke-width='2'/>"]
        is_drawn = any(height <= limit for _, height in lines[name])
        parts += [_text(x + 26, top + 36, name if is_drawn else f"{name}: more than {limit:.3g}", "font-size='11'")]
    for height in ys.ticks():
        y = ys.place(height)
        parts += [f"<path d='M{left} {y:.1f}H{right}' stroke='#e4e6e8'/>"]
        parts += [_text(left - 6, y + 4, short_number(height), "text-anchor='end' font-size='10'")]
    labelled: dict[float, float] = {}
    for number in (numbers[0], *reversed(numbers)):  # points of a linear axis are close to each other at the left
        x = xs.place(number)
        if all(abs(x - other) >= MIN_LABEL_DISTANCE for other in labelled.values()):
            labelled[number] = x
            label = FULL_SPEED if number == math.inf else short_number(number)
            parts += [_text(x, bottom + 16, label, "text-anchor='middle' font-size='10'")]

    def path(points: Line, attributes: str) -> str:
        places = " L".join(f"{xs.place(x):.1f} {ys.place(y):.1f}" for x, y in points)
        return f"<path d='M{places}' fill='none' {attributes}/>"

    if not is_logarithmic and len(ours) > 2:
        parts += [path([ours[0], ours[-1]], f"stroke='{OURS}' stroke-dasharray='4 4' class='straight'")]
        if (share := bend(ours)) >= MIN_BEND:
            text = f"bends upwards, up to {share:.0%} below the straight line"
            parts += [_text(right, top + 18, text, f"text-anchor='end' font-size='11' fill='{OURS}'")]
    for name in reversed(colours):  # Flafka's line is on top
        points = [(number, height) for number, height in lines[name] if height <= limit]
        parts += [path(points, f"stroke='{colours[name]}' stroke-width='2'")] if points else []
        for number, height in points:
            x, y = xs.place(number), ys.place(height)
            parts += [f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3' fill='{colours[name]}'/>"]
            if name == "Flafka" and number in labelled:
                label = short_number(height)
                parts += [_text(x, y - 7, label, f"text-anchor='middle' font-size='10' fill='{OURS}'")]
    return "\n".join(parts)


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
