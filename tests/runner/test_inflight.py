"""Concurrent batches: stored in any order, reported to the source in the order of its yields."""

import threading

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flafka.agent.runner.local.inflight import InFlight
from flafka.plugins import Batch, Event, Retry

BATCHES = [Batch.of_columns(pa.array([b"%d" % number], pa.binary()), {}) for number in range(5)]


def reported(order, outcomes, broken=None):
    """Let deliveries end in that order, with these outcomes. Return the batches reported to the source, and the
    `InFlight`."""
    gates = [threading.Event() for _ in BATCHES]
    numbers: list[int] = []
    here = threading.Lock()

    def deliver(batch, number):
        assert gates[number].wait(60)
        if isinstance(outcomes[number], Exception):
            raise outcomes[number]
        return outcomes[number]

    def stored(batch):
        assert here.acquire(blocking=False), "two threads tell at once"
        numbers.append(int(batch.bodies[0].as_py()))
        here.release()
        if numbers[-1] == broken:
            raise Retry("the position cannot be saved")

    in_flight = InFlight(len(BATCHES), "source", deliver, stored)
    for number, batch in enumerate(BATCHES):
        assert in_flight.put(batch, number)
    for number in order:
        gates[number].set()
    in_flight.close()
    return numbers, in_flight


@given(st.permutations(range(5)), st.lists(st.sampled_from([True, True, True, False]), min_size=5, max_size=5))
def test_batches_before_the_first_abandoned_one_are_reported(order, outcomes):
    numbers, in_flight = reported(order, outcomes)
    assert numbers == list(range([*outcomes, False].index(False)))
    assert in_flight.ended == (False in outcomes)
    assert not in_flight.failures


@pytest.mark.parametrize("order", [range(5), range(4, -1, -1)])
def test_a_failed_batch_is_kept_and_no_later_one_is_reported(order):
    error = Retry("away")
    numbers, in_flight = reported(order, [True, True, error, True, True])
    assert (numbers, in_flight.failures) == ([0, 1], [error])
    assert not in_flight.put(BATCHES[0], 5)


def test_a_source_whose_callback_fails_gets_no_further_reports():
    numbers, in_flight = reported(range(5), [True] * 5, broken=1)
    assert numbers == [0, 1]
    assert [str(error) for error in in_flight.failures] == ["the position cannot be saved"]


def test_the_next_batch_is_delivered_while_one_is_reported():
    delivered, telling = threading.Event(), threading.Event()

    def deliver(batch, number):
        if number:
            delivered.set()
        return True

    def stored(batch):
        telling.set()
        assert delivered.wait(60), "the next batch waits for what the source does with this one"

    in_flight = InFlight(2, "source", deliver, stored)
    in_flight.put(BATCHES[0], 0)
    assert telling.wait(60)
    in_flight.put(BATCHES[1], 1)
    in_flight.close()
    assert not in_flight.failures


def test_no_more_threads_are_started_than_have_work():
    stored = threading.Semaphore(0)
    in_flight = InFlight(4, "source", lambda batch, number: True, lambda batch: stored.release())
    for number, batch in enumerate(BATCHES):
        in_flight.put(batch, number)
        assert stored.acquire(timeout=60)
    started = len(in_flight._threads)
    in_flight.close()
    assert started <= 2, "one that may be telling still, and one that delivers"


def test_the_source_delivers_few_events_itself_while_nothing_is_in_flight():
    threads: list[threading.Thread] = []
    is_first_delivered = threading.Event()

    def deliver(batch, number):
        threads.append(threading.current_thread())
        if number == 1:
            assert is_first_delivered.wait(60)
        return True

    few, here = Batch.of([Event(b"few")]), threading.current_thread()
    in_flight = InFlight(3, "source", deliver, lambda batch: None)
    in_flight.put(few, 0)
    assert threads == [here]
    in_flight.put(BATCHES[1], 1)
    in_flight.put(few, 2)
    is_first_delivered.set()
    in_flight.close()
    assert here not in threads[1:]
    assert not in_flight.failures
