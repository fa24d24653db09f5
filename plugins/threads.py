"""Start of threads, and reports of threads that end unexpectedly.

The name of a component's thread begins with the component's path, as in `a1.sources.s1-deliver_0`. Its unexpected end
is a failure of that component.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from flafka.plugins.errors import ANY_FAILURE

log = logging.getLogger(__name__)
T = TypeVar("T")

THREAD_START_SECONDS = 5.0
"""Time for which the start of a thread is retried while the system lacks resources."""
_PAUSE_SECONDS = 0.1
LOOP_ERROR_INTERVAL_SECONDS = 60.0
"""Least time between two reports of the same error of an event loop."""


def start_thread(thread: threading.Thread, seconds: float = THREAD_START_SECONDS) -> None:
    """Start a thread, and retry for some seconds while the system lacks processes or memory.

    Raises RuntimeError if all attempts fail. The thread can be started again then.
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


def call_within(seconds: float, function: Callable[[], T], name: str) -> T:
    """Return the result of a call on a thread of its own, or raise its exception.

    Raises TimeoutError if the call takes longer. The thread then continues, as a call cannot be interrupted. `name`
    is that of the thread.
    """
    outcome: list[T | BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            outcome.append(function())
        except BaseException as e:  # noqa: BLE001  # raised below
            outcome.append(e)
        done.set()

    start_thread(threading.Thread(target=run, name=name, daemon=True))
    if not done.wait(seconds):
        raise TimeoutError
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


class ThreadFailures:
    """Uncaught exceptions that have ended threads of this process. Thread-safe."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}
        self._former_hooks: tuple[Callable[..., object], Callable[..., object]] | None = None

    def __bool__(self) -> bool:
        return bool(self._reasons)

    def reasons(self) -> Mapping[str, str]:
        """Return the error texts by thread name."""
        return dict(self._reasons)

    def install(self) -> None:
        """Start recording the end of threads by an exception, SystemExit included. Idempotent."""
        if self._former_hooks is None:
            self._former_hooks = threading.excepthook, sys.unraisablehook
            threading.excepthook, sys.unraisablehook = self._record, self._handle_unraisable

    def uninstall(self) -> None:
        """Stop recording. Idempotent."""
        if self._former_hooks is not None:
            (threading.excepthook, sys.unraisablehook), self._former_hooks = self._former_hooks, None

    def _handle_unraisable(self, args: sys.UnraisableHookArgs) -> None:
        """Start a thread that lacked memory for its first call once more; pass any other error to the former hook."""
        # A new thread without memory for its first call ends here: call it again, or `Thread.start` waits for ever.
        begin = args.object
        thread = getattr(begin, "__self__", None)
        if isinstance(thread, threading.Thread) and thread.ident is None and callable(begin):
            begin()
        elif self._former_hooks is not None:
            self._former_hooks[1](args)

    def _record(self, args: threading.ExceptHookArgs) -> None:
        """Store and log the end of a thread by an exception."""
        name = args.thread.name if args.thread is not None else "unknown"
        # The text of the error may need memory that the process lacks: record a fixed text first.
        self._reasons[name] = f"its thread {name} has ended by an error; restart the agent"
        text = describe_exception(args.exc_type, args.exc_value)
        self._reasons[name] = f"its thread {name} has ended: {text}; restart the agent"
        error = (args.exc_type, args.exc_value or args.exc_type(), args.exc_traceback)
        log.critical("thread %s has ended: %s; restart the agent", name, text, exc_info=error)


def describe_exception(kind: type[BaseException], error: BaseException | None) -> str:
    """Return type and text of an exception; the type alone if the text cannot be made. Never raises."""
    try:
        return f"{kind.__name__}: {error}"
    except ANY_FAILURE:  # an error of a plugin may have a faulty __str__
        return kind.__name__


def rate_limit_loop_errors(loop: asyncio.AbstractEventLoop, log: logging.Logger) -> None:
    """Limit the errors that an event loop logs to one a minute of each message, instead of thousands with tracebacks.

    After 100 different messages no error is logged. An OSError, such as a lack of file descriptors, is logged without
    its traceback.
    """
    last: dict[str, float] = {}

    def handle(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        message, error = str(context.get("message", "")), context.get("exception")
        now = time.monotonic()
        if now - last.get(message, -LOOP_ERROR_INTERVAL_SECONDS) < LOOP_ERROR_INTERVAL_SECONDS or len(last) > 100:
            return
        last[message] = now
        if isinstance(error, OSError):
            log.warning("%s: %s", message, error.strerror or error)
        else:
            log.error("%s", message, exc_info=error)

    loop.set_exception_handler(handle)
