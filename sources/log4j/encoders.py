"""Table of field names that log4j 2, logback and other encoders write."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

PARTS = ("message", "level", "logger", "thread", "timestamp", "stackTrace", "mdc", "ignored")
"""Parts of an event whose fields a configuration may name."""
EncoderRow = dict[str, tuple[str, ...]]
"""Field names of an encoder by part."""


@dataclasses.dataclass(frozen=True)
class Encoder:
    """Names of the fields of an encoder, separated by spaces. A dot denotes a nested field.

    The first readable field of a part counts. Other fields become headers of their own names.
    """

    markers: str
    """Fields that identify the encoder, any one of them; empty for the default encoder."""
    message: str
    level: str
    logger: str
    thread: str
    timestamp: str
    stackTrace: str = ""  # noqa: N815  # as configurations spell it
    message_and_trace: str = ""
    """Field with a stack trace, which may follow the message."""
    arguments: str = ""
    """Field with the values for the `{}` placeholders of the message."""
    mdc: str = ""
    """Fields of the thread context, all of which count. Other encoders write its entries among the other fields."""
    ignored: str = ""
    """Fields without information about the event, which are dropped."""
    prefix: str = ""
    """Prefix of the names of other fields, removed from their headers."""


ENCODERS = (
    Encoder(  # Elastic Common Schema: ecs-logging-java, EcsLayout of JsonTemplateLayout, Spring Boot
        markers="ecs.version",
        message="message",
        level="log.level",
        logger="log.logger",
        thread="process.thread.name",
        timestamp="@timestamp",
        stackTrace="error.stack_trace",
        mdc="labels",
        ignored="ecs.version",
    ),
    Encoder(  # logstash-logback-encoder and its composites, LogstashJsonEventLayoutV1 of JsonTemplateLayout
        markers="@version",
        message="message msg text",
        level="level severity lvl",
        logger="logger_name logger loggerName",
        thread="thread_name thread threadName",
        timestamp="@timestamp timestamp time ts",
        stackTrace="stack_trace stacktrace stackTrace exception",
        mdc="mdc contextMap context ctx",
        ignored="@version level_value levelVal",
    ),
    Encoder(  # GELF: GelfLayout of log4j 2 and of JsonTemplateLayout, logback-gelf, Spring Boot
        markers="short_message",
        message="short_message",
        level="_level_name level",
        logger="_logger_name _logger _loggerName _log_logger",
        thread="_thread_name _thread _threadName _process_thread_name",
        timestamp="timestamp",
        stackTrace="_error_stack_trace",
        message_and_trace="full_message",
        ignored="version level",
        prefix="_",
    ),
    Encoder(  # GcpLayout of JsonTemplateLayout
        markers="logging.googleapis.com/insertId logging.googleapis.com/sourceLocation",
        message="message",
        level="severity",
        logger="_logger",
        thread="_thread",
        timestamp="timestamp",
        stackTrace="_exception",
        mdc="logging.googleapis.com/labels",
    ),
    Encoder(  # JsonLayout of log4j 2 and of JsonTemplateLayout
        markers="loggerFqcn",
        message="message",
        level="level",
        logger="loggerName",
        thread="thread",
        timestamp="instant timeMillis",
        stackTrace="thrown",
        mdc="contextMap",
        ignored="endOfBatch loggerFqcn threadId threadPriority",
    ),
    Encoder(  # logback's JsonEncoder
        markers="sequenceNumber nanoseconds kvpList",
        message="formattedMessage message",
        level="level",
        logger="loggerName",
        thread="threadName",
        timestamp="timestamp",
        stackTrace="throwable",
        arguments="arguments",
        mdc="mdc kvpList",
        ignored="sequenceNumber nanoseconds context",
    ),
    Encoder(  # templates, composites and others
        markers="",
        message="message.formattedMessage message.text message msg formattedMessage text",
        level="level log.level level.name severity levelName level_name logLevel lvl",
        logger="logger loggerName logger_name log.logger logger.name",
        thread="thread threadName thread_name process.thread.name thread.name",
        timestamp="@timestamp timestamp instant timeMillis time ts datetime date epoch",
        stackTrace="stack_trace stackTrace stacktrace error.stack_trace exception.stacktrace stack trace "
        "exception thrown throwable error",
        arguments="arguments",
        mdc="mdc contextMap context labels ctx",
        ignored="@version ecs.version endOfBatch loggerFqcn threadId threadPriority level_value",
    ),
)

COMMON_PARTS = ("logger", "thread", "timestamp")
"""Parts of every event, for which the names of the last row count too.

A field of an application may be the marker of another encoder, whose names then match nothing.
"""

LEVELS_BY_SEVERITY = {
    "0": "FATAL",
    "1": "FATAL",
    "2": "FATAL",
    "3": "ERROR",
    "4": "WARN",
    "5": "INFO",
    "6": "INFO",
    "7": "DEBUG",
    "WARNING": "WARN",
    "EMERGENCY": "FATAL",
    "ALERT": "FATAL",
    "CRITICAL": "FATAL",
    "NOTICE": "INFO",
}
"""Severities of syslog and Google Cloud → levels; some encoders write severities."""

LEVEL_NAMES = frozenset(
    {
        *LEVELS_BY_SEVERITY,
        "TRACE",
        "DEBUG",
        "INFO",
        "WARN",
        "ERROR",
        "FATAL",
        "SEVERE",
        "CONFIG",
        "FINE",
        "FINER",
        "FINEST",
    }
)
"""Names of levels. Among several candidate fields, one with such a value is the level."""


def encoder_rows(fields: Mapping[str, str]) -> list[EncoderRow]:
    """Return the names of each encoder by part, in the order of `ENCODERS`, with the names in `fields` first."""
    rows = [dataclasses.asdict(encoder) for encoder in ENCODERS]
    for row in rows[:-1]:
        row.update({part: f"{row[part]} {rows[-1][part]}" for part in COMMON_PARTS})
    return [{part: (*fields.get(part, "").split(), *names.split()) for part, names in row.items()} for row in rows]
