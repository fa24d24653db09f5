"""Kafka's admin clients: the same on the real brokers and on the model of them."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import ConfigResource, NewTopic, OffsetSpec, ResourceType
from kafka import TopicPartition as PythonTopicPartition
from kafka.admin import ConfigResource as PythonConfigResource
from kafka.admin import OffsetSpec as PythonOffsetSpec
from kafka.errors import NoError, UnknownMemberIdError, UnknownTopicOrPartitionError
from kafka.structs import OffsetAndMetadata

from flafka.agent.services.running import until
from flafka.plugins.kafka.admin import assigned_partitions
from tests.simulator.contract.sides import Side, on_both, refused


@on_both
def test_topics_as_the_admin_client_reports_them(k: Side) -> None:
    topic = k.topic(2, retention_ms="3600000")
    metadata = k.admin.list_topics(topic, timeout=30)
    assert (sorted(metadata.topics[topic].partitions), metadata.topics[topic].error) == ([0, 1], None)
    assert len(metadata.brokers) == 3
    assert metadata.cluster_id
    nowhere = k.admin.list_topics(k.name("nowhere"), timeout=30).topics
    assert [(unknown.error.code(), len(unknown.partitions)) for unknown in nowhere.values()] == [
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
def test_groups_and_offsets_as_the_admin_client_reports_them(k: Side) -> None:
    topic, group = k.topic(2), k.name("group")
    k.put(topic, "a", "b", "c")
    producer = k.transactional(k.name("id"))
    producer.begin_transaction()
    producer.produce(topic, b"d", partition=0)
    assert producer.flush(30) == 0
    tp = TopicPartition(topic, 0)
    offsets = [
        k.admin.list_offsets({tp: spec}, isolation_level=level)[tp].result(30).offset
        for spec in (OffsetSpec.earliest(), OffsetSpec.latest(), OffsetSpec.for_timestamp(5))
        for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
    ]
    assert offsets == [0, 0, 3, 4, 0, 0]
    producer.abort_transaction(30)

    def alter(*requested: TopicPartition) -> list[Any]:
        request = [ConsumerGroupTopicPartitions(group, list(requested))]
        answered = k.admin.alter_consumer_group_offsets(request)[group].result(30).topic_partitions
        return [tp.error and tp.error.code() for tp in answered]

    def listed() -> list[Any]:
        request = [ConsumerGroupTopicPartitions(group)]
        answered = k.admin.list_consumer_group_offsets(request)[group].result(30).topic_partitions
        return [(tp.topic, tp.partition, tp.offset, tp.metadata) for tp in answered]

    first = TopicPartition(topic, 0, 2, metadata="epoch=1")
    until(lambda: alter(first) == [None], "the group's coordinator, which may be moving or beginning")
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
    assert [sorted(assigned_partitions(m.assignment, topic)) for m in listed_one.members] == [[0, 1]]
    described = k.admin.describe_consumer_groups([group])[group].result(30)
    (known,) = described.members
    assert (described.state.name, known.group_instance_id) == ("STABLE", "one")
    assert sorted(tp.partition for tp in known.assignment.topic_partitions) == [0, 1]
    assert alter(TopicPartition(topic, 0, 1)) == [KafkaError.UNKNOWN_MEMBER_ID]
    described = k.admin.describe_cluster().result(30)
    assert (len(described.nodes), described.cluster_id) == (3, k.admin.list_topics(timeout=30).cluster_id)


def _described(k: Side, topic: str) -> bool:
    """Return True if the broker that answers knows the topic."""
    return k.admin.describe_topics(TopicCollection([topic]))[topic].exception(30) is None


@on_both
def test_a_callback_of_the_admin_clients_that_waits_for_another_answer_holds_it_up(k: Side) -> None:
    topic = k.topic()
    k.until(lambda: _described(k, topic))
    results: list[object] = []
    asking = True

    def wait(first: Any) -> None:
        if asking:
            results.append("answered before anyone waited")
            return
        second = k.admin.describe_topics(TopicCollection([topic]))[topic]
        try:
            results.append(second.result(1).name)
        except TimeoutError as e:
            results.append(type(e))
        second.add_done_callback(lambda done: results.append(done.result().name))

    def held_up() -> bool:
        nonlocal asking
        results.clear()
        asking = True
        k.admin.describe_topics(TopicCollection([topic]))[topic].add_done_callback(wait)
        asking = False
        k.until(lambda: len(results) == 2 or "answered before anyone waited" in results)
        return len(results) == 2

    k.until(held_up)
    assert results == [TimeoutError, topic]


@on_both
def test_metadata_has_a_nul_that_the_other_admin_client_shows(k: Side) -> None:
    topic, group = k.topic(), k.name("group")
    onlooker, producer = k.consumer(group), k.transactional(k.name("id"))
    other = k.KafkaAdminClient(bootstrap_servers=k.servers)

    def shown() -> list[str]:
        return [committed.metadata for committed in other.list_group_offsets(group)[group].values()]

    onlooker.commit(offsets=[TopicPartition(topic, 0, 1, metadata="epoch=1")], asynchronous=False)
    assert shown() == ["epoch=1\0"]
    request = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 1, metadata="epoch=2")])
    k.admin.alter_consumer_group_offsets([request])[group].result(30)
    assert shown() == ["epoch=2\0"]
    producer.begin_transaction()
    offsets = [TopicPartition(topic, 0, 1, metadata="epoch=3")]
    producer.send_offsets_to_transaction(offsets, onlooker.consumer_group_metadata(), 30)
    producer.commit_transaction(30)
    assert onlooker.committed([TopicPartition(topic, 0)], timeout=30)[0].metadata == "epoch=3"
    assert shown() == ["epoch=3\0"]
    other.close()


@on_both
def test_topics_and_groups_as_the_other_admin_client_reports_them(k: Side) -> None:
    topic, group = k.name("topic"), k.name("group")
    admin = k.KafkaAdminClient(bootstrap_servers=k.servers)
    wanted = {"num_partitions": 2, "replication_factor": -1, "configs": {"retention.ms": "3600000"}}
    assert [a["error_code"] for a in admin.create_topics({topic: wanted}, raise_errors=False)["topics"]] == [0]
    admin.wait_for_topics([topic])
    assert [a["error_code"] for a in admin.create_topics({topic: wanted}, raise_errors=False)["topics"]] == [36]
    described, missing = admin.describe_topics([topic]) + admin.describe_topics([k.name("nowhere")])
    assert [(p["partition_index"], len(p["isr_nodes"])) for p in described["partitions"]] == [(0, 3), (1, 3)]
    assert (missing["error_code"], missing["partitions"]) == (3, [])
    settings = admin.describe_configs([PythonConfigResource("TOPIC", topic)])["topic"][topic]
    assert {name: setting["value"] for name, setting in settings.items()} == {"retention.ms": "3600000"}
    k.put(topic, "a", "b", "c")
    tps = [PythonTopicPartition(topic, 0), PythonTopicPartition(topic, 1)]
    offsets = [
        [end.offset for end in admin.list_partition_offsets(dict.fromkeys(tps, spec)).values()]
        for spec in (PythonOffsetSpec.EARLIEST, PythonOffsetSpec.LATEST, 5)
    ]
    assert offsets == [[0, 0], [3, 0], [0, -1]]
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.list_partition_offsets({PythonTopicPartition(k.name("nowhere"), 0): PythonOffsetSpec.LATEST})

    assert "GroupIdNotFound" in admin.describe_groups([group])[group]["error"]
    assert admin.list_group_offsets(group) == {group: {}}
    committed = OffsetAndMetadata(2, "epoch=1", None)
    answers = admin.alter_group_offsets(
        group, {tps[0]: committed, PythonTopicPartition(k.name("nowhere"), 0): committed}
    )
    assert sorted(error.__name__ for error in answers.values()) == ["NoError", "UnknownTopicOrPartitionError"]
    assert admin.list_group_offsets(group)[group] == {tps[0]: OffsetAndMetadata(2, "epoch=1", -1)}
    description = admin.describe_groups([group])[group]
    assert (description["error"], description["group_state"], description["members"]) == (None, "Empty", [])

    member = k.member(group, topic, group_instance_id="one", client_id="me")
    member.until(lambda: member.owned == [0, 1])
    (known,) = admin.describe_groups([group])[group]["members"]
    assert (known["group_instance_id"], known["client_id"]) == ("one", "me")
    assert known["member_assignment"]["assigned_partitions"] == [{"topic": topic, "partitions": [0, 1]}]
    assert admin.alter_group_offsets(group, {tps[0]: committed})[tps[0]] is UnknownMemberIdError
    listed = {listing["group_id"]: listing["group_state"] for listing in admin.list_groups()}
    assert listed[group] == "Stable"
    assert admin.delete_groups([group]) == {group: "NonEmptyGroupError"}
    assert NoError is not None
    deletions = admin.delete_topics([topic, k.name("nowhere")], raise_errors=False)["topics"]
    assert {answer["name"] == topic: answer["error_code"] for answer in deletions} == {True: 0, False: 3}
    assert len(admin.describe_cluster()["brokers"]) == 3
    admin.close()
