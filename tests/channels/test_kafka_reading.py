"""Reading half of the Kafka channel by itself; tests/system has the channel with real brokers."""

import logging
import threading
import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from flafka.agent.services.running import until
from flafka.channels.kafka.consumer import KafkaReader
from flafka.channels.kafka.records import decode
from flafka.plugins import FlafkaError, Metrics, Retry
from flafka.plugins.kafka.offsets import OffsetMetadata
from tests.fixtures.partitions import assignment


class RebalanceListener:
    """Listener that starts partitions at a certain offset."""

    def __init__(self, start):
        self.start, self.assigned_partitions, self.committed = start, [], {}

    def assigned(self, committed):
        self.assigned_partitions.append({assignment.partition for assignment in committed})
        self.committed.update({assignment.partition: assignment for assignment in committed})
        return [assignment.with_offset(self.start) for assignment in committed]

    def revoked(self, partitions):
        pass

    lost = revoked


class Ids:
    """Topic id of the brokers; where `held`, returned on request."""

    def __init__(self, *, held=False):
        self.now, self.held, self.waiting = "first", held, []

    def get(self):
        return self.now

    def unassigned_partitions(self, group):
        return frozenset()

    def request(self, answer):
        if self.held:
            self.waiting.append(answer)
        else:
            answer(self.now)

    def answer(self, topic_id):
        until(lambda: self.waiting)
        self.waiting.pop()(topic_id)


def reading(brokers, topic, owner, ids=None):
    # These brokers admit nobody to a group that had members before this time is over.
    session = {"session.timeout.ms": 2000, "heartbeat.interval.ms": 500}
    return KafkaReader(
        {"bootstrap.servers": brokers, "group.id": topic, "log_level": 0, **session},
        assignment("cluster", topic, "", topic, 0, -1),
        owner,
        Metrics(),
        lambda records, of: decode(records, of, parse_as_flume_event=False),
        ids or Ids(),
        logging.getLogger("a1.channels.c1"),
    )


def numbered(brokers, topic, numbers):
    producer = Producer({"bootstrap.servers": brokers, "log_level": 0})
    for number in numbers:
        producer.produce(topic, b"%d" % number, partition=0)
    assert not producer.flush(180)


def bodies(consumer, count):
    """Return this many events, as they are taken."""
    events = []

    def enough():
        polled = consumer.take(1)
        events.extend(polled.batch.bodies.to_pylist() if polled is not None else ())
        return len(events) >= count

    until(enough)
    return events


def unconfirmed(consumer):
    return len(consumer._fetched._confirming) + len(consumer._fetched._unconfirmed)


def waiting(consumer, ids):
    """Take until the fetched records wait for the brokers' answer."""

    def fetched():
        assert consumer.take(0.01) is None, "handed out before it was known of which topic it is"
        return ids.waiting and unconfirmed(consumer)

    until(fetched)


def offsets_of(brokers, group, topic):
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": group, "log_level": 0})
    (committed,) = consumer.committed([TopicPartition(topic, 0)], 180)
    consumer.close()
    return committed.offset, OffsetMetadata.parse(committed.metadata)


def commit_to(brokers, group, topic, offset, metadata):
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": group, "log_level": 0})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset, metadata)], asynchronous=False)
    consumer.close()


def test_records_wait_until_the_brokers_confirm_the_topic_id(brokers):
    numbered(brokers, "confirmed", range(10))
    ids = Ids(held=True)
    consumer = reading(brokers, "confirmed", RebalanceListener(start=None), ids)
    try:
        waiting(consumer, ids)
        numbered(brokers, "confirmed", range(10, 20))
        until(lambda: unconfirmed(consumer) == 20)
        assert len(ids.waiting) == 1, "one request at a time, for all that waits"
        ids.answer(None)  # no broker answered: the next request loses and reorders nothing
        waiting(consumer, ids)
        ids.held = False
        ids.answer("first")
        assert bodies(consumer, 20) == [b"%d" % number for number in range(20)]
    finally:
        consumer.close()


def test_a_rewind_drops_unconfirmed_records(brokers):
    numbered(brokers, "rewound", range(10))
    ids = Ids(held=True)
    consumer = reading(brokers, "rewound", RebalanceListener(start=None), ids)
    try:
        waiting(consumer, ids)
        consumer.rewind([consumer._fetched.assignments[0].with_offset(4)])
        ids.held = False
        ids.answer("first")
        assert bodies(consumer, 6) == [b"%d" % number for number in range(4, 10)]
    finally:
        consumer.close()


def test_records_of_a_recreated_topic_are_not_mistaken_for_the_old_ones(brokers):
    numbered(brokers, "again", range(10))
    ids = Ids(held=True)
    consumer = reading(brokers, "again", RebalanceListener(start=None), ids)
    try:
        waiting(consumer, ids)
        until(lambda: sum(consumer._ends.values()) == 10, seconds=10)
        ids.answer("second")
        with pytest.raises(Retry, match=r"topic again was deleted and recreated.* 10 records"):
            until(lambda: consumer.take(1))
        assert consumer._metrics.get("TopicRecreatedCount") == 1
        assert consumer._metrics.get("RecordLostCount") == 10
    finally:
        consumer.close()


def test_no_loss_is_reported_for_a_topic_that_is_recreated_meanwhile(brokers):
    numbered(brokers, "given-up", range(10))

    class MadeAgain(Ids):
        """Topic id that changes once the reader has asked twice: at the assignment and at the error."""

        reads = 0

        def get(self):
            self.reads += 1
            return "first" if self.reads <= 2 else "second"

    consumer = reading(brokers, "given-up", RebalanceListener(start=50), MadeAgain())
    try:
        with pytest.raises(Retry, match="topic given-up was deleted and recreated"):
            until(lambda: consumer.take(1))
    finally:
        consumer.close()


def test_a_group_begins_in_the_generation_that_it_commits(brokers):
    numbered(brokers, "begins", range(10))

    class Further(RebalanceListener):
        """Owner whose own commit log has the next offset of partition 0."""

        def assigned(self, committed):
            super().assigned(committed)
            return [assignment.with_offset(None if assignment.partition else 3) for assignment in committed]

    owner = Further(start=None)
    consumer = reading(brokers, "begins", owner)
    try:
        assert bodies(consumer, 7)[0] == b"3"
    finally:
        consumer.close()
    committed = owner.committed[0]
    assert committed == assignment("cluster", "begins", "first", "begins", 0, 0)
    assert offsets_of(brokers, "begins", "begins") == (3, OffsetMetadata.of(committed))


def test_a_reader_reports_its_last_record_and_commits_only_the_leader_epoch(brokers):
    numbered(brokers, "last", range(10))
    consumer = reading(brokers, "last", RebalanceListener(start=None))
    try:
        polled = None
        while polled is None:
            polled = consumer.take(1)
        end, last = polled.offsets.end, polled.last_record
        assert min(last) >= 0
        consumer.commit([polled.assignment.with_offset(end, last)])
    finally:
        consumer.close()
    assert offsets_of(brokers, "last", "last") == (end, OffsetMetadata.of(polled.assignment.with_offset(end)))


@pytest.mark.parametrize(
    ("metadata", "first", "ids", "epoch"),
    [
        ("", b"4", 2, 0),  # Flume's
        ("epoch=7&topic=first&ids=2", b"4", 2, 7),
        ("epoch=7&topic=another&ids=2", b"0", 2, 0),  # of a former topic of that name
    ],
)
def test_a_group_resumes_at_its_committed_offset_of_this_topic_id(brokers, metadata, first, ids, epoch):
    topic = f"stands-{ids}-{epoch}-{first.decode()}"
    numbered(brokers, topic, range(10))
    commit_to(brokers, topic, topic, 4, metadata)

    class Here(RebalanceListener):
        def assigned(self, committed):
            super().assigned(committed)
            return committed

    owner = Here(start=None)
    consumer = reading(brokers, topic, owner)
    try:
        assert bodies(consumer, 6)[0] == first
    finally:
        consumer.close()
    committed = owner.committed[0]
    assert committed.topic_partition.topic_id == "first"
    assert (committed.generation.id_scheme, committed.generation.epoch) == (ids, epoch)


def test_nothing_is_read_before_a_busy_sink_has_set_the_offset(brokers, monkeypatch):
    monkeypatch.setattr("flafka.channels.kafka.consumer.REBALANCE_SECONDS", 0.1)
    producer = Producer({"bootstrap.servers": brokers, "log_level": 0})
    for number in range(10):
        producer.produce("busy", b"%d" % number, partition=0)
    assert not producer.flush(180)
    consumer = reading(brokers, "busy", RebalanceListener(start=5))
    try:
        until(lambda: consumer.error or consumer._fetched.assignments)  # the sink is busy, and takes nothing
        polled = []
        with pytest.raises(Retry, match="its sink was busy"):
            until(lambda: polled.append(consumer.take(1)) or polled[-1] is not None)
        assert set(polled) <= {None}
    finally:
        consumer.close()


@pytest.mark.parametrize("metadata", ["epoch=7", "topic=first&ids=2&version=2"])
def test_a_group_with_an_unreadable_offset_does_not_move(brokers, metadata):
    topic = f"unreadable-{metadata.partition('=')[0]}"
    numbered(brokers, topic, range(10))
    commit_to(brokers, topic, topic, 4, metadata)
    consumer = reading(brokers, topic, RebalanceListener(start=0))
    try:
        with pytest.raises(FlafkaError, match=rf"agent group reset {topic} --topic {topic}:0 --to current$"):
            until(lambda: consumer.take(1))
    finally:
        consumer.close()
    assert offsets_of(brokers, topic, topic)[0] == 4


def test_a_callback_that_fails_while_the_reader_closes_is_no_failure_of_its_thread(monkeypatch):
    class Closing:
        def __init__(self, properties):
            pass

        def subscribe(self, topics, **callbacks):
            pass

        def poll(self, seconds):
            time.sleep(0.001)

        def close(self):
            closed.append(self)
            raise Retry("the group's positions cannot be had")

    failures, closed = [], []
    monkeypatch.setattr("flafka.plugins.kafka.clients.Consumer", Closing)
    monkeypatch.setattr(threading, "excepthook", failures.append)
    reading("nobody:1", "closing", RebalanceListener(start=None)).close()
    assert len(closed) == 1
    assert failures == []


def test_records_that_brokers_have_lost_stop_a_group_until_it_is_reset(brokers):
    """Brokers were restored from a backup: the group is at 40, and the topic ends at 30."""
    numbered(brokers, "restored", range(30))
    commit_to(brokers, "restored", "restored", 40, OffsetMetadata(topic_id="first").text())

    def refused():
        consumer = reading(brokers, "restored", RebalanceListener(start=40))
        try:
            with pytest.raises(FlafkaError, match=r"read records 30 to 39, 10 in all, .* --to 30 --new-ids$"):
                until(lambda: consumer.take(0.1) is not None)
        finally:
            consumer.close()

    refused()
    numbered(brokers, "restored", range(30, 50))
    refused()
    offset, metadata = offsets_of(brokers, "restored", "restored")
    assert (offset, metadata.lost) == (40, "30")
