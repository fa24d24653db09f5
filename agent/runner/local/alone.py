"""A sink that is run alone, beside the agents or without one, until it has delivered what a command gives it."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import NoReturn

from flafka.agent.runner.deadletters.letters import DeadLetters
from flafka.agent.runner.local.channels import ChannelRunner
from flafka.agent.runner.local.sinks import SinkRunner
from flafka.agent.topology import SinkSpec
from flafka.plugins import Retry
from flafka.plugins.installed import at_work

SINK_FAILURE_SECONDS = 60.0
"""Longest time for which the sink may fail, and longest time of its end."""
HANG_SECONDS = 300.0
"""Longest time of one turn of the sink, such as a flush of large files. A longer turn counts as one that hangs."""
SINK_CHECK_SECONDS = 0.02
"""Interval at which a sink that runs alone is asked whether it has delivered all."""


class Hangs(Retry):
    """A sink that neither delivers nor fails. Its threads may never end, and Python waits for them at its own end."""


def started(spec: SinkSpec, channel: ChannelRunner, letters: DeadLetters, member: str, left: str) -> SinkRunner:
    """Start the sink in draining mode, which flushes at once, and return its runner.

    From here on the first Ctrl-C raises KeyboardInterrupt, with a warning that ends with what is `left`, and the
    second one ends the process.
    """
    sink = SinkRunner([spec], channel, letters, member)
    sink.draining.set()
    for one in sink.members:
        one.sink.read_back = True
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, functools.partial(_interrupted, sink, left))
    sink.start()
    return sink


def wait(sink: SinkRunner, over: Callable[[], bool], left: str, every: float = SINK_CHECK_SECONDS) -> None:
    """Return once it is over. Raises Retry, which ends with what is `left`, where the sink fails for too long, and
    Hangs where it does nothing for too long."""
    deadline = time.monotonic() + SINK_FAILURE_SECONDS
    while not over():
        if not sink.failing():
            deadline = time.monotonic() + SINK_FAILURE_SECONDS
        if time.monotonic() > deadline:
            why = sink.members[0].metrics.last_error
            raise Retry(f"the replay stopped, {sink.path} does not deliver: {why}. {left}")
        if hangs(sink):
            raise Hangs(
                f"the replay stopped, {sink.path} hangs: for {HANG_SECONDS:.0f} s it has been in "
                f"{at_work(sink.thread)}. {left}"
            )
        sink.stopping.wait(every)


def _interrupted(sink: SinkRunner, left: str, *_: object) -> NoReturn:
    signal.signal(signal.SIGINT, _end_at_once)  # an exception might come before the stop, which waits once more
    sink.log.warning("interrupted: what it has taken is delivered first; Ctrl-C again ends at once. %s", left)
    raise KeyboardInterrupt


def _end_at_once(*_: object) -> NoReturn:
    os.write(2, b"\nAborted!\n")
    os._exit(1)


def hangs(sink: SinkRunner) -> bool:
    """Return True if the present turn of the sink takes longer than `HANG_SECONDS`."""
    return sink.thread.is_alive() and time.monotonic() - sink.turned > HANG_SECONDS


def stop(sink: SinkRunner) -> None:
    """Have it deliver what it took, and end; a sink that hangs is not waited for."""
    sink.stopping.set()
    deadline = time.monotonic() + SINK_FAILURE_SECONDS
    # Python sees a Ctrl-C that comes just before a wait only after it.
    while sink.thread.is_alive() and not hangs(sink) and time.monotonic() < deadline:
        sink.thread.join(SINK_CHECK_SECONDS)
