"""Settings of the topics to which the Kafka sink writes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from flafka.plugins import Retry
from flafka.plugins.kafka.admin import CONNECTIVITY_SECONDS, has_write_access
from flafka.plugins.kafka.config import INTERNAL_TOPICS, check_topic_name
from flafka.plugins.kafka.errors import explain_error
from flafka.sinks.kafka.config import KafkaSinkConfig

TOPIC_CACHE_SECONDS = 60.0
"""Age at which the cached settings of a topic are read again."""
RECORD_OVERHEAD_BYTES = 4096
"""Number of bytes that are reserved for the framing of a record."""
MAX_RECORD_BYTES = 8 << 20
"""Limit of a record in any topic."""
BATCH_BYTES = 1_000_000
"""Size of a request batch, unless a topic has a lower limit, above which a broker refuses the batch."""
NO_LIMIT_MS = 2**63 - 1
_NO_TOPIC = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION, KafkaError.TOPIC_AUTHORIZATION_FAILED}
)


class TopicSettings(NamedTuple):
    """Settings of a topic by which its brokers refuse a record."""

    name: str
    partitions: int
    max_record_bytes: int
    max_before_ms: int
    """Maximum age of a record's timestamp, in milliseconds."""
    max_after_ms: int
    """Maximum time by which a record's timestamp may be after now, in milliseconds."""
    requires_key: bool
    """True for a compacted topic."""
    lookup_time: float
    """Time of the lookup, on the monotonic clock."""

    def check(self, record: Mapping[str, Any]) -> None:
        """Raise ValueError, with a sentence, for a record for which the broker would refuse the request batch.

        `record` has `value`, `key`, and perhaps `headers`, `partition`, and `timestamp` in milliseconds.
        """
        key = record["key"]
        size = len(record["value"]) + len(key or "")
        size += sum(len(name) + len(text) for name, text in record.get("headers", ()))
        if size > self.max_record_bytes - RECORD_OVERHEAD_BYTES:
            raise ValueError(
                f"an event of {size:,} bytes is larger than a record of topic {self.name} may be "
                f"({self.max_record_bytes:,}; max.message.bytes)"
            )
        if "partition" in record and not 0 <= record["partition"] < self.partitions:
            raise ValueError(
                f"topic {self.name} has partitions 0 to {self.partitions - 1}, not {record['partition']}"
            )
        if self.requires_key and key is None:
            raise ValueError(f"topic {self.name} is compacted, and accepts no event without a header 'key'")
        if "timestamp" in record:
            ahead = record["timestamp"] - int(time.time() * 1000)
            if not -self.max_before_ms <= ahead <= self.max_after_ms:
                side = "after" if ahead > 0 else "before"
                raise ValueError(
                    f"its time is {abs(ahead) // 1000:,} s {side} now, more than topic {self.name} allows "
                    f"(message.timestamp.{side}.max.ms)"
                )


class TopicCache:
    """Cache of the settings of topics."""

    def __init__(self, config: KafkaSinkConfig, admin: AdminClient, client: Mapping[str, Any] | None = None) -> None:
        """`client` are the properties of `admin`, for errors about missing rights."""
        self.max_batch_bytes = BATCH_BYTES
        """Size of the largest request batch that all cached topics accept."""
        self._config, self._admin, self._client = config, admin, client
        self._known: dict[str, TopicSettings] = {}

    def use(self, admin: AdminClient, client: Mapping[str, Any]) -> None:
        """Send later requests with another admin client, which has these properties."""
        self._admin, self._client = admin, client

    def clear(self) -> None:
        """Forget all settings: brokers have refused a record that the cached ones allow."""
        self._known.clear()
        self.max_batch_bytes = BATCH_BYTES

    def get(self, name: str) -> TopicSettings | str:
        """Return the settings of a topic, or the reason why it never accepts records.

        Raises Retry for a reason that may pass. A problem of kafka.topic without escapes counts as one, as it
        concerns all events.
        """
        known = self._known.get(name)
        if known is not None and time.monotonic() - known.lookup_time <= TOPIC_CACHE_SECONDS:
            return known
        if not name:
            return f"kafka.topic = {self._config.topic} is empty for this event"
        try:
            check_topic_name(name)
        except ValueError as e:
            return f"{name[:80]!r} is not a valid topic name: {e}"
        if name in INTERNAL_TOPICS:
            return f"topic {name} is internal to the brokers, and accepts no events"
        try:
            topic = self._admin.list_topics(name, timeout=CONNECTIVITY_SECONDS).topics[name]
        except KafkaException as e:
            raise Retry(f"topic {name}: {self._explain(e, name)}") from e
        partitions, error = len(topic.partitions), topic.error
        if name in self._config.produced_topics():
            if error is not None:
                hint = "" if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED else f": agent topic create {name}"
                raise Retry(f"topic {name}: {self._explain(error, name)}{hint}")
            if partitions <= (number := self._config.default_partition_id or 0):
                raise Retry(f"defaultPartitionId = {number}, and topic {name} has partitions 0 to {partitions - 1}")
        elif error is not None and error.code() in _NO_TOPIC:
            is_denied = error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
            return self._explain(error, name) if is_denied else f"there is no topic {name} ({error.str()})"
        elif error is not None:
            raise Retry(f"topic {name}: {error.str()}")
        # Without this check, brokers refuse the whole transaction, and do not name the topic.
        if not has_write_access(self._admin, name):
            missing_right = self._explain(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), name)
            if name in self._config.produced_topics():
                raise Retry(missing_right)
            return missing_right
        settings = self._known[name] = self._read_settings(name, partitions)
        self.max_batch_bytes = min(self.max_batch_bytes, settings.max_record_bytes)
        return settings

    def topic_id(self, name: str) -> str:
        """Return the id of a topic; empty if it does not exist, or this client may not describe it. Raises Retry."""
        futures = self._admin.describe_topics(TopicCollection([name]))
        try:
            return str(futures[name].result(CONNECTIVITY_SECONDS).topic_id)
        except (KafkaException, TimeoutError) as e:
            if isinstance(e, KafkaException) and e.args[0].code() in _NO_TOPIC:
                return ""
            raise Retry(f"topic {name}: {self._explain(e, name)}") from e

    def _explain(self, error: object, name: str) -> str:
        """Return a sentence for an error of a topic, with the missing right Write, which includes Describe."""
        return explain_error(error, topic=name, right="Write", client=self._client)

    def _read_settings(self, name: str, partitions: int) -> TopicSettings:
        """Return the settings of a topic, with Kafka's defaults for those that this client may not read."""
        resource = ConfigResource(ResourceType.TOPIC, name)
        try:
            entries = self._admin.describe_configs([resource])[resource].result(CONNECTIVITY_SECONDS)
        except KafkaException:  # this client may not read the settings
            entries = {}
        values = {setting: entry.value for setting, entry in entries.items()}
        uses_create_time = values.get("message.timestamp.type", "CreateTime") == "CreateTime"

        def limit(setting: str) -> int:
            return int(values.get(setting, NO_LIMIT_MS)) if uses_create_time else NO_LIMIT_MS

        return TopicSettings(
            name,
            partitions,
            max_record_bytes=min(MAX_RECORD_BYTES, int(values.get("max.message.bytes", 1 << 20))),
            max_before_ms=limit("message.timestamp.before.max.ms"),
            max_after_ms=limit("message.timestamp.after.max.ms"),
            requires_key="compact" in values.get("cleanup.policy", ""),
            lookup_time=time.monotonic(),
        )
