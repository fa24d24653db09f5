"""What a failure shows: once in the log, and in the metrics until it works again."""

from __future__ import annotations

import time

import pytest

from agent.runner.retries import RETRY, Backoff, Retries
from plugins import Metrics, Retry


@pytest.fixture(autouse=True)
def soon() -> None:
    """Here waits are as long as users see them."""


def test_a_failure_is_told_once_with_its_attempt_and_the_next_try(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    retries = Retries("a1.sinks.k1", metrics)
    with caplog.at_level("INFO", "a1.sinks.k1"):
        began = time.time()
        seconds = [retries.failed(Retry("the store is away")) for _ in range(3)]
        next_try = f"attempt 1 failed, the next one comes in {seconds[0]:.1f} s"
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


def test_waits_double_up_to_the_longest_and_heed_what_a_failure_asks_for() -> None:
    backoff = Backoff(longest=4)
    for expected in (0.5, 1, 2, 4, 4):
        assert 0.75 * expected <= backoff.after(Retry("away")) <= 1.25 * expected
    assert backoff.after(Retry("away", 60)) == 60
    assert backoff.after(ValueError("unforeseen")) <= 5


def test_what_a_component_shows_itself_it_takes_back_itself() -> None:
    metrics = Metrics()
    retries = Retries("a1.channels.c1", metrics)
    retries.failed(Retry("the channel is away"))
    metrics.error("its own words")
    retries.recovered()
    assert metrics.last_error == "its own words"


def test_what_opens_and_fails_each_time_is_tried_ever_more_rarely() -> None:
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
