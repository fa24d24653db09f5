"""The Kafka channel's two halves by themselves; tests/system has the channel with real brokers."""

import logging
import threading
from types import SimpleNamespace

import pytest
from confluent_kafka import Producer

from channels.kafka import KafkaChannelConfig, producing, reader
from channels.kafka.producing import ChannelProducer
from channels.kafka.reader import KafkaReader
from channels.kafka.records import decode
from plugins import Batch, Claim, Event, Metrics, Rejected, Retry


def until(condition):
    waited = threading.Event()
    for _ in range(18_000):
        if condition():
            return
        waited.wait(0.01)
    raise AssertionError("it did not come about")


class Owner:
    """Has partitions begin at a certain offset."""

    def __init__(self, start):
        self.start, self.told = start, []

    def assigned(self, committed):
        self.told.append({claim.partition for claim in committed})
        return {claim.partition: self.start for claim in committed}

    def revoked(self, partitions):
        pass

    lost = revoked


def reading(brokers, topic, owner):
    return KafkaReader(
        {"bootstrap.servers": brokers, "group.id": topic, "log_level": 0},
        Claim("", topic, "", topic, 0, -1),
        owner,
        Metrics(),
        lambda records, claim: decode(records, claim, parse_as_flume_event=False),
    )


def test_nothing_is_handed_out_from_where_a_busy_sink_did_not_say(brokers, monkeypatch):
    monkeypatch.setattr(reader, "OWNER_SECONDS", 0.1)
    producer = Producer({"bootstrap.servers": brokers, "log_level": 0})
    for number in range(10):
        producer.produce("busy", b"%d" % number, partition=0)
    assert not producer.flush(180)
    consumer = reading(brokers, "busy", Owner(start=5))
    try:
        until(lambda: consumer._error or consumer._queues)  # the sink is at work, and takes nothing
        taken = []
        with pytest.raises(Retry, match="its sink was at work"):
            until(lambda: taken.append(consumer.take(1)) or taken[-1] is not None)
        assert set(taken) <= {None}
    finally:
        consumer.close()


def producing_to(brokers, **properties):
    config, problems = KafkaChannelConfig.parse({"kafka.bootstrap.servers": brokers} | properties)
    assert not problems
    channel = SimpleNamespace(
        name="c1", config=config, log=logging.getLogger(), metrics=Metrics(), stopping=threading.Event()
    )
    return ChannelProducer(channel, {"bootstrap.servers": brokers, "log_level": 0}, partitions=4, limit=1 << 20)


def test_puts_that_fail_together_make_one_new_producer(monkeypatch):
    made = []
    monkeypatch.setattr(producing, "Producer", lambda properties: made.append(Producer(properties)) or made[-1])
    producer = producing_to("127.0.0.1:1")
    failures = []

    def put():
        try:
            producer.put(Batch.of([Event(b"x")]))
        except Retry as e:
            failures.append(str(e))

    threads = [threading.Thread(target=put) for _ in range(5)]
    for thread in threads:
        thread.start()
    until(lambda: len(made[0]) == 5)
    made[0].purge()
    for thread in threads:
        thread.join()
    producer.close()
    assert len(failures) == 5
    assert len(made) == 2


def test_partitions_that_are_added_are_found(brokers):
    producer = producing_to(brokers, format="flume", partitionIdHeader="p")
    producer._partitions = 2  # as when it began
    try:
        with pytest.raises(Rejected) as rejected:
            producer.put(Batch.of([Event(b"x", {"p": str(number)}) for number in (0, 3, 4)]))
    finally:
        producer.close()
    assert [(id.index, reason) for id, reason in rejected.value.reasons.items()] == [
        (2, "header 'p' is '4', and topic flafka has partitions 0 to 3")
    ]


def test_a_default_partition_that_is_not_there_is_said_at_the_start():
    with pytest.raises(Retry, match="defaultPartitionId = 4, and topic flafka has partitions 0 to 3"):
        producing_to("127.0.0.1:1", format="flume", defaultPartitionId="4")
