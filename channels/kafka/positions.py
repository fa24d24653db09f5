"""Whose positions a group holds: the topic's id, and claims with what was committed for them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from plugins import Claim, Retry
from plugins.kafkaclient import reason
from plugins.offsets import OffsetMetadata

ANSWER_SECONDS = 10.0


class TopicIds:
    """Asks the brokers which topic has a name now."""

    def __init__(self, admin: AdminClient, topic: str) -> None:
        self._admin, self._topic = admin, topic
        self._partitions = 0

    def get(self) -> str:
        """Its id. Retry where there is none, or no answer."""
        try:
            return str(self._request().result(ANSWER_SECONDS).topic_id)
        except (KafkaException, TimeoutError) as e:
            raise Retry(f"topic {self._topic} cannot be looked at: {reason(e)}") from e

    def ask(self, answer: Callable[[str | None], None]) -> None:
        """Have it called, on a thread of the client's, with the id; with none where there is no answer.

        Where there is no such topic now, the id is empty.
        """

        def told(future: Any) -> None:
            error = future.exception()
            if error is None:
                self._partitions = len(future.result().partitions)
                answer(str(future.result().topic_id))
            else:
                gone = isinstance(error, KafkaException) and error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
                answer("" if gone else None)

        try:
            request = self._request()
        except KafkaException:
            answer(None)
        else:
            request.add_done_callback(told)

    def unread(self, group: str, answer: Callable[[set[int]], None]) -> None:
        """Have it called, on a thread of the client's, with the partitions that no member of the group has.

        None of them are told while members come and go, and where there is no answer.
        """

        def told(future: Any) -> None:
            found = future.result() if future.exception() is None else None
            if found is None or found.state.name != "STABLE" or not found.members:
                answer(set())
                return
            owned = {
                tp.partition for m in found.members for tp in m.assignment.topic_partitions if tp.topic == self._topic
            }
            answer(set(range(self._partitions)) - owned)

        try:
            request = self._admin.describe_consumer_groups([group], request_timeout=ANSWER_SECONDS)[group]
        except KafkaException:
            answer(set())
        else:
            request.add_done_callback(told)

    def _request(self) -> Any:
        topics = TopicCollection([self._topic])
        return self._admin.describe_topics(topics, request_timeout=ANSWER_SECONDS)[self._topic]


def claims_of(claim: Claim, committed: Iterable[TopicPartition], log: logging.Logger) -> dict[Claim, int | None]:
    """That claim for each partition, with the group's position; all partitions of the topic have to be given.

    A position of another topic of that name counts as none. A group that has positions from before version 0.2 goes
    on naming events as it did; another program's commit, which says nothing, does not change how they are named.
    """
    found: dict[Claim, int | None] = {}
    silent: dict[Claim, int | None] = {}
    older = False
    for tp in committed:
        said = OffsetMetadata.parse(tp.metadata)
        one = claim._replace(partition=tp.partition)
        if tp.offset < 0 or not tp.metadata:
            silent[one] = tp.offset if tp.offset >= 0 else None
        elif said.topic_id not in ("", claim.topic_id):
            log.warning(
                "group %s stood at offset %d of a topic %s that was deleted: it begins with the first record of the "
                "topic of that name; what the old one still held of partition %d is lost",
                claim.group, tp.offset, claim.topic, tp.partition,
            )  # fmt: skip
            silent[one] = None
        else:
            found[one._replace(epoch=said.epoch, ids=said.ids, record=said.record)] = tp.offset
            older |= said.ids == 1
    return found | {one._replace(ids=1 if older else 2): offset for one, offset in silent.items()}
