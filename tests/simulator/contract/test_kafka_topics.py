"""Topics that are deleted and recreated, on real brokers and on their model."""

from __future__ import annotations

from typing import Any

from confluent_kafka import (
    OFFSET_INVALID,
    KafkaError,
    TopicCollection,
    TopicPartition,
)

from tests.simulator.contract.sides import NAMES, Side, on_both, refused

# --- a topic that is deleted and recreated


@on_both
def test_a_reader_of_a_deleted_topic_gets_no_error_and_the_groups_offsets_are_deleted(k: Side) -> None:
    topic, group = k.topic(), k.name("group")
    k.put(topic, *NAMES)
    member = k.member(group, topic)
    member.until(lambda: member.ends)
    member.commit(10, metadata="old")
    k.delete(topic)
    member.for_a_while(2)
    assert (member.errors, len(member.callbacks)) == ([], 1)
    assert refused(lambda: member.commit(10)).code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    k.until(lambda: k.committed(group, topic) == (OFFSET_INVALID, None))
    description = k.admin.describe_topics(TopicCollection([topic]))[topic]
    assert refused(lambda: description.result(30)).code() == KafkaError.UNKNOWN_TOPIC_OR_PART


@on_both
def test_a_shorter_recreated_topic_is_reported_once(k: Side) -> None:
    topic, group = k.topic(), k.name("group")
    k.put(topic, *NAMES)
    member = k.member(group, topic)
    member.until(lambda: member.ends)
    member.commit(10, metadata="old")
    k.delete(topic)
    k.until(lambda: k.committed(group, topic) == (OFFSET_INVALID, None))
    k.topic(name=topic)
    k.put(topic, "new a", "new b")
    member.until(lambda: member.errors)
    assert member.codes == [KafkaError._AUTO_OFFSET_RESET]
    assert member.errors[0].offset() == 10
    k.put(topic, *(f"new {name}" for name in NAMES))
    member.for_a_while(1.5)
    assert (len(member.errors), len(member.records), len(member.callbacks)) == (1, 10, 1)
    assert refused(lambda: member.consumer.seek(TopicPartition(topic, 0, 0))).code() == KafkaError._STATE
    member.commit(10, metadata="still taken")
    assert k.committed(group, topic) == (10, "still taken")


@on_both
def test_a_longer_recreated_topic_is_read_on_without_an_error(k: Side) -> None:
    topic, group = k.topic(), k.name("group")
    first = k.admin.describe_topics(TopicCollection([topic]))[topic].result(30).topic_id
    k.put(topic, *NAMES)
    member = k.member(group, topic)
    member.until(lambda: member.ends)
    member.consumer.pause([TopicPartition(topic, 0)])  # so that it does not come to look before the topic is longer
    k.delete(topic)
    k.topic(name=topic)
    k.put(topic, *(f"new {name}" for name in (*NAMES, "k", "l")))
    member.consumer.resume([TopicPartition(topic, 0)])
    member.until(lambda: len(member.records) == 12)
    assert member.records[10:] == [(0, 10, "new k"), (0, 11, "new l")]
    assert (member.errors, len(member.callbacks)) == ([], 1)
    assert str(k.admin.describe_topics(TopicCollection([topic]))[topic].result(30).topic_id) != str(first)
    member.commit(12)
    assert k.committed(group, topic) == (12, "")


@on_both
def test_a_recreated_topic_is_a_new_one_for_a_reader_that_noticed_the_deletion(k: Side) -> None:
    topic, group = k.topic(2), k.name("group")
    k.put(topic, "a", "b")
    often = {"topic_metadata_refresh_interval_ms": 500, "topic_metadata_propagation_max_ms": 500}
    member = k.member(group, topic, **often)
    member.until(lambda: len(member.records) == 2)
    member.commit(2)
    k.delete(topic)
    member.until(lambda: len(member.callbacks) == 2)
    assert member.callbacks == [("assign", [0, 1]), ("lost", [0, 1])]
    assert set(member.codes) == {KafkaError.UNKNOWN_TOPIC_OR_PART}
    k.topic(2, name=topic)
    k.put(topic, "new a")
    member.until(lambda: len(member.records) == 3)
    assert member.callbacks[2:] == [("assign", [0, 1])]
    assert member.records[2] == (0, 0, "new a")


@on_both
def test_who_asks_for_all_topics_hears_that_its_own_is_gone(k: Side) -> None:
    topic = k.topic()
    member = k.member(k.name("group"), topic, group_instance_id="one")
    member.until(lambda: member.owned == [0])
    k.delete(topic)
    member.consumer.list_topics(topic, timeout=30)
    member.for_a_while(0.7)
    assert (member.errors, len(member.callbacks)) == ([], 1)
    member.consumer.list_topics(timeout=30)
    member.until(lambda: len(member.callbacks) == 2)
    assert member.callbacks == [("assign", [0]), ("lost", [0])]
    assert member.codes == [KafkaError.UNKNOWN_TOPIC_OR_PART]
    k.topic(2, name=topic)
    member.until(lambda: member.owned == [0, 1])


@on_both
def test_what_was_fetched_of_a_deleted_topic_is_still_handed_out(k: Side) -> None:
    topic = k.topic()
    k.put(topic, *NAMES)
    reader = k.consumer(k.name("group"))
    reader.assign([TopicPartition(topic, 0, 0)])
    assert k.message(reader).offset() == 0
    k.delete(topic)
    k.topic(name=topic)
    k.put(topic, *(f"new {name}" for name in NAMES))
    records = []
    while len(records) < 9 and (message := k.message(reader)).error() is None:
        records.append((message.offset(), message.value().decode()))
    old = [offset for offset, value in records if not value.startswith("new")]
    assert [offset for offset, _ in records] == list(range(1, 1 + len(records)))
    assert old == list(range(1, 1 + len(old)))  # and continues in the new topic then
    assert k.is_model or len(old) == 9


@on_both
def test_offsets_of_a_transaction_go_with_their_topic(k: Side) -> None:
    topic, group = k.topic(), k.name("group")
    onlooker = k.consumer(group)
    producer = k.transactional(k.name("id"))
    producer.begin_transaction()
    producer.send_offsets_to_transaction([TopicPartition(topic, 0, 2)], onlooker.consumer_group_metadata(), 30)
    k.delete(topic)
    k.sleep(0.5)
    k.topic(name=topic)
    producer.commit_transaction(30)
    assert k.committed(group, topic) == (OFFSET_INVALID, None)


@on_both
def test_a_producer_continues_in_a_recreated_topic(k: Side) -> None:
    topic, reports = k.topic(), []
    producer = k.producer(message_timeout_ms=0)

    def on_delivery(error: Any, message: Any) -> None:
        reports.append((error, message.offset()))

    for value in (b"a", b"b"):
        producer.produce(topic, value, partition=0, on_delivery=on_delivery)
    assert producer.flush(30) == 0
    k.delete(topic)
    producer.produce(topic, b"c", partition=0, on_delivery=on_delivery)
    assert producer.flush(0.7) == 1
    k.topic(name=topic)
    assert producer.flush(30) == 0
    assert reports == [(None, 0), (None, 1), (None, 0)]
    assert k.values(topic) == [(0, "c")]


@on_both
def test_a_transaction_continues_in_a_recreated_topic(k: Side) -> None:
    topic = k.topic()
    producer = k.transactional(k.name("id"))
    producer.begin_transaction()
    producer.produce(topic, b"before", partition=0)
    assert producer.flush(30) == 0
    k.delete(topic)
    k.topic(name=topic)
    producer.produce(topic, b"after", partition=0)
    assert producer.flush(30) == 0
    producer.commit_transaction(30)
    k.until(lambda: k.values(topic) == [(0, "after")])
