"""Kafka's records, and what retention leaves of them: the same on the real brokers and on the model of them."""

from __future__ import annotations

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_INVALID,
    KafkaError,
    TopicPartition,
)

from tests.simulator.contract.sides import NAMES, Side, on_both, refused
from tests.simulator.kafka.sent import murmur2

# --- records


@on_both
def test_a_record_keeps_its_parts(k: Side) -> None:
    topic, reports = k.topic(), []
    producer = k.producer()
    producer.produce(
        topic,
        b"value",
        "key",
        0,
        headers=[("one", "1"), ("none", None)],
        timestamp=1_790_000_000_123,
        on_delivery=lambda error, message: reports.append((error, message.topic(), message.offset())),
    )
    producer.produce(topic, partition=0)
    assert producer.flush(30) == 0
    assert reports == [(None, topic, 0)]
    reader = k.consumer(k.name("group"))
    reader.assign([TopicPartition(topic, 0, 0)])
    first, second, end = (k.message(reader) for _ in range(3))
    assert (first.topic(), first.partition(), first.offset()) == (topic, 0, 0)
    assert (first.key(), first.value(), len(first)) == (b"key", b"value", 5)
    assert first.headers() == [("one", b"1"), ("none", None)]
    assert first.timestamp() == (1, 1_790_000_000_123)
    assert (second.key(), second.value(), second.headers(), len(second)) == (None, None, None, 0)
    assert end.error().code() == KafkaError._PARTITION_EOF
    assert (end.topic(), end.partition(), end.offset()) == (topic, 0, 2)
    (position,) = reader.position([TopicPartition(topic, 0)])
    assert position.offset == 2
    assert reader.poll(0.7) is None  # the end is reported once


@on_both
def test_reports_of_deliveries_come_while_the_producer_is_polled_and_at_no_other_time(k: Side) -> None:
    topic, producer, reports = k.topic(), k.producer(), list[int | None]()
    producer.list_topics(topic, timeout=30)
    producer.produce(topic, b"a", partition=0, on_delivery=lambda _, message: reports.append(message.offset()))
    k.until(lambda: k.values(topic) == [(0, "a")])
    k.sleep(0.5)
    assert not reports
    assert producer.flush(30) == 0
    assert reports == [0]


@on_both
def test_a_key_has_its_partition(k: Side) -> None:
    topic, partitions = k.topic(3), {}
    producer = k.producer(partitioner="murmur2_random")
    for key in ("", "a", "ab", "abc", "abcd", "abcde", "äöü", "a longer key of many bytes"):
        producer.produce(topic, b"", key, on_delivery=lambda _, m: partitions.update({m.key(): m.partition()}))
    assert producer.flush(30) == 0
    assert partitions == {key: (murmur2(key) & 0x7FFFFFFF) % 3 for key in partitions}


@on_both
def test_what_is_too_large_or_for_no_partition_is_refused(k: Side) -> None:
    topic = k.topic(1, max_message_bytes="1000")
    producer, codes = k.producer(message_max_bytes=2000), []
    k.put(topic, "a")
    error = refused(lambda: producer.produce(topic, bytes(3000)))
    assert error.code() == KafkaError.MSG_SIZE_TOO_LARGE
    producer.produce(topic, bytes(1500), partition=0, on_delivery=lambda error, _: codes.append(error.code()))
    assert producer.flush(30) == 0
    assert codes == [KafkaError.MSG_SIZE_TOO_LARGE]
    producer.produce(topic, b"x", partition=0)
    assert producer.flush(30) == 0
    assert refused(lambda: producer.produce(topic, b"x", partition=1)).code() == KafkaError._UNKNOWN_PARTITION
    assert k.values(topic) == [(0, "a"), (1, "x")]


@on_both
def test_seek_pause_and_watermarks(k: Side) -> None:
    topic = k.topic()
    k.put(topic, *NAMES)
    member = k.member(k.name("group"), topic)
    tp = TopicPartition(topic, 0)
    member.until(lambda: len(member.records) == 10)
    assert member.consumer.get_watermark_offsets(tp, timeout=30) == (0, 10)
    member.consumer.seek(TopicPartition(topic, 0, 8))
    member.until(lambda: len(member.records) == 12)
    assert member.records[10:] == [(0, 8, "i"), (0, 9, "j")]
    member.consumer.pause([tp])
    k.put(topic, "k")
    member.for_a_while(0.7)
    assert len(member.records) == 12
    member.consumer.resume([tp])
    member.until(lambda: len(member.records) == 13)
    assert member.consumer.get_watermark_offsets(tp, cached=True)[1] == 11
    assert [position.offset for position in member.consumer.position([tp])] == [11]


@on_both
def test_offsets_for_times(k: Side) -> None:
    topic = k.topic()
    producer = k.producer()
    for time in (1_790_000_001_000, 1_790_000_002_000):
        producer.produce(topic, b"", partition=0, timestamp=time)
    assert producer.flush(30) == 0
    onlooker = k.consumer(k.name("group"))
    offsets = {
        time: onlooker.offsets_for_times([TopicPartition(topic, 0, time)], timeout=30)[0].offset
        for time in (0, 1_790_000_001_000, 1_790_000_001_001, 1_790_000_009_000)
    }
    assert list(offsets.values()) == [0, 0, 1, -1]


@on_both
def test_where_a_reader_without_a_position_begins(k: Side) -> None:
    topic = k.topic()
    k.put(topic, "a", "b")
    reader = k.consumer(k.name("group"), auto_offset_reset="earliest")
    reader.assign([TopicPartition(topic, 0)])
    assert k.message(reader).offset() == 0
    reader = k.consumer(k.name("group"))
    reader.assign([TopicPartition(topic, 0)])
    message = k.message(reader)
    assert (message.error().code(), message.offset()) == (KafkaError._AUTO_OFFSET_RESET, None)


@on_both
def test_a_closed_consumer_says_so(k: Side) -> None:
    consumer = k.consumer(k.name("group"))
    consumer.close()
    consumer.close()
    for call in (lambda: consumer.poll(0), lambda: consumer.assignment()):
        with pytest.raises(RuntimeError, match="Consumer closed"):
            call()


@on_both
def test_what_is_asked_of_partitions_that_are_not_there_or_not_assigned(k: Side) -> None:
    topic, nowhere = k.topic(2), k.name("nowhere")
    k.put(topic, *NAMES)
    consumer = k.consumer(k.name("group"))
    assigned, other, missing = (
        TopicPartition(topic, 0, 0),
        TopicPartition(topic, 1, 0),
        [TopicPartition(topic, 7, 0), TopicPartition(nowhere, 0, 0)],
    )
    consumer.incremental_assign([assigned])
    consumer.seek(TopicPartition(topic, 0, 5))
    assert k.message(consumer).offset() == 5
    assert refused(lambda: consumer.incremental_assign([assigned])).code() == KafkaError._CONFLICT
    assert refused(lambda: consumer.incremental_unassign([other])).code() == KafkaError._INVALID_ARG
    assert refused(lambda: consumer.seek(other)).code() == KafkaError._STATE
    consumer.pause([other])
    consumer.resume([other])
    assert [position.offset for position in consumer.position([other])] == [OFFSET_INVALID]
    assert consumer.get_watermark_offsets(other, cached=True) == (OFFSET_INVALID, OFFSET_INVALID)
    for tp in missing:
        for ask in (
            lambda tp=tp: consumer.get_watermark_offsets(tp, timeout=30),
            lambda tp=tp: consumer.offsets_for_times([tp], timeout=30),
        ):
            assert refused(ask).code() == KafkaError._UNKNOWN_PARTITION
    assert [tp.offset for tp in consumer.committed(missing, timeout=30)] == [OFFSET_INVALID] * 2
    subscriber = k.consumer(k.name("group"))
    subscriber.subscribe([nowhere])
    message = k.message(subscriber)
    assert (message.error().code(), message.topic()) == (KafkaError.UNKNOWN_TOPIC_OR_PART, nowhere)
    assert subscriber.poll(0.7) is None


# --- retention


@on_both
def test_an_offset_removed_by_retention_is_reported_once_and_no_seek_helps(k: Side) -> None:
    topic, group = k.topic(), k.name("group")
    k.put(topic, *NAMES)
    member = k.member(group, topic)
    member.until(lambda: member.ends == [(0, 10)])
    (deleted,) = k.admin.delete_records([TopicPartition(topic, 0, 6)]).values()
    assert deleted.result(30).low_watermark == 6
    member.consumer.seek(TopicPartition(topic, 0, 3))
    member.until(lambda: member.errors)
    assert member.codes == [KafkaError._AUTO_OFFSET_RESET]
    assert (member.errors[0].topic(), member.errors[0].partition(), member.errors[0].offset()) == (topic, 0, 3)
    member.for_a_while(0.5)
    assert len(member.errors) == 1
    for offset in (8, OFFSET_BEGINNING):
        error = refused(lambda offset=offset: member.consumer.seek(TopicPartition(topic, 0, offset)))
        assert error.code() == KafkaError._STATE
    assert member.consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30) == (6, 10)
    member.consumer.incremental_unassign([TopicPartition(topic, 0)])
    member.consumer.incremental_assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    member.until(lambda: len(member.records) == 14)
    assert member.records[10:] == [(0, 6 + n, NAMES[6 + n]) for n in range(4)]
