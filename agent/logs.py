"""Log of an agent on standard error: coloured on a terminal, else a line of text or JSON for each message."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TextIO

FORMAT_VARIABLE, LEVEL_VARIABLE = "FLAFKA_LOG_FORMAT", "FLAFKA_LOG_LEVEL"
"""Environment variables with defaults for the command line; child processes inherit them."""
_LIBRARY_LEVELS = {
    "kafka": logging.WARNING,
    "urllib3": logging.WARNING,
    "urllib3.connection": logging.ERROR,  # warns with a traceback of each answer that ends within its headers
    "uvicorn": logging.WARNING,
    "pyhdfs": logging.WARNING,
}
"""Logger of a library → its minimum level."""


class _PlainFormatter(logging.Formatter):
    """`2026-11-23T06:04:01.945+01:00 INFO a1.sinks.k1: works again`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line; a traceback follows on further lines."""
        return f"{format_time(record)} {super().format(record)}"


class _JsonFormatter(logging.Formatter):
    """JSON lines with `time`, `level`, `component`, `message`, and `traceback` after an exception."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line of JSON."""
        fields = {
            "time": format_time(record),
            "level": record.levelname,
            "component": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Handler for standard error that drops a line after an OSError, as on a full disk."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # name of the base class
        """Report the current exception unless it is an OSError of the stream."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


def format_time(record: logging.LogRecord) -> str:
    """Return the time of a log record in ISO format, in local time with its zone, to the millisecond."""
    return datetime.fromtimestamp(record.created, UTC).astimezone().isoformat(timespec="milliseconds")


def log_to_stderr(
    level: str | None = None,
    form: str | None = None,
    record_filter: Callable[[logging.LogRecord], bool] | None = None,
) -> None:
    """Begin to log to standard error, and set the environment variables, which child processes inherit.

    `level` and `form` ("text" or "json") default to the environment variables, and else to INFO and text.
    `record_filter` returns False for a record to drop.
    """
    level = level or os.environ.get(LEVEL_VARIABLE) or "INFO"
    form = form or os.environ.get(FORMAT_VARIABLE) or "text"
    os.environ[LEVEL_VARIABLE], os.environ[FORMAT_VARIABLE] = level, form
    if form == "text" and sys.stderr.isatty():
        from rich.console import Console
        from rich.logging import RichHandler

        handler: logging.Handler = RichHandler(console=Console(stderr=True), show_path=False)
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    else:
        handler = _StderrHandler(sys.stderr)
        handler.setFormatter(
            _JsonFormatter() if form == "json" else _PlainFormatter("%(levelname)s %(name)s: %(message)s")
        )
    if record_filter is not None:
        handler.addFilter(record_filter)
    logging.basicConfig(level=level, handlers=[handler])
    for name, minimum in _LIBRARY_LEVELS.items():
        logging.getLogger(name).setLevel(minimum)
