"""Texts made for each event: `%{host}-%[id]`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime

from flafka.plugins import Batch

_ESCAPE = re.compile(r"%\{([^{}]+)\}|%\[(\w+)\]")

_LIKE_ESCAPE = re.compile(r"%(?:\{[^}]*\}?|\[[^\]]*\]?|[A-Za-z])")


class Template:
    """Literal text with `%{header}` and `%[id]` (the event's id), `%[timestamp]` (when the channel took it, in ms),
    `%[time]` (the same as `2026-01-31T12:00:00.000Z`) and `%[body]`.

    Raises ValueError, in words, for what begins like an escape and is none.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.parts: list[tuple[str, str]] = []
        """`("text" | "header" | "id" | "timestamp" | "time" | "body", what)`."""
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
        """Headers of an event that the text needs."""
        return {what for kind, what in self.parts if kind == "header"}

    def texts(self, batch: Batch) -> Iterator[str | ValueError]:
        """The text of each event, or why it has none: a header it lacks, in a sentence about the event."""
        columns = [self._column(kind, what, batch) for kind, what in self.parts]
        if len(columns) == 1 and None not in columns[0]:
            yield from (text for text in columns[0] if text is not None)
            return
        for row, parts in enumerate(zip(*columns, strict=True) if columns else [()] * len(batch)):
            if None in parts:
                missing = next(
                    what for (_, what), column in zip(self.parts, columns, strict=True) if column[row] is None
                )
                yield ValueError(f"it has no header {missing!r}, which {self.pattern!r} needs")
            else:
                yield "".join(part for part in parts if part is not None)

    @staticmethod
    def _column(kind: str, what: str, batch: Batch) -> list[str | None]:
        assert batch.origin is not None
        if kind == "header":
            found: list[str | None] = batch.header(what).to_pylist()
            return found
        if kind == "id":
            return ids(batch)
        if kind == "timestamp":
            return [str(millis) for millis in batch.origin.timestamps.tolist()]
        if kind == "time":
            return [_time(millis) for millis in batch.origin.timestamps.tolist()]
        if kind == "body":
            return [readable(body) for body in batch.bodies.to_pylist()]
        return [what] * len(batch)


def ids(batch: Batch) -> list[str | None]:
    """`str(batch.id(row))` of every row."""
    origin = batch.origin
    assert origin is not None
    start = f"{origin.id_prefix or origin.topic}-{origin.partition}-"
    return [
        f"{start}{offset}-{index}"
        for offset, index in zip(origin.offsets.tolist(), origin.indexes.tolist(), strict=True)
    ]


def readable(data: bytes) -> str:
    r"""The bytes as text; one that is not UTF-8 becomes `\xff`, as text has no place for it."""
    return data.decode("utf-8", "backslashreplace")


def _time(millis: int) -> str:
    return datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
