"""The log of an agent, on standard error: for eyes on a terminal, a plain line or JSON a message elsewhere."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TextIO

FORM, LEVEL = "FLAFKA_LOG_FORMAT", "FLAFKA_LOG_LEVEL"
"""Environment variables: what the command line does not say; processes that the agent starts go by them."""
_QUIET = {
    "kafka": logging.WARNING,
    "urllib3": logging.WARNING,
    "urllib3.connection": logging.ERROR,  # warns with a traceback of each answer that ends within its headers
    "uvicorn": logging.WARNING,
    "pyhdfs": logging.WARNING,
}
"""Loggers of libraries, and the least level of what they log."""


class _PlainFormatter(logging.Formatter):
    """`2026-11-23T06:04:01.945+01:00 INFO a1.sinks.k1: works again`."""

    def format(self, record: logging.LogRecord) -> str:
        """One record; a traceback follows on lines of its own."""
        return f"{time_of(record)} {super().format(record)}"


class _Json(logging.Formatter):
    """An object a line: `time`, `level`, `component`, `message`, and `traceback` where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """One record."""
        told = {
            "time": time_of(record),
            "level": record.levelname,
            "component": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            told["traceback"] = self.formatException(record.exc_info)
        return json.dumps(told, ensure_ascii=False)


class _Stderr(logging.StreamHandler[TextIO]):
    """Standard error; a line that it does not take is left out, as on a full disk nothing else can be done."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # as logging has it
        """Report only what is no error of the stream."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


def time_of(record: logging.LogRecord) -> str:
    """When it was said, in local time with its zone, to the millisecond."""
    return datetime.fromtimestamp(record.created, UTC).astimezone().isoformat(timespec="milliseconds")


def log_to_stderr(
    level: str | None = None, form: str | None = None, keep: Callable[[logging.LogRecord], bool] | None = None
) -> None:
    """Begin to log; what is None is as the environment says. Records that `keep` answers False for are left out."""
    level = level or os.environ.get(LEVEL) or "INFO"
    form = form or os.environ.get(FORM) or "text"
    os.environ[LEVEL], os.environ[FORM] = level, form
    if form == "text" and sys.stderr.isatty():
        from rich.console import Console
        from rich.logging import RichHandler

        handler: logging.Handler = RichHandler(console=Console(stderr=True), show_path=False)
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    else:
        handler = _Stderr(sys.stderr)
        handler.setFormatter(_Json() if form == "json" else _PlainFormatter("%(levelname)s %(name)s: %(message)s"))
    if keep is not None:
        handler.addFilter(keep)
    logging.basicConfig(level=level, handlers=[handler])
    for name, least in _QUIET.items():
        logging.getLogger(name).setLevel(least)
