"""Opens one channel, and keeps it open."""

from __future__ import annotations

import threading
import time

from agent.audit.publishing import ALIVE_SECONDS, Audit
from agent.runner.supervise import Worker
from plugins import Channel


class ChannelRunner(Worker):
    """A channel with its audit."""

    def __init__(self, path: str, name: str, channel: Channel, audit: Audit | None = None) -> None:
        super().__init__(path, channel)
        self.name, self.channel, self.audit = name, channel, audit
        self.ready = threading.Event()
        self.may_close = threading.Event()
        channel.stopping = threading.Event()  # puts under way go on while the agent drains

    def work(self) -> None:
        """Open, and wait; tell the audit now and then."""
        self.channel.open()
        if self.audit is not None:
            self.audit.open()
        self.retries.recovered()
        self.ready.set()
        while not self.may_close.wait(ALIVE_SECONDS):
            if self.audit is not None:
                self.audit.alive()

    def wait_until_open(self, stopping: threading.Event, patience: float | None = None) -> bool:
        """Return when it is open, or after so many seconds of patience; False where `stopping` came first."""
        deadline = None if patience is None else time.monotonic() + patience
        while not self.ready.wait(0.2):
            if stopping.is_set():
                return False
            if deadline is not None and time.monotonic() > deadline:
                break
        return True
