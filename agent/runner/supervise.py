"""Keeping a component at work: open, work, close, and again after a failure."""

from __future__ import annotations

import logging
import threading
from typing import Any

from flafka.agent.runner.retries import Retries, told
from flafka.plugins import Component
from flafka.plugins.errors import ANY_FAILURE
from flafka.plugins.shared.disk import least_room
from flafka.plugins.threads import start_thread


class Worker:
    """One component on one thread. Subclasses say in `work` what it does between open and close.

    A failure closes the component, and it is tried again. It never reaches another component.
    """

    def __init__(self, path: str, component: Component[Any]) -> None:
        self.path, self.component = path, component
        self.metrics = component.metrics
        self.stopping = threading.Event()
        component.stopping = self.stopping
        component.member = path
        self.log = logging.getLogger(path)
        self.retries = Retries(path, self.metrics)
        if servers := getattr(component.config, "bootstrap_servers", None):
            self.retries.brokers = dict.fromkeys(("group", "topic"), servers)
        if kept := [*component.exclusive_resources()]:
            self.metrics.set_function("DiskFreeBytes", lambda: least_room(*kept))
        self.thread = threading.Thread(target=self.run, name=path, daemon=True)

    def run(self) -> None:
        """Supervise until stopping is set and the work is done."""
        while not self.stopping.is_set():
            try:
                self.work()
                return
            except ANY_FAILURE as e:  # whatever a component raises must not take the others down
                seconds = self.retries.failed(e)
            finally:
                self.close()
            self.stopping.wait(seconds)

    def start(self) -> None:
        """Start the thread."""
        start_thread(self.thread)

    def work(self) -> None:
        """Open the component and use it until stopping is set."""
        raise NotImplementedError

    def close(self) -> None:
        """Release the component."""
        close(self.component, self.log)


def close(component: Component[Any], log: logging.Logger) -> None:
    """Close it; a failure of that is logged only."""
    try:
        component.close()
    except ANY_FAILURE as e:  # it must not keep others from being closed
        log.warning("closing failed: %s", told(e))
