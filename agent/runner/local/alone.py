"""A sink that is run alone, beside the agents or without one, until it has delivered what a command gives it."""

from __future__ import annotations

import time
from collections.abc import Callable

from agent.runner.deadletters.letters import DeadLetters
from agent.runner.local.channels import ChannelRunner
from agent.runner.local.sinks import SinkRunner
from agent.topology import SinkSpec
from plugins import Retry

PATIENCE_SECONDS = 60.0
"""How long it may fail, and how long its end may take."""
LOOK_SECONDS = 0.02


def started(spec: SinkSpec, channel: ChannelRunner, letters: DeadLetters, member: str) -> SinkRunner:
    """It, at work; it waits for no more events before it delivers what it took."""
    sink = SinkRunner([spec], channel, letters, member)
    sink.draining.set()
    sink.thread.start()
    return sink


def wait(sink: SinkRunner, over: Callable[[], bool], left: str, every: float = LOOK_SECONDS) -> None:
    """Return once it is over. Raises Retry, which ends with what is `left`, where the sink fails for too long."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not over():
        if not sink.failing():
            deadline = time.monotonic() + PATIENCE_SECONDS
        if time.monotonic() > deadline:
            why = sink.members[0].metrics.last_error
            raise Retry(f"the replay stopped, {sink.path} does not deliver: {why}. {left}")
        sink.stopping.wait(every)


def stop(sink: SinkRunner) -> bool:
    """Have it deliver what it took, and end. Whether all of that is done, its dead letters kept as well."""
    sink.stopping.set()
    sink.thread.join(PATIENCE_SECONDS)
    return sink.finished
