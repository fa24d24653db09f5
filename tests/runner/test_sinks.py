"""The sink runner: committed is delivered, failed is offered again, rejected is kept."""

import threading
import time
import types
from collections.abc import Iterator
from typing import ClassVar

import pytest

import channels.memory
from agent.runner.local.channels import ChannelRunner
from agent.runner.local.sinks import SinkRunner
from agent.services.running import until
from agent.topology import ComponentSpec, Place, SinkSpec
from channels.memory import MemoryChannel, MemoryConfig
from plugins import (
    Batch,
    CommittingSink,
    Config,
    Conflict,
    Event,
    EventId,
    Interceptor,
    PartitionClaim,
    Receipt,
    Rejected,
    Resumed,
    Retry,
    Sink,
    Taken,
)


class Store(Sink[Config]):
    """Keeps what was flushed; does what it is told to on the way."""

    type_name = "store"
    flush_interval = 0.05
    script: Iterator[Exception | None] = iter(())

    def __init__(self, config, name=""):
        super().__init__(config, name)
        self.written: list[bytes] = []
        self.durable: list[bytes] = []

    def write(self, batch):
        failure = next(self.script, None)
        if isinstance(failure, Exception) and not isinstance(failure, Rejected):
            raise failure
        rejected = {batch.id(row): "not wanted" for row, event in enumerate(batch) if event.body == b"bad"}
        self.written += [event.body for event in batch if event.body != b"bad"]
        if rejected:
            raise Rejected(rejected)

    def flush(self):
        self.durable += self.written
        self.written.clear()

    def reset(self):
        self.written.clear()


class Record(CommittingSink[Config]):
    """Exactly once, in memory: its record outlives the instance, as HDFS does."""

    type_name = "record"
    commits: ClassVar[dict[int, tuple[int, list[bytes]]]]
    failures: ClassVar[list[Exception]]
    note: ClassVar[bytes] = b""

    def __init__(self, config, name=""):
        super().__init__(config, name)
        self.written: list[bytes] = []

    def resume(self, claim, committed):
        position = max((end for end, _ in self.commits.values()), default=committed)
        return Resumed(claim, position, (self.note,) if self.note else ())

    def write(self, batch):
        self.partition = batch.origin.partition
        self.written += batch.bodies.to_pylist()

    def due(self):
        return {self.partition} if self.written else set()

    def stage(self, claim, start, end, note=b""):
        return Receipt(claim, start, end, len(self.written), (list(self.written), note))

    def commit(self, receipt):
        if receipt.start in self.commits:
            raise Conflict("someone was here before")
        written, note = receipt.staged
        self.commits[receipt.start] = (receipt.end, written)
        type(self).note = note
        self.written.clear()
        if self.failures:
            raise self.failures.pop()

    def noted(self, claim):
        type(self).note = b""

    def reset(self, partition=None):
        self.written.clear()


class Letters(list):
    def put(self, letters):
        self.extend(letters)

    def close(self):
        pass


@pytest.fixture
def pipeline():
    """Starts a sink on a memory channel; stops it afterwards."""
    started = []

    def start(cls, channel=None, audit=None, interceptors=()):
        channel = channel or MemoryChannel(MemoryConfig(), "m")
        runner = ChannelRunner("a.channels.m", "m", channel, audit)
        runner.ready.set()
        letters = Letters()
        place = Place("test.conf", 1)
        made = tuple(ComponentSpec(one.type_name, "i", one, Config(), {}, place) for one in interceptors)
        spec = SinkSpec("k", "a.sinks.k", cls, Config(), {}, place, channel="m", interceptors=made)
        sink = SinkRunner([spec], runner, letters, "host.a.k")
        sink.thread.start()
        started.append(sink)
        return sink, channel, letters

    yield start
    for sink in started:
        sink.stopping.set()
        sink.thread.join(60)
        assert not sink.thread.is_alive()


def put(channel, *bodies: bytes) -> None:
    channel.put(Batch.of([Event(body) for body in bodies]))


def test_flushed_events_leave_the_channel(pipeline):
    sink, channel, _ = pipeline(Store)
    put(channel, b"1", b"2")
    until(lambda: channel.metrics.get("ChannelSize") == 0)
    assert sink.members[0].sink.durable == [b"1", b"2"]
    assert sink.members[0].metrics.get("EventDrainSuccessCount") == 2


@pytest.mark.parametrize("cls", [Store, Record])
def test_how_long_a_batch_takes_is_shown(pipeline, monkeypatch, cls):
    began = time.monotonic()
    monkeypatch.setattr("agent.runner.latency.time", types.SimpleNamespace(monotonic=lambda: began + 100))
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


def test_rejected_events_are_kept_and_the_rest_is_delivered(pipeline):
    sink, channel, letters = pipeline(Store)
    put(channel, b"1", b"bad", b"2")
    until(lambda: channel.metrics.get("ChannelSize") == 0)
    assert sink.members[0].sink.durable == [b"1", b"2"]
    assert [(letter.event.body, letter.reason, letter.id.index) for letter in letters] == [(b"bad", "not wanted", 1)]
    assert sink.members[0].metrics.get("EventDrainSuccessCount") == 2
    assert sink.members[0].metrics.get("EventRejectedCount") == 1


class Refuse(Interceptor[Config]):
    """Rejects what is bad, after it has changed it."""

    type_name = "refuse"

    def intercept(self, batch):
        changed = batch.with_header("seen", "yes")
        return self.reject(changed, {row: "it is bad" for row, one in enumerate(batch) if one.body == b"bad"})


def test_what_a_sinks_interceptor_rejects_is_a_letter_as_the_channel_has_the_event(pipeline):
    sink, channel, letters = pipeline(Store, interceptors=[Refuse])
    put(channel, b"1", b"bad", b"2")
    until(lambda: channel.metrics.get("ChannelSize") == 0)
    member = sink.members[0]
    assert member.sink.durable == [b"1", b"2"]
    assert [(one.component, one.event, one.reason) for one in letters] == [
        ("a.sinks.k", Event(b"bad"), "it is bad"),
    ]
    assert letters[0].id is not None
    assert (member.metrics.get("EventRejectedCount"), member.metrics.get("EventFilteredCount")) == (1, 0)


def test_what_a_flush_rejects_is_a_dead_letter_and_not_counted_as_delivered(pipeline):
    class Late(Store):
        """Learns at the flush only what its store refuses."""

        type_name = "late"

        def write(self, batch):
            self.batch = batch

        def flush(self):
            raise Rejected({self.batch.id(0): "not wanted"})

    sink, channel, letters = pipeline(Late)
    put(channel, b"bad", b"1", b"2")
    until(lambda: channel.metrics.get("ChannelSize") == 0)
    assert [letter.event.body for letter in letters] == [b"bad"]
    assert sink.members[0].metrics.get("EventDrainSuccessCount") == 2
    assert sink.members[0].metrics.get("EventRejectedCount") == 1


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


@pytest.mark.parametrize("most", [channels.memory.MOST_TAKEN, 1000])
def test_a_sink_may_gather_more_than_its_channel_has_room_for(pipeline, monkeypatch, most):
    class Large(Record):
        """Commits when it is told to, and else when it has a thousand events."""

        type_name = "large"
        commits: ClassVar = {}
        failures: ClassVar = []

        def due(self):
            return {self.partition} if len(self.written) >= 1000 else set()

    monkeypatch.setattr(channels.memory, "MOST_TAKEN", most)
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
        self.channel, self.told = channel, []

    def taken(self, ranges):
        held = self.channel.metrics.get("ChannelSize")
        self.told += [(start, end, minutes[0].events, held) for _, start, end, minutes in ranges]


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


class Strict(Store):
    """Its store knows no `bad` until it is mended; learns at the flush what it refuses."""

    type_name = "strict"

    def __init__(self, config, name=""):
        super().__init__(config, name)
        self.mended = threading.Event()
        self.offered: list[list[bytes]] = []

    def write(self, batch):
        self.written.append(batch)

    def flush(self):
        batches, self.written = self.written, []
        self.offered.append([event.body for batch in batches for event in batch])
        rejected = {}
        for batch in batches:
            bad = {batch.id(row): "no such field" for row, event in enumerate(batch) if event.body == b"bad"}
            rejected |= {} if self.mended.is_set() else bad
            self.durable += [event.body for row, event in enumerate(batch) if batch.id(row) not in rejected]
        if rejected:
            raise Rejected(rejected)


def test_a_sink_whose_store_refuses_nearly_everything_pauses_and_goes_on_by_itself(pipeline, caplog):
    sink, channel, letters = pipeline(Strict)
    put(channel, *[b"bad"] * 5_000)
    until(lambda: sink.members[0].metrics.get("FailureCount") >= 2)
    assert sink.members[0].metrics.last_error.startswith("paused: 5,000 of the latest 5,000 events were rejected")
    assert caplog.text.count("paused: ") == 1
    assert sink.members[0].sink.offered[0] == [b"bad"] * 5_000
    assert sink.members[0].sink.offered[1] == [b"bad"] * 100
    assert channel.metrics.get("ChannelSize") == 5_000
    sink.members[0].sink.mended.set()
    until(lambda: channel.metrics.get("ChannelSize") == 0)
    until(lambda: not sink.members[0].metrics.last_error)
    assert letters == []
    assert sink.members[0].sink.durable == [b"bad"] * 5_000
    assert sink.members[0].metrics.get("EventDrainSuccessCount") == 5_000
    assert sink.members[0].metrics.get("EventRejectedCount") == 0


def test_what_a_committing_sink_rejects_is_a_letter_once_however_often_it_is_offered(pipeline):
    class Picky(Record):
        """Rejects, and fails to commit at first."""

        type_name = "picky"
        commits: ClassVar = {}
        failures: ClassVar = []
        away: ClassVar = [Retry("away"), Retry("away")]

        def write(self, batch):
            self.partition = batch.origin.partition
            self.written += [event.body for event in batch if event.body != b"bad"]
            raise Rejected({batch.id(row): "not wanted" for row, event in enumerate(batch) if event.body == b"bad"})

        def stage(self, claim, start, end, note=b""):
            if self.away:
                raise self.away.pop()
            return super().stage(claim, start, end, note)

    sink, channel, letters = pipeline(Picky)
    put(channel, b"1", b"bad", b"2")
    until(lambda: channel.metrics.get("ChannelSize") == 0)
    assert [written for _, written in Picky.commits.values()] == [[b"1", b"2"]]
    assert [letter.event.body for letter in letters] == [b"bad"]
    assert sink.members[0].metrics.get("EventRejectedCount") == 1


class Rejecting(Record):
    """Rejects what is bad, when it is written."""

    def write(self, batch):
        self.partition = batch.origin.partition
        self.written += [event.body for event in batch if event.body != b"bad"]
        rejected = {batch.id(row): "not wanted" for row, event in enumerate(batch) if event.body == b"bad"}
        if rejected:
            raise Rejected(rejected)


def test_the_letters_of_a_commit_outlive_a_crash_before_they_are_kept(pipeline, monkeypatch):
    class Noting(Rejecting):
        type_name = "noting"
        commits: ClassVar = {}
        failures: ClassVar = []

    tried = []

    def away(letters, new):
        tried.extend(new)
        raise Retry("nowhere to keep letters")

    with monkeypatch.context() as patch:
        patch.setattr(Letters, "put", away)
        sink, channel, letters = pipeline(Noting)
        put(channel, b"1", b"bad", b"2")
        until(lambda: len(tried) > 1)
        assert [written for _, written in Noting.commits.values()] == [[b"1", b"2"]]
        assert sink.notes, "they are tried again"
        sink.stopping.set()
        sink.thread.join(60)
    assert len({letter.name for letter in tried}) == 1
    assert not letters
    assert Noting.note
    sink, channel, letters = pipeline(Noting)
    put(channel, b"3")
    until(lambda: letters)
    until(lambda: not Noting.note)
    assert [(letter.event.body, letter.name) for letter in letters] == [(b"bad", tried[0].name)]


def test_letters_that_cannot_be_kept_at_first_are_kept_once_and_before_the_next_commit(pipeline, monkeypatch):
    class Awkward(Rejecting):
        type_name = "awkward"
        commits: ClassVar = {}
        failures: ClassVar = []

    failures = [Retry("away"), Retry("away")]
    real = Letters.put

    def put_at_last(letters, new):
        if failures:
            raise failures.pop()
        assert len(Awkward.commits) == 1, "the next commit would do away with the only copy"
        real(letters, new)

    monkeypatch.setattr(Letters, "put", put_at_last)
    sink, channel, letters = pipeline(Awkward)
    put(channel, b"1", b"bad", b"2")
    until(lambda: letters)
    until(lambda: channel.metrics.get("ChannelSize") == 0)
    put(channel, b"3")
    until(lambda: channel.metrics.get("ChannelSize") == 0)
    assert [letter.event.body for letter in letters] == [b"bad"]
    assert [written for _, written in Awkward.commits.values()] == [[b"1", b"2"], [b"3"]]
    assert not Awkward.note
    assert sink.members[0].metrics.get("EventRejectedCount") == 1


def test_a_flush_that_fails_while_partitions_go_has_the_others_taken_again():
    """Their events may be gone from the sink with those that could not be flushed."""

    class Away(Store):
        """Drops what it could not flush."""

        type_name = "away"

        def flush(self):
            self.written.clear()
            raise Retry("away")

    class Partitions(MemoryChannel):
        """Of two partitions; notes where it is to be taken from."""

        def reader(self, owner, *, group, member):
            self.rewound = []
            claims = [PartitionClaim("cluster", "t", "id", "g", 0, partition) for partition in (0, 1)]
            owner.assigned(dict.fromkeys(claims, 5))
            return types.SimpleNamespace(rewind=self.rewound.append, close=lambda: None, pressed=lambda: False)

    channel = Partitions(MemoryConfig(), "m")
    spec = SinkSpec("k", "a.sinks.k", Away, Config(), {}, Place("test.conf", 1), channel="m")
    runner = SinkRunner([spec], ChannelRunner("a.channels.m", "m", channel), Letters(), "host.a.k")
    runner.open()
    taken = [Taken(partition, 5, 6, Batch.of([Event(b"1")])) for partition in (0, 1)]
    runner.reader.take = lambda _: taken.pop() if taken else None
    runner.reader.lag = lambda: None
    for _ in range(2):
        assert runner.turn()
    runner.revoked({0})
    assert channel.rewound == [{1: 5}]
    assert not runner.ranges.waiting()
    runner.close()


@pytest.mark.parametrize("given", [[{"body": "x"}], [b"x"], Taken(0, 0, 1, [Event(b"x")])])
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
    assert said.endswith(f"must return None or a Taken with a Batch, not {given!r:.60}")


class Mistaken(Store):
    """Rejects by an id of its own making, as if rows were counted across batches."""

    def write(self, batch):
        origin = batch.origin
        raise Rejected({EventId(origin.topic, origin.partition, 10_000, 0): "it is wrong"})


def test_events_that_a_sink_rejects_by_ids_it_did_not_get_are_not_lost(pipeline):
    sink, channel, letters = pipeline(Mistaken)
    put(channel, b"a", b"b")
    until(lambda: sink.members[0].metrics.last_error)
    said = sink.members[0].metrics.last_error
    assert "test_sinks.Mistaken" in said
    assert "rejects events that it did not get" in said
    assert letters == []
    assert channel.metrics.get("ChannelSize") == 2


@pytest.mark.parametrize("wrong", ["it is wrong", {0: "it is wrong"}, {EventId("t", 0, 0, 0): None}])
def test_a_rejection_names_events_by_their_ids(wrong):
    with pytest.raises(TypeError, match=r"\{batch.id\(row\): a sentence"):
        Rejected(wrong)
