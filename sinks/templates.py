"""Texts with escape sequences for each event, such as `%{host}-%[id]`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime

from flafka.plugins import Batch

_ESCAPE = re.compile(r"%\{([^{}]+)\}|%\[(\w+)\]")

_LIKE_ESCAPE = re.compile(r"%(?:\{[^}]*\}?|\[[^\]]*\]?|[A-Za-z])")


class Template:
    """Text with escapes: `%{header}`, `%[id]`, `%[timestamp]`, `%[time]` and `%[body]`.

    `%[id]` is the event's id. `%[timestamp]` is the time of arrival in the channel, in milliseconds, and `%[time]`
    the same time as `2026-01-31T12:00:00.000Z`. Raises ValueError for an incomplete or unknown escape.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.parts: list[tuple[str, str]] = []
        """Pairs of a kind, which is `text` or that of an escape, and the text or the name of the header."""
        end = 0
        for escape in _ESCAPE.finditer(pattern):
            if escape.start() > end:
                self.parts.append(("text", pattern[end : escape.start()]))
            end = escape.end()
            header, special = escape.groups()
            if header is None and special not in ("id", "timestamp", "time", "body"):
                raise ValueError(f"%[{special}] is none of %[id], %[timestamp], %[time] and %[body]")
            self.parts.append(("header", header) if header is not None else (special, ""))
        if end < len(pattern):
            self.parts.append(("text", pattern[end:]))
        for kind, text in self.parts:
            if kind == "text" and (wrong := _LIKE_ESCAPE.search(text)):
                raise ValueError(
                    f"{wrong[0]!r} is no escape here: a header is %{{name}}, and there are %[id], %[timestamp], "
                    "%[time] and %[body]"
                )

    @property
    def headers(self) -> set[str]:
        """Names of the headers that an event needs for the text."""
        return {value for kind, value in self.parts if kind == "header"}

    def texts(self, batch: Batch) -> Iterator[str | ValueError]:
        """Yield the text of each event, in order, or a ValueError if it lacks a header.

        The error's text is a sentence about the event.
        """
        columns = [self._column(kind, value, batch) for kind, value in self.parts]
        if len(columns) == 1 and None not in columns[0]:
            yield from (text for text in columns[0] if text is not None)
            return
        for row, parts in enumerate(zip(*columns, strict=True) if columns else [()] * len(batch)):
            if None in parts:
                missing = next(
                    value for (_, value), column in zip(self.parts, columns, strict=True) if column[row] is None
                )
                yield ValueError(f"it has no header {missing!r}, which {self.pattern!r} needs")
            else:
                yield "".join(part for part in parts if part is not None)

    @staticmethod
    def _column(kind: str, value: str, batch: Batch) -> list[str | None]:
        """Return the text of one part of the pattern for each row; None if the event lacks the header `value`."""
        assert batch.origin is not None
        if kind == "header":
            texts: list[str | None] = batch.header(value).to_pylist()
            return texts
        if kind == "id":
            return event_ids(batch)
        if kind == "timestamp":
            return [str(millis) for millis in batch.origin.timestamps.tolist()]
        if kind == "time":
            return [_time(millis) for millis in batch.origin.timestamps.tolist()]
        if kind == "body":
            return [decode_text(body) for body in batch.bodies.to_pylist()]
        return [value] * len(batch)


def event_ids(batch: Batch) -> list[str | None]:
    """Return `str(batch.id(row))` of every row, in order."""
    origin = batch.origin
    assert origin is not None
    start = f"{origin.id_prefix or origin.topic}-{origin.partition}-"
    return [
        f"{start}{offset}-{index}"
        for offset, index in zip(origin.offsets.tolist(), origin.indexes.tolist(), strict=True)
    ]


def decode_text(data: bytes) -> str:
    r"""Return the text of UTF-8; an invalid byte becomes `\xff`."""
    return data.decode("utf-8", "backslashreplace")


def _time(millis: int) -> str:
    """Return a time in milliseconds as `2026-01-31T12:00:00.000Z`."""
    return datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
