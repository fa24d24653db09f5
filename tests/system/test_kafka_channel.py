"""The Kafka channel on three real brokers: its readers, their offsets, and brokers that refuse or go."""

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


def test_what_is_put_is_taken_once_and_again_after_an_uncommitted_close(channel):
    for start in range(0, 1000, 100):
        channel.put(events(*range(start, start + 100)))
    reader = channel.reader(RebalanceListener(), group=None, member="h.a.k")
    first = take(reader, 1000)
    assert sorted(int(body.split()[0]) for *_, body in contents(first)) == list(range(1000))
    reader.close()
    owner = RebalanceListener()
    reader = channel.reader(owner, group=None, member="h.a.k")
    again = take(reader, 1000)
    assert contents(again) == contents(first)
    reader.commit(owner.ends(again))
    reader.close()
    channel.put(events(1000))
    reader = channel.reader(RebalanceListener(), group=None, member="h.a.k")
    assert [body for *_, body in contents(take(reader, 1))] == [b"1000 \xff"]
    reader.close()


def test_rewind_offers_the_same_ids_and_nothing_past_them_first(channel):
    for n in range(300):
        channel.put(events(n))
    reader = channel.reader(RebalanceListener(), group=None, member="h.a.k")
    first = take(reader, 300)
    starts = {}
    for one in first:
        starts.setdefault(one.assignment.partition, one.assignment.at(one.offsets.start))
    reader.rewind(starts.values())
    seen = set()
    again = []
    while sum(len(t.batch) for t in again) < 300:
        taken = reader.take(1)
        if taken is None:
            continue
        if (partition := taken.assignment.partition) not in seen:
            assert taken.offsets.start == starts[partition].next_offset, "events were passed over"
            seen.add(partition)
        again.append(taken)
    assert contents(again) == contents(first)
    reader.close()


def test_a_second_member_takes_partitions_over_and_each_event_comes_to_one_of_them(channel):
    owners = [RebalanceListener(), RebalanceListener()]
    one = channel.reader(owners[0], group=None, member="h.a.one")
    channel.put(events(0))
    first = take(one, 1)
    one.commit(owners[0].ends(first))
    two = channel.reader(owners[1], group=None, member="h.a.two")
    deadline = time.monotonic() + 60
    while sorted(len(owner.assignments) for owner in owners) != [1, 2]:
        assert time.monotonic() < deadline, "the partitions were never shared"
        assert one.take(0.1) is None
        assert two.take(0.1) is None
    for n in range(1, 301):
        channel.put(events(n))
    got = []
    while sum(len(t.batch) for t in got) < 300:
        assert time.monotonic() < deadline
        got += [t for reader in (one, two) if (t := reader.take(0.1)) is not None]
    numbers = sorted(int(body.split()[0]) for *_, body in contents(got))
    assert numbers == list(range(1, 301))
    one.close()
    two.close()


def test_groups_do_not_share(channel):
    channel.put(events(1, 2, 3))
    readers = [channel.reader(RebalanceListener(), group=group, member=f"h.a.{group}") for group in ("g1-x", "g2-x")]
    for reader in readers:
        assert len(contents(take(reader, 3))) == 3
        reader.close()


def next_offsets(channel):
    return {one.next_offset for one in channel.kafka.committed(None)}


def test_committed_offsets_carry_the_epoch_of_a_deliberate_reset(channel):
    channel.put(events(1, 2, 3))
    before = channel.kafka.committed(None)
    assert next_offsets(channel) == {None}
    channel.kafka.commit_offsets([one.of(epoch=3).at(0) for one in before])
    assert {(one.generation.epoch, one.next_offset) for one in channel.kafka.committed(None)} == {(3, 0)}
    owner = RebalanceListener()
    reader = channel.reader(owner, group=None, member="h.a.k")
    taken = take(reader, 3)
    assert {one.generation.epoch for one in owner.assignments.values()} == {3}
    reader.commit(owner.ends(taken))
    reader.close()
    assert {one.generation.epoch for one in channel.kafka.committed(None)} == {3}
    with pytest.raises(Conflict, match="was reset"):  # it was begun before
        channel.kafka.commit_offsets([one.at(1) for one in before])
    assert {one.generation.epoch for one in channel.kafka.committed(None)} == {3}


def test_positions_told_from_outside_never_go_back_within_an_epoch(channel):
    assignments = [one.of(epoch=10**12) for one in channel.kafka.committed(None)]
    for offset in (2, 1):
        channel.kafka.commit_offsets([one.at(offset) for one in assignments])
        assert next_offsets(channel) == {2}
    channel.kafka.commit_offsets([one.of(epoch=10**12 + 1).at(1) for one in assignments])
    assert next_offsets(channel) == {1}


def test_positions_of_a_topic_that_was_made_again_are_not_told_where_its_group_says_nothing_any_more(channel):
    before = [one.of(topic_id="of-the-topic-before").at(1) for one in channel.kafka.committed(None)]
    with pytest.raises(Retry, match="was deleted and created again"):
        channel.kafka.commit_offsets(before)
    assert next_offsets(channel) == {None}


def test_a_position_is_restored_where_an_owner_of_an_earlier_epoch_has_committed_and_nobody_else(
    channel, topic, kafka_cluster, caplog
):
    assignments = [one.of(epoch=10**12).at(3) for one in channel.kafka.committed(None)]
    channel.kafka.restore(assignments)
    assert next_offsets(channel) == {None}
    with_group = {"bootstrap.servers": kafka_cluster.bootstrap_servers, "group.id": topic}
    consumer = Consumer(with_group)
    earlier = OffsetMetadata.of(assignments[0].of(epoch=3)).text()
    for said, offset in ((earlier, 3), ("of another program", 1)):
        for one in assignments:
            consumer.commit(offsets=[TopicPartition(topic, one.partition, 1, said)], asynchronous=False)
        channel.kafka.restore(assignments)
        assert next_offsets(channel) == {offset}
    consumer.close()
    assert caplog.text.count("had undone it for") == len(assignments)
    channel.kafka.commit_offsets([one.at(2) for one in assignments])
    with pytest.raises(Conflict, match="was reset"):
        channel.kafka.restore([one.of(epoch=3).at(1) for one in assignments])


def test_records_that_retention_took_stop_the_reader_with_the_way_out(channel, kafka_cluster):
    from confluent_kafka import TopicPartition

    for n in range(30):
        channel.put(events(n))
    assignments = channel.kafka.committed(None)
    channel.kafka.commit_offsets([one.at(0) for one in assignments])
    admin = AdminClient({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    topic = channel.config.topic
    for future in admin.delete_records([TopicPartition(topic, one.partition, 1) for one in assignments]).values():
        future.result(60)
    reader = channel.reader(RebalanceListener(), group=None, member="h.a.k")
    with pytest.raises(FlafkaError, match=f"agent group reset {topic} --topic {topic}"):
        take(reader, 1)
    reader.close()


# --- brokers


def test_a_put_returns_only_when_two_replicas_have_it(channel, kafka_cluster):
    """With one broker of three gone events are still taken; what was acknowledged is there when it is back."""
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


def test_a_topic_that_refuses_the_time_of_this_host_is_told_with_the_way_out(kafka_cluster, topic, monkeypatch):
    monkeypatch.setattr("flafka.channels.kafka.producer.RETIRED_SECONDS", 0.2)
    config = {"message.timestamp.type": "CreateTime", "message.timestamp.before.max.ms": "0"}  # no record is so new
    new = NewTopic(topic, num_partitions=3, replication_factor=3, config=config)
    admin = AdminClient({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    admin.create_topics([new])[topic].result(60)
    batch = Batch.of([Event(b"%d" % n) for n in range(5000)])
    with contextlib.closing(open_channel(kafka_cluster, topic)) as opened:

        def put() -> None:
            for _ in range(1000):  # what is stored within the millisecond of its time is not refused
                opened.put(batch)

        with pytest.raises(Retry, match=r"set message\.timestamp\.type=LogAppendTime on the topic"):
            put()


@pytest.mark.parametrize("waits", [True, False])
def test_a_topic_that_is_deleted_while_the_channel_is_open_is_named(kafka_cluster, topic, waits):
    """Puts wait, until the client has given them up after half a minute; then they fail again and again."""
    properties = {} if waits else {"kafka.producer.topic.metadata.propagation.max.ms": "100"}
    create = f"agent topic create {topic} --bootstrap-server {kafka_cluster.bootstrap_servers}"
    deleted = f"topic {topic} was deleted, and what is put waits: create it again with a restart of the agent, or "
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

        putting = threading.Thread(target=put)
        putting.start()
        until(lambda: opened.metrics.last_error, "the put to wait")
        assert opened.metrics.last_error == f"{deleted}with {create}"
        if waits:
            opened.stopping.set()
        putting.join()
        opened.stopping.clear()
        assert [f"{deleted}with {create}" in why for why in failures] == [not waits]
        admin.create_topics([NewTopic(topic, 3, 3)])[topic].result(60)
        until(lambda: put() or not opened.metrics.last_error, "a put to be stored")
