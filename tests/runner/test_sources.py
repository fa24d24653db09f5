"""The source runner: what is acknowledged is stored, whatever fails in between."""

import threading
import time
import types

import pyarrow.compute as pc
import pytest

from agent.runner import delivery
from agent.runner.delivery import intercepted
from agent.runner.local.channels import ChannelRunner
from agent.runner.local.sources import SourceRunner
from agent.services.running import until
from agent.topology import ComponentSpec, Place, Route, SelectorSpec, SourceSpec
from interceptors.static import StaticInterceptor
from plugins import Batch, Channel, Config, Event, EventId, Interceptor, Rejected, Retry, Source, conformance

NOWHERE = Place("test.conf", 1)


class Ten(Source[Config]):
    """Ten batches of one event each; remembers what it was told is stored."""

    type_name = "ten"

    def __init__(self, config, name=""):
        super().__init__(config, name)
        self.told: list[bytes] = []

    def batches(self):
        for n in range(10):
            yield Batch.of([Event(b"%d" % n)])

    def stored(self, batch):
        self.told.append(batch.bodies[0].as_py())


class TenAtOnce(Ten):
    """The same with four in flight."""

    type_name = "ten-at-once"
    in_flight = 4


class Store(Channel[Config]):
    """Keeps what it is given; fails as often as told."""

    type_name = "store"

    def __init__(self, config=None, name=""):
        super().__init__(config or Config(), name)
        self.held: list[bytes] = []
        self.failures: list[Exception] = []
        self.lock = threading.Lock()

    def put(self, batch):
        with self.lock:
            if self.failures:
                raise self.failures.pop()
            self.held += batch.bodies.to_pylist()

    def reader(self, owner, *, group, member):
        raise NotImplementedError


class Stumble(Interceptor[Config]):
    """Fails the first time."""

    type_name = "stumble"

    def __init__(self, config, name=""):
        super().__init__(config, name)
        self.fallen = False

    def intercept(self, batch):
        if not self.fallen:
            self.fallen = True
            raise RuntimeError("a bug in an interceptor")
        return batch


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


class Letters(list):
    def put(self, letters):
        self.extend(letters)

    def close(self):
        pass


def run(cls, *stores, interceptors=(), optional=frozenset(), selector=None, give_up=None, audit=None):
    channels = {store.name: ChannelRunner(f"a.channels.{store.name}", store.name, store) for store in stores}
    for channel in channels.values():
        channel.ready.set()
        channel.audit = audit
    spec = SourceSpec(
        "s",
        "a.sources.s",
        cls,
        Config(),
        {},
        NOWHERE,
        channels=tuple(channels),
        interceptors=tuple(ComponentSpec(c.type_name, "i", c, Config(), {}, NOWHERE) for c in interceptors),
        selector=selector or SelectorSpec(otherwise=Route(tuple(channels.keys() - optional), tuple(optional))),
    )
    letters = Letters()
    runner = SourceRunner(spec, channels, dict.fromkeys(channels, letters), give_up or threading.Event())
    runner.run()
    runner.close()
    return runner, letters


NUMBERS = [b"%d" % n for n in range(10)]


def test_every_batch_is_stored_and_told_in_order():
    store = Store(name="c")
    runner, _ = run(Ten, store)
    assert store.held == runner.source.told == NUMBERS
    assert runner.metrics.get("EventAcceptedCount") == 10


def test_with_several_in_flight_they_are_still_told_in_order():
    store = Store(name="c")
    store.failures = [Retry("away") for _ in range(3)]
    runner, _ = run(TenAtOnce, store)
    assert sorted(store.held) == NUMBERS
    assert runner.source.told == NUMBERS


def test_only_the_channel_that_failed_is_tried_again():
    good, bad = Store(name="good"), Store(name="bad")
    bad.failures = [Retry("away"), Retry("away")]
    runner, _ = run(Ten, good, bad)
    assert good.held == bad.held == NUMBERS
    assert runner.metrics.get("ChannelWriteFail") == 2


def test_an_optional_channel_may_fail_without_anyone_waiting():
    good, bad = Store(name="good"), Store(name="bad")
    bad.failures = [Retry("away")]
    runner, _ = run(Ten, good, bad, optional=frozenset({"bad"}))
    assert good.held == NUMBERS
    assert bad.held == NUMBERS[1:]
    assert runner.metrics.get("OptionalChannelFail") == 1


def test_an_optional_channel_goes_on_when_its_source_is_opened_again():
    class Interrupted(Ten):
        """Fails once, after its first batch."""

        type_name = "interrupted"
        failed = False

        def batches(self):
            for batch in super().batches():
                yield batch
                if not type(self).failed:
                    type(self).failed = True
                    raise Retry("away")

    good, optional = Store(name="good"), Store(name="optional")
    runner, _ = run(Interrupted, good, optional, optional=frozenset({"optional"}))
    assert good.held == optional.held == [b"0", *NUMBERS]
    assert runner.metrics.get("OptionalEventDropCount") == 0


def test_an_optional_channel_that_hangs_costs_one_wait(monkeypatch, caplog):
    class Hanging(Store):
        """Takes what it is given once it may."""

        type_name = "hanging"

        def put(self, batch):
            may_go_on.wait()
            super().put(batch)

    may_go_on = threading.Event()
    monkeypatch.setattr("agent.runner.local.optional.PATIENCE_SECONDS", 0.05)
    good, bad = Store(name="good"), Hanging(name="bad")
    for cls in (Ten, TenAtOnce):
        good.held.clear()
        runner, _ = run(cls, good, bad, optional=frozenset({"bad"}))
        assert runner.source.told == NUMBERS
        assert good.held == NUMBERS
        assert runner.metrics.get("OptionalChannelFail") == 10
        assert runner.metrics.get("OptionalEventDropCount") == 10
        assert len(runner.optional["bad"]._late) <= runner.source.in_flight
    may_go_on.set()
    assert "does not take events" in caplog.text


def test_an_optional_channel_that_never_opens_holds_nobody_up(monkeypatch):
    monkeypatch.setattr("agent.runner.local.sources.PATIENCE_SECONDS", 0.0)
    good, away = Store(name="good"), Store(name="away")
    channels = {store.name: ChannelRunner("", store.name, store) for store in (good, away)}
    channels["good"].ready.set()
    selector = SelectorSpec(otherwise=Route(("good",), ("away",)))
    spec = SourceSpec("s", "a.sources.s", Ten, Config(), {}, NOWHERE, channels=tuple(channels), selector=selector)
    runner = SourceRunner(spec, channels, dict.fromkeys(channels, Letters()), threading.Event())
    runner.run()
    runner.close()
    assert good.held == runner.source.told == NUMBERS
    assert away.held == []


def test_events_without_a_channel_are_counted_and_acknowledged():
    store = Store(name="c")
    selector = SelectorSpec("multiplexing", Route(), "kind", {"a": Route(("c",))})
    runner, _ = run(Ten, store, selector=selector)
    assert store.held == []
    assert runner.source.told == NUMBERS
    assert runner.metrics.get("EventUnroutedCount") == 10


def test_batches_that_are_on_their_way_together_come_into_each_channel_in_order():
    class Dawdling(Interceptor[Config]):
        """Lets the first of each four go once the three others are here, too."""

        type_name = "dawdling"
        here = threading.Semaphore(0)

        def intercept(self, batch):
            number = int(batch.bodies[0].as_py())
            if number % 4:
                self.here.release()
            elif number < 8:
                assert all(self.here.acquire(timeout=60) for _ in range(3))
            return batch

    class Waiting(Store):
        """Waits for what it holds until there are four, as one does for brokers or for a disk."""

        type_name = "waiting"

        def put_in_turn(self, batch, placed):
            self.put(batch)
            placed()
            number = int(batch.bodies[0].as_py())
            assert number >= 8 or until(lambda: len(self.held) > number // 4 * 4 + 3, "those behind it", 60) is None

    one, two = Waiting(name="one"), Store(name="two")
    runner, _ = run(TenAtOnce, one, two, interceptors=[Dawdling])
    assert one.held == two.held == runner.source.told == NUMBERS


@pytest.mark.parametrize("fails", ["in an interceptor", "in the channel"])
def test_a_batch_that_is_tried_again_holds_no_other_up(fails):
    store = Store(name="c")

    class Failing(Interceptor[Config]):
        """Fails with the first until three others are stored."""

        type_name = "failing"

        def intercept(self, batch):
            if fails == "in an interceptor" and batch.bodies[0].as_py() == b"0" and len(store.held) < 3:
                raise Retry("not yet")
            return batch

    def put(batch):
        if fails == "in the channel" and batch.bodies[0].as_py() == b"0" and len(store.held) < 3:
            raise Retry("not yet")
        Store.put(store, batch)

    store.put = put
    runner, _ = run(TenAtOnce, store, interceptors=[Failing])
    assert store.held == [b"1", b"2", b"3", b"0", *NUMBERS[4:]]
    assert runner.source.told == NUMBERS


def test_what_goes_to_each_channel_is_counted_exactly():
    class Kinds(Ten):
        """The even ones are of kind `a`."""

        type_name = "kinds"

        def batches(self):
            yield Batch.of([Event(b"%d" % n, {"kind": "ab"[n % 2]}) for n in range(10)])
            yield Batch.of([Event(b"x")])

    class Refusing(Store):
        """Refuses the first of each batch."""

        type_name = "refusing"

        def put(self, batch):
            super().put(batch.slice(1))
            raise Rejected({EventId("", 0, 0, 0): "too large"})

    one, rest, both, away = Store(name="one"), Store(name="rest"), Refusing(name="both"), Store(name="away")
    one.failures = [Retry("away")]
    away.failures = [Retry("away")] * 9
    route = Route(("one", "both"), ("away",))
    selector = SelectorSpec("multiplexing", Route(("rest", "both")), "kind", {"a": route})
    runner, _ = run(Kinds, one, rest, both, away, selector=selector)
    assert (len(one.held), len(rest.held), len(both.held), len(away.held)) == (5, 6, 9, 0)
    counted = {name: metrics.get("EventRoutedCount") for name, metrics in runner.routed.items()}
    assert counted == {"one": 5, "rest": 6, "both": 9, "away": 0}
    assert runner.metrics.get("EventAcceptedCount") == 11


def test_how_long_a_batch_takes_is_shown(monkeypatch):
    store, began = Store(name="c"), time.monotonic()
    monkeypatch.setattr("agent.runner.latency.time", types.SimpleNamespace(monotonic=lambda: began + 100))
    runner, _ = run(Ten, store, interceptors=[Stumble])
    for metrics in (runner.metrics, runner.interceptors[0].metrics, runner.channels["c"].metrics):
        assert 50_000 < metrics.get("BatchMilliseconds") <= 100_000
        assert "BatchMilliseconds" in metrics.gauges()
    store.failures = [Retry("away")]
    give_up = threading.Event()
    give_up.set()
    runner, _ = run(Ten, store, give_up=give_up)
    assert runner.metrics.get("BatchMilliseconds") == 0  # it came to no end


def test_a_bug_in_an_interceptor_loses_nothing(caplog):
    store = Store(name="c")
    run(Ten, store, interceptors=[Stumble])
    assert store.held == NUMBERS
    assert "a bug in an interceptor" in caplog.text


@pytest.mark.parametrize("cls", [Ten, TenAtOnce])
@pytest.mark.timeout(60)
def test_code_that_ends_the_program_while_a_batch_is_stored_loses_nothing(cls):
    class Ending(cls):
        """Its library ends the program the first time that it is told."""

        type_name = "ending"
        ended = False

        def stored(self, batch):
            if not type(self).ended:
                type(self).ended = True
                raise SystemExit("a library ends the program")
            super().stored(batch)

    good, optional = Store(name="good"), Store(name="optional")
    good.failures = [SystemExit("there is no licence")]
    optional.failures = [SystemExit("there is no licence")]
    runner, _ = run(Ending, good, optional, optional=frozenset({"optional"}))
    assert set(good.held) == set(NUMBERS)
    assert runner.source.told == NUMBERS
    assert runner.metrics.get("ChannelWriteFail") == 1
    assert runner.metrics.get("OptionalChannelFail") == 1


def test_what_a_channel_cannot_hold_becomes_a_dead_letter():
    store = Store(name="c")
    store.failures = [Rejected({EventId("", -1, -1, 0): "too large"})]
    runner, letters = run(Ten, store)
    assert [(letter.event.body, letter.reason) for letter in letters] == [(b"0", "too large")]
    assert store.held == NUMBERS[1:]
    assert runner.source.told == NUMBERS


def test_an_agent_that_gives_up_acknowledges_nothing_behind_the_batch_it_lost():
    store = Store(name="c")
    store.failures = [Retry("away")]
    give_up = threading.Event()
    give_up.set()
    for cls in (Ten, TenAtOnce):
        store.failures = [Retry("away")]
        runner, _ = run(cls, store, give_up=give_up)
        assert runner.source.told == []


@pytest.mark.parametrize("failure", [Retry("port in use"), SystemExit("a library ends the program")])
def test_a_source_that_fails_is_opened_again(failure):
    class Flaky(Ten):
        """Fails to open twice."""

        type_name = "flaky"
        attempts = 0

        def open(self):
            type(self).attempts += 1
            if self.attempts < 3:
                raise failure

    store = Store(name="c")
    runner, _ = run(Flaky, store)
    assert store.held == NUMBERS
    assert runner.metrics.get("FailureCount") == 2
    assert runner.metrics.last_error == ""


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
    monkeypatch.setattr(delivery, "described", lambda cls: pytest.fail("it parses the file"))
    interceptor = conformance.make(StaticInterceptor, {"key": "a", "value": "b"})
    batch = delivery.intercepted(Batch.of([Event(b"x")]), [interceptor])
    assert [event.headers for event in batch] == [{"a": "b"}]


def test_an_interceptor_that_makes_more_events_is_told_so(caplog):
    store = Store(name="c")
    run(Ten, store, interceptors=[Grow])
    assert "Grow" in caplog.text
    assert "must return the events that it gets, changed or fewer of them, and makes 2 of 1" in caplog.text
    assert store.held == NUMBERS
