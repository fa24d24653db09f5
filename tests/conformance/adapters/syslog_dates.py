"""`syslog_dates`: timestamps as multiport_syslogtcp reads them."""

from typing import Any

from flafka.sources.syslog import MultiportSyslogTcp
from tests.conformance.adapters.syslog_driven import received, source_of


def op_rfc5424_date(input: dict[str, Any]) -> Any:
    """The date in a message: its header, or that the message is none."""
    source = source_of(MultiportSyslogTcp, {}, ports="0")
    message = f"<13>1 {input['date']} host text\n".encode()
    ((event,), _) = received(source, [message], event_size=source.config.event_size)
    if "timestamp" not in event.headers:
        return {"error": event.headers["flume.syslog.status"]}
    return {"millis": int(event.headers["timestamp"])}


def normalise(op: str, value: Any) -> Any:
    """That it is no date is the same; the words are Java's there."""
    return {"error": True} if "error" in value else value
