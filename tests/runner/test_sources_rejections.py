"""Source runner and rejected events: by interceptors and channels, or after their failures."""

import threading

import pyarrow.compute as pc
import pytest

from flafka.agent.runner import delivery
from flafka.agent.runner.delivery import intercept
from flafka.interceptors.static import StaticInterceptor
from flafka.plugins import Batch, Config, Event, EventId, Interceptor, Rejected, Retry, conformance
from tests.runner.pipelines import MemoryDeadLetters
from tests.runner.ten_events import NUMBERS, Store, Stumble, Ten, run


class Refuse(Interceptor[Config]):
    """Interceptor that rejects every third, and drops every fifth."""

    type_name = "refuse"

    def intercept(self, batch):
        numbers = [int(event.body) for event in batch]
        batch = self.reject(batch, {row: f"{n} is bad" for row, n in enumerate(numbers) if n % 3 == 0})
        return batch.map(lambda event: None if int(event.body) % 5 == 0 else event)


class RefuseTwice(Refuse):
    """Interceptor that gets another batch within the first one, as two threads may call it."""

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
    """Interceptor that makes two of each event the first time."""

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


def test_events_that_a_channel_rejects_become_dead_letters():
    store = Store(name="c")
    store.failures = [Rejected({EventId("", -1, -1, 0): "too large"})]
    runner, letters = run(Ten, store)
    assert [(letter.event.body, letter.reason) for letter in letters] == [(b"0", "too large")]
    assert store.held == NUMBERS[1:]
    assert runner.source.reported == NUMBERS


class Choosy(Store):
    """Channel that refuses the 3."""

    type_name = "choosy"

    def put(self, batch):
        super().put(batch.where(pc.not_equal(batch.bodies, b"3")))
        bodies = batch.bodies.to_pylist()
        if b"3" in bodies:
            raise Rejected({EventId("", 0, 0, bodies.index(b"3")): "too large"})


def test_the_audit_gets_stored_events_before_the_source():
    class Books(list):
        def put(self, batch):
            self.extend(batch.bodies.to_pylist())

    reported, store = Books(), Choosy(name="c")
    store.failures = [Retry("away")]
    runner, letters = run(Ten, store, audit=reported)
    assert reported == store.held == [body for body in NUMBERS if body != b"3"]
    assert runner.source.reported == NUMBERS
    assert [letter.event.body for letter in letters] == [b"3"]


def test_events_rejected_by_an_interceptor_are_dead_letters_before_the_others_are_stored():
    store = Store(name="c")
    runner, letters = run(Ten, store, interceptors=[Refuse])
    assert store.held == [b"1", b"2", b"4", b"7", b"8"]
    assert [(letter.component, letter.id, letter.event.body, letter.reason) for letter in letters] == [
        ("a.sources.s", None, b"%d" % n, f"{n} is bad") for n in (0, 3, 6, 9)
    ]
    for metrics in (runner.metrics, runner.interceptors[0].metrics):
        assert metrics.get("EventRejectedCount") == 4
        assert metrics.get("EventFilteredCount") == 1
    assert runner.source.reported == NUMBERS


@pytest.fixture
def no_letters_at_first(monkeypatch):
    """Store of dead letters that fails twice."""
    failures = [Retry("no room for letters") for _ in range(2)]

    def put(self, letters):
        if failures:
            raise failures.pop()
        self.extend(letters)

    monkeypatch.setattr(MemoryDeadLetters, "put", put)


@pytest.mark.usefixtures("no_letters_at_first")
def test_events_rejected_by_an_interceptor_wait_while_dead_letters_cannot_be_stored():
    store = Store(name="c")
    runner, letters = run(Ten, store, interceptors=[Refuse])
    assert [letter.event.body for letter in letters] == [b"0", b"3", b"6", b"9"]
    assert store.held == [b"1", b"2", b"4", b"7", b"8"]
    for metrics in (runner.metrics, runner.interceptors[0].metrics):  # it has seen each event once
        assert metrics.get("EventRejectedCount") == 4
        assert metrics.get("EventFilteredCount") == 1


@pytest.mark.usefixtures("no_letters_at_first")
def test_accepted_events_are_put_once_while_dead_letters_cannot_be_stored():
    class Halves(Ten):
        """Source of two batches of five."""

        type_name = "halves"

        def batches(self):
            for start in (0, 5):
                yield Batch.of([Event(b"%d" % n) for n in range(start, start + 5)])

    class Books(list):
        def put(self, batch):
            self.extend(batch.bodies.to_pylist())

    reported, store = Books(), Choosy(name="c")
    runner, letters = run(Halves, store, audit=reported)
    assert reported == store.held == [body for body in NUMBERS if body != b"3"]
    assert [letter.event.body for letter in letters] == [b"3"]
    assert runner.metrics.get("EventRejectedCount") == 1
    assert runner.routed["c"].get("EventRoutedCount") == 9
    assert runner.metrics.last_error == ""


def test_concurrent_rejections_of_an_interceptor_are_not_mixed_up():
    """Otherwise one takes, or drops as that of a failed attempt, the other's present rejections."""
    interceptor, reported = RefuseTwice(Config()), []

    def passes(*numbers):
        own_reasons = []
        batch = Batch.of(Event(b"%d" % n) for n in numbers)
        accepted = intercept(batch, [interceptor], rejected=lambda rows, reasons: own_reasons.extend(reasons))
        reported.append((accepted.bodies.to_pylist(), own_reasons))

    interceptor.meanwhile = lambda: passes(2, 3)
    passes(0, 1)
    assert reported == [([b"2"], ["3 is bad"]), ([b"1"], ["0 is bad"])]
    assert interceptor.metrics.get("EventRejectedCount") == 2
    assert interceptor.metrics.get("EventFilteredCount") == 0


def test_a_valid_batch_does_not_inspect_an_interceptors_code(monkeypatch):
    monkeypatch.setattr(delivery, "describe_method", lambda *_: pytest.fail("it parses the file"))
    interceptor = conformance.make(StaticInterceptor, {"key": "a", "value": "b"})
    batch = delivery.intercept(Batch.of([Event(b"x")]), [interceptor])
    assert [event.headers for event in batch] == [{"a": "b"}]


def test_an_interceptor_that_adds_events_is_reported(caplog):
    store = Store(name="c")
    run(Ten, store, interceptors=[Grow])
    assert "Grow" in caplog.text
    assert "must return the events that it gets, changed or fewer of them, and makes 2 of 1" in caplog.text
    assert store.held == NUMBERS
