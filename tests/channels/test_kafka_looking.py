"""Looks into a topic whose brokers answer in part, or not at all."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from channels.kafka import looking
from channels.kafka.looking import Looking
from plugins import Retry


class Half:
    """A consumer of a topic with two partitions, the second of which has no leader just now."""

    def __init__(self, properties: Any) -> None:
        pass

    def list_topics(self, topic: str, timeout: float) -> Any:
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
    monkeypatch.setattr(looking, "Consumer", Half)
    with pytest.raises(Retry, match="topic t cannot be looked at: "):
        Looking({}, "t", "g", lambda records, claim: None).at(1)
