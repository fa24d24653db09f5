"""Numbers, durations and times as short texts with their units, for people."""

from __future__ import annotations

from datetime import UTC, datetime


def format_number(number: float | None) -> str:
    """Return a number in up to seven characters: `9,999`, `12.3 k`, `1.5` below 100; `-` for None."""
    if number is None:
        return "-"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= max(size, 1e4) * 0.99995:
            return f"{number / size:,.1f} {letter}"
    return f"{number:,.0f}" if abs(number) >= 100 or number == int(number) else f"{number:.1f}"


def format_milliseconds(milliseconds: float) -> str:
    """Return a duration in up to seven characters: `0.4 ms`, `12 ms`, and as `format_seconds` from 10 s on."""
    if milliseconds >= 10_000:
        return format_seconds(milliseconds / 1000)
    if milliseconds >= 1000:
        return f"{milliseconds / 1000:.1f} s"
    return f"{milliseconds:.0f} ms" if milliseconds >= 10 else f"{milliseconds:.1f} ms"


def format_seconds(seconds: float | None) -> str:
    """Return a duration as text: `12 s`, `12 min`, `3.5 h`, and from 48 hours on `2.0 d`; `-` for None.

    Texts below `1,000.0 d` have up to seven characters.
    """
    if seconds is None:
        return "-"
    for size, minimum, unit in ((86400, 172800, "d"), (3600, 3600, "h"), (60, 60, "min")):
        if seconds >= minimum:
            return f"{seconds / size:.0f} {unit}" if unit == "min" else f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.0f} s"


def format_time(seconds: float) -> str:
    """Return a time in seconds since the epoch as `2026-11-30 00:36:56 UTC`."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


def format_count(number: float, unit: str) -> str:
    """Return a number with its unit, `1 event` or `12.3 k events`. The unit is a plural that ends in `s`."""
    return f"{format_number(number)} {unit.removesuffix('s') if number == 1 else unit}"
