"""Kafka's groups, their offsets and their members: the same on the real brokers and on the model of them."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_INVALID,
    KafkaError,
    TopicPartition,
)
from confluent_kafka.admin import NewPartitions
from kafka import TopicPartition as PythonTopicPartition
from kafka.structs import OffsetAndMetadata

from flafka.plugins.kafka.admin import committed_offsets
from flafka.plugins.kafka.offsets import metadata_of
from tests.simulator.contract.sides import NAMES, Side, on_both, refused

# --- offsets of groups


@on_both
def test_offsets_are_kept_with_their_metadata(k: Side) -> None:
    topic, group = k.topic(2), k.name("group")
    k.put(topic, *NAMES)
    onlooker = k.consumer(group)
    partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    none = committed_offsets(onlooker, partitions, 30)  # the coordinator may just begin
    assert [(tp.offset, tp.metadata, tp.error) for tp in none] == [(OFFSET_INVALID, None, None)] * 2
    done = onlooker.commit(offsets=[TopicPartition(topic, 0, 3, metadata="epoch=1")], asynchronous=False)
    assert [(tp.topic, tp.partition, tp.offset) for tp in done] == [(topic, 0, 3)]
    assert k.committed(group, topic, 0) == (3, "epoch=1")
    assert k.committed(group, topic, 1) == (OFFSET_INVALID, None)
    onlooker.commit(offsets=[TopicPartition(topic, 0, 2)], asynchronous=False)
    assert k.committed(group, topic, 0) == (2, None)


@on_both
def test_metadata_goes_from_one_client_to_the_other_with_a_nul_behind_it(k: Side) -> None:
    topic, group = k.topic(), k.name("group")
    tp = PythonTopicPartition(topic, 0)
    k.consumer(group).commit(offsets=[TopicPartition(topic, 0, 1, metadata="epoch=1")], asynchronous=False)
    with contextlib.closing(k.KafkaAdminClient(bootstrap_servers=k.servers)) as admin:
        assert admin.list_group_offsets(group)[group][tp].metadata == "epoch=1\0"
        admin.alter_group_offsets(group, {tp: OffsetAndMetadata(2, "epoch=2\0", None)})
        assert k.committed(group, topic, 0) == (2, "epoch=2")
        text = "record=" + "x" * 93  # it fills what malloc gives, so that something else lies right behind it
        admin.alter_group_offsets(group, {tp: OffsetAndMetadata(3, text, None)})
        (committed,) = k.consumer(group).committed([TopicPartition(topic, 0)], timeout=30)
        assert metadata_of(committed).startswith(text)


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
    offsets = [TopicPartition(topic, 0, 1, metadata="mine")]
    onlooker = k.consumer(group)
    assert (
        refused(lambda: onlooker.commit(offsets=offsets, asynchronous=False)).code() == KafkaError.UNKNOWN_MEMBER_ID
    )
    member.commit(1, metadata="theirs")
    member.close()
    assert k.committed(group, topic) == (1, "theirs")
    onlooker.commit(offsets=offsets, asynchronous=False)
    assert k.committed(group, topic) == (1, "mine")


@on_both
def test_a_member_may_commit_what_another_one_has(k: Side) -> None:
    topic, group = k.topic(), k.name("group")
    k.put(topic, "a", "b")
    first = k.member(group, topic)
    first.until(lambda: len(first.records) == 2)
    other = k.member(group, topic)
    other.until(lambda: other.shares and first.shares == 2, first)
    assert (first.owned, other.owned) == ([0], [])
    other.commit(1, metadata="other")
    assert k.committed(group, topic) == (1, "other")
    first.close()
    other.until(lambda: other.owned == [0])
    assert other.callbacks == [("assign", [0])]
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
    first = k.member(group, topic)
    first.until(lambda: first.owned == [0, 1, 2, 3])
    other = k.member(group, topic)
    other.until(lambda: len(other.owned) == 2, first)
    first.until(lambda: len(first.owned) == 2)
    assert [what for what, _ in first.callbacks] == ["assign", "revoke"]
    assert first.callbacks[1][1] == other.owned
    assert other.callbacks == [("assign", other.owned)]
    first.close()
    other.until(lambda: len(other.owned) == 4)
    assert [what for what, _ in other.callbacks] == ["assign", "assign"]


@on_both
def test_a_member_hears_of_its_partitions_while_it_polls_and_at_no_other_time(k: Side) -> None:
    topic, group = k.topic(2), k.name("group")
    member = k.member(group, topic)
    k.sleep(4)
    assert not member.shares
    assert not member.consumer.assignment()
    member.until(lambda: member.owned == [0, 1])
    assert member.callbacks == [("assign", [0, 1])]


@on_both
def test_a_static_member_returns_to_its_partitions_without_a_rebalance(k: Side) -> None:
    topic, group = k.topic(4), k.name("group")
    first = k.member(group, topic, group_instance_id="one")
    other = k.member(group, topic, group_instance_id="other")
    first.until(lambda: len(first.owned) == len(other.owned) == 2, other)
    owned, callbacks = first.owned, list(other.callbacks)
    first.close()
    assert first.callbacks[-1] == ("revoke", owned)
    rejoined = k.member(group, topic, group_instance_id="one")
    rejoined.until(lambda: rejoined.owned == owned, other)
    other.for_a_while(1.5, rejoined)
    assert other.callbacks == callbacks
    assert rejoined.callbacks == [("assign", owned)]


@on_both
def test_a_static_member_that_is_closed_stays_one_until_its_session_ends(k: Side) -> None:
    topic, group = k.topic(2), k.name("group")
    static = k.member(group, topic, group_instance_id="one")
    static.until(lambda: static.owned == [0, 1])
    static.commit(0, metadata="here")
    static.close()
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
    first = k.consumer(group, group_instance_id="one")
    revocations: list[int] = []

    def on_revoke(consumer: Any, partitions: list[TopicPartition]) -> None:
        consumer.incremental_unassign(partitions)
        revocations.append(len(partitions))
        if len(revocations) == 1:
            raise ValueError("stop here")

    first.subscribe([topic], on_revoke=on_revoke)
    k.until(lambda: first.poll(0.02) and len(first.assignment()) == 2)
    other = k.member(group, topic, group_instance_id="other")
    with pytest.raises(ValueError, match="stop here"):
        k.until(lambda: (other.poll(0.02), first.poll(0)) is None)
    first.close()
    assert revocations == [1, 1]
    rejoined = k.member(group, topic, group_instance_id="one")
    rejoined.until(lambda: rejoined.owned, other)
    rejoined.for_a_while(3, other)
    assert (len(rejoined.owned), other.owned) == (1, [])


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
    assert [what for what, _ in old.callbacks] == ["assign"]
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
    topic, group, callbacks = k.topic(2), k.name("group"), []
    consumer = k.consumer(group)

    def on_assign(consumer: Any, partitions: list[TopicPartition]) -> None:
        callbacks.append(("assign", len(partitions)))
        callbacks.append(("error", refused(lambda: consumer.committed(partitions, timeout=0.5)).code()))

    consumer.subscribe([topic], on_assign=on_assign, on_revoke=lambda _, tps: callbacks.append(("revoke", len(tps))))
    described = lambda: k.admin.describe_consumer_groups([group])[group].result(30)  # noqa: E731
    k.until(lambda: described().state.name == "STABLE")
    k.sleep(0.5)
    assert callbacks == []
    consumer.close()
    assert callbacks == [("assign", 2), ("error", KafkaError._TIMED_OUT), ("revoke", 2)]
    with pytest.raises(RuntimeError):
        consumer.poll(0)


@on_both
def test_who_does_not_poll_loses_its_partitions(k: Side) -> None:
    topic, group = k.topic(2), k.name("group")
    member = k.member(group, topic, max_poll_interval_ms=6000)
    member.until(lambda: member.owned == [0, 1])
    k.sleep(8)
    # On a busy machine the group, without members and offsets, may be gone as well by then.
    assert refused(lambda: member.commit(1)).code() in (KafkaError.UNKNOWN_MEMBER_ID, KafkaError.GROUP_ID_NOT_FOUND)
    member.until(lambda: len(member.callbacks) == 3)
    assert member.callbacks == [("assign", [0, 1]), ("lost", [0, 1]), ("assign", [0, 1])]
    assert member.codes == [KafkaError._MAX_POLL_EXCEEDED]


@on_both
def test_partitions_that_are_added_are_found_when_metadata_is_asked_for(k: Side) -> None:
    topic = k.topic()
    member = k.member(k.name("group"), topic, topic_metadata_refresh_interval_ms=1000)
    member.until(lambda: member.owned == [0])
    k.admin.create_partitions([NewPartitions(topic, 3)])[topic].result(30)
    member.until(lambda: member.owned == [0, 1, 2])
    assert member.callbacks == [("assign", [0]), ("assign", [1, 2])]
