"""Table of the names under which log4j 2, logback and others write the parts of an event."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

PARTS = ("message", "level", "logger", "thread", "timestamp", "stackTrace", "mdc", "ignored")
"""Parts that a configuration may name fields for."""
Names = dict[str, tuple[str, ...]]
"""An encoder's row, with its names apart."""


@dataclasses.dataclass(frozen=True)
class Encoder:
    """Names of fields, separated by blanks: the first that can be read counts. A dot leads into an object.

    What is not named becomes a header of its own name.
    """

    marks: str
    """Fields of which one is enough to recognise the encoder; empty: it is taken for any other."""
    message: str
    level: str
    logger: str
    thread: str
    timestamp: str
    stackTrace: str = ""  # noqa: N815  # as configurations spell it
    whole: str = ""
    """A stack trace that may have the message before it."""
    arguments: str = ""
    """Texts for the `{}` in the message."""
    mdc: str = ""
    """The thread context, keys and values: all that are there. Without it, its entries are among other fields."""
    ignored: str = ""
    """Fields that say nothing about the event."""
    prefix: str = ""
    """Prefix of the names of other fields, which headers do not have."""


ENCODERS = (
    Encoder(  # Elastic Common Schema: ecs-logging-java, EcsLayout of JsonTemplateLayout, Spring Boot
        marks="ecs.version",
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
        marks="@version",
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
        marks="short_message",
        message="short_message",
        level="_level_name level",
        logger="_logger_name _logger _loggerName _log_logger",
        thread="_thread_name _thread _threadName _process_thread_name",
        timestamp="timestamp",
        stackTrace="_error_stack_trace",
        whole="full_message",
        ignored="version level",
        prefix="_",
    ),
    Encoder(  # GcpLayout of JsonTemplateLayout
        marks="logging.googleapis.com/insertId logging.googleapis.com/sourceLocation",
        message="message",
        level="severity",
        logger="_logger",
        thread="_thread",
        timestamp="timestamp",
        stackTrace="_exception",
        mdc="logging.googleapis.com/labels",
    ),
    Encoder(  # JsonLayout of log4j 2 and of JsonTemplateLayout
        marks="loggerFqcn",
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
        marks="sequenceNumber nanoseconds kvpList",
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
        marks="",
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

NAMED = ("logger", "thread", "timestamp")
"""Parts that every event has, as it has a level: where an encoder's row finds none, the last row's count, as a
field of an application's own may be another encoder's mark."""

LEVELS = {
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
"""Severities of syslog and of Google, which some encoders write instead of the level."""

LEVEL_NAMES = frozenset(
    {*LEVELS, "TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL", "SEVERE", "CONFIG", "FINE", "FINER", "FINEST"}
)
"""Names of levels: of several fields that may be the level, one with such a name is."""


def extended(fields: Mapping[str, str]) -> list[Names]:
    """The table, where these fields are looked for first: names by part."""
    rows = [dataclasses.asdict(encoder) for encoder in ENCODERS]
    for row in rows[:-1]:
        row.update({part: f"{row[part]} {rows[-1][part]}" for part in NAMED})
    return [{part: (*fields.get(part, "").split(), *names.split()) for part, names in row.items()} for row in rows]
