"""Looks into a topic whose brokers answer in part, or not at all."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from confluent_kafka import KafkaError

from flafka.agent.runner.deadletters import stored
from flafka.channels.kafka.topic import TopicLookup
from flafka.plugins import KafkaStream, Retry
from flafka.plugins.kafka import clients


class Half:
    """A consumer of a topic with two partitions, the second of which has no leader just now."""

    groups: ClassVar[list[str]] = []

    def __init__(self, properties: Any) -> None:
        self.groups.append(properties["group.id"])

    def list_topics(self, topic: str = "", timeout: float = 0) -> Any:
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions={0: None, 1: None})})

    def offsets_for_times(self, wanted: Any, timeout: float) -> Any:
        error = KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
        return [
            SimpleNamespace(topic="t", partition=0, offset=17, error=None),
            SimpleNamespace(topic="t", partition=1, offset=-1001, error=error),
        ]

    def get_watermark_offsets(self, at: Any, timeout: float) -> tuple[int, int]:
        return 0, 100

    def close(self) -> None:
        pass


def test_a_partition_that_does_not_say_what_came_when_is_not_taken_for_one_with_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a replay would leave out what it holds, as if all of it had come before."""
    monkeypatch.setattr(clients, "Consumer", Half)
    monkeypatch.setattr("flafka.channels.kafka.topic.REQUEST_SECONDS", 0.2)
    with pytest.raises(Retry, match="topic t cannot be looked at: "):
        TopicLookup({}, "t", "g", lambda records, assignment: None).at(1)


def test_topics_are_read_in_the_channel_s_own_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients with ACLs may read in no other, although nothing joins it or commits to it here."""
    monkeypatch.setattr(clients, "Consumer", Half)
    Half.groups.clear()
    monkeypatch.setattr("flafka.channels.kafka.topic.REQUEST_SECONDS", 0.2)
    with pytest.raises(Retry):
        TopicLookup({}, "t", "g", lambda records, assignment: None).at(1)
    assert not [*stored.records(KafkaStream("127.0.0.1:1", "t", "g"), "t.deadletters")]
    assert Half.groups == ["g", "g"]
