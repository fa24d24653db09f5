"""Lookups in a topic whose brokers answer in part, or not at all."""

from __future__ import annotations

import gc
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from confluent_kafka import KafkaError

from flafka.agent.runner.deadletters import reading
from flafka.agent.services.running import until
from flafka.channels.kafka import KafkaChannel, KafkaChannelConfig
from flafka.plugins import KafkaStream, Retry
from flafka.plugins.kafka import clients
from flafka.plugins.kafka.clients import QUERY
from flafka.plugins.kafka.topic import KafkaTopic


class Half:
    """Consumer of a topic with two partitions, the second of which has no leader."""

    groups: ClassVar[list[str]] = []

    def __init__(self, properties: Any) -> None:
        self.groups.append(properties["group.id"])

    def list_topics(self, topic: str = "", timeout: float = 0) -> Any:
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None, partitions={0: None, 1: None})})

    def offsets_for_times(self, wanted: Any, timeout: float) -> Any:
        error = KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
        return [
            SimpleNamespace(topic="t", partition=0, offset=17, error=None),
            SimpleNamespace(topic="t", partition=1, offset=-1001, error=error),
        ]

    def get_watermark_offsets(self, partition: Any, timeout: float) -> tuple[int, int]:
        return 0, 100

    def close(self) -> None:
        pass


def topic_without_channel() -> KafkaTopic:
    """Return the topic t without a channel."""
    stream = KafkaStream("127.0.0.1:1", "t", "g")
    return KafkaTopic(QUERY, stream, dict, lambda records, assignment: None, logging.getLogger(), "channel c1: ")


def test_a_partition_without_an_answer_is_not_reported_as_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a replay would omit its records, as if all of them had come before."""
    monkeypatch.setattr(clients, "Consumer", Half)
    monkeypatch.setattr("flafka.plugins.kafka.topic.REQUEST_SECONDS", 0.2)
    with pytest.raises(Retry, match=r"channel c1: .*Broker: Leader not available"):
        topic_without_channel().offsets_for_time(1)


def test_topics_are_read_in_the_channel_s_own_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients with ACLs may read in no other, although no member joins it or commits to it here."""
    monkeypatch.setattr(clients, "Consumer", Half)
    Half.groups.clear()
    monkeypatch.setattr("flafka.plugins.kafka.topic.REQUEST_SECONDS", 0.2)
    with pytest.raises(Retry):
        topic_without_channel().offsets_for_time(1)
    assert not [*reading.read_records(KafkaStream("127.0.0.1:1", "t", "g"), "t.deadletters")]
    assert Half.groups == ["g", "g"]


def test_a_channel_that_was_never_opened_keeps_no_client_after_its_close() -> None:
    """A task on Spark needs the topic's id, and makes its own channel each time."""

    def threads() -> set[str]:
        return {task.name for task in Path("/proc/self/task").iterdir()}

    config, _ = KafkaChannelConfig.parse({"kafka.bootstrap.servers": "127.0.0.1:1"})
    assert config is not None
    channel, before = KafkaChannel(config), threads()
    gc.disable()
    try:
        assert channel.kafka.topic_ids
        clients = threads() - before  # others of this process may end meanwhile
        assert clients
        channel.close()
        until(lambda: not clients & threads(), "the client's threads to end", 30)
    finally:
        gc.enable()
