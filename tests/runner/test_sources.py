"""Source runner: acknowledged events are stored, whatever fails in between."""

import itertools
import threading
import time
import types

import pytest

from flafka.agent.runner.local.channels import ChannelRunner
from flafka.agent.runner.local.sources import SourceRunner
from flafka.agent.services.running import until
from flafka.agent.topology import Route, SelectorSpec, SourceSpec
from flafka.plugins import Batch, Config, Event, EventId, Interceptor, Rejected, Retry
from tests.runner.pipelines import MemoryDeadLetters
from tests.runner.ten_events import NOWHERE, NUMBERS, Store, Stumble, Ten, TenAtOnce, run


def test_every_batch_is_stored_and_reported_in_order():
    store = Store(name="c")
    runner, _ = run(Ten, store)
    assert store.held == runner.source.reported == NUMBERS
    assert runner.metrics.get("EventAcceptedCount") == 10


def test_several_batches_in_flight_are_reported_in_order():
    store = Store(name="c")
    store.failures = [Retry("away") for _ in range(3)]
    runner, _ = run(TenAtOnce, store)
    assert sorted(store.held) == NUMBERS
    assert runner.source.reported == NUMBERS


def test_only_the_failed_channel_is_retried():
    good, bad = Store(name="good"), Store(name="bad")
    bad.failures = [Retry("away"), Retry("away")]
    runner, _ = run(Ten, good, bad)
    assert good.held == bad.held == NUMBERS
    assert runner.metrics.get("ChannelWriteFail") == 2


def test_a_failing_optional_channel_delays_nothing():
    good, bad = Store(name="good"), Store(name="bad")
    bad.failures = [Retry("away")]
    runner, _ = run(Ten, good, bad, optional=frozenset({"bad"}))
    assert good.held == NUMBERS
    assert bad.held == NUMBERS[1:]
    assert runner.metrics.get("OptionalChannelFail") == 1


def test_an_optional_channel_continues_when_its_source_is_reopened():
    class Interrupted(Ten):
        """Source that fails once, after its first batch."""

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


def test_only_dead_letters_of_a_batch_in_an_optional_channel_count_as_dropped():
    class Choosy(Store):
        """Channel that rejects the second event."""

        type_name = "choosy"

        def put(self, batch):
            super().put(batch.slice(0, 1))
            raise Rejected({EventId("", -1, -1, 1): "too large"})

    class Full(MemoryDeadLetters):
        """Store without room for a dead letter."""

        def put(self, letters):
            raise Retry("no space")

    good, bad = Store(name="good"), Choosy(name="bad")
    channels = {store.name: ChannelRunner("", store.name, store) for store in (good, bad)}
    for channel in channels.values():
        channel.ready.set()
    selector = SelectorSpec(default=Route(("good",), ("bad",)))
    spec = SourceSpec("s", "a.sources.s", Ten, Config(), {}, NOWHERE, channels=tuple(channels), selector=selector)
    runner = SourceRunner(spec, channels, dict.fromkeys(channels, Full()))
    assert runner.deliver(Batch.of([Event(b"kept"), Event(b"large")]))
    runner.close()
    assert (bad.held, runner.metrics.get("OptionalEventDropCount")) == ([b"kept"], 1)


def test_a_hanging_optional_channel_costs_one_timeout(monkeypatch, caplog):
    class Hanging(Store):
        """Channel that takes or refuses its events on request."""

        type_name = "hanging"

        def put(self, batch):
            may_go_on.wait()
            if refuses:
                raise Retry("no room")
            super().put(batch)

    monkeypatch.setattr("flafka.agent.runner.local.routing.OPTIONAL_PUT_SECONDS", 0.05)
    for cls, refuses in itertools.product((Ten, TenAtOnce), (False, True)):
        may_go_on = threading.Event()
        good, bad = Store(name="good"), Hanging(name="bad")
        runner, _ = run(cls, good, bad, optional=frozenset({"bad"}))
        assert runner.source.reported == NUMBERS
        assert good.held == NUMBERS
        assert runner.metrics.get("OptionalChannelFail") == 10
        assert 1 <= len(runner.optional["bad"]._late) <= runner.source.in_flight
        may_go_on.set()
        until(lambda r=runner, b=bad: r.metrics.get("OptionalEventDropCount") + len(b.held) == 10, "late puts", 60)
        assert bool(bad.held) != refuses
    assert "does not take events, which are dropped: a put has not ended within " in caplog.text


def test_an_optional_channel_that_never_opens_delays_nothing(monkeypatch):
    monkeypatch.setattr("flafka.agent.runner.local.sources.OPTIONAL_PUT_SECONDS", 0.0)
    good, away = Store(name="good"), Store(name="away")
    channels = {store.name: ChannelRunner("", store.name, store) for store in (good, away)}
    channels["good"].ready.set()
    selector = SelectorSpec(default=Route(("good",), ("away",)))
    spec = SourceSpec("s", "a.sources.s", Ten, Config(), {}, NOWHERE, channels=tuple(channels), selector=selector)
    runner = SourceRunner(spec, channels, dict.fromkeys(channels, MemoryDeadLetters()))
    runner.run()
    runner.close()
    assert good.held == runner.source.reported == NUMBERS
    assert away.held == []


def test_events_without_a_channel_are_counted_and_acknowledged():
    store = Store(name="c")
    selector = SelectorSpec("multiplexing", Route(), "kind", {"a": Route(("c",))})
    runner, _ = run(Ten, store, selector=selector)
    assert store.held == []
    assert runner.source.reported == NUMBERS
    assert runner.metrics.get("EventUnroutedCount") == 10


def test_concurrent_batches_are_put_into_each_channel_in_order():
    class Dawdling(Interceptor[Config]):
        """Interceptor that releases the first of each four batches once the three others are there."""

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
        """Channel that waits until it has four batches, as one waits for brokers or for a disk."""

        type_name = "waiting"

        def put_in_order(self, batch, enqueued):
            self.put(batch)
            enqueued()
            number = int(batch.bodies[0].as_py())
            assert number >= 8 or until(lambda: len(self.held) > number // 4 * 4 + 3, "those behind it", 60) is None

    waiting, store = Waiting(name="one"), Store(name="two")
    runner, _ = run(TenAtOnce, waiting, store, interceptors=[Dawdling])
    assert waiting.held == store.held == runner.source.reported == NUMBERS


@pytest.mark.parametrize("fails", ["in an interceptor", "in the channel"])
def test_a_retried_batch_delays_no_other(fails):
    store = Store(name="c")

    class Failing(Interceptor[Config]):
        """Interceptor that fails with the first until three others are stored."""

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
    assert runner.source.reported == NUMBERS


def test_events_of_each_channel_are_counted_exactly():
    class Kinds(Ten):
        """Source whose even events are of kind `a`."""

        type_name = "kinds"

        def batches(self):
            yield Batch.of([Event(b"%d" % n, {"kind": "ab"[n % 2]}) for n in range(10)])
            yield Batch.of([Event(b"x")])

    class Refusing(Store):
        """Channel that refuses the first of each batch."""

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
    monkeypatch.setattr("flafka.agent.monitoring.latency.time", types.SimpleNamespace(monotonic=lambda: began + 100))
    runner, _ = run(Ten, store, interceptors=[Stumble])
    for metrics in (runner.metrics, runner.interceptors[0].metrics, runner.channels["c"].metrics):
        assert 50_000 < metrics.get("BatchMilliseconds") <= 100_000
        assert "BatchMilliseconds" in metrics.gauges()
    store.failures = [Retry("away")]
    give_up = threading.Event()
    give_up.set()
    runner, _ = run(Ten, store, give_up=give_up)
    assert runner.metrics.get("BatchMilliseconds") == 0  # no batch has ended


@pytest.mark.parametrize("cls", [Ten, TenAtOnce])
@pytest.mark.timeout(60)
def test_a_program_end_while_a_batch_is_stored_loses_nothing(cls):
    class Ending(cls):
        """Source whose library ends the program at the first stored batch."""

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
    assert runner.source.reported == NUMBERS
    assert runner.metrics.get("ChannelWriteFail") == 1
    assert runner.metrics.get("OptionalChannelFail") == 1


def test_a_stopping_agent_acknowledges_nothing_after_its_undelivered_batch():
    store = Store(name="c")
    store.failures = [Retry("away")]
    give_up = threading.Event()
    give_up.set()
    for cls in (Ten, TenAtOnce):
        store.failures = [Retry("away")]
        runner, _ = run(cls, store, give_up=give_up)
        assert runner.source.reported == []


@pytest.mark.parametrize("failure", [Retry("port in use"), SystemExit("a library ends the program")])
def test_a_failed_source_is_reopened(failure):
    class Flaky(Ten):
        """Source that fails to open twice."""

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
