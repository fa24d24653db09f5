"""Kafka as its clients see it: the same on the real brokers and on the model of them."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_INVALID,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import ConfigResource, NewPartitions, NewTopic, OffsetSpec, ResourceType  # type: ignore[attr-defined]
from kafka import TopicPartition as PythonTopicPartition
from kafka.admin import ConfigResource as PythonConfigResource
from kafka.admin import OffsetSpec as PythonOffsetSpec
from kafka.errors import NoError, UnknownMemberIdError, UnknownTopicOrPartitionError
from kafka.structs import OffsetAndMetadata

from channels.kafka.positions import assigned
from plugins.shared.kafkaclient import metadata_of
from tests.simulator.contract.sides import Side, on_both, refused
from tests.simulator.kafka.producer import murmur2

NAMES = ("a", "b", "c", "d", "e", "f", "g", "h", "i", "j")


# --- records


@on_both
def test_a_record_keeps_its_parts(k: Side) -> None:
    topic, told = k.topic(), []
    producer = k.producer()
    producer.produce(
        topic,
        b"value",
        "key",
        0,
        headers=[("one", "1"), ("none", None)],
        timestamp=1_790_000_000_123,
        on_delivery=lambda error, message: told.append((error, message.topic(), message.offset())),
    )
    producer.produce(topic, partition=0)
    assert producer.flush(30) == 0
    assert told == [(None, topic, 0)]
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
    (at,) = reader.position([TopicPartition(topic, 0)])
    assert at.offset == 2
    assert reader.poll(0.7) is None  # the end is told once


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
    topic, told = k.topic(3), {}
    producer = k.producer(partitioner="murmur2_random")
    for key in ("", "a", "ab", "abc", "abcd", "abcde", "äöü", "a longer key of many bytes"):
        producer.produce(topic, b"", key, on_delivery=lambda _, m: told.update({m.key(): m.partition()}))
    assert producer.flush(30) == 0
    assert told == {key: (murmur2(key) & 0x7FFFFFFF) % 3 for key in told}


@on_both
def test_what_is_too_large_or_for_no_partition_is_refused(k: Side) -> None:
    topic = k.topic(1, max_message_bytes="1000")
    producer, told = k.producer(message_max_bytes=2000), []
    k.put(topic, "a")
    error = refused(lambda: producer.produce(topic, bytes(3000)))
    assert error.code() == KafkaError.MSG_SIZE_TOO_LARGE
    producer.produce(topic, bytes(1500), partition=0, on_delivery=lambda error, _: told.append(error.code()))
    assert producer.flush(30) == 0
    assert told == [KafkaError.MSG_SIZE_TOO_LARGE]
    producer.produce(topic, b"x", partition=0)
    assert producer.flush(30) == 0
    assert refused(lambda: producer.produce(topic, b"x", partition=1)).code() == KafkaError._UNKNOWN_PARTITION
    assert k.values(topic) == [(0, "a"), (1, "x")]


@on_both
def test_seek_pause_and_watermarks(k: Side) -> None:
    topic = k.topic()
    k.put(topic, *NAMES)
    member = k.member(k.name("group"), topic)
    place = TopicPartition(topic, 0)
    member.until(lambda: len(member.records) == 10)
    assert member.consumer.get_watermark_offsets(place, timeout=30) == (0, 10)
    member.consumer.seek(TopicPartition(topic, 0, 8))
    member.until(lambda: len(member.records) == 12)
    assert member.records[10:] == [(0, 8, "i"), (0, 9, "j")]
    member.consumer.pause([place])
    k.put(topic, "k")
    member.for_a_while(0.7)
    assert len(member.records) == 12
    member.consumer.resume([place])
    member.until(lambda: len(member.records) == 13)
    assert member.consumer.get_watermark_offsets(place, cached=True)[1] == 11
    assert [at.offset for at in member.consumer.position([place])] == [11]


@on_both
def test_offsets_for_times(k: Side) -> None:
    topic = k.topic()
    producer = k.producer()
    for time in (1_790_000_001_000, 1_790_000_002_000):
        producer.produce(topic, b"", partition=0, timestamp=time)
    assert producer.flush(30) == 0
    onlooker = k.consumer(k.name("group"))
    found = {
        time: onlooker.offsets_for_times([TopicPartition(topic, 0, time)], timeout=30)[0].offset
        for time in (0, 1_790_000_001_000, 1_790_000_001_001, 1_790_000_009_000)
    }
    assert list(found.values()) == [0, 0, 1, -1]


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
    mine, other, missing = (
        TopicPartition(topic, 0, 0),
        TopicPartition(topic, 1, 0),
        [TopicPartition(topic, 7, 0), TopicPartition(nowhere, 0, 0)],
    )
    consumer.incremental_assign([mine])
    consumer.seek(TopicPartition(topic, 0, 5))
    assert k.message(consumer).offset() == 5
    assert refused(lambda: consumer.incremental_assign([mine])).code() == KafkaError._CONFLICT
    assert refused(lambda: consumer.incremental_unassign([other])).code() == KafkaError._INVALID_ARG
    assert refused(lambda: consumer.seek(other)).code() == KafkaError._STATE
    consumer.pause([other])
    consumer.resume([other])
    assert [at.offset for at in consumer.position([other])] == [OFFSET_INVALID]
    assert consumer.get_watermark_offsets(other, cached=True) == (OFFSET_INVALID, OFFSET_INVALID)
    for at in missing:
        for ask in (
            lambda at=at: consumer.get_watermark_offsets(at, timeout=30),
            lambda at=at: consumer.offsets_for_times([at], timeout=30),
        ):
            assert refused(ask).code() == KafkaError._UNKNOWN_PARTITION
    assert [at.offset for at in consumer.committed(missing, timeout=30)] == [OFFSET_INVALID] * 2
    subscriber = k.consumer(k.name("group"))
    subscriber.subscribe([nowhere])
    message = k.message(subscriber)
    assert (message.error().code(), message.topic()) == (KafkaError.UNKNOWN_TOPIC_OR_PART, nowhere)
    assert subscriber.poll(0.7) is None


# --- retention


@on_both
def test_a_position_that_retention_has_passed_is_an_error_told_once_and_no_seek_helps(k: Side) -> None:
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


# --- offsets of groups


@on_both
def test_offsets_are_kept_with_their_metadata(k: Side) -> None:
    topic, group = k.topic(2), k.name("group")
    k.put(topic, *NAMES)
    onlooker = k.consumer(group)
    none = onlooker.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)], timeout=30)
    assert [(at.offset, at.metadata, at.error) for at in none] == [(OFFSET_INVALID, None, None)] * 2
    done = onlooker.commit(offsets=[TopicPartition(topic, 0, 3, metadata="epoch=1")], asynchronous=False)
    assert [(at.topic, at.partition, at.offset) for at in done] == [(topic, 0, 3)]
    assert k.committed(group, topic, 0) == (3, "epoch=1")
    assert k.committed(group, topic, 1) == (OFFSET_INVALID, None)
    onlooker.commit(offsets=[TopicPartition(topic, 0, 2)], asynchronous=False)
    assert k.committed(group, topic, 0) == (2, None)


@on_both
def test_metadata_goes_from_one_client_to_the_other_with_a_nul_behind_it(k: Side) -> None:
    topic, group = k.topic(), k.name("group")
    place = PythonTopicPartition(topic, 0)
    k.consumer(group).commit(offsets=[TopicPartition(topic, 0, 1, metadata="epoch=1")], asynchronous=False)
    with contextlib.closing(k.KafkaAdminClient(bootstrap_servers=k.servers)) as admin:
        assert admin.list_group_offsets(group)[group][place].metadata == "epoch=1\0"
        admin.alter_group_offsets(group, {place: OffsetAndMetadata(2, "epoch=2\0", None)})
        assert k.committed(group, topic, 0) == (2, "epoch=2")
        text = "record=" + "x" * 93  # it fills what malloc gives, so that something else lies right behind it
        admin.alter_group_offsets(group, {place: OffsetAndMetadata(3, text, None)})
        (at,) = k.consumer(group).committed([TopicPartition(topic, 0)], timeout=30)
        assert metadata_of(at).startswith(text)


@on_both
def test_a_commit_for_no_partition_fails_and_those_beside_it_count(k: Side) -> None:
    topic, group = k.topic(), k.name("group")
    offsets = [TopicPartition(topic, 7, 2), TopicPartition(topic, 0, 1)]
    error = refused(lambda: k.consumer(group).commit(offsets=offsets, asynchronous=False))
    assert error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert k.committed(group, topic, 0) == (1, None)


@on_both
def test_who_is_no_member_commits_only_while_there_are_none(k: Side) -> None:
    topic, group = k.topic(), k.name("group")
    k.put(topic, "a")
    member = k.member(group, topic)
    member.until(lambda: member.records)
    place = [TopicPartition(topic, 0, 1, metadata="mine")]
    onlooker = k.consumer(group)
    assert refused(lambda: onlooker.commit(offsets=place, asynchronous=False)).code() == KafkaError.UNKNOWN_MEMBER_ID
    member.commit(1, metadata="theirs")
    member.close()
    assert k.committed(group, topic) == (1, "theirs")
    onlooker.commit(offsets=place, asynchronous=False)
    assert k.committed(group, topic) == (1, "mine")


@on_both
def test_a_member_may_commit_what_another_one_has(k: Side) -> None:
    topic, group = k.topic(), k.name("group")
    k.put(topic, "a", "b")
    one = k.member(group, topic)
    one.until(lambda: len(one.records) == 2)
    other = k.member(group, topic)
    other.until(lambda: other.shares and one.shares == 2, one)
    assert (one.owned, other.owned) == ([0], [])
    other.commit(1, metadata="other")
    assert k.committed(group, topic) == (1, "other")
    one.close()
    other.until(lambda: other.owned == [0])
    assert other.told == [("assign", [0])]
    assert other.until(lambda: other.records)[0][1] == 1


@on_both
def test_a_group_is_deleted_with_its_offsets_once_it_is_empty(k: Side) -> None:
    topic, group = k.topic(), k.name("group")
    k.put(topic, "a")
    member = k.member(group, topic)
    member.until(lambda: member.records)
    member.commit(1)
    deleted = lambda: k.admin.delete_consumer_groups([group])[group].result(30)  # noqa: E731
    assert refused(deleted).code() == KafkaError.NON_EMPTY_GROUP
    member.close()
    deleted()
    assert k.committed(group, topic) == (OFFSET_INVALID, None)
    assert refused(deleted).code() == KafkaError.GROUP_ID_NOT_FOUND


# --- members


@on_both
def test_partitions_move_one_by_one_and_the_others_stay(k: Side) -> None:
    topic, group = k.topic(4), k.name("group")
    for partition in range(4):
        k.put(topic, "a", partition=partition)
    one = k.member(group, topic)
    one.until(lambda: one.owned == [0, 1, 2, 3])
    other = k.member(group, topic)
    other.until(lambda: len(other.owned) == 2, one)
    one.until(lambda: len(one.owned) == 2)
    assert [what for what, _ in one.told] == ["assign", "revoke"]
    assert one.told[1][1] == other.owned
    assert other.told == [("assign", other.owned)]
    one.close()
    other.until(lambda: len(other.owned) == 4)
    assert [what for what, _ in other.told] == ["assign", "assign"]


@on_both
def test_a_member_hears_of_its_partitions_while_it_polls_and_at_no_other_time(k: Side) -> None:
    topic, group = k.topic(2), k.name("group")
    member = k.member(group, topic)
    k.sleep(4)
    assert not member.shares
    assert not member.consumer.assignment()
    member.until(lambda: member.owned == [0, 1])
    assert member.told == [("assign", [0, 1])]


@on_both
def test_a_static_member_comes_back_to_its_partitions_and_nobody_else_is_told(k: Side) -> None:
    topic, group = k.topic(4), k.name("group")
    one = k.member(group, topic, group_instance_id="one")
    other = k.member(group, topic, group_instance_id="other")
    one.until(lambda: len(one.owned) == len(other.owned) == 2, other)
    owned, told = one.owned, list(other.told)
    one.close()
    assert one.told[-1] == ("revoke", owned)
    again = k.member(group, topic, group_instance_id="one")
    again.until(lambda: again.owned == owned, other)
    other.for_a_while(1.5, again)
    assert other.told == told
    assert again.told == [("assign", owned)]


@on_both
def test_a_static_member_that_is_closed_stays_one_until_its_session_ends(k: Side) -> None:
    topic, group = k.topic(2), k.name("group")
    one = k.member(group, topic, group_instance_id="one")
    one.until(lambda: one.owned == [0, 1])
    one.commit(0, metadata="here")
    one.close()
    closed = k.now()
    onlooker = k.consumer(group)
    commit = lambda: onlooker.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)  # noqa: E731
    assert refused(commit).code() == KafkaError.UNKNOWN_MEMBER_ID
    delete = k.admin.delete_consumer_groups([group])[group]
    assert refused(lambda: delete.result(30)).code() == KafkaError.NON_EMPTY_GROUP
    other = k.member(group, topic)
    other.until(lambda: other.owned == [0, 1])
    assert 2 < k.now() - closed < 20


@on_both
def test_a_static_member_that_goes_before_it_joins_again_leaves_what_it_gave_up_to_nobody(k: Side) -> None:
    topic, group = k.topic(2), k.name("group")
    one = k.consumer(group, group_instance_id="one")
    told: list[int] = []

    def on_revoke(consumer: Any, partitions: list[TopicPartition]) -> None:
        consumer.incremental_unassign(partitions)
        told.append(len(partitions))
        if len(told) == 1:
            raise ValueError("stop here")

    one.subscribe([topic], on_revoke=on_revoke)
    k.until(lambda: one.poll(0.02) and len(one.assignment()) == 2)
    other = k.member(group, topic, group_instance_id="other")
    with pytest.raises(ValueError, match="stop here"):
        k.until(lambda: (other.poll(0.02), one.poll(0)) is None)
    one.close()
    assert told == [1, 1]
    again = k.member(group, topic, group_instance_id="one")
    again.until(lambda: again.owned, other)
    again.for_a_while(3, other)
    assert (len(again.owned), other.owned) == (1, [])


@on_both
def test_who_takes_a_static_members_name_fences_it(k: Side) -> None:
    topic, group = k.topic(2), k.name("group")
    old = k.member(group, topic, group_instance_id="one")
    old.until(lambda: old.owned == [0, 1])
    new = k.member(group, topic, group_instance_id="one")
    new.until(lambda: new.owned == [0, 1])
    assert refused(lambda: old.commit(1)).code() == KafkaError.FENCED_INSTANCE_ID
    assert refused(lambda: old.commit(1)).code() == KafkaError._FATAL
    old.until(lambda: old.errors)
    assert old.codes == [KafkaError._FATAL]
    assert (old.errors[0].topic(), old.errors[0].offset()) == (None, None)
    new.commit(1, metadata="new")
    old.close()
    assert [what for what, _ in old.told] == ["assign"]
    assert k.committed(group, topic) == (1, "new")


@on_both
def test_a_fenced_member_learns_of_it_by_its_heartbeat(k: Side) -> None:
    topic, group = k.topic(), k.name("group")
    old = k.member(group, topic, group_instance_id="one")
    old.until(lambda: old.owned)
    new = k.member(group, topic, group_instance_id="one")
    new.until(lambda: new.owned)
    old.until(lambda: old.errors, new)
    assert old.codes == [KafkaError._FATAL]


@on_both
def test_a_callback_that_raises_is_heard_by_who_polls_and_the_partitions_are_assigned(k: Side) -> None:
    topic = k.topic(2)
    consumer = k.consumer(k.name("group"))

    def on_assign(*_: object) -> None:
        raise ValueError("not now")

    consumer.subscribe([topic], on_assign=on_assign)
    with pytest.raises(ValueError, match="not now"):
        k.message(consumer)
    message = k.message(consumer)
    assert message.error().code() == KafkaError._AUTO_OFFSET_RESET
    assert sorted((tp.partition, tp.offset) for tp in consumer.assignment()) == [(0, -1000), (1, -1000)]


@on_both
def test_an_error_of_the_clients_that_a_callback_does_not_catch_is_no_exception_to_python(k: Side) -> None:
    topic = k.topic()
    consumer = k.consumer(k.name("group"))
    consumer.subscribe([topic], on_assign=lambda c, _: c.seek(TopicPartition(topic, 7, 0)))
    caught = ""
    try:
        k.message(consumer)
    except Exception:
        caught = "an exception"
    except:  # noqa: E722
        caught = "something else"
    assert caught == "something else"


@on_both
def test_a_callback_that_is_due_comes_in_close_where_no_positions_can_be_asked_for(k: Side) -> None:
    topic, group, told = k.topic(2), k.name("group"), []
    consumer = k.consumer(group)

    def on_assign(consumer: Any, partitions: list[TopicPartition]) -> None:
        told.append(("assign", len(partitions)))
        told.append(("error", refused(lambda: consumer.committed(partitions, timeout=0.5)).code()))

    consumer.subscribe([topic], on_assign=on_assign, on_revoke=lambda _, tps: told.append(("revoke", len(tps))))
    described = lambda: k.admin.describe_consumer_groups([group])[group].result(30)  # noqa: E731
    k.until(lambda: described().state.name == "STABLE")
    k.sleep(0.5)
    assert told == []
    consumer.close()
    assert told == [("assign", 2), ("error", KafkaError._TIMED_OUT), ("revoke", 2)]
    with pytest.raises(RuntimeError):
        consumer.poll(0)


@on_both
def test_who_does_not_poll_loses_its_partitions(k: Side) -> None:
    topic, group = k.topic(2), k.name("group")
    member = k.member(group, topic, max_poll_interval_ms=6000)
    member.until(lambda: member.owned == [0, 1])
    k.sleep(8)
    assert refused(lambda: member.commit(1)).code() == KafkaError.UNKNOWN_MEMBER_ID
    member.until(lambda: len(member.told) == 3)
    assert member.told == [("assign", [0, 1]), ("lost", [0, 1]), ("assign", [0, 1])]
    assert member.codes == [KafkaError._MAX_POLL_EXCEEDED]


@on_both
def test_partitions_that_are_added_are_found_when_metadata_is_asked_for(k: Side) -> None:
    topic = k.topic()
    member = k.member(k.name("group"), topic, topic_metadata_refresh_interval_ms=1000)
    member.until(lambda: member.owned == [0])
    k.admin.create_partitions([NewPartitions(topic, 3)])[topic].result(30)
    member.until(lambda: member.owned == [0, 1, 2])
    assert member.told == [("assign", [0]), ("assign", [1, 2])]


# --- a topic that is deleted, and made again


@on_both
def test_the_reader_of_a_deleted_topic_is_told_nothing_and_the_groups_offsets_go(k: Side) -> None:
    topic, group = k.topic(), k.name("group")
    k.put(topic, *NAMES)
    member = k.member(group, topic)
    member.until(lambda: member.ends)
    member.commit(10, metadata="old")
    k.delete(topic)
    member.for_a_while(2)
    assert (member.errors, len(member.told)) == ([], 1)
    assert refused(lambda: member.commit(10)).code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    k.until(lambda: k.committed(group, topic) == (OFFSET_INVALID, None))
    description = k.admin.describe_topics(TopicCollection([topic]))[topic]
    assert refused(lambda: description.result(30)).code() == KafkaError.UNKNOWN_TOPIC_OR_PART


@on_both
def test_a_topic_made_again_that_is_shorter_is_an_error_told_once(k: Side) -> None:
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
    assert (len(member.errors), len(member.records), len(member.told)) == (1, 10, 1)
    assert refused(lambda: member.consumer.seek(TopicPartition(topic, 0, 0))).code() == KafkaError._STATE
    member.commit(10, metadata="still taken")
    assert k.committed(group, topic) == (10, "still taken")


@on_both
def test_a_topic_made_again_that_is_longer_is_read_on_in_silence(k: Side) -> None:
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
    assert (member.errors, len(member.told)) == ([], 1)
    assert str(k.admin.describe_topics(TopicCollection([topic]))[topic].result(30).topic_id) != str(first)
    member.commit(12)
    assert k.committed(group, topic) == (12, "")


@on_both
def test_a_topic_made_again_is_like_a_new_one_to_who_looked_in_between(k: Side) -> None:
    topic, group = k.topic(2), k.name("group")
    k.put(topic, "a", "b")
    often = {"topic_metadata_refresh_interval_ms": 500, "topic_metadata_propagation_max_ms": 500}
    member = k.member(group, topic, **often)
    member.until(lambda: len(member.records) == 2)
    member.commit(2)
    k.delete(topic)
    member.until(lambda: len(member.told) == 2)
    assert member.told == [("assign", [0, 1]), ("lost", [0, 1])]
    assert set(member.codes) == {KafkaError.UNKNOWN_TOPIC_OR_PART}
    k.topic(2, name=topic)
    k.put(topic, "new a")
    member.until(lambda: len(member.records) == 3)
    assert member.told[2:] == [("assign", [0, 1])]
    assert member.records[2] == (0, 0, "new a")


@on_both
def test_who_asks_for_all_topics_hears_that_its_own_is_gone(k: Side) -> None:
    topic = k.topic()
    member = k.member(k.name("group"), topic, group_instance_id="one")
    member.until(lambda: member.owned == [0])
    k.delete(topic)
    member.consumer.list_topics(topic, timeout=30)
    member.for_a_while(0.7)
    assert (member.errors, len(member.told)) == ([], 1)
    member.consumer.list_topics(timeout=30)
    member.until(lambda: len(member.told) == 2)
    assert member.told == [("assign", [0]), ("lost", [0])]
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
    found = []
    while len(found) < 9 and (message := k.message(reader)).error() is None:
        found.append((message.offset(), message.value().decode()))
    old = [offset for offset, value in found if not value.startswith("new")]
    assert [offset for offset, _ in found] == list(range(1, 1 + len(found)))
    assert old == list(range(1, 1 + len(old)))  # and then it goes on in the new one
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
def test_a_producer_goes_on_in_the_topic_that_is_made_again(k: Side) -> None:
    topic, told = k.topic(), []
    producer = k.producer(message_timeout_ms=0)
    heard = lambda error, message: told.append((error, message.offset()))  # noqa: E731
    for value in (b"a", b"b"):
        producer.produce(topic, value, partition=0, on_delivery=heard)
    assert producer.flush(30) == 0
    k.delete(topic)
    producer.produce(topic, b"c", partition=0, on_delivery=heard)
    assert producer.flush(0.7) == 1
    k.topic(name=topic)
    assert producer.flush(30) == 0
    assert told == [(None, 0), (None, 1), (None, 0)]
    assert k.values(topic) == [(0, "c")]


@on_both
def test_a_transaction_goes_on_in_the_topic_that_is_made_again(k: Side) -> None:
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


# --- transactions


@on_both
def test_a_transaction_is_read_when_it_is_committed_and_its_marker_takes_an_offset(k: Side) -> None:
    topic = k.topic()
    place = TopicPartition(topic, 0)
    producer = k.transactional(k.name("id"))
    reader, plain = k.member(k.name("group"), topic), k.consumer(k.name("group"), isolation_level="read_uncommitted")
    producer.begin_transaction()
    producer.produce(topic, b"a", partition=0)
    assert producer.flush(30) == 0
    reader.until(lambda: reader.ends == [(0, 0)])
    assert reader.consumer.get_watermark_offsets(place, timeout=30) == (0, 0)
    assert reader.consumer.get_watermark_offsets(place, cached=True)[1] == 1
    assert plain.get_watermark_offsets(place, timeout=30) == (0, 1)
    assert k.values(topic, isolation_level="read_uncommitted") == [(0, "a")]
    producer.commit_transaction(30)
    reader.until(lambda: reader.ends[-1] == (0, 2))
    assert reader.records == [(0, 0, "a")]
    assert [at.offset for at in reader.consumer.position([place])] == [2]
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
    topic, told = k.topic(), []
    producer = k.transactional(k.name("id"), linger_ms=5000)
    producer.begin_transaction()
    producer.produce(topic, b"a", partition=0, on_delivery=lambda error, _: told.append(error.code()))
    producer.abort_transaction(30)
    producer.flush(30)
    assert told == [KafkaError._PURGE_QUEUE]
    assert k.values(topic, isolation_level="read_uncommitted") == []


@on_both
def test_offsets_of_a_transaction_count_when_it_is_committed(k: Side) -> None:
    topic, group = k.topic(), k.name("group")
    place = [TopicPartition(topic, 0)]
    onlooker, plain = k.consumer(group), k.consumer(group, isolation_level="read_uncommitted")
    producer = k.transactional(k.name("id"))
    for offset, end in ((5, producer.commit_transaction), (6, producer.abort_transaction)):
        producer.begin_transaction()
        at = [TopicPartition(topic, 0, offset, metadata="epoch=2")]
        producer.send_offsets_to_transaction(at, onlooker.consumer_group_metadata(), 30)
        assert refused(lambda: onlooker.committed(place, timeout=0.5)).code() == KafkaError._TIMED_OUT
        before = plain.committed(place, timeout=30)[0]
        assert (before.offset, before.metadata) == ((OFFSET_INVALID, None) if offset == 5 else (5, "epoch=2"))
        end(30)
        (after,) = onlooker.committed(place, timeout=30)
        assert (after.offset, after.metadata) == (5, "epoch=2")


@on_both
def test_offsets_of_a_transaction_do_not_replace_what_was_committed_after_they_were_sent(k: Side) -> None:
    topic, group = k.topic(3), k.name("group")
    onlooker, other = k.consumer(group), k.KafkaAdminClient(bootstrap_servers=k.servers)
    producers = [k.transactional(k.name("id")) for _ in range(2)]

    def send(producer: Any, **offsets: int) -> None:
        at = [TopicPartition(topic, int(partition[1:]), offset) for partition, offset in offsets.items()]
        producer.send_offsets_to_transaction(at, onlooker.consumer_group_metadata(), 30)

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
    at = [TopicPartition(topic, partition, 2) for partition in range(2)]
    producer.send_offsets_to_transaction(at, onlooker.consumer_group_metadata(), 30)
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
    at = [TopicPartition(topic, 0, 3)]
    member = k.member(group, topic, group_instance_id="one", max_poll_interval_ms=6000)
    producer = k.transactional(k.name("id"))
    member.until(lambda: member.owned)
    metadata, name = member.consumer.consumer_group_metadata(), member.consumer.memberid()
    producer.begin_transaction()
    producer.send_offsets_to_transaction(at, metadata, 30)
    producer.commit_transaction(30)
    assert k.committed(group, topic) == (3, None)

    # It is put out, and the group is empty: that is when offsets are moved.
    k.until(lambda: not k.admin.list_groups(group, timeout=30)[0].members)
    assert member.consumer.memberid() != name
    at[0].offset = 5
    producer.begin_transaction()
    error = refused(lambda: producer.send_offsets_to_transaction(at, metadata, 30))
    assert (error.code(), error.txn_requires_abort()) == (KafkaError.UNKNOWN_MEMBER_ID, True)
    producer.abort_transaction(30)
    producer.begin_transaction()
    producer.send_offsets_to_transaction(at, k.consumer(group).consumer_group_metadata(), 30)
    producer.commit_transaction(30)
    assert k.committed(group, topic) == (5, None)


@on_both
def test_offsets_of_a_topic_that_is_not_there_make_a_transaction_fail(k: Side) -> None:
    producer = k.transactional(k.name("id"))
    metadata = k.consumer(k.name("group")).consumer_group_metadata()
    producer.begin_transaction()
    at = [TopicPartition(k.name("nowhere"), 0, 3)]
    error = refused(lambda: producer.send_offsets_to_transaction(at, metadata, 3))
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
    at = [TopicPartition(topic, 0, 7)]
    error = refused(lambda: sending.send_offsets_to_transaction(at, metadata, 30))
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


# --- admin clients


@on_both
def test_topics_as_the_admin_client_tells_them(k: Side) -> None:
    topic = k.topic(2, retention_ms="3600000")
    metadata = k.admin.list_topics(topic, timeout=30)
    assert (sorted(metadata.topics[topic].partitions), metadata.topics[topic].error) == ([0, 1], None)
    assert len(metadata.brokers) == 3
    assert metadata.cluster_id
    nowhere = k.admin.list_topics(k.name("nowhere"), timeout=30).topics
    assert [(one.error.code(), len(one.partitions)) for one in nowhere.values()] == [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, 0)
    ]
    described = k.admin.describe_topics(TopicCollection([topic]))[topic].result(30)
    assert [(p.id, len(p.replicas), len(p.isr)) for p in described.partitions] == [(0, 3, 3), (1, 3, 3)]
    assert len(str(described.topic_id)) == 22
    resource = ConfigResource(ResourceType.TOPIC, topic)
    settings = k.admin.describe_configs([resource])[resource].result(30)
    names = ("retention.ms", "cleanup.policy", "max.message.bytes", "min.insync.replicas", "message.timestamp.type")
    assert [settings[name].value for name in names] == ["3600000", "delete", "8388608", "2", "CreateTime"]
    for wanted, code in (
        (NewTopic(topic, num_partitions=1, replication_factor=3), KafkaError.TOPIC_ALREADY_EXISTS),
        (NewTopic(k.name("t"), num_partitions=1, replication_factor=4), KafkaError.INVALID_REPLICATION_FACTOR),
    ):
        answer = k.admin.create_topics([wanted])[wanted.topic]
        assert refused(lambda answer=answer: answer.result(30)).code() == code
    answer = k.admin.delete_topics([nowhere_name := k.name("nowhere")])[nowhere_name]
    assert refused(lambda: answer.result(30)).code() == KafkaError.UNKNOWN_TOPIC_OR_PART


@on_both
def test_groups_and_offsets_as_the_admin_client_tells_them(k: Side) -> None:
    topic, group = k.topic(2), k.name("group")
    k.put(topic, "a", "b", "c")
    producer = k.transactional(k.name("id"))
    producer.begin_transaction()
    producer.produce(topic, b"d", partition=0)
    assert producer.flush(30) == 0
    place = TopicPartition(topic, 0)
    offsets = [
        k.admin.list_offsets({place: spec}, isolation_level=level)[place].result(30).offset
        for spec in (OffsetSpec.earliest(), OffsetSpec.latest(), OffsetSpec.for_timestamp(5))
        for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
    ]
    assert offsets == [0, 0, 3, 4, 0, 0]
    producer.abort_transaction(30)

    def alter(*at: TopicPartition) -> list[Any]:
        asked = [ConsumerGroupTopicPartitions(group, list(at))]
        found = k.admin.alter_consumer_group_offsets(asked)[group].result(30).topic_partitions
        return [tp.error and tp.error.code() for tp in found]

    def listed() -> list[Any]:
        asked = [ConsumerGroupTopicPartitions(group)]
        found = k.admin.list_consumer_group_offsets(asked)[group].result(30).topic_partitions
        return [(tp.topic, tp.partition, tp.offset, tp.metadata) for tp in found]

    assert alter(TopicPartition(topic, 0, 2, metadata="epoch=1")) == [None]
    assert listed() == [(topic, 0, 2, "epoch=1")]
    assert alter(TopicPartition(topic, 7, 2)) == [KafkaError.UNKNOWN_TOPIC_OR_PART]
    described = k.admin.describe_consumer_groups([group])[group].result(30)
    assert (described.state.name, described.members) == ("EMPTY", [])
    assert k.admin.list_groups(k.name("nowhere"), timeout=30) == []
    member = k.member(group, topic, group_instance_id="one")
    member.until(lambda: member.owned == [0, 1])
    (listed_one,) = k.admin.list_groups(group, timeout=30)
    k.until(lambda: k.admin.list_groups(group, timeout=30)[0].state == "Stable")
    assert (listed_one.id, listed_one.error) == (group, None)
    assert [sorted(assigned(one.assignment, topic)) for one in listed_one.members] == [[0, 1]]
    described = k.admin.describe_consumer_groups([group])[group].result(30)
    (known,) = described.members
    assert (described.state.name, known.group_instance_id) == ("STABLE", "one")
    assert sorted(tp.partition for tp in known.assignment.topic_partitions) == [0, 1]
    assert alter(TopicPartition(topic, 0, 1)) == [KafkaError.UNKNOWN_MEMBER_ID]
    described = k.admin.describe_cluster().result(30)
    assert (len(described.nodes), described.cluster_id) == (3, k.admin.list_topics(timeout=30).cluster_id)


def _described(k: Side, topic: str) -> bool:
    """Whether the broker that answers has heard of it."""
    return k.admin.describe_topics(TopicCollection([topic]))[topic].exception(30) is None


@on_both
def test_a_callback_of_the_admin_clients_that_waits_for_another_answer_holds_it_up(k: Side) -> None:
    topic = k.topic()
    k.until(lambda: _described(k, topic))
    heard: list[object] = []
    asking = True

    def wait(first: Any) -> None:
        if asking:
            heard.append("answered before anyone waited")
            return
        second = k.admin.describe_topics(TopicCollection([topic]))[topic]
        try:
            heard.append(second.result(1).name)
        except TimeoutError as e:
            heard.append(type(e))
        second.add_done_callback(lambda done: heard.append(done.result().name))

    def held_up() -> bool:
        nonlocal asking
        heard.clear()
        asking = True
        k.admin.describe_topics(TopicCollection([topic]))[topic].add_done_callback(wait)
        asking = False
        k.until(lambda: len(heard) == 2 or "answered before anyone waited" in heard)
        return len(heard) == 2

    k.until(held_up)
    assert heard == [TimeoutError, topic]


@on_both
def test_metadata_has_a_nul_that_the_other_admin_client_shows(k: Side) -> None:
    topic, group = k.topic(), k.name("group")
    onlooker, producer = k.consumer(group), k.transactional(k.name("id"))
    other = k.KafkaAdminClient(bootstrap_servers=k.servers)
    shown = lambda: [at.metadata for at in other.list_group_offsets(group)[group].values()]  # noqa: E731
    onlooker.commit(offsets=[TopicPartition(topic, 0, 1, metadata="epoch=1")], asynchronous=False)
    assert shown() == ["epoch=1\0"]
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 1, metadata="epoch=2")])
    k.admin.alter_consumer_group_offsets([asked])[group].result(30)
    assert shown() == ["epoch=2\0"]
    producer.begin_transaction()
    at = [TopicPartition(topic, 0, 1, metadata="epoch=3")]
    producer.send_offsets_to_transaction(at, onlooker.consumer_group_metadata(), 30)
    producer.commit_transaction(30)
    assert onlooker.committed([TopicPartition(topic, 0)], timeout=30)[0].metadata == "epoch=3"
    assert shown() == ["epoch=3\0"]
    other.close()


@on_both
def test_topics_and_groups_as_the_other_admin_client_tells_them(k: Side) -> None:
    topic, group = k.name("topic"), k.name("group")
    admin = k.KafkaAdminClient(bootstrap_servers=k.servers)
    wanted = {"num_partitions": 2, "replication_factor": -1, "configs": {"retention.ms": "3600000"}}
    assert [a["error_code"] for a in admin.create_topics({topic: wanted}, raise_errors=False)["topics"]] == [0]
    admin.wait_for_topics([topic])
    assert [a["error_code"] for a in admin.create_topics({topic: wanted}, raise_errors=False)["topics"]] == [36]
    found, missing = admin.describe_topics([topic]) + admin.describe_topics([k.name("nowhere")])
    assert [(p["partition_index"], len(p["isr_nodes"])) for p in found["partitions"]] == [(0, 3), (1, 3)]
    assert (missing["error_code"], missing["partitions"]) == (3, [])
    settings = admin.describe_configs([PythonConfigResource("TOPIC", topic)])["topic"][topic]
    assert {name: setting["value"] for name, setting in settings.items()} == {"retention.ms": "3600000"}
    k.put(topic, "a", "b", "c")
    places = [PythonTopicPartition(topic, 0), PythonTopicPartition(topic, 1)]
    offsets = [
        [one.offset for one in admin.list_partition_offsets(dict.fromkeys(places, spec)).values()]
        for spec in (PythonOffsetSpec.EARLIEST, PythonOffsetSpec.LATEST, 5)
    ]
    assert offsets == [[0, 0], [3, 0], [0, -1]]
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.list_partition_offsets({PythonTopicPartition(k.name("nowhere"), 0): PythonOffsetSpec.LATEST})

    assert "GroupIdNotFound" in admin.describe_groups([group])[group]["error"]
    assert admin.list_group_offsets(group) == {group: {}}
    at = OffsetAndMetadata(2, "epoch=1", None)
    answers = admin.alter_group_offsets(group, {places[0]: at, PythonTopicPartition(k.name("nowhere"), 0): at})
    assert sorted(error.__name__ for error in answers.values()) == ["NoError", "UnknownTopicOrPartitionError"]
    assert admin.list_group_offsets(group)[group] == {places[0]: OffsetAndMetadata(2, "epoch=1", -1)}
    description = admin.describe_groups([group])[group]
    assert (description["error"], description["group_state"], description["members"]) == (None, "Empty", [])

    member = k.member(group, topic, group_instance_id="one", client_id="me")
    member.until(lambda: member.owned == [0, 1])
    (known,) = admin.describe_groups([group])[group]["members"]
    assert (known["group_instance_id"], known["client_id"]) == ("one", "me")
    assert known["member_assignment"]["assigned_partitions"] == [{"topic": topic, "partitions": [0, 1]}]
    assert admin.alter_group_offsets(group, {places[0]: at})[places[0]] is UnknownMemberIdError
    listed = {one["group_id"]: one["group_state"] for one in admin.list_groups()}
    assert listed[group] == "Stable"
    assert admin.delete_groups([group]) == {group: "NonEmptyGroupError"}
    assert NoError is not None
    gone = admin.delete_topics([topic, k.name("nowhere")], raise_errors=False)["topics"]
    assert {answer["name"] == topic: answer["error_code"] for answer in gone} == {True: 0, False: 3}
    assert len(admin.describe_cluster()["brokers"]) == 3
    admin.close()
