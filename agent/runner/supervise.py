"""Keeping a component at work: open, work, close, and again with back-off after a failure."""

from __future__ import annotations

import logging
import random
import threading
from typing import Any

from plugins import Component, FlafkaError, Retry

FIRST_SECONDS = 0.5
LONGEST_SECONDS = 30.0


class Backoff:
    """Waiting times that double from half a second to `longest`, with jitter; `reset` after success."""

    def __init__(self, longest: float = LONGEST_SECONDS) -> None:
        self._next, self._longest = FIRST_SECONDS, longest

    def reset(self) -> None:
        """Start over with the shortest."""
        self._next = FIRST_SECONDS

    def wait(self, stopping: threading.Event, least: float | None = None) -> bool:
        """Wait the next time, at least `least` seconds; True at once when stopping."""
        seconds = max(self._next * random.uniform(0.75, 1.25), least or 0)
        self._next = min(self._next * 2, self._longest)
        return stopping.wait(seconds)


class Worker:
    """One component on one thread. Subclasses say in `work` what it does between open and close.

    A failure closes the component, is logged once for as long as its text stays the same, shows in its metrics, and
    is tried again with back-off. It never reaches another component.
    """

    def __init__(self, path: str, component: Component[Any]) -> None:
        self.path, self.component = path, component
        self.metrics = component.metrics
        self.stopping = threading.Event()
        component.stopping = self.stopping
        component.member = path
        self.log = logging.getLogger(path)
        self.backoff = Backoff()
        self.last_failure: Exception | None = None
        self.shown = ""
        """The failure that its metrics show."""
        self.thread = threading.Thread(target=self.run, name=path, daemon=True)

    def run(self) -> None:
        """Supervise until stopping is set and the work is done."""
        while not self.stopping.is_set():
            try:
                self.work()
                return
            except Exception as e:  # noqa: BLE001  # whatever a component raises must not take the others down
                self.failed(e)
            finally:
                self.close()
            self.backoff.wait(self.stopping, _after(self.last_failure))

    def work(self) -> None:
        """Open the component and use it until stopping is set."""
        raise NotImplementedError

    def close(self) -> None:
        """Release the component; a failure of that is logged only."""
        try:
            self.component.close()
        except Exception as e:  # noqa: BLE001  # as above
            self.log.warning("closing failed: %s", e)

    def failed(self, error: Exception) -> None:
        """Show a failure: in words for what a component reports, with a traceback for what it did not foresee."""
        self.last_failure = error
        self.metrics.add("FailureCount")
        text = str(error) if isinstance(error, FlafkaError) else f"{type(error).__name__}: {error}"
        if text == self.metrics.last_error:
            self.log.debug("again: %s", text)
        elif isinstance(error, FlafkaError):
            self.log.warning("%s", text)
        else:
            self.log.error("unforeseen failure, trying again: %s", text, exc_info=error)
        self.metrics.error(text)
        self.shown = text

    def recovered(self) -> None:
        """Note that the component works again."""
        self.backoff.reset()
        if (
            self.shown and self.shown == self.metrics.last_error
        ):  # what a component itself shows, it takes back itself
            self.log.info("works again")
            self.metrics.error("")
        self.shown = ""


def _after(error: Exception | None) -> float | None:
    return error.after if isinstance(error, Retry) else None
