"""Threads of an agent: starting one, and reporting one that ends unexpectedly.

The name of a component's thread begins with the component's path, as in `a1.sources.s1-deliver_0`. Its end is
reported as a failure of that component.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from flafka.plugins.errors import ANY_FAILURE

log = logging.getLogger(__name__)

THREAD_START_SECONDS = 5.0
"""Time for which a thread that the system refuses is tried again."""
_PAUSE_SECONDS = 0.1
COMPLAIN_SECONDS = 60.0
"""Least time between two reports of one problem of an event loop."""


def start_thread(thread: threading.Thread, seconds: float = THREAD_START_SECONDS) -> None:
    """Start a thread; where the system lacks a process or memory for it, try again for a while.

    Raises RuntimeError where that does not help. The thread can be started again then.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            thread.start()
            return
        except RuntimeError as e:
            if thread.ident is not None or time.monotonic() > deadline:
                raise
            error = e
        log.debug("thread %s: %s", thread.name, error)
        time.sleep(_PAUSE_SECONDS)


class Ended:
    """Threads that have ended by an error that nothing caught, and why, by thread name. Any thread may use it."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}
        self._before: tuple[Callable[..., object], Callable[..., object]] | None = None

    def __bool__(self) -> bool:
        return bool(self._reasons)

    def reasons(self) -> Mapping[str, str]:
        """Return the reasons by thread name."""
        return dict(self._reasons)

    def install(self) -> None:
        """Record all threads of this process that end by an error, SystemExit included."""
        if self._before is None:
            self._before = threading.excepthook, sys.unraisablehook
            threading.excepthook, sys.unraisablehook = self._ended, self._unraisable

    def uninstall(self) -> None:
        """Stop recording."""
        if self._before is not None:
            (threading.excepthook, sys.unraisablehook), self._before = self._before, None

    def _unraisable(self, args: sys.UnraisableHookArgs) -> None:
        # A thread without memory for its first call ends here, and whoever started it would wait for ever.
        begin = args.object
        thread = getattr(begin, "__self__", None)
        if isinstance(thread, threading.Thread) and thread.ident is None and callable(begin):
            begin()
        elif self._before is not None:
            self._before[1](args)

    def _ended(self, args: threading.ExceptHookArgs) -> None:
        name = args.thread.name if args.thread is not None else "unknown"
        self._reasons[name] = f"its thread {name} has ended by an error; restart the agent"  # first: it cannot fail
        text = in_words(args.exc_type, args.exc_value)
        self._reasons[name] = f"its thread {name} has ended: {text}; restart the agent"
        error = (args.exc_type, args.exc_value or args.exc_type(), args.exc_traceback)
        log.critical("thread %s has ended: %s; restart the agent", name, text, exc_info=error)


def in_words(kind: type[BaseException], error: BaseException | None) -> str:
    """Type and text of an error; the type alone where the text cannot be made. Never raises."""
    try:
        return f"{kind.__name__}: {error}"
    except ANY_FAILURE:  # an error of a plugin may have a faulty __str__
        return kind.__name__


def warn_rate_limited(loop: asyncio.AbstractEventLoop, log: logging.Logger) -> None:
    """Have errors of an event loop logged once a minute each; asyncio logs each of thousands with a traceback.

    The system's lack of something (a file, memory) is one line, any other error has a traceback.
    """
    last: dict[str, float] = {}

    def handle(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        message, error = str(context.get("message", "")), context.get("exception")
        now = time.monotonic()
        if now - last.get(message, -COMPLAIN_SECONDS) < COMPLAIN_SECONDS or len(last) > 100:
            return
        last[message] = now
        if isinstance(error, OSError):
            log.warning("%s: %s", message, error.strerror or error)
        else:
            log.error("%s", message, exc_info=error)

    loop.set_exception_handler(handle)
