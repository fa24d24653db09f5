"""Sink groups: after any failure, one of the sinks delivers each event; and the choices of the processors."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from flafka.agent.runner.local.channels import ChannelRunner
from flafka.agent.runner.local.sinkprocessors import Failover, LoadBalance, sink_processor_of
from flafka.agent.runner.local.sinks import SinkRunner
from flafka.agent.services.running import until
from flafka.agent.topology import ConfigLocation, SinkGroupSpec, SinkProcessorSpec, SinkSpec
from flafka.channels.memory import MemoryChannel, MemoryConfig
from flafka.plugins import Batch, Config, Event, Rejected, Retry, Sink
from tests.fixtures.examples import examples
from tests.runner.pipelines import MemoryDeadLetters

PLACE = ConfigLocation("test.conf", 1)
NAMES = ("k1", "k2", "k3")
FAILOVER = SinkProcessorSpec("failover", {"k1": 3, "k2": 2, "k3": 1})
BALANCE = SinkProcessorSpec("load_balance", backoff=False)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flafka.agent.runner.local.sinks.TAKE_SECONDS", 0.001)


class Store(Sink[Config]):
    """Sink that keeps flushed events, and fails at the given calls."""

    type_name = "store"
    batch_size = 4
    flush_interval = 3600

    def __init__(self, config: Config, name: str = "") -> None:
        super().__init__(config, name)
        self.written: list[bytes] = []
        self.durable: list[bytes] = []
        self.fails: set[str] = set()

    def _do(self, what: str) -> None:
        if what in self.fails:
            raise Retry(f"{what} failed")

    def open(self) -> None:
        self._do("open")

    def write(self, batch: Batch) -> None:
        self._do("write")
        rejected = {batch.id(row): "not wanted" for row, event in enumerate(batch) if event.body == b"bad"}
        self.written += [event.body for event in batch if event.body != b"bad"]
        if rejected:
            raise Rejected(rejected)

    def flush(self) -> None:
        self._do("flush")
        self.durable += self.written
        self.written.clear()

    def reset(self) -> None:
        self.written.clear()
        self._do("reset")

    def close(self) -> None:
        self.written.clear()


class Group:
    """Group of three stores on a memory channel, driven by hand or by its thread."""

    def __init__(self, processor: SinkProcessorSpec) -> None:
        self.now = 0.0
        self.channel = MemoryChannel(MemoryConfig(), "m")
        runner = ChannelRunner("a.channels.m", "m", self.channel)
        runner.ready.set()
        self.letters: Any = MemoryDeadLetters()
        specs = [SinkSpec(n, f"a.sinks.{n}", Store, Config(), {}, PLACE, channel="m") for n in NAMES]
        group = SinkGroupSpec("g", "a.sinkgroups.g", PLACE, NAMES, processor)
        self.runner = SinkRunner(specs, runner, self.letters, "member", group)
        self.runner.processor = sink_processor_of(processor, NAMES, lambda: self.now)
        self.sinks: dict[str, Any] = {member.name: member.sink for member in self.runner.members}

    def put(self, *bodies: bytes) -> None:
        self.channel.put(Batch.of([Event(body) for body in bodies]))

    def channel_events(self) -> float:
        return self.channel.metrics.get("ChannelSize")

    def durable(self) -> list[bytes]:
        return [body for sink in self.sinks.values() for body in sink.durable]

    def turn_until_empty(self) -> None:
        for _ in range(1000):
            if not self.channel_events():
                return
            if not self.runner.run_turn():
                self.now += 60
        raise AssertionError("the channel is never empty")


class Machine(RuleBasedStateMachine):
    """Sinks fail and recover at every call and at any time; the clock runs by itself."""

    processor = FAILOVER

    def __init__(self) -> None:
        super().__init__()
        self.group = Group(self.processor)
        self.group.runner.draining.set()
        self.group.runner.open()
        self.put_bodies: list[bytes] = []

    @rule(count=st.integers(1, 6), bad=st.booleans())
    def more(self, count: int, bad: bool) -> None:
        self.put(count, bad)

    def put(self, count: int, bad: bool) -> None:
        bodies = [b"%d" % (len(self.put_bodies) + n) for n in range(count)]
        self.put_bodies += bodies
        self.group.put(*bodies, *[b"bad"] * bad)

    @rule(name=st.sampled_from(NAMES), method=st.sampled_from(["open", "write", "flush", "reset"]))
    def fail(self, name: str, method: str) -> None:
        self.group.sinks[name].fails.add(method)

    @rule(name=st.sampled_from(NAMES))
    def heal(self, name: str) -> None:
        self.group.sinks[name].fails.clear()

    @rule(times=st.integers(1, 8))
    def turn(self, times: int) -> None:
        for _ in range(times):
            self.group.runner.run_turn()

    @rule(seconds=st.floats(0.1, 40))
    def wait(self, seconds: float) -> None:
        self.group.now += seconds

    @rule()
    def restart(self) -> None:
        """Restart as after a failure of the reader."""
        self.group.runner.close()
        self.group.runner.open()

    @invariant()
    def what_left_the_channel_is_durable(self) -> None:
        assert len(set(self.group.durable())) + self.group.channel_events() >= len(self.put_bodies)

    def teardown(self) -> None:
        for sink in self.group.sinks.values():
            sink.fails.clear()
        self.put(1, False)
        self.group.turn_until_empty()
        delivered = self.group.durable()
        # A failed flush makes nothing durable here, so that not even a repetition is allowed.
        assert sorted(delivered) == sorted(self.put_bodies)
        assert not self.group.runner.failing()
        self.group.runner.close()


@pytest.mark.parametrize(
    "processor",
    [FAILOVER, BALANCE, SinkProcessorSpec("load_balance", policy="random", max_penalty_seconds=10)],
    ids=["failover", "round_robin", "random"],
)
def test_nothing_is_lost_whatever_fails(processor: SinkProcessorSpec) -> None:
    machine = type("Case", (Machine,), {"processor": processor})
    run_state_machine_as_test(machine, settings=settings(max_examples=examples(40), stateful_step_count=30))


def test_a_failing_member_of_a_working_group_is_shown() -> None:
    group = Group(FAILOVER)
    group.sinks["k1"].fails = {"flush"}
    group.runner.thread.start()
    group.put(*[b"%d" % n for n in range(4)])
    until(lambda: not group.channel_events())
    first, second, _ = group.runner.members
    assert first.metrics.last_error == "flush failed"
    assert not second.metrics.last_error
    assert not group.runner.failing()
    assert second.metrics.get("EventDrainSuccessCount") == 4
    assert first.metrics.get("EventDrainSuccessCount") == 0
    group.sinks["k1"].fails.clear()
    group.now += 2.1
    group.put(*[b"%d" % n for n in range(4, 8)])  # the choice of before still holds for one batch
    group.put(*[b"%d" % n for n in range(8, 12)])
    until(lambda: not group.channel_events() and group.sinks["k1"].durable)
    assert not first.metrics.last_error
    group.runner.stopping.set()
    group.runner.thread.join(60)
    assert sorted(group.durable(), key=int) == [b"%d" % n for n in range(12)]


def test_a_stop_delivers_taken_events() -> None:
    group = Group(BALANCE)
    group.runner.thread.start()
    group.put(b"1")
    until(lambda: any(sink.written for sink in group.sinks.values()))
    group.runner.stopping.set()
    group.runner.thread.join(60)
    assert group.durable() == [b"1"]
    assert not group.channel_events()


def test_a_group_whose_sinks_all_fail_is_failing_and_recovers() -> None:
    group = Group(FAILOVER)
    for sink in group.sinks.values():
        sink.fails = {"write"}
    group.runner.open()
    group.put(b"1", b"2", b"3", b"4")
    while group.runner.run_turn():
        pass
    assert group.runner.failing()
    group.sinks["k3"].fails.clear()
    assert not group.runner.run_turn(), "it is left alone"
    group.turn_until_empty()
    assert group.sinks["k3"].durable == [b"1", b"2", b"3", b"4"]


@given(st.lists(st.tuples(st.sampled_from(["ok", "fail"]), st.floats(0, 5)), max_size=60))
def test_the_best_sink_outside_its_backoff_gets_a_batch(story: list[tuple[str, float]]) -> None:
    """Expected choices follow the documented rules, worked out anew each time."""
    now = 0.0
    processor = Failover({"k1": 3, "k2": 2, "k3": 1}, 30, lambda: now)
    failures: dict[str, int] = {}
    until: dict[str, float] = {}
    for outcome, seconds in story:
        now += seconds
        due = sorted((name for name in failures if until[name] < now), key=until.__getitem__)
        expected = [*due, *(name for name in NAMES if name not in failures)]
        assert list(processor.attempts()) == expected
        if not expected:
            continue
        sink = expected[0]
        if outcome == "ok":
            processor.delivered(sink)
            failures.pop(sink, None)
        else:
            processor.failed(sink)
            failures[sink] = failures.get(sink, 0) + 1
            until[sink] = now + min(30, 2 ** failures[sink])


def test_load_balance_takes_turns_and_backs_off() -> None:
    now = 0.0
    balance = LoadBalance(NAMES, "round_robin", 10, lambda: now)
    assert [next(balance.attempts()) for _ in range(4)] == ["k1", "k2", "k3", "k1"]
    penalties = []
    for _ in range(4):
        balance.failed("k2")
        began = now
        while "k2" not in list(balance.attempts()):
            now += 0.5
        penalties.append(now - began - 0.5)
    assert penalties == [2, 4, 8, 10]
    now += 3700
    balance.failed("k2")
    now += 2.5
    assert "k2" in list(balance.attempts())


def test_random_gives_each_sink_its_share(seed: int) -> None:
    chance = LoadBalance(NAMES, "random", 0, lambda: 0.0)
    firsts = [next(chance.attempts()) for _ in range(300)]
    assert all(firsts.count(name) > 50 for name in NAMES)
    chance.failed("k1")
    assert sorted(chance.attempts()) == sorted(NAMES)


# --- health without events


def quickly(group: Group) -> None:
    """Run once, as if the waits after failures were over."""
    group.now += 60
    for member in group.runner.members:
        member.retry_time = 0.0
    group.runner.run_turn()


def states(group: Group) -> dict[str, str]:
    """Return `ok`, `failing` or `standby` of each sink, as the registry takes them from the metrics."""
    metrics = {member.name: member.metrics for member in group.runner.members}
    return {
        name: "standby" if m.standby_reason else "failing" if m.last_error else "ok" for name, m in metrics.items()
    }


@pytest.mark.parametrize("processor", [FAILOVER, BALANCE], ids=["failover", "load_balance"])
def test_a_recovered_sink_is_not_failing_without_events(processor: SinkProcessorSpec) -> None:
    group = Group(processor)
    group.sinks["k2"].fails.add("open")
    group.runner.open()
    healthy = "standby" if processor is FAILOVER else "ok"
    assert states(group) == {"k1": "ok", "k2": "standby" if processor is FAILOVER else "failing", "k3": healthy}
    quickly(group)
    assert group.runner.members[1].metrics.last_error == "open failed"
    group.sinks["k2"].fails.clear()
    quickly(group)
    assert states(group) == {"k1": "ok", "k2": healthy, "k3": healthy}
    assert group.runner.members[1].metrics.last_error == ""


def test_a_failover_sink_that_another_one_replaces_is_a_standby() -> None:
    group = Group(FAILOVER)
    group.runner.draining.set()
    group.runner.open()
    group.sinks["k1"].fails.add("flush")
    group.put(b"1")
    group.turn_until_empty()
    assert states(group) == {"k1": "standby", "k2": "ok", "k3": "standby"}
    assert group.runner.members[0].metrics.standby_reason == "k2 delivers in its place"
    assert group.runner.members[0].metrics.last_error == "flush failed"
    for sink in group.sinks.values():
        sink.fails.add("flush")
    group.put(b"2")
    while group.runner.run_turn():
        pass
    assert set(states(group).values()) == {"failing"}, "no sink delivers"
    for sink in group.sinks.values():
        sink.fails.clear()
    group.turn_until_empty()
    assert states(group)["k1"] in ("ok", "standby")
    assert sorted(group.durable()) == [b"1", b"2"]
