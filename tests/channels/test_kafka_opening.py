"""Opening of a Kafka channel beside others."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection

from flafka.channels.kafka.channel import TopicAdmin


class Admin:
    """Admin client whose brokers know a new topic from the third request on."""

    def __init__(self, code: int) -> None:
        self.code, self.requests = code, 0

    def describe_topics(self, topics: TopicCollection) -> dict[str, Future[Any]]:
        """Return the description of each topic, or the error."""
        self.requests += 1
        future: Future[Any] = Future()
        if self.requests < 3:
            future.set_exception(KafkaException(KafkaError(self.code)))
        else:
            future.set_result(SimpleNamespace(topic_id="JmX2Ab0E9x66_D5K_RAzbQ"))
        return dict.fromkeys(topics.topic_names, future)


def topic_admin(admin: Admin) -> TopicAdmin:
    channel: Any = SimpleNamespace(config=SimpleNamespace(topic="counts"), stopping=threading.Event())
    client: Any = admin
    return TopicAdmin(client, channel)


def test_a_topic_that_another_channel_creates_at_the_same_time_is_no_error() -> None:
    """Otherwise the first start of an agent with two channels warned of an unknown topic."""
    admin = Admin(KafkaError.UNKNOWN_TOPIC_OR_PART)
    topic_admin(admin).refuse_old_brokers(["events"])
    assert admin.requests == 3


def test_other_errors_of_the_request_are_raised_at_once() -> None:
    admin = Admin(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaException):
        topic_admin(admin).refuse_old_brokers(["events"])
    assert admin.requests == 1
