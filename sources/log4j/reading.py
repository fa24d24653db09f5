"""What log4j 2 and logback write as JSON, one event a line: JsonTemplateLayout, JsonLayout, logstash-logback-encoder.

The layouts name the same things differently. What is known becomes a header of one name; the rest, such as what the
application put into its thread context (MDC), becomes a header of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from plugins import Batch, Event

STATUS = "log4j.status"
"""Header of what is no event in JSON: `Invalid`, or `Incomplete` where it was cut."""

LEVEL = ("level", "log.level")
LOGGER = ("loggerName", "logger_name", "log.logger", "logger")
THREAD = ("thread", "thread_name", "process.thread.name", "threadName")
TIME = ("instant", "timeMillis", "@timestamp", "timestamp")
MESSAGE = ("message",)
STACK = ("stack_trace", "error.stack_trace", "thrown", "exception")
CONTEXT = ("contextMap", "mdc", "labels")
NOISE = {"@version", "ecs.version", "endOfBatch", "loggerFqcn", "threadId", "threadPriority", "level_value"}
"""What says nothing about the event."""

_decoder = msgspec.json.Decoder(dict[str, Any])


def parse(lines: Sequence[bytes], incomplete: set[int]) -> tuple[Batch, int]:
    """The events of these lines, and how many lines are none. `incomplete`: rows of lines that were cut."""
    events, invalid = [], 0
    for row, line in enumerate(lines):
        try:
            if row in incomplete:
                raise ValueError("cut")
            events.append(read(line))
        except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
            invalid += 1
            events.append(Event(line, {STATUS: "Incomplete" if row in incomplete else "Invalid"}))
    return Batch.of(events), invalid


def read(line: bytes) -> Event:
    """One event. ValueError where the line is no JSON object."""
    fields = _decoder.decode(line)
    headers: dict[str, str] = {}
    known: dict[str, str] = {}
    for header, names in (("level", LEVEL), ("logger", LOGGER), ("thread", THREAD)):
        if (value := _take(fields, names)) is not None:
            known[header] = _text(value)
    if (millis := _millis(_take(fields, TIME))) is not None:
        known["timestamp"] = str(millis)
    message, stack = _take(fields, MESSAGE), _stack(_take(fields, STACK))
    for name in CONTEXT:
        if isinstance(fields.get(name), dict):
            headers.update({key: _text(value) for key, value in fields.pop(name).items() if value is not None})
    headers.update({key: _text(value) for key, value in fields.items() if value is not None and key not in NOISE})
    body = "" if message is None else _text(message)
    if stack:
        body = f"{body}\n{stack}" if body else stack
    return Event(body.encode(), headers | known)


def _take(fields: dict[str, Any], names: tuple[str, ...]) -> Any:
    """The value of the first of these names that is there; it is none of the rest any more."""
    for name in names:
        if (value := fields.pop(name, None)) is not None:
            return value
    return None


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()


def _millis(value: Any) -> int | None:
    """Milliseconds since the epoch; None for what is no time."""
    if isinstance(value, dict):  # log4j's instant
        second, nano = value.get("epochSecond"), value.get("nanoOfSecond", 0)
        return second * 1000 + nano // 1_000_000 if isinstance(second, int) and isinstance(nano, int) else None
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        moment = datetime.fromisoformat(value)
        return int(moment.timestamp() * 1000) if moment.tzinfo else None
    except (TypeError, ValueError, OverflowError):
        return None


def _stack(value: Any) -> str:
    """A stack trace as Java prints it, as far as the layout tells."""
    if value is None:
        return ""
    if isinstance(value, dict):
        for name in ("extendedStackTrace", "stacktrace", "stack_trace"):
            if isinstance(trace := value.get(name), str) and trace:
                return trace.rstrip()
        what = [value.get(name) for name in ("name", "message", "exception_class", "exception_message")]
        head = ": ".join(_text(part) for part in what if part)
        frames = [_frame(frame) for frame in value.get("extendedStackTrace") or () if isinstance(frame, dict)]
        cause = _stack(value.get("cause"))
        return "\n".join([head, *frames, *([f"Caused by: {cause}"] if cause else [])])
    return _text(value).rstrip()


def _frame(frame: dict[str, Any]) -> str:
    """One of JsonLayout's elements of a stack trace."""
    place = frame.get("file") or "Unknown Source"
    line = f":{frame['line']}" if frame.get("line") else ""
    return f"\tat {frame.get('class')}.{frame.get('method')}({place}{line})"
