"""Which partition of the channel's topic an event goes to."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence

from confluent_kafka import KafkaException

from flafka.channels.kafka.config import KafkaChannelConfig
from flafka.channels.kafka.records import texts_of
from flafka.plugins import Batch, Retry
from flafka.plugins.kafka.errors import reason

MISSING_PARTITION_SECONDS = 10.0
"""A partition that is not there is looked for again after so long."""
ANY_PARTITION = -1
"""The client's word for it: the one of the key, else one after another."""


class Partitions:
    """Those of a topic, for several puts at once.

    `count` is how many there are; `look` asks the brokers for that, and raises KafkaException. Raises Retry where
    `defaultPartitionId` is none of them.
    """

    def __init__(self, channel: str, config: KafkaChannelConfig, count: int, look: Callable[[], int]) -> None:
        self._channel, self._config, self._look = channel, config, look
        if count <= (number := config.default_partition_id or 0):
            raise Retry(
                f"channel {channel}: defaultPartitionId = {number}, and topic {config.topic} has partitions "
                f"0 to {count - 1}"
            )
        self.count = count
        self.default = ANY_PARTITION if config.default_partition_id is None else config.default_partition_id
        """Partition of an event that asks for none."""
        self._lock = threading.Lock()
        self._look_due = 0.0

    def of(self, batch: Batch) -> tuple[dict[int, Sequence[int]], dict[int, str]]:
        """The rows for each partition, and those that ask for none there is, with the reason.

        Raises Retry where the brokers do not say whether there are more by now.
        """
        config, default = self._config, self.default
        texts = texts_of(batch, config.partition_id_header) if config.partition_id_header else []
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
                self._look_for_more()
            if 0 <= number < self.count:
                chosen.setdefault(number, []).append(row)
            else:
                unknown[row] = (
                    f"header {config.partition_id_header!r} is {text[:40]!r}, and topic {config.topic} has "
                    f"partitions 0 to {self.count - 1}"
                )
        return dict(chosen), unknown

    def _look_for_more(self) -> None:
        """Partitions may be added while the channel is at work."""
        with self._lock:
            if time.monotonic() < self._look_due:
                return
            self._look_due = time.monotonic() + MISSING_PARTITION_SECONDS
        try:
            found = self._look()
        except KafkaException as e:
            raise Retry(f"channel {self._channel}: {reason(e)}") from e
        self.count = max(self.count, found)
