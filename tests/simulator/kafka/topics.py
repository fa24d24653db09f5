"""Topics of the simulated brokers, their partitions, and the logs of these: records, transactions and watermarks.

As a client can observe a partition: one log without replicas, whose watermarks and last stable offset are exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from confluent_kafka import Uuid
from confluent_kafka.admin import AclOperation

from tests.simulator.kafka.messages import Entry, Headers, Transaction

if TYPE_CHECKING:
    from tests.simulator.kafka.fetch import Fetch

TOPIC_DEFAULTS = {
    "cleanup.policy": "delete",
    "max.message.bytes": "8388608",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.type": "CreateTime",
    "min.insync.replicas": "2",
    "retention.ms": "604800000",
}


class Partition:
    """One log. The entry at place n has offset n."""

    __slots__ = ("entries", "kept", "leader_epoch", "low", "number", "open", "topic", "watchers")

    def __init__(self, topic: Topic, number: int) -> None:
        self.topic, self.number = topic, number
        self.entries: list[Entry | None] = []
        """Records by offset; None in place of one that compaction removed."""
        self.low = self.leader_epoch = 0
        self.kept = math.inf
        """Entries from there on were lost once."""
        self.open: dict[Transaction, int] = {}
        """Transactions without their markers, with the offset of the first record."""
        self.watchers: list[Fetch] = []

    @property
    def high(self) -> int:
        """The offset of the next entry."""
        return len(self.entries)

    @property
    def stable(self) -> int:
        """The end for readers of what is committed."""
        return min(self.open.values()) if self.open else len(self.entries)

    def append(
        self,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None,
        transaction: Transaction | None = None,
        *,
        control: bool = False,
    ) -> int:
        offset = len(self.entries)
        entry = Entry(offset, timestamp, key, value, headers, transaction, control, self.leader_epoch)
        self.entries.append(entry)
        if transaction is not None and not control and transaction not in self.open:
            self.open[transaction] = offset
            transaction.parts[self] = None
        for fetch in self.watchers:
            fetch.arrived()
        return offset

    def visible(self, start: int, *, read_committed: bool) -> Iterator[Entry]:
        """The records from that offset on."""
        end = self.stable if read_committed else self.high
        for entry in self.entries[max(start, self.low) : end]:
            if entry is None or entry.control:
                continue
            if read_committed and entry.transaction is not None and entry.transaction.state == "aborted":
                continue
            yield entry


class Topic:
    """A topic, from its creation to its end."""

    __slots__ = ("configs", "id", "internal", "name", "partitions", "replicas", "rights")

    def __init__(self, name: str, id: Uuid, replicas: int, configs: dict[str, str]) -> None:
        self.name, self.id, self.replicas, self.configs = name, id, replicas, configs
        self.internal = name.startswith("__")
        self.rights: list[AclOperation] | None = None
        """Rights of every client; None where brokers do not look at them."""
        self.partitions: list[Partition] = []
