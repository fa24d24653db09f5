"""Commits positions of a group from outside of it, for who is no member: a driver on Spark, a replay that begins."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from flafka.plugins import Conflict, LastRecord, PartitionClaim, Retry
from flafka.plugins.kafka.offsets import (
    OUTSIDE_SECONDS,
    OffsetMetadata,
    RecordsLost,
    committed,
    metadata_of,
    overtaken,
    undone,
)
from flafka.plugins.kafka.timeouts import REQUEST_SECONDS

UNANSWERED = (KafkaError._TIMED_OUT, KafkaError.REQUEST_TIMED_OUT, KafkaError._TRANSPORT)
"""Errors after which brokers may have done what they were asked for."""


class OutsideCommits:
    """Commits positions of groups without members. Raises Retry where the brokers do not take them.

    `consumer` makes one of the named group, which it does not join; `confirm` is that of `KafkaBackedChannel`.
    """

    def __init__(
        self, consumer: Callable[[str], Consumer], confirm: Callable[[PartitionClaim], None], log: logging.Logger
    ) -> None:
        self._consumer, self._confirm, self._log = consumer, confirm, log

    def record(
        self, positions: Mapping[PartitionClaim, int], last: Mapping[int, LastRecord] = MappingProxyType({})
    ) -> None:
        """Commit offsets without membership, which works while the group has no members.

        Without a member nothing fences an owner that was overtaken. So the group is looked at before, and within
        an epoch no offset goes back. If its metadata does not name the topic, the brokers have to. An owner that
        slept between the two may undo a reset, and logs that.
        """
        self._commit_where(positions, lambda claim, said: True, last=last)

    def refuse(self, error: RecordsLost) -> None:
        """Commit with the group's offset that brokers have lost records before it. Conflict as for `record`."""
        self._commit_where({error.claim: error.offset}, lambda claim, said: True, error.lost)

    def restore(self, positions: Mapping[PartitionClaim, int]) -> None:
        """Commit again what a late commit has undone, one from before a reset or for a topic that was deleted."""

        def late(claim: PartitionClaim, said: OffsetMetadata) -> bool:
            if found := undone(claim, said):
                reset = said.topic_id in ("", claim.topic_id)
                self._log.warning(
                    "group %s: a commit from before %s reached the brokers late, and had undone it for %s-%d: the "
                    "group's position is %d again",
                    *(claim.group, "its latest reset" if reset else "the topic was made again"),
                    *(claim.topic, claim.partition, positions[claim]),
                )
            return found

        self._commit_where(positions, late)

    def _commit_where(
        self,
        positions: Mapping[PartitionClaim, int],
        wanted: Callable[[PartitionClaim, OffsetMetadata], bool],
        lost: str = "",
        last: Mapping[int, LastRecord] = MappingProxyType({}),
    ) -> None:
        for group in {claim.group for claim in positions}:
            claims = {claim.partition: claim for claim in positions if claim.group == group}
            consumer = self._consumer(group)
            looked = time.monotonic()
            try:
                offsets = {
                    partition: TopicPartition(
                        claim.topic,
                        partition,
                        positions[claim],
                        metadata=OffsetMetadata.of(claim)
                        ._replace(lost=lost, time=last.get(partition, LastRecord()).timestamp)
                        .text(),
                    )
                    for partition, claim in claims.items()
                }
                for at in committed(consumer, [*offsets.values()], REQUEST_SECONDS):
                    claim, said = claims[at.partition], OffsetMetadata.parse(metadata_of(at))
                    if said.topic_id != claim.topic_id:  # of another topic, or gone with that
                        self._confirm(claim)
                    elif why := overtaken(claim, said):
                        raise Conflict(why)
                    same = (said.epoch, said.topic_id) == (claim.epoch, claim.topic_id)
                    if (same and at.offset > offsets[at.partition].offset) or not wanted(claim, said):
                        del offsets[at.partition]
                if offsets:
                    self._commit(consumer, group, [*offsets.values()], looked)
            except KafkaException as e:
                raise Retry(f"group {group}: committing offsets failed: {e.args[0].str()}") from e
            finally:
                consumer.close()

    def _commit(self, consumer: Consumer, group: str, offsets: list[TopicPartition], looked: float) -> None:
        why = ""
        try:
            consumer.commit(offsets=offsets, asynchronous=False)
            why = _slept(looked)
        except KafkaException as e:
            if (code := e.args[0].code()) in UNANSWERED:
                why = "a commit of its offsets was not answered and may still take effect"
            elif code == KafkaError.UNKNOWN_TOPIC_OR_PART:  # a topic made again has fewer: of the others it counts
                why = _slept(looked)
            raise
        finally:
            if why:
                self._log.warning(
                    "group %s: %s: if agent group reset moved the group in that time, this was undone, and it is to "
                    "be run again",
                    *(group, why),
                )


def _slept(since: float) -> str:
    """Return the words for a process that seems to have slept between a look at a group and a commit."""
    took = time.monotonic() - since
    if took <= OUTSIDE_SECONDS:
        return ""
    return f"{took:.1f} s passed between reading its offsets and committing them, as when this process is suspended"
