"""Topic ids (KIP-516), by which the Kafka source detects a topic that was deleted and created again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection

from flafka.plugins.kafka.admin import topic_id
from flafka.plugins.kafka.clients import METADATA_SECONDS, REQUEST_SECONDS, TOPIC_ID_SECONDS, new_admin
from flafka.plugins.kafka.errors import UNSUPPORTED_ERRORS
from flafka.sources.kafka.config import SOURCE

_ANSWERED_ERRORS = UNSUPPORTED_ERRORS | {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}
"""Errors that a broker itself returns; after any other error the controller may be lost."""


class TopicIdRequests:
    """Requests for topic ids. Only the polling thread of one consumer may call it.

    Unlike `TopicIds` of `plugins/kafka/admin.py`, one request is for several topics, and brokers older than
    Apache Kafka 2.8, which have no topic ids, are accepted.
    """

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self._admin = new_admin(
            SOURCE, {name: value for name, value in properties.items() if not name.startswith("group.")}
        )
        self._requests: dict[str, Any] = {}
        """Futures of the pending request, by topic."""
        self._next_request = 0.0
        self._controller_unreachable = False

    def get(self, topic: str) -> str:
        """Return the id of a topic; empty where there is no such topic, no response, or brokers have no topic ids.

        Blocks until the response, at most `REQUEST_SECONDS`. A pending request is dropped.
        """
        self._request([topic])
        requests, self._requests = self._requests, {}
        return self._topic_id(requests[topic], REQUEST_SECONDS) if requests else ""

    def restart_requests(self) -> None:
        """Drop the pending request, so that the next `poll` sends a new one."""
        self._requests, self._next_request = {}, 0.0

    def poll(self, topics: Collection[str]) -> dict[str, str]:
        """Return ids by topic that brokers returned since the last call; request ids of `topics` at intervals.

        Empty while a request is pending, and for topics whose id brokers did not return. Blocks at most for one
        metadata request, if the controller could not be reached before.
        """
        if not self._requests:
            if topics and time.monotonic() >= self._next_request:
                self._request(topics)
            return {}
        if not all(request.done() for request in self._requests.values()):
            return {}
        requests, self._requests = self._requests, {}
        ids = {topic: self._topic_id(request, 0) for topic, request in requests.items()}
        return {topic: id for topic, id in ids.items() if id}

    def _request(self, topics: Collection[str]) -> None:
        """Request the ids of these topics; without effect where the client refuses the request."""
        self._requests, self._next_request = {}, time.monotonic() + TOPIC_ID_SECONDS
        with contextlib.suppress(KafkaException):
            if self._controller_unreachable:
                # For minutes, librdkafka sends requests to the last known controller, which may be lost. A metadata
                # request finds the present controller.
                self._controller_unreachable = False
                self._admin.list_topics(sorted(topics)[0], timeout=METADATA_SECONDS)
            names = TopicCollection(sorted(topics))
            self._requests = dict(self._admin.describe_topics(names, request_timeout=REQUEST_SECONDS))

    def _topic_id(self, request: Any, seconds: float) -> str:
        """Return the id in the response, after at most `seconds`; empty on an error or a timeout."""
        try:
            return topic_id(request.result(seconds))
        except (KafkaException, TimeoutError) as e:
            self._controller_unreachable = isinstance(e, TimeoutError) or e.args[0].code() not in _ANSWERED_ERRORS
            return ""
