"""Committed offsets of a consumer group: their metadata, errors of a group that cannot go on, requests to brokers."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple, TypeVar, cast
from urllib.parse import parse_qsl, urlencode

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from flafka.plugins.errors import FlafkaError, Retry
from flafka.plugins.partitions import Assignment, Generation

_NUMBER = re.compile(r"\d+", re.ASCII)
_LOST = re.compile(r"\d+[?+]?", re.ASCII)


NUL = "\0"
"""The end of what was written."""
VERSION = 1
"""Version of the metadata. Metadata without a number is of version 1; a later one adds a field `version`."""
NO_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""Topic id, as librdkafka writes it, of all topics of brokers that are older than Apache Kafka 2.8 (KIP-516)."""
OUTSIDE_SECONDS = 2.0
"""Seconds after which `agent group reset` looks at the group once more. An owner that commits without membership
looks at the group before, and nothing keeps others from committing in between. If it took longer from its look to
the answer, it logs that. So one of the two sees that a reset was undone.
"""


class OffsetMetadata(NamedTuple):
    """Metadata of one committed offset, as a text `epoch=…&topic=…&ids=…&record=…&lost=…&time=…` that a NUL ends.

    librdkafka reads metadata up to a NUL, and past its end where there is none; its Python binding writes one by
    itself. Flume writes an empty text. A text of another program counts as empty.
    """

    generation: Generation = Generation()
    """That of the owner that committed it. Event-ID scheme 1 stands for metadata without one, see `refusal`."""
    topic_id: str = ""
    """Id of the topic that the offset belongs to; empty while unknown."""
    lost: str = ""
    """Lost records, as `RecordsLost.lost`; empty if there are none. A reset of the group removes it."""
    version: int = VERSION
    """Version of the metadata that was read."""
    time: int = -1
    """Timestamp of the record before the offset, in milliseconds since the epoch; -1 while unknown. It distinguishes
    that record from a later one with its offset where the owner does not know leader epochs (Spark).
    """

    @classmethod
    def parse(cls, text: str | None) -> OffsetMetadata:
        """Return the metadata in that text; unknown parts are left out."""
        found = dict(parse_qsl((text or "").partition(NUL)[0]))
        epoch, lost = _NUMBER.match(found.get("epoch", "")), found.get("lost", "")
        scheme, version = found.get("ids", ""), found.get("version", "")
        without = 1 if epoch is not None or "topic" in found or "record" in found else 2
        return cls(
            Generation(
                int(epoch[0]) if epoch is not None else 0,
                int(scheme) if _NUMBER.fullmatch(scheme) else without,
                found.get("record", ""),
            ),
            topic if (topic := found.get("topic", "")) != NO_TOPIC_ID else "",
            lost if _LOST.fullmatch(lost) else "",
            int(version) if _NUMBER.fullmatch(version) else VERSION,
            int(last) if _NUMBER.fullmatch(last := found.get("time", "")) else -1,
        )

    @classmethod
    def of(cls, assignment: Assignment) -> OffsetMetadata:
        """Return the metadata to be committed with the next offset of that partition."""
        topic_id, last = assignment.topic_partition.topic_id, assignment.last_record
        return cls(assignment.generation, topic_id, time=last.timestamp)

    def text(self) -> str:
        """To be written, by another client than librdkafka with a NUL behind it."""
        fields = {
            "epoch": self.generation.epoch or "",
            "topic": self.topic_id,
            "ids": self.generation.id_scheme,
            "record": self.generation.commit_log,
            "lost": self.lost,
            "time": str(self.time) if self.time >= 0 else "",
        }
        return urlencode({name: value for name, value in fields.items() if value})


def refusal(said: OffsetMetadata) -> str:
    """Return why this agent cannot go on from an offset with that metadata, as a clause; empty if it can."""
    if said.version != VERSION:
        return f"has metadata of version {said.version}, and this agent reads version {VERSION}"
    if said.generation.id_scheme < 2:
        return f"has event-ID scheme {said.generation.id_scheme}, and this agent knows scheme 2 and later ones"
    return ""


def unreadable(assignment: Assignment, said: OffsetMetadata) -> FlafkaError | None:
    """Return the error, with the way out, where a group's offset has metadata that `refusal` refuses; else None."""
    if not (why := refusal(said)):
        return None
    return FlafkaError(
        f"the offset of group {assignment.group} in {assignment.topic_partition} {why}: deliver what the topic holds "
        f"with the agent that wrote it (agent start --drain), then run {_reset(assignment, 'current')}"
    )


def overtaken(assignment: Assignment, said: OffsetMetadata) -> str:
    """Return in words why an owner has to give a partition up, by the metadata of its committed offset; empty if it
    need not.

    An offset without metadata, as of another program or a group that was deleted, overtakes nothing.
    """
    group, place, ours = assignment.group, assignment.topic_partition, assignment.generation
    if said.version != VERSION:
        return f"the offset of group {group} in {place} {refusal(said)}"
    if said.generation.epoch > ours.epoch:
        return f"group {group} was reset, or another agent has taken {place} over"
    if said.lost:
        return f"brokers have lost records of {place}, and group {group} was not reset"
    log = said.generation.commit_log
    if said.generation.epoch == ours.epoch and log and ours.commit_log not in ("", log):
        return f"another sink of group {group} commits {place}, below {log}"
    return ""


def undone(assignment: Assignment, said: OffsetMetadata) -> bool:
    """Return True if an earlier owner, of an earlier epoch or of a deleted topic, has committed last, late.

    An offset without metadata, as of another program or a group that was deleted, is none of an owner's.
    """
    other = said.topic_id not in ("", assignment.topic_partition.topic_id)
    return other or is_earlier(said, assignment.generation.epoch)


def is_earlier(said: OffsetMetadata, epoch: int) -> bool:
    """Return True if an owner of an earlier epoch than that has committed it."""
    found = said.generation.epoch
    return found < epoch and (found, said.topic_id) != (0, "")


class RecordsLost(FlafkaError):
    """Loss of records by brokers before the offset of a group, which a person has to reset.

    The error lasts: `lost` is committed with the offset (`OffsetMetadata.lost`). The next owner of the partition
    raises it again, although new records may lie at the offset by then.
    """

    def __init__(self, assignment: Assignment, lost: str, low: int = 0) -> None:
        """The assignment's next offset is the group's.

        `lost` is the first offset of the lost records: with a `?` an upper bound, with a `+` a lower one.

        `low` is the offset of the oldest record that the brokers have. Retention may have passed the lost records
        since: brokers refuse a reset to an offset before `low`.
        """
        self.assignment, self.lost = assignment, lost
        start, place, offset = lost.rstrip("?+"), assignment.topic_partition, assignment.next_offset or 0
        what = f"group {assignment.group} stands at offset {offset} of {place}, "
        cause = "as when a replica that was behind becomes leader, or brokers are restored from a backup"
        removed, to = "", start
        if low > int(start):
            removed, to = f" Retention has removed records before offset {low} since.", "earliest"
        way_out = _reset(assignment, f"{to} --new-ids")
        if lost.endswith("+"):
            super().__init__(
                f"{what}and the record before that is not the one that was read: the brokers have lost records "
                f"since, {cause}, and others have taken their offsets, somewhere from {start} on. Some may be "
                f"delivered twice.{removed} To go on with those: {way_out}"
            )
        elif not lost.endswith("?"):
            super().__init__(
                f"{what}and has read records {start} to {offset - 1}, {offset - int(start):,} in all, which the "
                f"brokers have lost since, {cause}; new records get offsets from {start} on.{removed} "
                f"To go on with those: {way_out}"
            )
        else:
            skipped = f"; records that were put since then, below offset {start}, would be skipped."
            super().__init__(
                f"{what}which the brokers did not have: {place} ended at {start}: the brokers lost records, "
                f"{cause}{f'.{removed}' if removed else skipped} To accept the loss: {way_out}"
            )


def out_of_range(assignment: Assignment, low: int, high: int) -> FlafkaError | None:
    """Return the error, with the way out, where the brokers do not have the next offset of a group; None if they do.

    The partition has records `low` up to, not including, `high`.
    """
    place, offset = assignment.topic_partition, assignment.next_offset or 0
    if offset < low and assignment.replay:
        return Retry(
            f"records from {offset} on were removed from {place} by retention: the replay goes on with record {low}"
        )
    if offset > high and assignment.replay:
        return Retry(f"the brokers have lost records from {high} on of {place}: the replay looks at what is left")
    if offset > high:
        return RecordsLost(assignment, f"{high}?")
    if offset < low:
        return FlafkaError(
            f"group {assignment.group} stands at offset {offset} of {place}, which the brokers do not have: records "
            f"{offset} to {low - 1}, {low - offset:,} in all, were removed by retention unread. "
            f"To accept the loss: {_reset(assignment, 'earliest')}"
        )
    return None


def truncated(assignment: Assignment, start: int) -> FlafkaError:
    """Return the error, with the way out, where a group has read from `start` on what the brokers
    have lost since.
    """
    offset = assignment.next_offset or 0
    if not assignment.replay:
        return RecordsLost(assignment, f"{start}")
    return FlafkaError(
        f"group {assignment.group} stands at offset {offset} of {assignment.topic_partition}, and has read records "
        f"{start} to {offset - 1}, {offset - start:,} in all, which the brokers have lost since, as when a replica "
        "that was behind becomes leader. Run the replay again; where that says so once more, --again delivers all "
        "that the span has now"
    )


def _reset(assignment: Assignment, to: str) -> str:
    return f"agent group reset {assignment.group} --topic {assignment.topic}:{assignment.partition} --to {to}"


def begins_late(start: Assignment) -> str:
    """Return the warning about a group without an offset that begins behind records that are gone."""
    return (
        f"group {start.group} has no position in {start.topic_partition}, and begins with record "
        f"{start.next_offset}, the first that is left: whether those before it were delivered is not known"
    )


def made_again(assignment: Assignment, left: int, unknown: int) -> str:
    """Return the error about a topic that was recreated; the loss in `unknown` partitions is not known."""
    more = f" (of {unknown} partitions that is not known)" if unknown else ""
    return (
        f"topic {assignment.topic} was deleted and created again: group {assignment.group} begins with the "
        f"first record of the new one. {left:,} records that the old one held when last looked at are lost{more}"
    )


# --- requests to brokers

T = TypeVar("T")
_MOVES = frozenset(
    {KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS}
)
_BEGINS = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION}
)


def read_up_to(
    consumer: Consumer, at: TopicPartition, end: int, seconds: float, *, wait: bool = False
) -> Iterator[Message]:
    """The records of one partition from `at` up to, not including, offset `end`; the consumer tells of its end.

    What cannot be read yet, as a transaction is open, is left out, or waited for. Raises Retry where nothing comes
    for so many seconds, and KafkaException.
    """
    consumer.assign([at])
    position, deadline = max(at.offset, 0), time.monotonic() + seconds
    while position < end:
        message = consumer.poll(0.1)
        if message is None:
            if time.monotonic() > deadline:
                why = "; a transaction may be open in it" if wait else ""
                raise Retry(f"topic {at.topic} does not come to its end within {seconds:.0f} s{why}")
            continue
        error, offset = message.error(), cast("int", message.offset())
        if error is None:
            position, deadline = offset + 1, time.monotonic() + seconds
            yield message
        elif error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            continue  # said by the coordinator, whom an assigned partition with an offset does not need
        elif error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        elif not wait:
            return
        else:
            position = offset


def committed(consumer: Consumer, partitions: list[TopicPartition], seconds: float) -> list[TopicPartition]:
    """The group's positions, below 0 where it has none. KafkaException where that of one cannot be told.

    The client hands out a partition's error beside an offset that looks as if there were none: taken for one, it
    would begin anew. While the group's coordinator moves or begins, which the client does not wait for here, it is
    asked again, for as long as `seconds` say.
    """
    return _asked_again(lambda: _without_errors(consumer.committed(partitions, timeout=seconds)), _MOVES, seconds)


def members_of(admin: AdminClient, group: str, seconds: float) -> list[Any]:
    """Return the members of a group. Raises KafkaException if the brokers do not tell them within so many seconds."""

    def members() -> list[Any]:
        groups = admin.list_groups(group, timeout=seconds)
        for one in groups:
            if one.error is not None:
                raise KafkaException(one.error)
        return [member for one in groups for member in one.members]

    return _asked_again(members, _MOVES, seconds)


def watermarks(consumer: Consumer, partition: TopicPartition, seconds: float) -> tuple[int, int]:
    """Where a partition of a topic that there is begins, and where it ends. KafkaException where that cannot be told.

    A broker may not have heard yet of a topic that another one has just made, or that it leads the partition: it is
    asked again, for as long as `seconds` say.
    """
    return _asked_again(lambda: consumer.get_watermark_offsets(partition, timeout=seconds), _BEGINS, seconds)


def _asked_again(ask: Callable[[], T], codes: Collection[int], seconds: float) -> T:
    """The answer; while it is one of these errors, the question is asked again for so long."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return ask()
        except KafkaException as e:
            if e.args[0].code() not in codes or time.monotonic() >= deadline:
                raise
        time.sleep(0.1)


def offsets_at(consumer: Consumer, times: list[TopicPartition], seconds: float) -> list[TopicPartition]:
    """The first offsets at or after the times (ms since the epoch) that are given as offsets, below 0 where there is
    nothing so new. KafkaException where that of one cannot be told, for the reason that `committed` has.

    A broker that has not heard yet of its partition is asked again, as for `watermarks`.
    """
    return _asked_again(lambda: _without_errors(consumer.offsets_for_times(times, timeout=seconds)), _BEGINS, seconds)


def _without_errors(found: list[TopicPartition]) -> list[TopicPartition]:
    for at in found:
        if at.error is not None:
            raise KafkaException(at.error)
    return found


def metadata_of(at: TopicPartition) -> str:
    """What was committed with that offset, and perhaps something behind it.

    The client reads up to a NUL, which not every program writes: past the end there may be anything, no UTF-8 too.
    """
    try:
        return at.metadata or ""
    except UnicodeDecodeError as e:
        return bytes(e.object).decode(errors="replace")
