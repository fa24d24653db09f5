"""Driver of a syslog source for the suites: bytes into its framing, events out of its batches, without a socket."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from flafka.plugins import Event
from flafka.sources.syslog.framing import NO_FRAME, SyslogFramer


def pieces_of(input: dict[str, Any]) -> list[bytes]:
    """Return the arriving bytes, one piece for each read."""
    if "data_b64" in input:
        return [base64.b64decode(input["data_b64"])]
    charset = input.get("wire_charset", "utf-8")
    return [text.encode(charset) for text in input.get("chunks") or [input["data"]]]


def source_of(cls: type[Any], input: dict[str, Any], **options: str) -> Any:
    """Return the source with the case's values as options."""
    names = {option.name for option in cls.config_class.options()}
    properties = {name: str(value) for name, value in input.items() if name in names}
    zone = input.get("tz", "UTC")
    config, problems = cls.config_class.parse({"host": "127.0.0.1", "timeZone": zone, **options} | properties)
    if config is None:
        raise ValueError(str(problems))
    source = cls(config)
    if "now" in input:
        source._decoder.clock = lambda: input["now"] / 1000
    return source


def received(source: Any, pieces: list[bytes], *, event_size: int) -> tuple[list[Event], bool]:
    """Return the events of one open connection, and True if bytes followed the last of them."""
    framer, buffered, tail, sender = SyslogFramer(event_size), b"", False, None
    for piece in pieces:
        arrived = buffered + piece
        source._accumulator.free_space[: len(arrived)] = arrived
        ends, marks = framer.cut(source._accumulator.free_space[: len(arrived)])
        consumed = source._accumulator.add(ends, marks, sender)
        buffered = arrived[consumed:]
        frames = np.flatnonzero(marks != NO_FRAME)
        tail = len(arrived) > (int(ends[frames[-1]]) if len(frames) else 0)
    return events_of(source), tail


def datagram(source: Any, data: bytes) -> list[Event]:
    """Return the events of one datagram."""
    source._accumulator.free_space[: len(data)] = data
    source._accumulator.add(np.array([len(data)], np.int64), np.zeros(1, np.uint8))
    return events_of(source)


def events_of(source: Any) -> list[Event]:
    """Return the gathered events."""
    return [event for batch in source._flush() for event in batch]


def as_cases_say(events: list[Event]) -> list[dict[str, Any]]:
    """Return events as the suites write them."""
    return [{"headers": event.headers, "body_b64": base64.b64encode(event.body).decode("ascii")} for event in events]


def comparable(event: dict[str, Any]) -> tuple[dict[str, str], bytes]:
    """Return headers and the body's bytes, however the case writes them."""
    body = base64.b64decode(event["body_b64"]) if "body_b64" in event else event["body"].encode()
    return event["headers"], body
