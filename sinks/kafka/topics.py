"""Topics that the Kafka sink writes to, with their settings."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from flafka.plugins import Retry
from flafka.plugins.kafka.admin import PROBE_SECONDS, may_write
from flafka.plugins.kafka.config import INTERNAL_TOPICS, checked_topic
from flafka.plugins.kafka.errors import sentence
from flafka.plugins.kafka.properties import client_properties
from flafka.sinks.kafka.config import KafkaSinkConfig

KNOWN_SECONDS = 60.0
"""Time after which a known topic is looked up again."""
HEADROOM = 4096
"""Bytes of the largest record that its framing may take."""
LARGEST = 8 << 20
BATCH_BYTES = 1_000_000
"""Size of a request batch, unless a topic takes less: a broker refuses a larger one as a whole."""
EVER = 2**63 - 1
_NO_TOPIC = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION, KafkaError.TOPIC_AUTHORIZATION_FAILED}
)


class TopicSettings(NamedTuple):
    """Settings of a topic by which its brokers refuse a record."""

    name: str
    partitions: int
    limit: int
    """Bytes of the largest."""
    before: int
    after: int
    """Milliseconds by which a record's time may lie before and after now."""
    keyed: bool
    """True if each record needs a key."""
    looked: float

    def check(self, record: Mapping[str, Any]) -> None:
        """ValueError, in words, for a record that the broker would refuse, and all that travel with it."""
        key = record["key"]
        size = len(record["value"]) + len(key or "")
        size += sum(len(name) + len(text) for name, text in record.get("headers", ()))
        if size > self.limit - HEADROOM:
            raise ValueError(
                f"an event of {size:,} bytes is larger than a record of topic {self.name} may be ({self.limit:,}; "
                "max.message.bytes)"
            )
        if "partition" in record and not 0 <= record["partition"] < self.partitions:
            raise ValueError(
                f"topic {self.name} has partitions 0 to {self.partitions - 1}, not {record['partition']}"
            )
        if self.keyed and key is None:
            raise ValueError(f"topic {self.name} is compacted, and takes no event without a header 'key'")
        if "timestamp" in record:
            ahead = record["timestamp"] - int(time.time() * 1000)
            if not -self.before <= ahead <= self.after:
                side = "after" if ahead > 0 else "before"
                raise ValueError(
                    f"its time is {abs(ahead) // 1000:,} s {side} now, more than topic {self.name} allows "
                    f"(message.timestamp.{side}.max.ms)"
                )


class Topics:
    """Looks topics up, when they are first written to and every minute."""

    def __init__(self, config: KafkaSinkConfig, admin: AdminClient) -> None:
        self.smallest = BATCH_BYTES
        """Size of the largest request batch that all topics seen so far take."""
        self._config, self._admin = config, admin
        self._known: dict[str, TopicSettings] = {}

    def forget(self) -> None:
        """Have every topic looked up again: brokers have refused what its known settings allow."""
        self._known.clear()
        self.smallest = BATCH_BYTES

    def get(self, name: str) -> TopicSettings | str:
        """The topic, or why nothing can be written there. Retry where that may pass."""
        known = self._known.get(name)
        if known is not None and time.monotonic() - known.looked <= KNOWN_SECONDS:
            return known
        if not name:
            return f"kafka.topic = {self._config.topic} is empty for this event"
        try:
            checked_topic(name)
        except ValueError as e:
            return f"{name[:80]!r} is not a valid topic name: {e}"
        if name in INTERNAL_TOPICS:
            return f"topic {name} is the brokers' own, and takes no events"
        try:
            topic = self._admin.list_topics(name, timeout=PROBE_SECONDS).topics[name]
        except KafkaException as e:
            raise Retry(f"topic {name}: {self._why(e, name)}") from e
        partitions, error = len(topic.partitions), topic.error
        if name in self._config.writes():
            if error is not None:
                made = "" if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED else f": agent topic create {name}"
                raise Retry(f"topic {name}: {self._why(error, name)}{made}")
            if partitions <= (number := self._config.default_partition_id or 0):
                raise Retry(f"defaultPartitionId = {number}, and topic {name} has partitions 0 to {partitions - 1}")
        elif error is not None and error.code() in _NO_TOPIC:
            return f"there is no topic {name} ({self._why(error, name)})"
        elif error is not None:
            raise Retry(f"topic {name}: {error.str()}")
        if not self._may_write(name):
            lacking = self._why(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), name, right="Write")
            if name in self._config.writes():
                raise Retry(lacking)
            return lacking
        found = self._known[name] = self._topic(name, partitions)
        self.smallest = min(self.smallest, found.limit)
        return found

    def id_of(self, name: str) -> str:
        """Return the id of a topic; empty if there is no such topic, or this client may not describe it."""
        asked = self._admin.describe_topics(TopicCollection([name]))
        try:
            return str(asked[name].result(PROBE_SECONDS).topic_id)
        except (KafkaException, TimeoutError) as e:
            if isinstance(e, KafkaException) and e.args[0].code() in _NO_TOPIC:
                return ""
            raise Retry(f"topic {name}: {self._why(e, name)}") from e

    def _why(self, error: object, name: str, right: str = "Describe") -> str:
        return sentence(error, topic=name, right=right, client=client_properties(self._config.producer))

    def _may_write(self, name: str) -> bool:
        """Return False if the brokers say that this client lacks the right Write.

        Without this, they refuse the whole transaction, and do not say for which of its topics.
        """
        asked = self._admin.describe_topics(TopicCollection([name]), include_authorized_operations=True)
        try:
            return may_write(asked[name].result(PROBE_SECONDS))
        except (KafkaException, TimeoutError):  # the records themselves will tell
            return True

    def _topic(self, name: str, partitions: int) -> TopicSettings:
        resource = ConfigResource(ResourceType.TOPIC, name)
        try:
            entries = self._admin.describe_configs([resource])[resource].result(PROBE_SECONDS)
        except KafkaException:  # may not be asked for
            entries = {}
        said = {setting: entry.value for setting, entry in entries.items()}
        created = said.get("message.timestamp.type", "CreateTime") == "CreateTime"
        return TopicSettings(
            name,
            partitions,
            limit=min(LARGEST, int(said.get("max.message.bytes", 1 << 20))),
            before=int(said.get("message.timestamp.before.max.ms", EVER)) if created else EVER,
            after=int(said.get("message.timestamp.after.max.ms", EVER)) if created else EVER,
            keyed="compact" in said.get("cleanup.policy", ""),
            looked=time.monotonic(),
        )
