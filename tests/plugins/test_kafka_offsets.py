"""Offsets from brokers, and their answers while they are unavailable."""

from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from flafka.plugins.kafka.admin import committed_offsets, members_of, offsets_for_times, watermarks


def test_an_error_is_not_mistaken_for_a_group_without_an_offset():
    answers = [SimpleNamespace(offset=7, error=None), SimpleNamespace(offset=-1001, error=None)]
    consumer = SimpleNamespace(committed=lambda partitions, timeout: answers)
    assert [partition.offset for partition in committed_offsets(consumer, [], 1)] == [7, -1001]
    answers[1].error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        committed_offsets(consumer, [], 1)


def test_offsets_are_requested_again_while_the_coordinator_moves_or_starts():
    codes = [
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
    ]
    failures = list(codes)

    def committed(partitions, timeout):
        if failures:
            raise KafkaException(KafkaError(failures.pop()))
        return [SimpleNamespace(offset=7, error=None)]

    assert [partition.offset for partition in committed_offsets(SimpleNamespace(committed=committed), [], 60)] == [7]
    failures += codes
    with pytest.raises(KafkaException, match="COORDINATOR_NOT_AVAILABLE"):
        committed_offsets(SimpleNamespace(committed=committed), [], 0)


def test_a_broker_without_metadata_of_a_new_topic_is_asked_again():
    codes = [KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART]
    failures: list[int] = []

    def marks(partition, timeout):
        if failures:
            raise KafkaException(KafkaError(failures.pop()))
        return 0, 7

    def times(partitions, timeout):
        error = KafkaError(failures.pop()) if failures else None
        return [SimpleNamespace(offset=7, error=error)]

    client = SimpleNamespace(get_watermark_offsets=marks, offsets_for_times=times)
    for request, answer in (
        (lambda seconds: watermarks(client, None, seconds), (0, 7)),
        (lambda seconds: [partition.offset for partition in offsets_for_times(client, [], seconds)], [7]),
    ):
        failures += codes
        assert request(60) == answer
        failures += codes
        with pytest.raises(KafkaException, match="UNKNOWN_TOPIC_OR_PART"):
            request(0)
        failures.clear()


def test_an_error_of_the_coordinator_is_not_mistaken_for_a_group_without_members():
    error = KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
    answers = [SimpleNamespace(error=None, members=["one"]), SimpleNamespace(error=error, members=[])]
    admin = SimpleNamespace(list_groups=lambda group, timeout: [answers.pop()])
    assert members_of(admin, "g", 60) == ["one"]
    answers.append(SimpleNamespace(error=KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED), members=[]))
    with pytest.raises(KafkaException, match="GROUP_AUTHORIZATION_FAILED"):
        members_of(admin, "g", 60)
