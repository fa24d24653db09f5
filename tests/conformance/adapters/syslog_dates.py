"""`syslog_dates`: timestamps as multiport_syslogtcp reads them."""

from typing import Any

from flafka.sources.syslog import MultiportSyslogTcp
from tests.conformance.adapters.syslog_driven import received, source_of


def op_rfc5424_date(input: dict[str, Any]) -> Any:
    """Return the date header of a message, or the fact that the message is none."""
    source = source_of(MultiportSyslogTcp, {}, ports="0")
    message = f"<13>1 {input['date']} host text\n".encode()
    ((event,), _) = received(source, [message], event_size=source.config.event_size)
    if "timestamp" not in event.headers:
        return {"error": event.headers["flume.syslog.status"]}
    return {"millis": int(event.headers["timestamp"])}


def normalise(op: str, value: Any) -> Any:
    """Return the value without the message of an invalid date."""
    return {"error": True} if "error" in value else value
