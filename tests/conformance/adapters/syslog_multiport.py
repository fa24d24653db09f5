"""`syslog_multiport`: events of multiport_syslogtcp for the bytes of one connection."""

from typing import Any

from flafka.sources.syslog import MultiportSyslogTcp
from tests.conformance.adapters.syslog_driven import as_cases_say, comparable, pieces_of, received, source_of

_RECORDED = 1_790_000_000_000
"""Time before the recording: Flume's events for messages without a time have a later one."""


def op_syslog_multiport(input: dict[str, Any]) -> Any:
    """Return the events. A second run, a little later, identifies the timestamps that follow the clock."""
    now, charset = input.get("now", 0), input.get("charset", "UTF-8")
    runs = []
    for clock in (now, now + 1):
        source = source_of(MultiportSyslogTcp, input | {"now": clock}, ports="0", **{"charset.default": charset})
        events, _ = received(source, pieces_of(input), event_size=source.config.event_size)
        runs.append(as_cases_say(events))
    for event, later in zip(*runs, strict=True):
        if event["headers"].get("timestamp") != later["headers"].get("timestamp"):
            event["headers"]["timestamp"] = "now"
    return {"events": runs[0]}


def normalise(op: str, value: Any) -> Any:
    """Return bodies as bytes, and a placeholder for the time of recording."""
    events = [comparable(event) for event in value["events"]]
    for headers, _ in events:
        if headers.get("timestamp", "").isdigit() and int(headers["timestamp"]) > _RECORDED:
            headers["timestamp"] = "now"
    return events
