"""Sink runner: committed events are delivered, failed ones are redelivered."""

import time
import types
from typing import ClassVar

import pytest

import flafka.channels.memory
from flafka.agent.runner.local.channels import ChannelRunner
from flafka.agent.runner.local.sinks import SinkRunner
from flafka.agent.services.running import until
from flafka.agent.topology import ConfigLocation, SinkSpec
from flafka.channels.memory import MemoryChannel, MemoryConfig
from flafka.plugins import (
    Batch,
    Config,
    Event,
    NotCommitted,
    OffsetRange,
    PolledBatch,
    Retry,
)
from tests.fixtures.partitions import assignment
from tests.runner.pipelines import MemoryDeadLetters, Record, Store, put


def test_flushed_events_leave_the_channel(pipeline):
    sink, channel, _ = pipeline(Store)
    put(channel, b"1", b"2")
    until(lambda: channel.metrics.get("ChannelSize") == 0)
    assert sink.members[0].sink.durable == [b"1", b"2"]
    assert sink.members[0].metrics.get("EventDrainSuccessCount") == 2


@pytest.mark.parametrize("cls", [Store, Record])
def test_how_long_a_batch_takes_is_shown(pipeline, monkeypatch, cls):
    began = time.monotonic()
    monkeypatch.setattr("flafka.agent.monitoring.latency.time", types.SimpleNamespace(monotonic=lambda: began + 100))
    Record.commits, Record.failures = {}, []
    sink, channel, _ = pipeline(cls)
    metrics = sink.members[0].metrics
    assert "BatchMilliseconds" not in metrics.snapshot()
    put(channel, b"1", b"2")
    until(lambda: metrics.get("EventDrainSuccessCount") == 2)
    until(lambda: metrics.get("BatchMilliseconds"))
    assert 50_000 < metrics.get("BatchMilliseconds") <= 100_000


def test_after_a_failure_all_events_since_the_last_flush_are_redelivered(pipeline):
    class Once(Store):
        """Sink that fails at the second write."""

        type_name = "once"
        flush_interval = 30
        script = iter([None, Retry("away")])

    sink, channel, _ = pipeline(Once)
    put(channel, b"1")
    put(channel, b"2")
    put(channel, b"3")
    until(lambda: sink.members[0].sink.written == [b"1", b"2", b"3"])
    sink.stopping.set()
    sink.thread.join(60)
    assert sink.members[0].sink.durable == [b"1", b"2", b"3"]


def test_a_sink_is_flushed_after_a_limit_of_bytes(pipeline, monkeypatch):
    class Late(Store):
        """Sink that wants more events than there will be."""

        type_name = "late"
        batch_size, flush_interval = 1 << 40, float(1 << 40)

    monkeypatch.setattr("flafka.agent.runner.delivery.MAX_UNFLUSHED_BYTES", 5_000)
    sink, channel, _ = pipeline(Late)
    put(channel, b"1" * 10_000)
    until(lambda: channel.metrics.get("ChannelSize") == 0)
    assert sink.members[0].sink.durable == [b"1" * 10_000]


def test_a_committing_sink_resumes_after_its_own_commit_whose_reply_was_lost(pipeline):
    class Lossy(Record):
        """Sink that commits, and then raises."""

        type_name = "lossy"
        commits: ClassVar = {}
        failures: ClassVar = [Retry("the answer was lost")]

    _, channel, _ = pipeline(Lossy)
    put(channel, b"1")
    until(lambda: channel.metrics.get("ChannelSize") == 0)
    put(channel, b"2")
    until(lambda: channel.metrics.get("ChannelSize") == 0)
    assert sorted(Lossy.commits.items()) == [(0, (1, [b"1"])), (1, (2, [b"2"]))]


@pytest.mark.parametrize("most", [flafka.channels.memory.MAX_UNCOMMITTED_BYTES, 1000])
def test_a_sink_may_gather_more_than_the_capacity_of_its_channel(pipeline, monkeypatch, most):
    class Large(Record):
        """Sink that commits when asked, or with a thousand events."""

        type_name = "large"
        commits: ClassVar = {}
        failures: ClassVar = []

        def due_partitions(self):
            return {self.partition} if len(self.written) >= 1000 else set()

    monkeypatch.setattr(flafka.channels.memory, "MAX_UNCOMMITTED_BYTES", most)
    config, _ = MemoryConfig.parse({"capacity": "10"})
    _, channel, _ = pipeline(Large, MemoryChannel(config, "m"))
    for n in range(1000):
        put(channel, b"%d" % n)
    until(lambda: channel.metrics.get("ChannelSize") == 0 or most == 1000)
    files = [bodies for _, bodies in Large.commits.values()]
    if most == 1000:
        assert len(files) > 2, "what is held is limited"
    else:
        assert files == [[b"%d" % n for n in range(1000)]], "and else what the sink has in mind is what it gets"


def test_a_stop_delivers_taken_events(pipeline):
    class Patient(Store):
        """Sink that flushes only when asked."""

        type_name = "patient"
        flush_interval = 3600

    sink, channel, _ = pipeline(Patient)
    put(channel, b"1")
    until(lambda: sink.members[0].sink.written)
    sink.stopping.set()
    sink.thread.join(60)
    assert sink.members[0].sink.durable == [b"1"]
    assert channel.metrics.get("ChannelSize") == 0


class Books:
    """Audit that keeps its reports, and the size of the channel at each."""

    def __init__(self, channel):
        self.channel, self.reported, self.withdrawn = channel, [], []

    def taken(self, staged, by):
        held = self.channel.metrics.get("ChannelSize")
        ranges = [(receipt.offsets, minutes) for receipt, minutes in staged]
        self.reported += [(offsets.start, offsets.end, minutes[0].events, held) for offsets, minutes in ranges]

    def withdraw(self, receipt, by):
        span = receipt.offsets.start, receipt.offsets.end
        self.reported.remove(next(report for report in reversed(self.reported) if report[:2] == span))
        self.withdrawn.append(span)


def test_the_audit_gets_reports_before_events_leave_the_channel_and_again_from_the_same_offset(pipeline):
    class Fails(Store):
        """Sink whose first flush fails; "bad" events are dead letters, which the audit has."""

        type_name = "fails"
        flush_interval = 0

        def flush(self):
            if not self.durable:
                self.durable.append(b"")
                raise Retry("away", after=0.01)
            super().flush()

    channel = MemoryChannel(MemoryConfig(), "m")
    books = Books(channel)
    put(channel, b"1", b"bad")
    sink, *_ = pipeline(Fails, channel, books)
    until(lambda: channel.metrics.get("ChannelSize") == 0)
    put(channel, b"2")
    until(lambda: channel.metrics.get("ChannelSize") == 0)
    assert sink.members[0].sink.durable == [b"", b"1", b"2"]
    first, second = books.reported
    assert first[1] == second[0]
    assert [reported[2:] for reported in books.reported] == [(2, 2), (1, 1)]


def test_a_failed_commit_counts_once_in_the_audit(pipeline):
    class Refused(Record):
        """Sink whose first commit is refused."""

        refusals: ClassVar[list[Exception]] = [NotCommitted("refused", after=0.01)]

        def commit(self, receipt):
            if self.refusals:
                raise self.refusals.pop()
            super().commit(receipt)

    Record.commits, Record.failures = {}, []
    channel = MemoryChannel(MemoryConfig(), "m")
    books = Books(channel)
    put(channel, b"1", b"2")
    pipeline(Refused, channel, books)
    until(lambda: Record.commits)
    assert [reported[2] for reported in books.reported] == [2]
    assert books.withdrawn == [books.reported[0][:2]]


def test_a_commit_whose_reply_was_lost_counts_in_the_audit(pipeline):
    Record.commits, Record.failures = {}, [Retry("no answer")]
    channel = MemoryChannel(MemoryConfig(), "m")
    books = Books(channel)
    put(channel, b"1", b"2")
    pipeline(Record, channel, books)
    until(lambda: books.reported)
    until(lambda: Record.commits)
    start, end, events, _ = books.reported[-1]
    assert ([start], [end], events) == ([*Record.commits], [end for end, _ in Record.commits.values()], 2)


def test_a_flush_that_fails_while_partitions_are_revoked_redelivers_the_others():
    """Events of the other partitions may have left the sink with the ones that could not be flushed."""

    class Away(Store):
        """Sink that drops events after a failed flush."""

        type_name = "away"

        def flush(self):
            self.written.clear()
            raise Retry("away")

    assignments = [assignment("cluster", "t", "id", "g", 0, partition, next_offset=5) for partition in (0, 1)]

    class Partitions(MemoryChannel):
        """Channel of two partitions that records its rewinds."""

        def reader(self, owner, *, group, member):
            def rewind(starts):
                self.rewound.append({start.partition: start.next_offset for start in starts})

            self.rewound = []
            owner.assigned(assignments)
            return types.SimpleNamespace(rewind=rewind, close=lambda: None, pressed=lambda: False)

    channel = Partitions(MemoryConfig(), "m")
    spec = SinkSpec("k", "a.sinks.k", Away, Config(), {}, ConfigLocation("test.conf", 1), channel="m")
    runner = SinkRunner([spec], ChannelRunner("a.channels.m", "m", channel), MemoryDeadLetters(), "host.a.k")
    runner.open()
    polled = [PolledBatch(assigned, OffsetRange(5, 6), Batch.of([Event(b"1")])) for assigned in assignments]
    runner.reader.take = lambda _: polled.pop() if polled else None
    runner.reader.lag = lambda: None
    for _ in range(2):
        assert runner.run_turn()
    runner.revoked({0})
    assert channel.rewound == [{1: 5}]
    assert not runner.ranges.uncommitted()
    runner.close()


@pytest.mark.parametrize("given", [[{"body": "x"}], [b"x"], PolledBatch(None, OffsetRange(0, 1), [Event(b"x")])])
def test_a_reader_that_returns_no_batch_is_named(pipeline, given):
    class Lists(MemoryChannel):
        def reader(self, owner, *, group, member):
            reader = super().reader(owner, group=group, member=member)
            reader.take = lambda _: given
            return reader

    sink, _, _ = pipeline(Store, Lists(MemoryConfig(), "m"))
    until(lambda: sink.members[0].metrics.last_error)
    error = sink.members[0].metrics.last_error
    assert error.startswith("take() of ")
    assert error.endswith(f"must return None or a PolledBatch with a Batch, not {given!r:.60}")
