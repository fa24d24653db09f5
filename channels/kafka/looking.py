"""Looks into a channel's topic: single records and spans of them, without a place in any consumer group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any, cast

from confluent_kafka import Consumer, KafkaException, TopicPartition

from flafka.channels.kafka.config import CHANNEL
from flafka.plugins import EventId, PartitionClaim, Record, Retry, Taken, Whereabouts
from flafka.plugins.kafka.clients import new_consumer
from flafka.plugins.kafka.errors import reason
from flafka.plugins.kafka.offsets import offsets_at, read_up_to, watermarks
from flafka.plugins.kafka.timeouts import REQUEST_SECONDS

Decode = Callable[[Iterator[Record], PartitionClaim], Taken | None]
Positions = Mapping[str | None, Mapping[PartitionClaim, int | None]]


class TopicLookup:
    """A topic, to be looked into. Raises Retry where its brokers do not answer."""

    def __init__(self, properties: Mapping[str, Any], topic: str, group: str, decode: Decode) -> None:
        """`group` is neither joined nor committed to: the name of one that the client's ACLs allow."""
        self._properties = {**properties, "group.id": group}
        self._topic, self._decode = topic, decode

    def at(self, time: int) -> dict[int, int]:
        """Return the first offsets at or after that time, as `KafkaBackedChannel.at` does."""

        def ask(consumer: Consumer) -> dict[int, int]:
            partitions = consumer.list_topics(self._topic, timeout=REQUEST_SECONDS).topics[self._topic].partitions
            wanted = [TopicPartition(self._topic, partition, time) for partition in partitions]
            found = {one.partition: one.offset for one in offsets_at(consumer, wanted, REQUEST_SECONDS)}
            if ends := {p: self._marks(consumer, p)[1] for p, offset in found.items() if offset < 0}:
                again = [one for one in wanted if one.partition in ends]  # a newer one may have come before its end
                for one in offsets_at(consumer, again, REQUEST_SECONDS):
                    found[one.partition] = one.offset if one.offset >= 0 else ends[one.partition]
            return found

        return cast("dict[int, int]", self._asked(ask))

    def read(self, claim: PartitionClaim, start: int, end: int) -> Iterator[Taken]:
        """Yield a span of records, as `KafkaBackedChannel.read` does."""
        consumer = new_consumer(CHANNEL, self._properties)
        try:
            at = TopicPartition(self._topic, claim.partition, start)
            records = (_record(one) for one in read_up_to(consumer, at, end, REQUEST_SECONDS))
            within = (record for record in records if start <= record.offset < end)
            while (taken := self._decode(within, claim)) is not None:
                yield taken
        except KafkaException as e:
            raise Retry(f"topic {self._topic} cannot be read: {reason(e)}") from e
        finally:
            consumer.close()

    def find(self, id: EventId, known: Positions) -> Whereabouts | None:
        """Return the location of that event, as `Channel.find` does, given the committed offsets of the groups."""
        claims = [claim for positions in known.values() for claim in positions if claim.partition == id.partition]
        kinds = [named for one in claims for named in (one, one._replace(ids=2))]
        claim = next((one for one in kinds if one.stem == id.topic), None)
        if claim is None:
            return None
        low, high = self._asked(lambda consumer: self._marks(consumer, id.partition))
        taken = next(self.read(claim, id.offset, id.offset + 1), None) if low <= id.offset < high else None
        at = {
            group: next(one for one in positions.items() if one[0].partition == id.partition)
            for group, positions in known.items()
        }
        place: dict[str, str | int] = {"topic": self._topic, "partition": id.partition, "offset": id.offset}
        return Whereabouts(place, taken, _missing(id, taken, low, high), at)

    def _marks(self, consumer: Consumer, partition: int) -> tuple[int, int]:
        return watermarks(consumer, TopicPartition(self._topic, partition), REQUEST_SECONDS)

    def _asked(self, ask: Callable[[Consumer], Any]) -> Any:
        try:
            with closing(new_consumer(CHANNEL, self._properties)) as consumer:
                return ask(consumer)
        except KafkaException as e:
            raise Retry(f"topic {self._topic} cannot be looked at: {reason(e)}") from e


def _record(message: Any) -> Record:
    return Record(message.offset(), message.timestamp()[1], message.key(), message.value(), message.headers() or ())


def _missing(id: EventId, taken: Taken | None, low: int, high: int) -> str:
    if id.offset < low:
        return f"retention has removed it: the oldest record of partition {id.partition} is {low}"
    if id.offset >= high:
        return f"no such record came yet: partition {id.partition} ends at {high}"
    if taken is None or not (len(taken.batch) or taken.undecodable):
        return f"record {id.offset} holds no event: it ends a transaction, or replays a dead letter"
    if len(taken.batch) and id not in taken.batch.ids():
        return f"record {id.offset} holds {len(taken.batch)} events, numbered from 0"
    return ""
