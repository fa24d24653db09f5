"""Committed offsets of a consumer group: metadata, errors of a group that stops, commits without membership."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from flafka.plugins.errors import Conflict, FlafkaError, Retry
from flafka.plugins.kafka.admin import NO_TOPIC_ID, committed_offsets
from flafka.plugins.kafka.clients import REQUEST_SECONDS
from flafka.plugins.partitions import Assignment, Generation, LastRecord

_NUMBER = re.compile(r"\d+", re.ASCII)
_LOST = re.compile(r"\d+[?+]?", re.ASCII)


NUL = "\0"
"""The end of what was written."""
VERSION = 1
"""Version of the metadata. Metadata without a number is of version 1; a later one adds a field `version`."""
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
    """Generation of the owner that committed the offset. Non-empty metadata without an event-ID scheme has scheme 1,
    see `refusal`."""
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


def metadata_of(at: TopicPartition) -> str:
    """Return the metadata that was committed with that offset, perhaps with other text behind it.

    The client reads up to a NUL, which not every program writes: past the end there may be any bytes, also invalid
    UTF-8.
    """
    try:
        return at.metadata or ""
    except UnicodeDecodeError as e:
        return bytes(e.object).decode(errors="replace")


def with_last_record(start: Assignment, committed: Assignment) -> Assignment:
    """Return where to go on, with what the group's committed offset says of the last record if it is the same offset.

    Of the two, the committed leader epoch is preferred, and the timestamp of `start`.
    """
    if start.next_offset != committed.next_offset:
        return start
    ours, theirs = start.last_record, committed.last_record
    timestamp = ours.timestamp if ours.timestamp >= 0 else theirs.timestamp
    leader_epoch = theirs.leader_epoch if theirs.leader_epoch >= 0 else ours.leader_epoch
    return start.at(start.next_offset, LastRecord(timestamp, leader_epoch))


def assignments_of(
    assignment: Assignment,
    committed: Iterable[TopicPartition],
    log: logging.Logger,
    logged: set[tuple[str, str, int, int]] | None = None,
) -> list[Assignment]:
    """Return the group's committed offset of each partition, as an assignment with what its metadata says.

    `assignment` names the topic and the group. An offset of another topic of that name counts as none, and is logged
    once: `logged` holds the earlier ones, by group, topic id, partition and offset. Raises FlafkaError, as
    `unreadable` returns it.
    """
    logged = set() if logged is None else logged
    topic_id, found = assignment.topic_partition.topic_id, []
    for tp in committed:
        said = OffsetMetadata.parse(metadata_of(tp))
        one = assignment.of(partition=tp.partition)
        if tp.offset < 0:
            found.append(one)
        elif said.version == VERSION and said.topic_id not in ("", topic_id):
            stale = (one.group, topic_id, tp.partition, tp.offset)
            if stale not in logged:
                log.warning(
                    "group %s stood at offset %d of a topic %s that was deleted: it begins with the first record of "
                    "the topic of that name; what the old one still held of partition %d is lost",
                    one.group, tp.offset, one.topic, tp.partition,
                )  # fmt: skip
            logged.add(stale)
            found.append(one)
        elif (error := unreadable(one, said)) is not None:
            raise error
        else:
            last = LastRecord(said.time, -1 if tp.leader_epoch is None else tp.leader_epoch)
            found.append(replace(one, generation=said.generation, next_offset=tp.offset, last_record=last))
    return found


def kept_refusals(
    assignments: Iterable[Assignment],
    committed: Iterable[TopicPartition],
    watermarks: Callable[[int], tuple[int, int]],
) -> Iterator[RecordsLost]:
    """Yield the losses of records that are kept in the metadata of these offsets, of which the assignments were made.

    `watermarks` returns the low and the high watermark of a partition: retention may have removed the records to
    which a loss had advised to reset the group, or brokers may have lost more records since.
    """
    for one, tp in zip(assignments, committed, strict=True):
        if one.next_offset is not None and (lost := OffsetMetadata.parse(metadata_of(tp)).lost):
            low, high = watermarks(tp.partition)
            yield RecordsLost(one, lost if int(lost.rstrip("?+")) <= high else f"{high}?", low)


def refusals_of(
    assignments: Iterable[Assignment], watermarks: Mapping[int, tuple[int, int]]
) -> dict[int, FlafkaError]:
    """Return, by partition, why its group cannot go on from its next offset before a person decides.

    The upper watermarks count all records, in open transactions too: `agent group reset --to latest` moves a
    group behind these.
    """
    found = {
        one.partition: out_of_range(one, *watermarks[one.partition])
        for one in assignments
        if one.next_offset is not None and one.partition in watermarks and not one.replay
    }
    return {partition: error for partition, error in found.items() if error is not None}


# --- commits without membership

UNANSWERED = (KafkaError._TIMED_OUT, KafkaError.REQUEST_TIMED_OUT, KafkaError._TRANSPORT)
"""Errors after which brokers may have done what they were asked for."""


class MemberlessCommits:
    """Commits offsets of groups without members. Raises Retry where the brokers do not take them.

    `consumer` makes one of the named group, which it does not join; `confirm` is that of `KafkaBackedChannel`.
    """

    def __init__(
        self, consumer: Callable[[str], Consumer], confirm: Callable[[Assignment], None], log: logging.Logger
    ) -> None:
        self._consumer, self._confirm, self._log = consumer, confirm, log

    def commit_offsets(self, assignments: Collection[Assignment]) -> None:
        """Commit offsets without membership, which works while the group has no members.

        Without a member nothing fences an owner that was overtaken. So the group is looked at before, and within
        an epoch no offset goes back. If its metadata does not name the topic, the brokers have to. An owner that
        slept between the two may undo a reset, and logs that.
        """
        self._commit_where(assignments, lambda assignment, said: True)

    def refuse(self, error: RecordsLost) -> None:
        """Commit with the group's offset that brokers have lost records before it. Conflict as for
        `commit_offsets`.
        """
        lost = error.assignment.at(error.assignment.next_offset)
        self._commit_where([lost], lambda assignment, said: True, error.lost)

    def restore(self, assignments: Collection[Assignment]) -> None:
        """Commit again what a late commit has undone, one from before a reset or for a topic that was deleted."""

        def late(assignment: Assignment, said: OffsetMetadata) -> bool:
            if found := undone(assignment, said):
                reset = said.topic_id in ("", assignment.topic_partition.topic_id)
                self._log.warning(
                    "group %s: a commit from before %s reached the brokers late, and had undone it for %s: the "
                    "group's position is %d again",
                    *(assignment.group, "its latest reset" if reset else "the topic was made again"),
                    *(assignment.topic_partition, assignment.next_offset),
                )
            return found

        self._commit_where([one.at(one.next_offset) for one in assignments], late)

    def _commit_where(
        self,
        assignments: Collection[Assignment],
        wanted: Callable[[Assignment, OffsetMetadata], bool],
        lost: str = "",
    ) -> None:
        for group in {one.group for one in assignments}:
            of_group = {one.partition: one for one in assignments if one.group == group}
            consumer = self._consumer(group)
            looked = time.monotonic()
            try:
                offsets = {
                    partition: TopicPartition(
                        one.topic,
                        partition,
                        one.next_offset or 0,
                        metadata=OffsetMetadata.of(one)._replace(lost=lost).text(),
                    )
                    for partition, one in of_group.items()
                }
                for at in committed_offsets(consumer, [*offsets.values()], REQUEST_SECONDS):
                    assignment, said = of_group[at.partition], OffsetMetadata.parse(metadata_of(at))
                    epoch, topic_id = assignment.generation.epoch, assignment.topic_partition.topic_id
                    if said.topic_id != topic_id:  # of another topic, or gone with that
                        self._confirm(assignment)
                    elif why := overtaken(assignment, said):
                        raise Conflict(why)
                    same = (said.generation.epoch, said.topic_id) == (epoch, topic_id)
                    if (same and at.offset > offsets[at.partition].offset) or not wanted(assignment, said):
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
