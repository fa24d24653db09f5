"""Kafka's transactions: the same on the real brokers and on the model of them."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_INVALID,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from kafka import TopicPartition as PythonTopicPartition
from kafka.structs import OffsetAndMetadata

from tests.simulator.contract.sides import Side, on_both, refused


@on_both
def test_a_transaction_is_read_when_it_is_committed_and_its_marker_takes_an_offset(k: Side) -> None:
    topic = k.topic()
    tp = TopicPartition(topic, 0)
    producer = k.transactional(k.name("id"))
    reader, plain = k.member(k.name("group"), topic), k.consumer(k.name("group"), isolation_level="read_uncommitted")
    producer.begin_transaction()
    producer.produce(topic, b"a", partition=0)
    assert producer.flush(30) == 0
    reader.until(lambda: reader.ends == [(0, 0)])
    assert reader.consumer.get_watermark_offsets(tp, timeout=30) == (0, 0)
    assert reader.consumer.get_watermark_offsets(tp, cached=True)[1] == 1
    assert plain.get_watermark_offsets(tp, timeout=30) == (0, 1)
    assert k.values(topic, isolation_level="read_uncommitted") == [(0, "a")]
    producer.commit_transaction(30)
    reader.until(lambda: reader.ends[-1] == (0, 2))
    assert reader.records == [(0, 0, "a")]
    assert [position.offset for position in reader.consumer.position([tp])] == [2]
    producer.begin_transaction()
    producer.produce(topic, b"b", partition=0)
    assert producer.flush(30) == 0
    producer.abort_transaction(30)
    reader.until(lambda: reader.ends[-1] == (0, 4))
    producer.begin_transaction()
    producer.commit_transaction(30)  # an empty one leaves no marker
    k.put(topic, "c")
    reader.until(lambda: len(reader.records) == 2)
    assert reader.records[1] == (0, 4, "c")
    assert k.values(topic, isolation_level="read_uncommitted") == [(0, "a"), (2, "b"), (4, "c")]


@on_both
def test_aborting_drops_what_is_not_sent(k: Side) -> None:
    topic, codes = k.topic(), []
    producer = k.transactional(k.name("id"), linger_ms=5000)
    producer.begin_transaction()
    producer.produce(topic, b"a", partition=0, on_delivery=lambda error, _: codes.append(error.code()))
    producer.abort_transaction(30)
    producer.flush(30)
    assert codes == [KafkaError._PURGE_QUEUE]
    assert k.values(topic, isolation_level="read_uncommitted") == []


@on_both
def test_offsets_of_a_transaction_count_when_it_is_committed(k: Side) -> None:
    topic, group = k.topic(), k.name("group")
    tps = [TopicPartition(topic, 0)]
    onlooker, plain = k.consumer(group), k.consumer(group, isolation_level="read_uncommitted")
    producer = k.transactional(k.name("id"))
    for offset, end in ((5, producer.commit_transaction), (6, producer.abort_transaction)):
        producer.begin_transaction()
        offsets = [TopicPartition(topic, 0, offset, metadata="epoch=2", leader_epoch=0)]
        producer.send_offsets_to_transaction(offsets, onlooker.consumer_group_metadata(), 30)
        assert refused(lambda: onlooker.committed(tps, timeout=0.5)).code() == KafkaError._TIMED_OUT
        before = plain.committed(tps, timeout=30)[0]
        assert (before.offset, before.metadata) == ((OFFSET_INVALID, None) if offset == 5 else (5, "epoch=2"))
        end(30)
        (after,) = onlooker.committed(tps, timeout=30)
        assert (after.offset, after.metadata, after.leader_epoch) == (5, "epoch=2", 0)


@on_both
def test_offsets_of_a_transaction_do_not_replace_what_was_committed_after_they_were_sent(k: Side) -> None:
    topic, group = k.topic(3), k.name("group")
    onlooker, other = k.consumer(group), k.KafkaAdminClient(bootstrap_servers=k.servers)
    producers = [k.transactional(k.name("id")) for _ in range(2)]

    def send(producer: Any, **offsets: int) -> None:
        tps = [TopicPartition(topic, int(partition[1:]), offset) for partition, offset in offsets.items()]
        producer.send_offsets_to_transaction(tps, onlooker.consumer_group_metadata(), 30)

    for producer in producers:
        producer.begin_transaction()
    send(producers[0], p0=1, p1=1, p2=1)
    send(producers[1], p1=2)
    other.alter_group_offsets(group, {PythonTopicPartition(topic, 0): OffsetAndMetadata(0, "epoch=2", None)})
    send(producers[1], p2=2)
    other.alter_group_offsets(group, {PythonTopicPartition(topic, 2): OffsetAndMetadata(0, "epoch=2", None)})
    send(producers[0], p2=3)
    for producer in reversed(producers):
        producer.commit_transaction(30)
    assert [k.committed(group, topic, partition)[0] for partition in range(3)] == [0, 2, 3]
    other.close()


@on_both
def test_offsets_of_a_transaction_go_with_their_group(k: Side) -> None:
    topic, group = k.topic(2), k.name("group")
    onlooker, producer = k.consumer(group), k.transactional(k.name("id"))
    onlooker.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    producer.begin_transaction()
    offsets = [TopicPartition(topic, partition, 2) for partition in range(2)]
    producer.send_offsets_to_transaction(offsets, onlooker.consumer_group_metadata(), 30)
    k.admin.delete_consumer_groups([group])[group].result(30)
    producer.commit_transaction(30)
    assert [k.committed(group, topic, partition)[0] for partition in range(2)] == [OFFSET_INVALID] * 2


@on_both
def test_offsets_of_a_transaction_are_taken_though_the_group_has_members(k: Side) -> None:
    topic, group = k.topic(), k.name("group")
    member = k.member(group, topic)
    member.until(lambda: member.owned)
    producer = k.transactional(k.name("id"))
    producer.begin_transaction()
    metadata = k.consumer(group).consumer_group_metadata()
    producer.send_offsets_to_transaction([TopicPartition(topic, 0, 3)], metadata, 30)
    producer.commit_transaction(30)
    assert k.committed(group, topic) == (3, None)


@on_both
def test_offsets_of_a_transaction_are_refused_from_who_is_no_member_any_more(k: Side) -> None:
    topic, group = k.topic(), k.name("group")
    offsets = [TopicPartition(topic, 0, 3)]
    member = k.member(group, topic, group_instance_id="one", max_poll_interval_ms=6000)
    producer = k.transactional(k.name("id"))
    member.until(lambda: member.owned)
    metadata, name = member.consumer.consumer_group_metadata(), member.consumer.memberid()
    producer.begin_transaction()
    producer.send_offsets_to_transaction(offsets, metadata, 30)
    producer.commit_transaction(30)
    assert k.committed(group, topic) == (3, None)

    # It is put out, and the group is empty: that is when offsets are moved.
    k.until(lambda: not k.admin.list_groups(group, timeout=30)[0].members)
    assert member.consumer.memberid() != name
    offsets[0].offset = 5
    producer.begin_transaction()
    error = refused(lambda: producer.send_offsets_to_transaction(offsets, metadata, 30))
    assert (error.code(), error.txn_requires_abort()) == (KafkaError.UNKNOWN_MEMBER_ID, True)
    producer.abort_transaction(30)
    producer.begin_transaction()
    producer.send_offsets_to_transaction(offsets, k.consumer(group).consumer_group_metadata(), 30)
    producer.commit_transaction(30)
    assert k.committed(group, topic) == (5, None)


@on_both
def test_offsets_of_a_topic_that_is_not_there_make_a_transaction_fail(k: Side) -> None:
    producer = k.transactional(k.name("id"))
    metadata = k.consumer(k.name("group")).consumer_group_metadata()
    producer.begin_transaction()
    offsets = [TopicPartition(k.name("nowhere"), 0, 3)]
    error = refused(lambda: producer.send_offsets_to_transaction(offsets, metadata, 3))
    assert (error.code(), error.txn_requires_abort()) == (KafkaError.UNKNOWN_TOPIC_OR_PART, True)
    assert refused(lambda: producer.commit_transaction(30)).txn_requires_abort()
    producer.abort_transaction(30)
    producer.begin_transaction()
    producer.commit_transaction(30)


@on_both
def test_a_new_producer_fences_the_old_one_and_ends_its_transaction(k: Side) -> None:
    topic, group, id = k.topic(), k.name("group"), k.name("id")
    metadata = k.consumer(group).consumer_group_metadata()
    old = k.transactional(id)
    old.begin_transaction()
    old.produce(topic, b"old", partition=0)
    old.send_offsets_to_transaction([TopicPartition(topic, 0, 7)], metadata, 30)
    assert old.flush(30) == 0
    new = k.transactional(id)
    assert k.committed(group, topic) == (OFFSET_INVALID, None)
    error = refused(lambda: old.commit_transaction(30))
    assert (error.code(), error.fatal(), error.txn_requires_abort()) == (KafkaError._FENCED, True, False)
    assert refused(lambda: old.abort_transaction(30)).code() == KafkaError._FENCED
    assert refused(lambda: old.begin_transaction()).code() == KafkaError._FENCED
    assert refused(lambda: old.produce(topic, b"old")).code() == KafkaError._FATAL
    with pytest.raises((KafkaException, SystemError)):
        old.flush(1)
    old.purge()
    assert old.flush(1) == 0
    new.begin_transaction()
    new.produce(topic, b"new", partition=0)
    new.commit_transaction(30)
    k.until(lambda: [value for _, value in k.values(topic)] == ["new"])


@on_both
def test_who_was_fenced_hears_of_it_wherever_it_goes_on(k: Side) -> None:
    topic, group, id = k.topic(), k.name("group"), k.name("id")
    metadata = k.consumer(group).consumer_group_metadata()
    idle = k.transactional(id)
    sending = k.transactional(id)
    idle.begin_transaction()
    idle.produce(topic, b"idle", partition=0)
    with pytest.raises((KafkaException, SystemError)):
        idle.flush(30)
    sending.begin_transaction()
    sending.produce(topic, b"sending", partition=0)
    assert sending.flush(30) == 0
    k.transactional(id)
    offsets = [TopicPartition(topic, 0, 7)]
    error = refused(lambda: sending.send_offsets_to_transaction(offsets, metadata, 30))
    assert (error.code(), error.fatal()) == (KafkaError._FENCED, True)
    assert k.values(topic) == []


@on_both
def test_a_transaction_that_is_too_old_is_aborted_and_its_producer_fenced(k: Side) -> None:
    topic = k.topic()
    producer = k.transactional(k.name("id"), transaction_timeout_ms=1000)
    producer.begin_transaction()
    producer.produce(topic, b"a", partition=0)
    assert producer.flush(30) == 0
    k.put(topic, "behind it")
    assert k.values(topic) == []
    k.until(lambda: k.values(topic) == [(1, "behind it")])
    k.until(lambda: refused(lambda: producer.commit_transaction(30)).code() != KafkaError._TIMED_OUT)
    error = refused(lambda: producer.commit_transaction(30))
    assert (error.code(), error.fatal()) == (KafkaError._FENCED, True)


@on_both
def test_transactions_are_begun_and_ended_in_turn(k: Side) -> None:
    producer = k.producer(transactional_id=k.name("id"))
    topic = k.topic()
    assert refused(lambda: producer.begin_transaction()).code() == KafkaError._STATE
    producer.init_transactions(30)
    for call in (producer.commit_transaction, producer.abort_transaction):
        assert refused(lambda call=call: call(1)).code() == KafkaError._STATE
    assert refused(lambda: producer.produce(topic, b"a")).code() == KafkaError._STATE
    producer.begin_transaction()
    assert refused(lambda: producer.begin_transaction()).code() == KafkaError._STATE
    producer.commit_transaction(30)
    assert refused(lambda: k.producer().begin_transaction()).code() == KafkaError._NOT_CONFIGURED
