"""Run of one sink in the process of a command, until it has delivered the events that the command gives it."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import NoReturn

from flafka.agent.runner.deadletters.store import DeadLetterStore
from flafka.agent.runner.local.channels import ChannelRunner
from flafka.agent.runner.local.sinks import SinkRunner
from flafka.agent.topology import SinkSpec
from flafka.plugins import Retry
from flafka.plugins.installed import current_call

SINK_FAILURE_SECONDS = 60.0
"""Longest time for which the sink may fail, and longest wait for the end of its thread."""
HANG_SECONDS = 300.0
"""Time after which one turn of the sink, such as a flush of large files, counts as hanging."""
SINK_CHECK_SECONDS = 0.02
"""Interval of the checks whether the sink has delivered everything."""


class Hangs(Retry):
    """Error for a sink that neither delivers nor fails.

    Threads of the sink may never end, so the caller must end the process with `os._exit`.
    """


def start(spec: SinkSpec, channel: ChannelRunner, store: DeadLetterStore, member: str, hint: str) -> SinkRunner:
    """Start the sink on `channel` in draining mode, which flushes at once, and return its runner.

    `member` is the static member ID. `store` is for dead letters. On the main thread, the first Ctrl-C from then on
    raises KeyboardInterrupt, with a warning that ends with `hint`. The second one ends the process.
    """
    sink = SinkRunner([spec], channel, store, member)
    sink.draining.set()
    for member_of_group in sink.members:
        member_of_group.sink.verify_writes = True
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, functools.partial(_interrupt, sink, hint))
    sink.start()
    return sink


def wait(sink: SinkRunner, is_complete: Callable[[], bool], hint: str, interval: float = SINK_CHECK_SECONDS) -> None:
    """Block until `is_complete` returns True. It is called every `interval` seconds.

    Raises Retry if the sink fails for `SINK_FAILURE_SECONDS` on end. Raises Hangs if one turn of the sink takes
    longer than `HANG_SECONDS`. Both messages end with `hint`. Errors of `is_complete` are passed on.
    """
    deadline = time.monotonic() + SINK_FAILURE_SECONDS
    while not is_complete():
        if not sink.failing():
            deadline = time.monotonic() + SINK_FAILURE_SECONDS
        if time.monotonic() > deadline:
            why = sink.members[0].metrics.last_error
            raise Retry(f"the replay stopped, {sink.path} does not deliver: {why}. {hint}")
        if hangs(sink):
            raise Hangs(
                f"the replay stopped, {sink.path} hangs: for {HANG_SECONDS:.0f} s it has been in "
                f"{current_call(sink.thread)}. {hint}"
            )
        sink.stopping.wait(interval)


def _interrupt(sink: SinkRunner, hint: str, *_: object) -> NoReturn:
    # `stop` waits as well, and a second KeyboardInterrupt might come before it.
    signal.signal(signal.SIGINT, _end_at_once)
    sink.log.warning("interrupted: the sink delivers what it has taken; Ctrl-C again ends at once. %s", hint)
    raise KeyboardInterrupt


def _end_at_once(*_: object) -> NoReturn:
    os.write(2, b"\nAborted!\n")
    os._exit(1)


def hangs(sink: SinkRunner) -> bool:
    """Return True if the sink's thread is alive, and its current turn takes longer than `HANG_SECONDS`."""
    return sink.thread.is_alive() and time.monotonic() - sink.turn_started > HANG_SECONDS


def stop(sink: SinkRunner) -> None:
    """Have the sink deliver what it has taken, and block until its thread ends.

    Gives up after `SINK_FAILURE_SECONDS`, or once the sink hangs, without an error.
    """
    sink.stopping.set()
    deadline = time.monotonic() + SINK_FAILURE_SECONDS
    # Short joins: Python handles a Ctrl-C that comes just before a wait only after that wait.
    while sink.thread.is_alive() and not hangs(sink) and time.monotonic() < deadline:
        sink.thread.join(SINK_CHECK_SECONDS)
