"""Rejections of sinks: each rejected event is one dead letter, and the rest is delivered."""

import threading
from typing import ClassVar

import pytest

from flafka.agent.runner.delivery import EMPTY_RANGE_SECONDS
from flafka.agent.services.running import until
from flafka.plugins import (
    Config,
    Event,
    EventId,
    Interceptor,
    Rejected,
    Retry,
)
from tests.runner.pipelines import MemoryDeadLetters, Record, Store, put


def test_rejected_events_become_dead_letters_and_the_others_are_delivered(pipeline):
    sink, channel, letters = pipeline(Store)
    put(channel, b"1", b"bad", b"2")
    until(lambda: channel.metrics.get("ChannelSize") == 0)
    assert sink.members[0].sink.durable == [b"1", b"2"]
    assert [(letter.event.body, letter.reason, letter.id.index) for letter in letters] == [(b"bad", "not wanted", 1)]
    assert sink.members[0].metrics.get("EventDrainSuccessCount") == 2
    assert sink.members[0].metrics.get("EventRejectedCount") == 1


class Refuse(Interceptor[Config]):
    """Interceptor that rejects bad events, after it has changed them."""

    type_name = "refuse"

    def intercept(self, batch):
        changed = batch.with_header("seen", "yes")
        return self.reject(changed, {row: "it is bad" for row, event in enumerate(batch) if event.body == b"bad"})


def test_an_event_rejected_by_a_sinks_interceptor_is_a_dead_letter_as_in_the_channel(pipeline):
    sink, channel, letters = pipeline(Store, interceptors=[Refuse])
    put(channel, b"1", b"bad", b"2")
    until(lambda: channel.metrics.get("ChannelSize") == 0)
    member = sink.members[0]
    assert member.sink.durable == [b"1", b"2"]
    assert [(letter.component, letter.event, letter.reason) for letter in letters] == [
        ("a.sinks.k", Event(b"bad"), "it is bad"),
    ]
    assert letters[0].id is not None
    assert (member.metrics.get("EventRejectedCount"), member.metrics.get("EventFilteredCount")) == (1, 0)


def test_events_rejected_by_a_flush_are_dead_letters_and_not_counted_as_delivered(pipeline):
    class Late(Store):
        """Sink that learns only at the flush of its store's refusals."""

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


class Strict(Store):
    """Sink whose store refuses `bad` until it is repaired; learns of it at the flush."""

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


def test_a_sink_whose_store_refuses_nearly_everything_pauses_and_resumes_by_itself(pipeline, caplog):
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


def test_events_rejected_by_a_committing_sink_are_one_dead_letter_after_redeliveries(pipeline):
    class Picky(Record):
        """Sink that rejects, and fails to commit at first."""

        type_name = "picky"
        commits: ClassVar = {}
        failures: ClassVar = []
        away: ClassVar = [Retry("away"), Retry("away")]

        def write(self, batch):
            self.partition = batch.origin.partition
            self.written += [event.body for event in batch if event.body != b"bad"]
            raise Rejected({batch.id(row): "not wanted" for row, event in enumerate(batch) if event.body == b"bad"})

        def commit(self, receipt):
            if self.away:
                raise self.away.pop()
            super().commit(receipt)

    sink, channel, letters = pipeline(Picky)
    put(channel, b"1", b"bad", b"2")
    until(lambda: channel.metrics.get("ChannelSize") == 0)
    assert [written for _, written in Picky.commits.values()] == [[b"1", b"2"]]
    assert [letter.event.body for letter in letters] == [b"bad"]
    assert sink.members[0].metrics.get("EventRejectedCount") == 1


class Rejecting(Record):
    """Sink that rejects bad events when they are written."""

    def write(self, batch):
        self.partition = batch.origin.partition
        self.written += [event.body for event in batch if event.body != b"bad"]
        rejected = {batch.id(row): "not wanted" for row, event in enumerate(batch) if event.body == b"bad"}
        if rejected:
            raise Rejected(rejected)


def test_nothing_is_committed_while_dead_letters_cannot_be_stored(pipeline, monkeypatch):
    class Awkward(Rejecting):
        type_name = "awkward"
        commits: ClassVar = {}
        failures: ClassVar = []

    failures = [Retry("away"), Retry("away")]
    real = MemoryDeadLetters.put

    def put_at_last(letters, new):
        assert not Awkward.commits
        if failures:
            raise failures.pop()
        real(letters, new)

    monkeypatch.setattr(MemoryDeadLetters, "put", put_at_last)
    sink, channel, letters = pipeline(Awkward)
    put(channel, b"1", b"bad", b"2")
    until(lambda: channel.metrics.get("ChannelSize") == 0)
    assert not failures
    put(channel, b"3")
    until(lambda: channel.metrics.get("ChannelSize") == 0)
    assert [letter.event.body for letter in letters] == [b"bad"]
    assert [written for _, written in Awkward.commits.values()] == [[b"1", b"2"], [b"3"]]
    assert sink.members[0].metrics.get("EventRejectedCount") == 1


def test_events_that_are_all_rejected_are_dead_letters_before_a_file_would_be_closed(pipeline):
    class Holding(Rejecting):
        """Sink that wants no commit, as one whose file is open for an hour."""

        type_name = "holding"
        commits: ClassVar = {}
        failures: ClassVar = []

        def due_partitions(self):
            return set()

    sink, channel, letters = pipeline(Holding)
    put(channel, b"bad")
    until(lambda: letters, seconds=EMPTY_RANGE_SECONDS / 2)
    until(lambda: channel.metrics.get("ChannelSize") == 0)
    assert sink.members[0].metrics.get("EventRejectedCount") == 1


class Slow(Store):
    """Sink that learns of its store's refusals at the next write."""

    type_name = "slow"
    flush_interval = float(1 << 40)

    def write(self, batch):
        refused, self.refused = getattr(self, "refused", {}), {batch.id(0): "not wanted"}
        self.written += [event.body for event in batch]
        if refused:
            raise Rejected(refused)

    def flush(self):
        refused, self.refused = self.refused, {}
        super().flush()
        if refused:
            raise Rejected(refused)


def test_refused_events_of_an_earlier_write_are_dead_letters(pipeline):
    sink, channel, letters = pipeline(Slow)
    for body in (b"1", b"2"):
        put(channel, body)
        until(lambda body=body: body in sink.members[0].sink.written)
    sink.stopping.set()
    sink.thread.join(60)
    assert [letter.event.body for letter in letters] == [b"1", b"2"]
    assert sink.members[0].metrics.get("FailureCount") == 0


def test_refused_events_of_a_lost_partition_belong_to_its_next_owner(pipeline):
    sink, channel, letters = pipeline(Slow)
    put(channel, b"1")
    until(lambda: sink.members[0].sink.written)
    sink.members[0].delivery.lost(set(sink.ranges))
    put(channel, b"2")
    until(lambda: b"2" in sink.members[0].sink.written)
    sink.stopping.set()
    sink.thread.join(60)
    assert [letter.event.body for letter in letters] == [b"2"]
    assert sink.members[0].metrics.get("FailureCount") == 0


class Mistaken(Store):
    """Sink that rejects by an id of its own making, as if rows were counted across batches."""

    def write(self, batch):
        origin = batch.origin
        raise Rejected({EventId(origin.topic, origin.partition, 10_000, 0): "it is wrong"})


def test_rejections_by_unknown_ids_lose_no_events(pipeline):
    sink, channel, letters = pipeline(Mistaken)
    put(channel, b"a", b"b")
    until(lambda: sink.members[0].metrics.last_error)
    error = sink.members[0].metrics.last_error
    assert "test_sinks_rejections.Mistaken" in error
    assert "rejects events that it did not get" in error
    assert letters == []
    assert channel.metrics.get("ChannelSize") == 2


@pytest.mark.parametrize("wrong", ["it is wrong", {0: "it is wrong"}, {EventId("t", 0, 0, 0): None}])
def test_a_rejection_names_events_by_their_ids(wrong):
    with pytest.raises(TypeError, match=r"\{batch.id\(row\): a sentence"):
        Rejected(wrong)
