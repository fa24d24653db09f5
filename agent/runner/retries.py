"""Reports of failures, and the waits before the next attempts, for all components."""

from __future__ import annotations

import logging
import random
import re
import shlex
import threading
import time
from collections.abc import Mapping

from flafka.plugins import FlafkaError, Metrics, Retry
from flafka.plugins.errors import ANY_FAILURE, ContractViolation
from flafka.plugins.installed import blamed, from_plugin
from flafka.plugins.threads import in_words

FIRST_WAIT_SECONDS = 0.5
"""Wait before the first new attempt; doubled by each failure."""
LONGEST_WAIT_SECONDS = 30.0
STEADY_SECONDS = 60.0
"""Time without a failure after which the next failure has the shortest wait."""
QUIET_SECONDS = 3.0
"""Time without a failure after which an idle component counts as healthy; doubled by each relapse, up to 96 s."""
MOST_RELAPSES = 5

_KAFKA_COMMAND = re.compile(r"\bagent (group|topic) (?:reset|create)(?: (?!--bootstrap-server)\S*[^\s,;.:])+$")

RETRY = ("RetryAttempt", "RetryTime")
"""Gauges of a component that failed: how many tries have, and when the next one comes, in milliseconds since the
epoch."""


class Backoff:
    """Waits that double from half a second to `longest` seconds, with jitter."""

    def __init__(self, longest: float = LONGEST_WAIT_SECONDS) -> None:
        self._next, self._longest = FIRST_WAIT_SECONDS, longest

    def reset(self) -> None:
        """Start over with the shortest, after a success."""
        self._next = FIRST_WAIT_SECONDS

    def after(self, error: BaseException) -> float:
        """Seconds until the next try; not fewer than a `Retry` asks for."""
        seconds = self._next * random.uniform(0.75, 1.25)
        self._next = min(self._next * 2, self._longest)
        return max(seconds, (error.after if isinstance(error, Retry) else None) or 0.0)


class Retries:
    """The failures of one component, one after the other.

    A failure is logged with the time of the next attempt, and again only if its text changes; at DEBUG each time.
    Until the component works again the metrics have the text, and the gauges `RETRY`.
    """

    def __init__(self, path: str, *metrics: Metrics, longest: float = LONGEST_WAIT_SECONDS) -> None:
        self.log, self.metrics = logging.getLogger(path), metrics
        self.last: BaseException | None = None
        self.attempt = 0
        self.brokers: Mapping[str, str] = {}
        """By first word of a command, `group` or `topic`: the brokers that the command in an error is about."""
        self._backoff = Backoff(longest)
        self._shown = ""
        self._began = float("inf")
        self._untried = False
        """True while the component is open and has not processed anything yet."""
        self._relapses = 0
        """Number of failures in this state."""
        self._lock = threading.RLock()
        self._time = 0.0

    def begin(self) -> None:
        """Record the start of an attempt, for a component that never reports a success."""
        self._began = time.monotonic()

    def failed(
        self, error: BaseException, backoff: Backoff | None = None, *, what: str = "", then: str = ""
    ) -> float:
        """Show a failure, and answer the seconds until the next try.

        With a `backoff` of its own where several things are tried at once. For the log, `what` says what has failed
        where the error does not, and `then` what happens now where that is not the next try.

        Never raises, does no file I/O and imports nothing: the caller is the last resort of a component's thread.
        """
        try:
            with self._lock:
                return self._failed(error, backoff, what, then)
        except ANY_FAILURE:  # such as MemoryError
            for metrics in self.metrics:
                metrics.last_error = metrics.last_error or "it failed, and the error cannot be reported"
            return FIRST_WAIT_SECONDS

    def _failed(self, error: BaseException, backoff: Backoff | None, what: str, then: str) -> float:
        if time.monotonic() - self._began > STEADY_SECONDS:
            self._backoff.reset()
            self.attempt = self._relapses = 0
        elif self._untried:
            self._relapses = min(self._relapses + 1, MOST_RELAPSES)
        self._untried = False
        self.last = error
        self.attempt += 1
        seconds = (backoff or self._backoff).after(error)
        self._time = time.time() + seconds
        text = with_brokers(told(error), self.brokers)
        said = f"{what}: {text}" if what else text
        repeated = text == (self.metrics[0].last_error if self.metrics else self._shown)
        if repeated:
            log_failure(self.log, logging.DEBUG, f"again: {said}", error)
        elif isinstance(error, FlafkaError):
            log_failure(self.log, logging.WARNING, said, error)
        else:
            log_failure(self.log, logging.ERROR, f"unexpected failure, trying again: {said}", error)
        # On a line of its own: a failure's text may end with a command to be copied.
        next_try = then or f"attempt {self.attempt} failed, the next one comes in {seconds:.1f} s"
        self.log.log(logging.DEBUG if repeated else logging.INFO, "%s", next_try)
        self._shown = text
        for metrics in self.metrics:
            metrics.add("FailureCount")
            metrics.error(text)
            for name, value in self.gauges().items():
                metrics.set(name, value)
        return seconds

    def gauges(self) -> dict[str, float]:
        """Return the gauges that metrics have until the component works again."""
        return {"RetryAttempt": self.attempt, "RetryTime": round(self._time * 1000)}

    def recovered(self, *, tried: bool = True) -> None:
        """Record that the component works again.

        A component that is open and was not `tried` may fail at its first event each time. Its waits still grow, and
        `look` reports that it works once it has not failed for a while.
        """
        with self._lock:
            self._untried = not tried
            if tried:
                self._backoff.reset()
                self.attempt = self._relapses = 0
                self._tell_that_it_works()
            else:
                self.begin()

    def look(self) -> None:
        """To be called every second or so, on any thread."""
        with self._lock:
            if self._untried and time.monotonic() - self._began > QUIET_SECONDS * 2**self._relapses:
                self._tell_that_it_works()

    def _tell_that_it_works(self) -> None:
        if not self._shown:
            return
        for metrics in self.metrics:
            worked(metrics)
            if metrics.last_error == self._shown:  # what a component itself shows, it takes back itself
                self.log.info("works again")
                metrics.error("")
        self._shown = ""


def log_failure(log: logging.Logger, level: int, sentence: str, error: BaseException) -> None:
    """Log why something is tried again: the sentence at `level`, and its traceback, with causes, if DEBUG is logged.

    An error that no component raises on purpose always has its traceback.
    """
    wanted = log.isEnabledFor(logging.DEBUG) or not isinstance(error, FlafkaError)
    log.log(level, "%s", sentence, exc_info=(type(error), error, from_plugin(error)) if wanted else None)


def told(error: BaseException) -> str:
    """Text of an error for a user: its own words, and the place in a plugin that raised it unless on purpose."""
    try:
        if isinstance(error, ContractViolation):
            where = blamed(error)
            return f"{error} ({where})" if where and where not in str(error) else str(error)
        if isinstance(error, FlafkaError):
            return str(error)
    except ANY_FAILURE:  # an error of a plugin may have a faulty __str__
        return type(error).__name__
    if isinstance(error, RuntimeError) and error.args == ("can't start new thread",):
        return "the system starts no more threads: raise `ulimit -u`, or TasksMax in the agent's systemd unit"
    where = blamed(error)
    return in_words(type(error), error) + (f" ({where})" if where else "")


def with_brokers(text: str, brokers: Mapping[str, str]) -> str:
    """Add the brokers to a command of `agent group` or `agent topic` with which a text ends."""
    found = _KAFKA_COMMAND.search(text)
    servers = brokers.get(found[1]) if found is not None else None
    return f"{text} --bootstrap-server {shlex.quote(servers)}" if servers else text


def worked(metrics: Metrics) -> None:
    """There is no next try that these metrics could tell of."""
    for name in RETRY:
        metrics.forget(name)
