"""The source runner and events that do not pass: interceptors and channels reject them, or fail over them."""

import threading

import pyarrow.compute as pc
import pytest

from flafka.agent.runner import delivery
from flafka.agent.runner.delivery import intercepted
from flafka.interceptors.static import StaticInterceptor
from flafka.plugins import Batch, Config, Event, EventId, Interceptor, Rejected, Retry, conformance
from tests.runner.pipelines import Letters
from tests.runner.tens import NUMBERS, Store, Stumble, Ten, run


class Refuse(Interceptor[Config]):
    """Rejects every third, drops every fifth."""

    type_name = "refuse"

    def intercept(self, batch):
        numbers = [int(event.body) for event in batch]
        batch = self.reject(batch, {row: f"{n} is bad" for row, n in enumerate(numbers) if n % 3 == 0})
        return batch.map(lambda event: None if int(event.body) % 5 == 0 else event)


class RefuseTwice(Refuse):
    """The first time, it has another batch before it is done with this one: as two threads may have it."""

    type_name = "refuse-twice"
    meanwhile = None

    def intercept(self, batch):
        batch = super().intercept(batch)
        if (meanwhile := self.meanwhile) is not None:
            self.meanwhile = None
            thread = threading.Thread(target=meanwhile)
            thread.start()
            thread.join()
        return batch


class Grow(Interceptor[Config]):
    """Makes two of each the first time."""

    type_name = "grow"
    grown = False

    def intercept(self, batch):
        if self.grown:
            return batch
        self.grown = True
        return Batch.of([*batch, *batch])


def test_a_bug_in_an_interceptor_loses_nothing(caplog):
    store = Store(name="c")
    run(Ten, store, interceptors=[Stumble])
    assert store.held == NUMBERS
    assert "a bug in an interceptor" in caplog.text


def test_what_a_channel_cannot_hold_becomes_a_dead_letter():
    store = Store(name="c")
    store.failures = [Rejected({EventId("", -1, -1, 0): "too large"})]
    runner, letters = run(Ten, store)
    assert [(letter.event.body, letter.reason) for letter in letters] == [(b"0", "too large")]
    assert store.held == NUMBERS[1:]
    assert runner.source.told == NUMBERS


class Choosy(Store):
    """Refuses the 3."""

    type_name = "choosy"

    def put(self, batch):
        super().put(batch.where(pc.not_equal(batch.bodies, b"3")))
        bodies = batch.bodies.to_pylist()
        if b"3" in bodies:
            raise Rejected({EventId("", 0, 0, bodies.index(b"3")): "too large"})


def test_the_audit_is_told_what_is_stored_and_before_the_source_is():
    class Books(list):
        def put(self, batch):
            self.extend(batch.bodies.to_pylist())

    told, store = Books(), Choosy(name="c")
    store.failures = [Retry("away")]
    runner, letters = run(Ten, store, audit=told)
    assert told == store.held == [body for body in NUMBERS if body != b"3"]
    assert runner.source.told == NUMBERS
    assert [letter.event.body for letter in letters] == [b"3"]


def test_what_an_interceptor_rejects_is_a_dead_letter_before_the_rest_is_stored():
    store = Store(name="c")
    runner, letters = run(Ten, store, interceptors=[Refuse])
    assert store.held == [b"1", b"2", b"4", b"7", b"8"]
    assert [(one.component, one.id, one.event.body, one.reason) for one in letters] == [
        ("a.sources.s", None, b"%d" % n, f"{n} is bad") for n in (0, 3, 6, 9)
    ]
    for metrics in (runner.metrics, runner.interceptors[0].metrics):
        assert metrics.get("EventRejectedCount") == 4
        assert metrics.get("EventFilteredCount") == 1
    assert runner.source.told == NUMBERS


@pytest.fixture
def no_letters_at_first(monkeypatch):
    """The first two tries to keep letters fail."""
    failures = [Retry("no room for letters") for _ in range(2)]

    def put(self, letters):
        if failures:
            raise failures.pop()
        self.extend(letters)

    monkeypatch.setattr(Letters, "put", put)


@pytest.mark.usefixtures("no_letters_at_first")
def test_what_an_interceptor_rejects_waits_for_letters_that_cannot_be_kept():
    store = Store(name="c")
    runner, letters = run(Ten, store, interceptors=[Refuse])
    assert [one.event.body for one in letters] == [b"0", b"3", b"6", b"9"]
    assert store.held == [b"1", b"2", b"4", b"7", b"8"]
    for metrics in (runner.metrics, runner.interceptors[0].metrics):  # it has seen each event once
        assert metrics.get("EventRejectedCount") == 4
        assert metrics.get("EventFilteredCount") == 1


@pytest.mark.usefixtures("no_letters_at_first")
def test_what_a_channel_takes_is_put_once_though_letters_of_the_rest_cannot_be_kept():
    class Halves(Ten):
        """Two batches of five."""

        type_name = "halves"

        def batches(self):
            for start in (0, 5):
                yield Batch.of([Event(b"%d" % n) for n in range(start, start + 5)])

    class Books(list):
        def put(self, batch):
            self.extend(batch.bodies.to_pylist())

    told, store = Books(), Choosy(name="c")
    runner, letters = run(Halves, store, audit=told)
    assert told == store.held == [body for body in NUMBERS if body != b"3"]
    assert [one.event.body for one in letters] == [b"3"]
    assert runner.metrics.get("EventRejectedCount") == 1
    assert runner.routed["c"].get("EventRoutedCount") == 9
    assert runner.metrics.last_error == ""


def test_what_an_interceptor_rejects_on_two_threads_at_once_is_of_each_its_own():
    """Else one takes, or drops as that of a try that failed, what the other one has rejected just then."""
    interceptor, told = RefuseTwice(Config()), []

    def passes(*numbers):
        mine = []
        batch = Batch.of(Event(b"%d" % n) for n in numbers)
        left = intercepted(batch, [interceptor], rejected=lambda rows, reasons: mine.extend(reasons))
        told.append((left.bodies.to_pylist(), mine))

    interceptor.meanwhile = lambda: passes(2, 3)
    passes(0, 1)
    assert told == [([b"2"], ["3 is bad"]), ([b"1"], ["0 is bad"])]
    assert interceptor.metrics.get("EventRejectedCount") == 2
    assert interceptor.metrics.get("EventFilteredCount") == 0


def test_a_good_batch_costs_no_look_at_an_interceptors_source(monkeypatch):
    monkeypatch.setattr(delivery, "described_method", lambda *_: pytest.fail("it parses the file"))
    interceptor = conformance.make(StaticInterceptor, {"key": "a", "value": "b"})
    batch = delivery.intercepted(Batch.of([Event(b"x")]), [interceptor])
    assert [event.headers for event in batch] == [{"a": "b"}]


def test_an_interceptor_that_makes_more_events_is_told_so(caplog):
    store = Store(name="c")
    run(Ten, store, interceptors=[Grow])
    assert "Grow" in caplog.text
    assert "must return the events that it gets, changed or fewer of them, and makes 2 of 1" in caplog.text
    assert store.held == NUMBERS
