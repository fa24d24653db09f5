"""Partitions of the channel's topic, by which puts distribute events."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence

from confluent_kafka import KafkaException

from flafka.channels.kafka.config import KafkaChannelConfig
from flafka.channels.kafka.records import header_values
from flafka.plugins import Batch, Retry
from flafka.plugins.kafka.errors import explain_error

MISSING_PARTITION_SECONDS = 10.0
"""Interval between requests for the number of partitions, while events name a missing one."""
ANY_PARTITION = -1
"""librdkafka's number for a partition by the record's key, or by its partitioner without a key."""


class Partitions:
    """Partitions of a topic. Thread-safe, for several concurrent puts.

    `count` is their number; `request_count` requests it from the brokers, and raises KafkaException. The constructor
    raises Retry if the topic has no partition `defaultPartitionId`.
    """

    def __init__(
        self, channel: str, config: KafkaChannelConfig, count: int, request_count: Callable[[], int]
    ) -> None:
        self._channel, self._config, self._request_count = channel, config, request_count
        if count <= (default := config.default_partition_id or 0):
            raise Retry(
                f"channel {channel}: defaultPartitionId = {default}, and topic {config.topic} has partitions "
                f"0 to {count - 1}"
            )
        self.count = count
        self.default = ANY_PARTITION if config.default_partition_id is None else config.default_partition_id
        """Partition of an event without the header."""
        self._lock = threading.Lock()
        self._next_refresh = 0.0

    def assign(self, batch: Batch) -> tuple[dict[int, Sequence[int]], dict[int, str]]:
        """Return the rows by partition, and the reason for each row that names a missing partition.

        Rows without the header are in the default partition. Raises Retry if the brokers do not return the present
        number of partitions.
        """
        config, default = self._config, self.default
        texts = header_values(batch, config.partition_id_header) if config.partition_id_header else []
        if not texts:
            return {default: range(len(batch))}, {}
        chosen: dict[int, list[int]] = {}
        unknown: dict[int, str] = {}
        for row, text in enumerate(texts):
            if text is None:
                chosen.setdefault(default, []).append(row)
                continue
            number = int(text) if re.fullmatch(r"[+-]?[0-9]{1,9}", text) else -1
            if number >= self.count:
                self._refresh_count()
            if 0 <= number < self.count:
                chosen.setdefault(number, []).append(row)
            else:
                unknown[row] = (
                    f"header {config.partition_id_header!r} is {text[:40]!r}, and topic {config.topic} has "
                    f"partitions 0 to {self.count - 1}"
                )
        return dict(chosen), unknown

    def _refresh_count(self) -> None:
        """Request the number of partitions, as partitions may be added while the channel is open.

        Does nothing within `MISSING_PARTITION_SECONDS` of the last request. Raises Retry.
        """
        with self._lock:
            if time.monotonic() < self._next_refresh:
                return
            self._next_refresh = time.monotonic() + MISSING_PARTITION_SECONDS
        try:
            count = self._request_count()
        except KafkaException as e:
            raise Retry(f"channel {self._channel}: {explain_error(e)}") from e
        self.count = max(self.count, count)
