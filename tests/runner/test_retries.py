"""Reports of a failure: once in the log, and in the metrics until the component works again."""

from __future__ import annotations

import logging
import time
from types import SimpleNamespace

import pytest

from flafka.agent.runner.retries import RETRY, Backoff, Retries
from flafka.plugins import Metrics, Retry


@pytest.fixture(autouse=True)
def fast_retries() -> None:
    """Waits are as long here as users see them."""


def torn() -> Retry:
    """Return a failure that another one has caused."""
    try:
        try:
            raise OSError("torn")
        except OSError as e:
            raise Retry("the tape is torn") from e
    except Retry as e:
        return e


def traceback_of(record: logging.LogRecord) -> str:
    return logging.Formatter().formatException(record.exc_info) if record.exc_info else ""


def test_a_failure_is_reported_once_with_its_attempt_and_the_next_retry(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    retries = Retries("a1.sinks.k1", metrics)
    with caplog.at_level("INFO", "a1.sinks.k1"):
        began = time.time()
        seconds = [retries.failed(Retry("the store is away")) for _ in range(3)]
        next_try = f"attempt 1 failed, the next one is in {seconds[0]:.1f} s"
        assert caplog.messages == ["the store is away", next_try]
        assert metrics.get("RetryAttempt") == metrics.get("FailureCount") == 3
        assert began + seconds[-1] <= metrics.get("RetryTime") / 1000 + 0.001 <= time.time() + seconds[-1] + 0.01
        retries.failed(Retry("the store is full"))
        assert metrics.last_error == "the store is full"
        assert len(caplog.messages) == 4
        retries.recovered()
    assert caplog.messages[-1] == "works again"
    assert not metrics.last_error
    assert not metrics.snapshot().keys() & set(RETRY)
    assert retries.failed(Retry("the store is away")) < 1


@pytest.mark.parametrize("level", ["DEBUG", "INFO"])
def test_a_failure_has_its_traceback_at_debug(level: str, caplog: pytest.LogCaptureFixture) -> None:
    retries = Retries("a1.sinks.k1", Metrics())
    with caplog.at_level(level, "a1.sinks.k1"):
        for _ in range(2):
            retries.failed(torn())
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]
    shown = {"DEBUG": ["WARNING", "INFO", "DEBUG", "DEBUG"], "INFO": ["WARNING", "INFO"]}[level]
    assert [name for name, _ in lines] == shown
    reasons, tries = caplog.records[::2], lines[1::2]
    messages = ["the tape is torn", "again: the tape is torn"]
    assert [record.getMessage() for record in reasons] == messages[: len(reasons)]
    numbers = [text.partition(" failed, the next one is in ")[0] for _, text in tries]
    assert numbers == ["attempt 1", "attempt 2"][: len(tries)]
    for record in reasons:
        assert (traceback_of(record).count("Traceback"), "OSError: torn" in traceback_of(record)) == (
            (2, True) if level == "DEBUG" else (0, False)
        )


def test_an_unexpected_error_has_its_traceback_at_each_level(caplog: pytest.LogCaptureFixture) -> None:
    retries = Retries("a1.sinks.k1", Metrics())
    with caplog.at_level("INFO", "a1.sinks.k1"):
        retries.failed(OSError("torn"))
    assert caplog.records[0].levelname == "ERROR"
    assert "OSError: torn" in traceback_of(caplog.records[0])


def test_waits_double_up_to_the_longest_and_respect_the_wait_of_a_failure() -> None:
    backoff = Backoff(longest=4)
    for expected in (0.5, 1, 2, 4, 4):
        assert 0.75 * expected <= backoff.next_wait(Retry("away")) <= 1.25 * expected
    assert backoff.next_wait(Retry("away", 60)) == 60
    assert backoff.next_wait(ValueError("unforeseen")) <= 5


def test_a_component_clears_its_own_reports() -> None:
    metrics = Metrics()
    retries = Retries("a1.channels.c1", metrics)
    retries.failed(Retry("the channel is away"))
    metrics.set_error("its own words")
    retries.recovered()
    assert metrics.last_error == "its own words"


def test_a_component_that_fails_after_each_opening_is_retried_ever_more_rarely() -> None:
    retries = Retries("a.sources.s", Metrics())
    waits = []
    for _ in range(6):
        retries.recovered(tried=False)
        waits.append(retries.failed(Retry("the first event cannot be read")))
    assert waits == sorted(waits)
    assert waits[-1] > 8
    assert retries.attempt == 6
    retries.recovered()
    assert retries.failed(Retry("away")) < 1


def test_a_component_that_fails_after_each_opening_does_not_report_each_recovery(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(
        "flafka.agent.runner.retries.time", SimpleNamespace(monotonic=lambda: now[0], time=lambda: now[0])
    )
    metrics = Metrics()
    retries = Retries("a.sources.s", metrics)

    def open_for(seconds: float, fails: bool = True) -> list[str]:
        """Open, and fail after this many seconds; return the log."""
        caplog.clear()
        retries.recovered(tried=False)
        end = now[0] + seconds
        while now[0] < end:
            now[0] += 0.5
            retries.check_recovery()
        if fails:
            retries.failed(Retry("the disk cannot be read"))
            now[0] += 30
            retries.check_recovery()  # closed, it does not work
            assert metrics.last_error
        return [message for message in caplog.messages if not message.startswith("attempt")]

    with caplog.at_level("INFO", "a.sources.s"):
        assert open_for(1) == ["the disk cannot be read"]
        assert [open_for(1) for _ in range(5)] == [[]] * 5
        assert open_for(50) == []
        assert open_for(500) == ["works again", "the disk cannot be read"]
        assert open_for(5) == ["works again", "the disk cannot be read"]  # it was steady before
        assert open_for(5) == []
        caplog.clear()
        retries.recovered()
        assert caplog.messages == ["works again"]
        retries.failed(Retry("the port is taken"))
        assert open_for(4, fails=False) == ["works again"]
        assert not metrics.last_error
