"""Topic ids, by which the Kafka source sees that a topic was deleted and created again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection

from flafka.plugins.kafka.admin import topic_id
from flafka.plugins.kafka.clients import METADATA_SECONDS, REQUEST_SECONDS, TOPIC_ID_SECONDS, new_admin
from flafka.plugins.kafka.errors import TOO_OLD
from flafka.sources.kafka.config import SOURCE

_ANSWERS = TOO_OLD | {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}
"""Errors of a broker that answers."""


class TopicIdRequests:
    """Requests for topic ids. Every method is called on the polling thread of one consumer.

    Unlike `TopicIds` of `plugins/kafka/admin.py`, one request is for several topics, and brokers older than
    Apache Kafka 2.8, which have no topic ids, are accepted.
    """

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self._admin = new_admin(
            SOURCE, {name: value for name, value in properties.items() if not name.startswith("group.")}
        )
        self._requests: dict[str, Any] = {}
        """By topic: futures of the request without an answer yet."""
        self._due = 0.0
        self._unanswered = False

    def get(self, topic: str) -> str:
        """Return the id of that topic; empty where there is no such topic or no answer, or brokers have no ids.

        Blocks for the answer. An earlier request is dropped.
        """
        self._ask([topic])
        requests, self._requests = self._requests, {}
        return self._id(requests[topic], REQUEST_SECONDS) if requests else ""

    def ask_anew(self) -> None:
        """Drop the request without an answer yet, and make the next one due."""
        self._requests, self._due = {}, 0.0

    def poll(self, topics: Collection[str]) -> dict[str, str]:
        """Return ids that brokers have named since the last call, by topic, and request the ids of `topics` when
        that is due. Does not wait for an answer.
        """
        if not self._requests:
            if topics and time.monotonic() >= self._due:
                self._ask(topics)
            return {}
        if not all(request.done() for request in self._requests.values()):
            return {}
        requests, self._requests = self._requests, {}
        ids = {topic: self._id(request, 0) for topic, request in requests.items()}
        return {topic: id for topic, id in ids.items() if id}

    def _ask(self, topics: Collection[str]) -> None:
        self._requests, self._due = {}, time.monotonic() + TOPIC_ID_SECONDS
        with contextlib.suppress(KafkaException):
            if self._unanswered:
                # The client goes on asking the broker that it took for the controller, which may be lost, for
                # minutes. Any metadata names the present one.
                self._unanswered = False
                self._admin.list_topics(sorted(topics)[0], timeout=METADATA_SECONDS)
            names = TopicCollection(sorted(topics))
            self._requests = dict(self._admin.describe_topics(names, request_timeout=REQUEST_SECONDS))

    def _id(self, request: Any, seconds: float) -> str:
        try:
            return topic_id(request.result(seconds))
        except (KafkaException, TimeoutError) as e:
            self._unanswered = isinstance(e, TimeoutError) or e.args[0].code() not in _ANSWERS
            return ""
