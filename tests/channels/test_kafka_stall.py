"""Time after which a producer counts as stalled."""

import threading

import pytest

from flafka.plugins.kafka.producer import StallDetector


class Clock:
    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("flafka.plugins.kafka.producer.time", clock)
    return clock


def producer_with(*answers, patience=0.0):
    """Return a producer and the brokers' answers in turn; a further request is an error."""
    remaining = list(answers)

    def writable():
        answer = remaining.pop(0)
        return answer() if callable(answer) else answer

    return StallDetector(writable, patience, threading.Event())


def seconds_until_stall(detector, clock, seconds):
    """Return the seconds until the stall is detected, within a limit; None if it is not."""
    began = clock.now
    for _ in range(seconds):
        clock.now += 1
        if detector.stalled_seconds(began):
            return clock.now - began
    return None


def test_a_stall_needs_two_answers_of_writable_brokers(clock):
    detector = producer_with(True, True)
    assert seconds_until_stall(detector, clock, 200) == 91


def test_returned_brokers_restart_the_timeout(clock):
    detector = producer_with(False, True, True)
    assert seconds_until_stall(detector, clock, 200) == 121


def test_flapping_brokers_restart_the_timeout(clock):
    detector = producer_with(True, False, True, True)
    assert seconds_until_stall(detector, clock, 300) == 151


def test_progress_during_the_answer_is_no_stall(clock):
    detector = producer_with(True, lambda: detector.record_progress() or True, True, True)
    assert seconds_until_stall(detector, clock, 300) == 182  # the full timeout, from the last progress


def test_the_timeout_of_useless_replacements_grows_up_to_a_limit(clock):
    detector = producer_with(*[True] * 40)
    waits = [seconds_until_stall(detector, clock, 2000) for _ in range(8)]
    assert waits == sorted(waits)
    assert waits[-1] == waits[-2] == 691
    detector.record_progress()
    assert seconds_until_stall(detector, clock, 2000) == 91


def test_a_new_outage_has_the_first_timeout(clock):
    detector = producer_with(True, True, False, True, True)
    assert seconds_until_stall(detector, clock, 2000) == 91
    assert seconds_until_stall(detector, clock, 2000) == 181


def test_a_configured_linger_extends_the_timeout(clock):
    detector = producer_with(True, True, patience=60.0)
    assert seconds_until_stall(detector, clock, 300) == 151
