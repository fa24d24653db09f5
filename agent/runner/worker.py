"""Supervision of a component on its thread: open, work, close, and retry after a failure."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from typing import Any

from flafka.agent.runner.retries import Retries, describe_error
from flafka.plugins import Component
from flafka.plugins.errors import ANY_FAILURE
from flafka.plugins.storage import least_free_bytes
from flafka.plugins.threads import start_thread


class Worker(ABC):
    """One component on one thread. Subclasses implement `work`.

    A failure closes the component, and `work` is retried. Failures never reach other components.
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
        if resources := [*component.exclusive_resources()]:
            self.metrics.set_function("DiskFreeBytes", lambda: least_free_bytes(*resources))
        self.thread = threading.Thread(target=self.run, name=path, daemon=True)

    def run(self) -> None:
        """Call `work` until it returns or `stopping` is set, and close the component after each call.

        After an exception, which is reported in log and metrics, wait and call `work` again. Never raises.
        """
        while not self.stopping.is_set():
            try:
                self.work()
                return
            except ANY_FAILURE as e:  # an unexpected error of one component must not stop the others
                seconds = self.retries.failed(e)
            finally:
                self.close()
            self.stopping.wait(seconds)

    def start(self) -> None:
        """Start the thread. Raises RuntimeError if the system refuses a thread for 5 s."""
        start_thread(self.thread)

    @abstractmethod
    def work(self) -> None:
        """Open the component and use it until `stopping` is set.

        An exception is a failure, after which `run` calls it again.
        """

    def close(self) -> None:
        """Close the component. An error is only logged. May be called for a component that is not open."""
        close_component(self.component, self.log)


def close_component(component: Component[Any], log: logging.Logger) -> None:
    """Close a component, and log an error as a warning instead of raising it.

    The caller can so close further components.
    """
    try:
        component.close()
    except ANY_FAILURE as e:
        log.warning("closing failed: %s", describe_error(e))
