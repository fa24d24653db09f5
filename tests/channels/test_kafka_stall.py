"""When a producer counts as stuck."""

import threading

import pytest

from flafka.plugins.kafka.producer import Standstill


class Clock:
    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr("flafka.plugins.kafka.producer.time", made)
    return made


def looked_after(*answers, patience=0.0):
    """One, with what the brokers answer each time: to be asked more often is an error."""
    left = list(answers)

    def writable():
        answer = left.pop(0)
        return answer() if callable(answer) else answer

    return Standstill(writable, patience, threading.Event())


def when_stuck(one, clock, seconds):
    """After how many seconds, from now on, of so many it was found; None where it was not."""
    began = clock.now
    for _ in range(seconds):
        clock.now += 1
        if one.stuck(began):
            return clock.now - began
    return None


def test_brokers_have_to_say_twice_that_they_could_take_it(clock):
    one = looked_after(True, True)
    assert when_stuck(one, clock, 200) == 91


def test_brokers_that_come_back_give_it_time(clock):
    one = looked_after(False, True, True)
    assert when_stuck(one, clock, 200) == 121


def test_brokers_that_come_and_go_give_it_time(clock):
    one = looked_after(True, False, True, True)
    assert when_stuck(one, clock, 300) == 151


def test_what_moves_while_they_are_asked_is_not_stuck(clock):
    one = looked_after(True, lambda: one.moved() or True, True, True)
    assert when_stuck(one, clock, 300) == 182  # the patience anew, from when it moved


def test_one_that_does_not_help_has_longer_but_not_without_end(clock):
    one = looked_after(*[True] * 40)
    waits = [when_stuck(one, clock, 2000) for _ in range(8)]
    assert waits == sorted(waits)
    assert waits[-1] == waits[-2] == 691
    one.moved()
    assert when_stuck(one, clock, 2000) == 91


def test_a_new_outage_has_the_patience_of_the_first(clock):
    one = looked_after(True, True, False, True, True)
    assert when_stuck(one, clock, 2000) == 91
    assert when_stuck(one, clock, 2000) == 181


def test_what_a_user_has_it_wait_for_is_counted_in(clock):
    one = looked_after(True, True, patience=60.0)
    assert when_stuck(one, clock, 300) == 151
