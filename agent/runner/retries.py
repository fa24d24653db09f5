"""Reports of failures, and waits between attempts, for all components."""

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
from flafka.plugins.installed import plugin_location, plugin_traceback
from flafka.plugins.threads import describe_exception

FIRST_WAIT_SECONDS = 0.5
"""Wait before the first new attempt; doubled by each failure."""
LONGEST_WAIT_SECONDS = 20.0
"""Longest wait, without its jitter: a server that works again is used within 30 s."""
STEADY_SECONDS = 60.0
"""Time without a failure after which the next failure has the shortest wait."""
QUIET_SECONDS = 3.0
"""Time without a failure after which an idle component counts as healthy; doubled by each relapse, up to 96 s."""
MAX_RELAPSES = 5

_KAFKA_COMMAND = re.compile(r"\bagent (group|topic) (?:reset|create)(?: (?!--bootstrap-server)\S*[^\s,;.:])+$")

RETRY = ("RetryAttempt", "RetryTime")
"""Gauges of a failing component: number of failed attempts, and time of the next one in ms since the epoch."""


class Backoff:
    """Waits that double from half a second to `longest` seconds, with jitter."""

    def __init__(self, longest: float = LONGEST_WAIT_SECONDS) -> None:
        self._next, self._longest = FIRST_WAIT_SECONDS, longest

    def reset(self) -> None:
        """Start over with the shortest wait, after a success."""
        self._next = FIRST_WAIT_SECONDS

    def next_wait(self, error: BaseException) -> float:
        """Return the seconds until the next attempt, with 25 % jitter, and double the next wait up to `longest`.

        A Retry with an `after` sets the least number of seconds.
        """
        seconds = self._next * random.uniform(0.75, 1.25)
        self._next = min(self._next * 2, self._longest)
        return max(seconds, (error.after if isinstance(error, Retry) else None) or 0.0)


class Retries:
    """Consecutive failures of one component. Thread-safe.

    A failure is logged with the time of the next attempt, and again only if its text changes; at DEBUG each time.
    Until the component works again the metrics have the text, and the gauges `RETRY`.
    """

    def __init__(self, path: str, *metrics: Metrics, longest: float = LONGEST_WAIT_SECONDS) -> None:
        """`path` names the log.

        All of `metrics` get the error and the gauges. `longest` is the longest wait in seconds.
        """
        self.log, self.metrics = logging.getLogger(path), metrics
        self.last: BaseException | None = None
        self.attempt = 0
        self.brokers: Mapping[str, str] = {}
        """Bootstrap servers by first word of an `agent` command, `group` or `topic`, for commands in error texts."""
        self._backoff = Backoff(longest)
        self._shown = ""
        self._began = float("inf")
        self._untried = False
        """True while the component is open and has not processed anything yet."""
        self._relapses = 0
        """Number of consecutive failures before anything was processed."""
        self._lock = threading.RLock()
        self._next_attempt_time = 0.0

    def start_attempt(self) -> None:
        """Record the time at which an attempt starts, for a component that never reports a success.

        A failure more than `STEADY_SECONDS` later counts as the first one again.
        """
        self._began = time.monotonic()

    def failed(
        self, error: BaseException, backoff: Backoff | None = None, *, what: str = "", then: str = ""
    ) -> float:
        """Report a failure in log and metrics, and return the seconds until the next attempt. The caller waits.

        `backoff` replaces the common one, for callers with several concurrent attempts. For the log, `what` precedes
        the error text, and `then` replaces the announcement of the next attempt.

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
            self._relapses = min(self._relapses + 1, MAX_RELAPSES)
        self._untried = False
        self.last = error
        self.attempt += 1
        seconds = (backoff or self._backoff).next_wait(error)
        self._next_attempt_time = time.time() + seconds
        text = add_brokers(describe_error(error), self.brokers)
        line = f"{what}: {text}" if what else text
        is_repeated = text == (self.metrics[0].last_error if self.metrics else self._shown)
        if is_repeated:
            log_failure(self.log, logging.DEBUG, f"again: {line}", error)
        elif isinstance(error, FlafkaError):
            log_failure(self.log, logging.WARNING, line, error)
        else:
            log_failure(self.log, logging.ERROR, f"unexpected failure, retrying: {line}", error)
        # A separate line, since the error text may end with a command that users copy.
        next_step = then or f"attempt {self.attempt} failed, the next one is in {seconds:.1f} s"
        self.log.log(logging.DEBUG if is_repeated else logging.INFO, "%s", next_step)
        self._shown = text
        for metrics in self.metrics:
            metrics.add("FailureCount")
            metrics.set_error(text)
            for name, value in self.gauges().items():
                metrics.set(name, value)
        return seconds

    def gauges(self) -> dict[str, float]:
        """Return the gauges `RETRY`: number of failed attempts, and time of the next one in ms since the epoch."""
        return {"RetryAttempt": self.attempt, "RetryTime": round(self._next_attempt_time * 1000)}

    def recovered(self, *, tried: bool = True) -> None:
        """Record that the component works again: clear error and gauges, and start over with the shortest wait.

        With `tried` False the component has only opened, and may fail at its first event each time. Its waits still
        grow, and `check_recovery` clears the error once the component has not failed for a while.
        """
        with self._lock:
            self._untried = not tried
            if tried:
                self._backoff.reset()
                self.attempt = self._relapses = 0
                self._report_recovery()
            else:
                self.start_attempt()

    def check_recovery(self) -> None:
        """Clear the error of a component that is open, untried, and has not failed for `QUIET_SECONDS`.

        Each relapse doubles this time. Call it about once a second.
        """
        with self._lock:
            if self._untried and time.monotonic() - self._began > QUIET_SECONDS * 2**self._relapses:
                self._report_recovery()

    def _report_recovery(self) -> None:
        """Clear the shown error and the gauges in the metrics, and log the recovery; no-op without a shown error.

        An error that the component has set since stays.
        """
        if not self._shown:
            return
        for metrics in self.metrics:
            clear_retry_gauges(metrics)
            if metrics.last_error == self._shown:  # an error that the component reported is its own to clear
                self.log.info("works again")
                metrics.set_error("")
        self._shown = ""


def log_failure(log: logging.Logger, level: int, sentence: str, error: BaseException) -> None:
    """Log `sentence` at `level`, with the traceback of `error` and its causes where a person may need it.

    The traceback is logged if DEBUG is enabled, and always for errors that are no FlafkaError.
    """
    with_traceback = log.isEnabledFor(logging.DEBUG) or not isinstance(error, FlafkaError)
    exc_info = (type(error), error, plugin_traceback(error)) if with_traceback else None
    log.log(level, "%s", sentence, exc_info=exc_info)


def describe_error(error: BaseException) -> str:
    """Return the text of an error for users.

    For a FlafkaError this is its message. Other errors, and violations of a contract, have the line of the plugin
    behind it. An error whose own `__str__` fails gives the name of its class.
    """
    try:
        if isinstance(error, ContractViolation):
            where = plugin_location(error)
            return f"{error} ({where})" if where and where not in str(error) else str(error)
        if isinstance(error, FlafkaError):
            return str(error)
    except ANY_FAILURE:  # an error of a plugin may have a faulty __str__
        return type(error).__name__
    if isinstance(error, RuntimeError) and error.args == ("can't start new thread",):
        return "the system starts no more threads: raise `ulimit -u`, or TasksMax in the agent's systemd unit"
    where = plugin_location(error)
    return describe_exception(type(error), error) + (f" ({where})" if where else "")


def add_brokers(text: str, brokers: Mapping[str, str]) -> str:
    """Return the text with `--bootstrap-server` appended if it ends with a command `agent group` or `agent topic`.

    `brokers` has the servers by `group` or `topic`. Other texts, and commands without such servers, are returned as
    they are.
    """
    match = _KAFKA_COMMAND.search(text)
    servers = brokers.get(match[1]) if match is not None else None
    return f"{text} --bootstrap-server {shlex.quote(servers)}" if servers else text


def clear_retry_gauges(metrics: Metrics) -> None:
    """Remove the gauges `RETRY` from the metrics of a component that works again."""
    for name in RETRY:
        metrics.remove(name)
