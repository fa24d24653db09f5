"""The sink runner: committed is delivered, failed is offered again."""

import time
import types
from typing import ClassVar

import pytest

import flafka.channels.memory
from flafka.agent.runner.local.channels import ChannelRunner
from flafka.agent.runner.local.sinks import SinkRunner
from flafka.agent.services.running import until
from flafka.agent.topology import Place, SinkSpec
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
from tests.runner.pipelines import Letters, Record, Store, put


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


def test_after_a_failure_everything_since_the_last_flush_is_offered_again(pipeline):
    class Once(Store):
        """Fails at the second write."""

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


def test_a_sink_is_flushed_once_it_holds_so_many_bytes(pipeline, monkeypatch):
    class Late(Store):
        """Wants more than there will be."""

        type_name = "late"
        batch_size, flush_interval = 1 << 40, float(1 << 40)

    monkeypatch.setattr("flafka.agent.runner.delivery.HELD_BYTES", 5_000)
    sink, channel, _ = pipeline(Late)
    put(channel, b"1" * 10_000)
    until(lambda: channel.metrics.get("ChannelSize") == 0)
    assert sink.members[0].sink.durable == [b"1" * 10_000]


def test_a_committing_sink_whose_answer_was_lost_goes_on_behind_its_own_commit(pipeline):
    class Lossy(Record):
        """Commits, then fails to say so."""

        type_name = "lossy"
        commits: ClassVar = {}
        failures: ClassVar = [Retry("the answer was lost")]

    _, channel, _ = pipeline(Lossy)
    put(channel, b"1")
    until(lambda: channel.metrics.get("ChannelSize") == 0)
    put(channel, b"2")
    until(lambda: channel.metrics.get("ChannelSize") == 0)
    assert sorted(Lossy.commits.items()) == [(0, (1, [b"1"])), (1, (2, [b"2"]))]


@pytest.mark.parametrize("most", [flafka.channels.memory.MOST_TAKEN, 1000])
def test_a_sink_may_gather_more_than_its_channel_has_room_for(pipeline, monkeypatch, most):
    class Large(Record):
        """Commits when it is told to, and else when it has a thousand events."""

        type_name = "large"
        commits: ClassVar = {}
        failures: ClassVar = []

        def due(self):
            return {self.partition} if len(self.written) >= 1000 else set()

    monkeypatch.setattr(flafka.channels.memory, "MOST_TAKEN", most)
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


def test_a_stop_delivers_what_was_taken(pipeline):
    class Patient(Store):
        """Flushes only when told."""

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
    """An audit that keeps what it is told, and how much the channel held then."""

    def __init__(self, channel):
        self.channel, self.told, self.withdrawn = channel, [], []

    def taken(self, staged, by):
        held = self.channel.metrics.get("ChannelSize")
        ranges = [(receipt.offsets, minutes) for receipt, minutes in staged]
        self.told += [(offsets.start, offsets.end, minutes[0].events, held) for offsets, minutes in ranges]

    def withdraw(self, receipt, by):
        span = receipt.offsets.start, receipt.offsets.end
        self.told.remove(next(one for one in reversed(self.told) if one[:2] == span))
        self.withdrawn.append(span)


def test_the_audit_is_told_before_events_leave_the_channel_and_again_from_the_same_place(pipeline):
    class Fails(Store):
        """Its first flush fails; "bad" ones are dead letters, which are in the books."""

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
    first, second = books.told
    assert first[1] == second[0]
    assert [told[2:] for told in books.told] == [(2, 2), (1, 1)]


def test_a_commit_that_did_not_come_about_is_in_the_books_once(pipeline):
    class Refused(Record):
        """Its first commit is refused."""

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
    assert [told[2] for told in books.told] == [2]
    assert books.withdrawn == [books.told[0][:2]]


def test_a_commit_whose_answer_was_lost_is_in_the_books(pipeline):
    Record.commits, Record.failures = {}, [Retry("no answer")]
    channel = MemoryChannel(MemoryConfig(), "m")
    books = Books(channel)
    put(channel, b"1", b"2")
    pipeline(Record, channel, books)
    until(lambda: books.told)
    until(lambda: Record.commits)
    start, end, events, _ = books.told[-1]
    assert ([start], [end], events) == ([*Record.commits], [end for end, _ in Record.commits.values()], 2)


def test_a_flush_that_fails_while_partitions_go_has_the_others_taken_again():
    """Their events may be gone from the sink with those that could not be flushed."""

    class Away(Store):
        """Drops what it could not flush."""

        type_name = "away"

        def flush(self):
            self.written.clear()
            raise Retry("away")

    both = [assignment("cluster", "t", "id", "g", 0, partition, next_offset=5) for partition in (0, 1)]

    class Partitions(MemoryChannel):
        """Of two partitions; notes where it is to be taken from."""

        def reader(self, owner, *, group, member):
            def rewind(starts):
                self.rewound.append({one.partition: one.next_offset for one in starts})

            self.rewound = []
            owner.assigned(both)
            return types.SimpleNamespace(rewind=rewind, close=lambda: None, pressed=lambda: False)

    channel = Partitions(MemoryConfig(), "m")
    spec = SinkSpec("k", "a.sinks.k", Away, Config(), {}, Place("test.conf", 1), channel="m")
    runner = SinkRunner([spec], ChannelRunner("a.channels.m", "m", channel), Letters(), "host.a.k")
    runner.open()
    polled = [PolledBatch(one, OffsetRange(5, 6), Batch.of([Event(b"1")])) for one in both]
    runner.reader.take = lambda _: polled.pop() if polled else None
    runner.reader.lag = lambda: None
    for _ in range(2):
        assert runner.turn()
    runner.revoked({0})
    assert channel.rewound == [{1: 5}]
    assert not runner.ranges.waiting()
    runner.close()


@pytest.mark.parametrize("given", [[{"body": "x"}], [b"x"], PolledBatch(None, OffsetRange(0, 1), [Event(b"x")])])
def test_a_reader_that_hands_out_what_is_no_batch_is_named(pipeline, given):
    class Lists(MemoryChannel):
        def reader(self, owner, *, group, member):
            found = super().reader(owner, group=group, member=member)
            found.take = lambda _: given
            return found

    sink, _, _ = pipeline(Store, Lists(MemoryConfig(), "m"))
    until(lambda: sink.members[0].metrics.last_error)
    said = sink.members[0].metrics.last_error
    assert said.startswith("take() of ")
    assert said.endswith(f"must return None or a PolledBatch with a Batch, not {given!r:.60}")
