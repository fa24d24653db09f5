"""Kafka channel on three real brokers: its readers, their offsets, and brokers that refuse or are stopped."""

import contextlib
import threading
import time

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from flafka.agent.services.running import until
from flafka.plugins import Batch, Conflict, Event, FlafkaError, Retry
from flafka.plugins.kafka.offsets import OffsetMetadata
from tests.system.kafka_running import RebalanceListener, contents, events, open_channel, take


def test_events_are_taken_once_and_again_after_an_uncommitted_close(channel):
    for start in range(0, 1000, 100):
        channel.put(events(*range(start, start + 100)))
    reader = channel.reader(RebalanceListener(), group=None, member="h.a.k")
    first = take(reader, 1000)
    assert sorted(int(body.split()[0]) for *_, body in contents(first)) == list(range(1000))
    reader.close()
    owner = RebalanceListener()
    reader = channel.reader(owner, group=None, member="h.a.k")
    second = take(reader, 1000)
    assert contents(second) == contents(first)
    reader.commit(owner.next_assignments(second))
    reader.close()
    channel.put(events(1000))
    reader = channel.reader(RebalanceListener(), group=None, member="h.a.k")
    assert [body for *_, body in contents(take(reader, 1))] == [b"1000 \xff"]
    reader.close()


def test_rewind_redelivers_the_same_ids_before_any_later_ones(channel):
    for n in range(300):
        channel.put(events(n))
    reader = channel.reader(RebalanceListener(), group=None, member="h.a.k")
    first = take(reader, 300)
    starts = {}
    for polled in first:
        starts.setdefault(polled.assignment.partition, polled.assignment.with_offset(polled.offsets.start))
    reader.rewind(starts.values())
    seen = set()
    redelivered = []
    while sum(len(t.batch) for t in redelivered) < 300:
        batch = reader.take(1)
        if batch is None:
            continue
        if (partition := batch.assignment.partition) not in seen:
            assert batch.offsets.start == starts[partition].next_offset, "events were passed over"
            seen.add(partition)
        redelivered.append(batch)
    assert contents(redelivered) == contents(first)
    reader.close()


def test_a_second_member_takes_partitions_over_and_each_event_comes_to_one_of_them(channel):
    owners = [RebalanceListener(), RebalanceListener()]
    first_reader = channel.reader(owners[0], group=None, member="h.a.one")
    channel.put(events(0))
    first = take(first_reader, 1)
    first_reader.commit(owners[0].next_assignments(first))
    second_reader = channel.reader(owners[1], group=None, member="h.a.two")
    deadline = time.monotonic() + 60
    while sorted(len(owner.assignments) for owner in owners) != [1, 2]:
        assert time.monotonic() < deadline, "the partitions were never shared"
        assert first_reader.take(0.1) is None
        assert second_reader.take(0.1) is None
    for n in range(1, 301):
        channel.put(events(n))
    received = []
    while sum(len(t.batch) for t in received) < 300:
        assert time.monotonic() < deadline
        received += [t for reader in (first_reader, second_reader) if (t := reader.take(0.1)) is not None]
    numbers = sorted(int(body.split()[0]) for *_, body in contents(received))
    assert numbers == list(range(1, 301))
    first_reader.close()
    second_reader.close()


def test_groups_do_not_share(channel):
    channel.put(events(1, 2, 3))
    readers = [channel.reader(RebalanceListener(), group=group, member=f"h.a.{group}") for group in ("g1-x", "g2-x")]
    for reader in readers:
        assert len(contents(take(reader, 3))) == 3
        reader.close()


def next_offsets(channel):
    return {assignment.next_offset for assignment in channel.kafka.committed(None)}


def test_committed_offsets_carry_the_epoch_of_a_deliberate_reset(channel):
    channel.put(events(1, 2, 3))
    before = channel.kafka.committed(None)
    assert next_offsets(channel) == {None}
    channel.kafka.commit_offsets([assignment.replace(epoch=3).with_offset(0) for assignment in before])
    assert {
        (assignment.generation.epoch, assignment.next_offset) for assignment in channel.kafka.committed(None)
    } == {(3, 0)}
    owner = RebalanceListener()
    reader = channel.reader(owner, group=None, member="h.a.k")
    batches = take(reader, 3)
    assert {assignment.generation.epoch for assignment in owner.assignments.values()} == {3}
    reader.commit(owner.next_assignments(batches))
    reader.close()
    assert {assignment.generation.epoch for assignment in channel.kafka.committed(None)} == {3}
    with pytest.raises(Conflict, match="was reset"):  # begun before the reset
        channel.kafka.commit_offsets([assignment.with_offset(1) for assignment in before])
    assert {assignment.generation.epoch for assignment in channel.kafka.committed(None)} == {3}


def test_memberless_commits_never_go_back_within_an_epoch(channel):
    assignments = [assignment.replace(epoch=10**12) for assignment in channel.kafka.committed(None)]
    for offset in (2, 1):
        channel.kafka.commit_offsets([assignment.with_offset(offset) for assignment in assignments])
        assert next_offsets(channel) == {2}
    channel.kafka.commit_offsets([assignment.replace(epoch=10**12 + 1).with_offset(1) for assignment in assignments])
    assert next_offsets(channel) == {1}


def test_offsets_of_a_former_topic_are_not_committed_to_the_group_of_a_recreated_one(channel):
    before = [
        assignment.replace(topic_id="of-the-topic-before").with_offset(1)
        for assignment in channel.kafka.committed(None)
    ]
    with pytest.raises(Retry, match="was deleted and recreated"):
        channel.kafka.commit_offsets(before)
    assert next_offsets(channel) == {None}


def test_an_offset_is_restored_only_after_a_commit_of_an_earlier_epoch(channel, topic, kafka_cluster, caplog):
    assignments = [assignment.replace(epoch=10**12).with_offset(3) for assignment in channel.kafka.committed(None)]
    channel.kafka.restore_offsets(assignments)
    assert next_offsets(channel) == {None}
    with_group = {"bootstrap.servers": kafka_cluster.bootstrap_servers, "group.id": topic}
    consumer = Consumer(with_group)
    earlier = OffsetMetadata.of(assignments[0].replace(epoch=3)).text()
    for metadata, offset in ((earlier, 3), ("of another program", 1)):
        for assignment in assignments:
            consumer.commit(offsets=[TopicPartition(topic, assignment.partition, 1, metadata)], asynchronous=False)
        channel.kafka.restore_offsets(assignments)
        assert next_offsets(channel) == {offset}
    consumer.close()
    assert caplog.text.count("had overwritten the offset of") == len(assignments)
    channel.kafka.commit_offsets([assignment.with_offset(2) for assignment in assignments])
    with pytest.raises(Conflict, match="was reset"):
        channel.kafka.restore_offsets([assignment.replace(epoch=3).with_offset(1) for assignment in assignments])


def test_records_removed_by_retention_stop_the_reader_with_advice(channel, kafka_cluster):
    from confluent_kafka import TopicPartition

    for n in range(30):
        channel.put(events(n))
    assignments = channel.kafka.committed(None)
    channel.kafka.commit_offsets([assignment.with_offset(0) for assignment in assignments])
    admin = AdminClient({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    topic = channel.config.topic
    for future in admin.delete_records(
        [TopicPartition(topic, assignment.partition, 1) for assignment in assignments]
    ).values():
        future.result(60)
    reader = channel.reader(RebalanceListener(), group=None, member="h.a.k")
    with pytest.raises(FlafkaError, match=f"agent group reset {topic} --topic {topic}"):
        take(reader, 1)
    reader.close()


# --- brokers


def test_a_put_returns_only_when_two_replicas_have_it(channel, kafka_cluster):
    """Events are still accepted with one of three brokers down; acknowledged events are present when it is back."""
    try:
        kafka_cluster.kill("broker-2")
        for n in range(20):
            channel.put(events(n))
    finally:
        kafka_cluster.start()
    reader = channel.reader(RebalanceListener(), group=None, member="h.a.k")
    numbers = sorted(int(body.split()[0]) for *_, body in contents(take(reader, 20, seconds=60)))
    assert numbers == list(range(20))
    reader.close()


def test_a_topic_that_it_creates_has_the_brokers_time(kafka_cluster, channel, topic):
    admin = AdminClient({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    resource = ConfigResource(ResourceType.TOPIC, topic)
    settings = admin.describe_configs([resource])[resource].result(60)
    assert settings["message.timestamp.type"].value == "LogAppendTime"


def test_a_compacted_topic_is_refused(kafka_cluster, topic):
    admin = AdminClient({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 1, 3, config={"cleanup.policy": "compact"})])[topic].result(60)
    with pytest.raises(FlafkaError, match=f"topic {topic} is compacted"):
        open_channel(kafka_cluster, topic)


def test_a_topic_that_refuses_the_time_of_this_host_is_reported_with_advice(kafka_cluster, topic, monkeypatch):
    monkeypatch.setattr("flafka.channels.kafka.producer.RETIRED_SECONDS", 0.2)
    config = {"message.timestamp.type": "CreateTime", "message.timestamp.before.max.ms": "0"}  # no record is so new
    new = NewTopic(topic, num_partitions=3, replication_factor=3, config=config)
    admin = AdminClient({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    admin.create_topics([new])[topic].result(60)
    batch = Batch.of([Event(b"%d" % n) for n in range(5000)])
    with contextlib.closing(open_channel(kafka_cluster, topic)) as opened:

        def put() -> None:
            for _ in range(1000):  # a record that is stored within the millisecond of its time is not refused
                opened.put(batch)

        with pytest.raises(Retry, match=r"set message\.timestamp\.type=LogAppendTime on the topic"):
            put()


@pytest.mark.parametrize("waits", [True, False])
def test_a_topic_that_is_deleted_while_the_channel_is_open_is_named(kafka_cluster, topic, waits):
    """Puts wait until the client abandons them after half a minute; then they fail repeatedly."""
    properties = {} if waits else {"kafka.producer.topic.metadata.propagation.max.ms": "100"}
    create = f"agent topic create {topic} --bootstrap-server {kafka_cluster.bootstrap_servers}"
    deleted = f"topic {topic} was deleted, and puts wait: recreate it with a restart of the agent, or "
    admin = AdminClient({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    with contextlib.closing(open_channel(kafka_cluster, topic, **properties)) as opened:
        opened.put(events(0))
        admin.delete_topics([topic])[topic].result(60)
        until(lambda: topic not in admin.list_topics(timeout=10).topics, "the topic to be gone")
        failures = []

        def put():
            try:
                opened.put(events(1))
            except Retry as e:
                failures.append(str(e))

        def put_until_the_error():
            # A broker may know the topic for a moment after another one has forgotten it.
            while not opened.metrics.last_error:
                put()

        putting = threading.Thread(target=put_until_the_error)
        putting.start()
        until(lambda: opened.metrics.last_error, "the put to wait")
        assert opened.metrics.last_error == f"{deleted}with {create}"
        if waits:
            opened.stopping.set()
        putting.join()
        opened.stopping.clear()
        assert (f"{deleted}with {create}" in failures[-1]) is not waits
        admin.create_topics([NewTopic(topic, 3, 3)])[topic].result(60)
        until(lambda: put() or not opened.metrics.last_error, "a put to be stored")
