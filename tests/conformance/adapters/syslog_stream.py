"""`syslog_stream`: events of syslogtcp and syslogudp for the bytes of one connection or datagram."""

from typing import Any

from flafka.sources.syslog import SyslogTcp, SyslogUdp
from tests.conformance.adapters.syslog_driven import (
    as_cases_say,
    comparable,
    datagram,
    pieces_of,
    received,
    source_of,
)


def op_syslog_stream(input: dict[str, Any]) -> Any:
    """Return the events, and True if incomplete bytes remain: Flume's newline after a cut line is such a byte."""
    if input.get("udp"):
        source = source_of(SyslogUdp, input, port="0")
        return {"events": as_cases_say(datagram(source, b"".join(pieces_of(input)))), "incomplete_tail": False}
    source = source_of(SyslogTcp, input, port="0")
    events, tail = received(source, pieces_of(input), event_size=max(source.config.event_size, 10))
    return {"events": as_cases_say(events), "incomplete_tail": tail}


def normalise(op: str, value: Any) -> Any:
    """Return bodies as bytes."""
    return [comparable(event) for event in value["events"]], value["incomplete_tail"]
