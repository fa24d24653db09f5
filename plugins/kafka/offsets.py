"""Committed offsets of consumer groups: metadata, errors that block a group, commits without membership."""

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
from flafka.plugins.kafka.admin import NO_TOPIC_ID, memberless_offsets
from flafka.plugins.kafka.clients import REQUEST_SECONDS
from flafka.plugins.partitions import Assignment, Generation, LastRecord

_NUMBER = re.compile(r"\d+", re.ASCII)
_LOST = re.compile(r"\d+[?+]?", re.ASCII)


NUL = "\0"
"""Terminator of the metadata."""
METADATA_VERSION = 1
"""Version of the metadata. Metadata without a field `version` is of version 1."""
MEMBERLESS_COMMIT_SECONDS = 2.0
"""Time after which `agent group reset` verifies the group's offsets.

An owner that commits without membership reads the offsets first, and a reset may come in between. If its commit ends
more than this time after its read, the owner logs a warning. So either the reset or the owner detects that the reset
was overwritten.
"""


class OffsetMetadata(NamedTuple):
    """Metadata of a committed offset: a text `epoch=…&topic=…&ids=…&record=…&lost=…&time=…` that ends with a NUL.

    librdkafka reads metadata up to a NUL, and beyond the buffer without one; its Python binding writes the NUL. Flume
    writes an empty text. A text of another program counts as empty.
    """

    generation: Generation = Generation()
    """Generation of the owner that committed the offset.

    Non-empty metadata without an event-ID scheme has scheme 1, which `unsupported_reason` refuses.
    """
    topic_id: str = ""
    """Id of the topic of the offset; empty if unknown."""
    lost: str = ""
    """Lost records, as `RecordsLost.lost`; empty if there are none. A reset of the group clears it."""
    version: int = METADATA_VERSION
    """Version of the parsed metadata."""
    time: int = -1
    """Timestamp of the record before the offset, in milliseconds since the epoch; -1 if unknown.

    It distinguishes that record from a later one with the same offset if the owner knows no leader epochs (Spark).
    """

    @classmethod
    def parse(cls, text: str | None) -> OffsetMetadata:
        """Return the metadata in a text; invalid fields get their defaults."""
        fields = dict(parse_qsl((text or "").partition(NUL)[0]))
        epoch, lost = _NUMBER.match(fields.get("epoch", "")), fields.get("lost", "")
        scheme, version = fields.get("ids", ""), fields.get("version", "")
        default_scheme = 1 if epoch is not None or "topic" in fields or "record" in fields else 2
        return cls(
            Generation(
                int(epoch[0]) if epoch is not None else 0,
                int(scheme) if _NUMBER.fullmatch(scheme) else default_scheme,
                fields.get("record", ""),
            ),
            topic if (topic := fields.get("topic", "")) != NO_TOPIC_ID else "",
            lost if _LOST.fullmatch(lost) else "",
            int(version) if _NUMBER.fullmatch(version) else METADATA_VERSION,
            int(last) if _NUMBER.fullmatch(last := fields.get("time", "")) else -1,
        )

    @classmethod
    def of(cls, assignment: Assignment) -> OffsetMetadata:
        """Return the metadata to commit with the next offset of an assignment."""
        topic_id, last = assignment.topic_partition.topic_id, assignment.last_record
        return cls(assignment.generation, topic_id, time=last.timestamp)

    def text(self) -> str:
        """Return the metadata as text. Clients other than confluent-kafka must append `NUL`."""
        fields = {
            "epoch": self.generation.epoch or "",
            "topic": self.topic_id,
            "ids": self.generation.id_scheme,
            "record": self.generation.commit_log,
            "lost": self.lost,
            "time": str(self.time) if self.time >= 0 else "",
        }
        return urlencode({name: value for name, value in fields.items() if value})


def unsupported_reason(metadata: OffsetMetadata) -> str:
    """Return the reason why this agent cannot use an offset with that metadata, as a clause; empty if it can."""
    if metadata.version != METADATA_VERSION:
        return f"has metadata of version {metadata.version}, and this agent reads version {METADATA_VERSION}"
    if metadata.generation.id_scheme < 2:
        return f"has event-ID scheme {metadata.generation.id_scheme}, and this agent knows scheme 2 and later ones"
    return ""


def unsupported_error(assignment: Assignment, metadata: OffsetMetadata) -> FlafkaError | None:
    """Return the error, with its remedy, for unsupported metadata of a group's offset; None if it is supported."""
    if not (reason := unsupported_reason(metadata)):
        return None
    return FlafkaError(
        f"the offset of group {assignment.group} in {assignment.topic_partition} {reason}: deliver the topic's "
        f"events with the agent that wrote it (agent start --drain), then run {_reset_command(assignment, 'current')}"
    )


def fencing_reason(assignment: Assignment, metadata: OffsetMetadata) -> str:
    """Return the reason why the owner of a partition is fenced, by the metadata of the committed offset.

    The result is empty if the owner is not fenced. An offset without metadata, such as that of another program or of
    a deleted group, fences no owner.
    """
    group, partition, own = assignment.group, assignment.topic_partition, assignment.generation
    if metadata.version != METADATA_VERSION:
        return f"the offset of group {group} in {partition} {unsupported_reason(metadata)}"
    if metadata.generation.epoch > own.epoch:
        return f"group {group} was reset, or another agent has taken {partition} over"
    if metadata.lost:
        return f"brokers have lost records of {partition}, and group {group} was not reset"
    log = metadata.generation.commit_log
    if metadata.generation.epoch == own.epoch and log and own.commit_log not in ("", log):
        return f"another sink of group {group} commits {partition}, below {log}"
    return ""


def is_late_commit(assignment: Assignment, metadata: OffsetMetadata) -> bool:
    """Return True if the offset is a late commit of an earlier owner: of an earlier epoch or of a deleted topic.

    An offset without metadata, such as that of another program or of a deleted group, is not.
    """
    is_other_topic = metadata.topic_id not in ("", assignment.topic_partition.topic_id)
    return is_other_topic or is_earlier_epoch(metadata, assignment.generation.epoch)


def is_earlier_epoch(metadata: OffsetMetadata, epoch: int) -> bool:
    """Return True if an owner of an epoch before `epoch` has committed the offset."""
    committed = metadata.generation.epoch
    return committed < epoch and (committed, metadata.topic_id) != (0, "")


class RecordsLost(FlafkaError):
    """Loss of records by brokers before the committed offset of a group, which a person must reset.

    The error is durable: `lost` is committed with the offset (`OffsetMetadata.lost`). The next owner of the partition
    raises it again, even if new records have the lost offsets by then.
    """

    def __init__(self, assignment: Assignment, lost: str, low: int = 0) -> None:
        """Describe the loss before the assignment's next offset, the group's committed offset.

        `lost` is the first offset of the lost records. A suffix `?` marks an upper bound, and `+` a lower bound.
        `low` is the offset of the brokers' oldest record: brokers refuse a reset to an earlier offset.
        """
        self.assignment, self.lost = assignment, lost
        start, partition, offset = lost.rstrip("?+"), assignment.topic_partition, assignment.next_offset or 0
        head = f"group {assignment.group} has committed offset {offset} of {partition}, "
        cause = "as when a replica that was behind becomes leader, or brokers are restored from a backup"
        removed, target = "", start
        if low > int(start):
            removed, target = f" Retention has removed records before offset {low} since.", "earliest"
        remedy = _reset_command(assignment, f"{target} --new-ids")
        if lost.endswith("+"):
            super().__init__(
                f"{head}and the record before that is not the one that was read: the brokers have lost records "
                f"since, {cause}, and other records have offsets somewhere from {start} on. Some may be delivered "
                f"twice.{removed} To continue with these records: {remedy}"
            )
        elif not lost.endswith("?"):
            super().__init__(
                f"{head}and has read records {start} to {offset - 1}, {offset - int(start):,} in all, which the "
                f"brokers have lost since, {cause}; new records get offsets from {start} on.{removed} "
                f"To continue with these records: {remedy}"
            )
        else:
            skipped = f"; records stored since then, below offset {start}, would be skipped."
            super().__init__(
                f"{head}which the brokers did not have: {partition} ended at {start}: the brokers lost records, "
                f"{cause}{f'.{removed}' if removed else skipped} To accept the loss: {remedy}"
            )


def out_of_range_error(assignment: Assignment, low: int, high: int) -> FlafkaError | None:
    """Return the error for an assignment whose next offset the brokers do not have; None if it is in range.

    Offsets from `low` to `high`, the watermarks of the partition, are in range, both included. For a replay the error
    is a Retry, after which the replay continues with the records that are left. Any other error names its remedy.
    """
    partition, offset = assignment.topic_partition, assignment.next_offset or 0
    if offset < low and assignment.replay:
        return Retry(
            f"records from {offset} on were removed from {partition} by retention: the replay continues with record "
            f"{low}"
        )
    if offset > high and assignment.replay:
        return Retry(
            f"the brokers have lost records from {high} on of {partition}: the replay reads the remaining ones"
        )
    if offset > high:
        return RecordsLost(assignment, f"{high}?")
    if offset < low:
        return FlafkaError(
            f"group {assignment.group} has committed offset {offset} of {partition}, which the brokers do not have: "
            f"records {offset} to {low - 1}, {low - offset:,} in all, were removed by retention unread. "
            f"To accept the loss: {_reset_command(assignment, 'earliest')}"
        )
    return None


def truncation_error(assignment: Assignment, start: int) -> FlafkaError:
    """Return the error, with its remedy, for records from `start` on that a group has read and brokers have lost."""
    offset = assignment.next_offset or 0
    if not assignment.replay:
        return RecordsLost(assignment, f"{start}")
    return FlafkaError(
        f"group {assignment.group} has committed offset {offset} of {assignment.topic_partition}, and has read "
        f"records {start} to {offset - 1}, {offset - start:,} in all, which the brokers have lost since, as when a "
        "replica that was behind becomes leader. Run the replay again; if this error recurs, --again delivers all "
        "records that the span has now"
    )


def _reset_command(assignment: Assignment, target: str) -> str:
    """Return the command that resets the group in the assignment's partition to `target`, an offset or a word."""
    return f"agent group reset {assignment.group} --topic {assignment.topic}:{assignment.partition} --to {target}"


def missing_offset_warning(start: Assignment) -> str:
    """Return the warning about a group without a committed offset that starts after deleted records."""
    return (
        f"group {start.group} has no committed offset in {start.topic_partition}, and begins with record "
        f"{start.next_offset}, the first that is left: whether earlier records were delivered is not known"
    )


def recreated_error(assignment: Assignment, lost: int, unknown: int) -> str:
    """Return the text about a recreated topic, with `lost` records; `unknown` partitions have an unknown loss."""
    more = f" (of {unknown} partitions the loss is not known)" if unknown else ""
    return (
        f"topic {assignment.topic} was deleted and recreated: group {assignment.group} begins with the first record "
        f"of the new one. {lost:,} records that the old one held at the latest check are lost{more}"
    )


def metadata_of(offset: TopicPartition) -> str:
    """Return the text of the metadata of a committed offset, perhaps followed by other text.

    The client reads up to a NUL, which other programs may not write: beyond the end it may read any bytes.
    """
    try:
        return offset.metadata or ""
    except UnicodeDecodeError as e:
        return bytes(e.object).decode(errors="replace")


def with_last_record(start: Assignment, committed: Assignment) -> Assignment:
    """Return `start`, with the last record of the group's committed offset if the two have the same offset.

    The leader epoch of the committed offset takes precedence, and the timestamp of `start`.
    """
    if start.next_offset != committed.next_offset:
        return start
    own, stored = start.last_record, committed.last_record
    timestamp = own.timestamp if own.timestamp >= 0 else stored.timestamp
    leader_epoch = stored.leader_epoch if stored.leader_epoch >= 0 else own.leader_epoch
    return start.with_offset(start.next_offset, LastRecord(timestamp, leader_epoch))


def assignments_of(
    assignment: Assignment,
    committed: Iterable[TopicPartition],
    log: logging.Logger,
    logged: set[tuple[str, str, int, int]] | None = None,
) -> list[Assignment]:
    """Return the assignments of a group, by its committed offsets and their metadata.

    `assignment` is a template with topic and group. An offset of a deleted topic of the same name counts as none, and
    is logged once: `logged` holds the logged ones by group, topic id, partition and offset. Raises the FlafkaError of
    `unsupported_error`.
    """
    logged = set() if logged is None else logged
    topic_id, assignments = assignment.topic_partition.topic_id, []
    for tp in committed:
        metadata = OffsetMetadata.parse(metadata_of(tp))
        own = assignment.replace(partition=tp.partition)
        if tp.offset < 0:
            assignments.append(own)
        elif metadata.version == METADATA_VERSION and metadata.topic_id not in ("", topic_id):
            stale = (own.group, topic_id, tp.partition, tp.offset)
            if stale not in logged:
                log.warning(
                    "group %s has committed offset %d of a topic %s that was deleted: it begins with the first "
                    "record of the new topic; undelivered records of partition %d of the old one are lost",
                    own.group, tp.offset, own.topic, tp.partition,
                )  # fmt: skip
            logged.add(stale)
            assignments.append(own)
        elif (error := unsupported_error(own, metadata)) is not None:
            raise error
        else:
            last = LastRecord(metadata.time, -1 if tp.leader_epoch is None else tp.leader_epoch)
            assignments.append(replace(own, generation=metadata.generation, next_offset=tp.offset, last_record=last))
    return assignments


def stored_losses(
    assignments: Iterable[Assignment],
    committed: Iterable[TopicPartition],
    watermarks: Callable[[int], tuple[int, int]],
) -> Iterator[RecordsLost]:
    """Yield the losses of records that are stored in the metadata of these offsets, in the order of the assignments.

    `watermarks` returns the low and the high watermark of a partition. Since the loss was stored, retention may have
    removed records, or brokers may have lost more.
    """
    for assignment, tp in zip(assignments, committed, strict=True):
        if assignment.next_offset is not None and (lost := OffsetMetadata.parse(metadata_of(tp)).lost):
            low, high = watermarks(tp.partition)
            yield RecordsLost(assignment, lost if int(lost.rstrip("?+")) <= high else f"{high}?", low)


def out_of_range_errors(
    assignments: Iterable[Assignment], watermarks: Mapping[int, tuple[int, int]]
) -> dict[int, FlafkaError]:
    """Return, by partition, the error of a next offset that the brokers do not have.

    The high watermarks must include open transactions, as `agent group reset --to latest` moves a group after these.
    """
    errors = {
        assignment.partition: out_of_range_error(assignment, *watermarks[assignment.partition])
        for assignment in assignments
        if assignment.next_offset is not None and assignment.partition in watermarks and not assignment.replay
    }
    return {partition: error for partition, error in errors.items() if error is not None}


AMBIGUOUS_ERRORS = (KafkaError._TIMED_OUT, KafkaError.REQUEST_TIMED_OUT, KafkaError._TRANSPORT)
"""Error codes of requests whose outcome is unknown."""


class MemberlessCommits:
    """Commits offsets of consumer groups without joining them (Spark driver, replay). Raises Retry.

    `consumer` makes a client with the named group, which it does not join. `confirm` is
    `KafkaTopic.confirm_topic_id`. `explain` returns the text of a client's error for a group.
    """

    def __init__(
        self,
        consumer: Callable[[str], Consumer],
        confirm: Callable[[Assignment], None],
        explain: Callable[[object, str], str],
        log: logging.Logger,
    ) -> None:
        self._consumer, self._confirm, self._explain, self._log = consumer, confirm, explain, log

    def commit_offsets(self, assignments: Collection[Assignment]) -> None:
        """Commit offsets, while the group has no members. Raises Conflict if the owner is fenced.

        Brokers fence members only. So this method reads the committed offsets first, and within an epoch never
        commits a lower offset. If the metadata does not name the topic, the brokers must confirm it. An owner that
        was suspended between read and commit may overwrite a reset, and logs a warning.
        """
        self._commit_where(assignments, lambda assignment, metadata: True)

    def store_loss(self, error: RecordsLost) -> None:
        """Commit a loss of records with the group's offset. Raises Retry and Conflict as `commit_offsets`."""
        lost = error.assignment.with_offset(error.assignment.next_offset)
        self._commit_where([lost], lambda assignment, metadata: True, error.lost)

    def restore_offsets(self, assignments: Collection[Assignment]) -> None:
        """Restore offsets that a late commit has overwritten: one from before a reset, or for a deleted topic.

        Offsets of other programs, and missing ones, are not changed. Raises as `commit_offsets`.
        """

        def is_overwritten(assignment: Assignment, metadata: OffsetMetadata) -> bool:
            if is_late := is_late_commit(assignment, metadata):
                is_same_topic = metadata.topic_id in ("", assignment.topic_partition.topic_id)
                self._log.warning(
                    "group %s: a commit from before %s reached the brokers late and had overwritten the offset of "
                    "%s: the committed offset is %d again",
                    *(assignment.group, "its latest reset" if is_same_topic else "the topic was recreated"),
                    *(assignment.topic_partition, assignment.next_offset),
                )
            return is_late

        self._commit_where(
            [assignment.with_offset(assignment.next_offset) for assignment in assignments], is_overwritten
        )

    def _commit_where(
        self,
        assignments: Collection[Assignment],
        condition: Callable[[Assignment, OffsetMetadata], bool],
        lost: str = "",
    ) -> None:
        """Commit these offsets with their metadata, where `condition` is true.

        `condition` gets an assignment and the present metadata of its offset. A lower offset than the committed one
        of the same epoch is never committed. `lost` is stored in the metadata. Raises as `commit_offsets`.
        """
        for group in {requested.group for requested in assignments}:
            of_group = {requested.partition: requested for requested in assignments if requested.group == group}
            consumer = self._consumer(group)
            read_at = time.monotonic()
            try:
                offsets = {
                    partition: TopicPartition(
                        requested.topic,
                        partition,
                        requested.next_offset or 0,
                        metadata=OffsetMetadata.of(requested)._replace(lost=lost).text(),
                    )
                    for partition, requested in of_group.items()
                }
                for committed in memberless_offsets(consumer, [*offsets.values()], REQUEST_SECONDS):
                    partition, metadata = committed.partition, OffsetMetadata.parse(metadata_of(committed))
                    assignment = of_group[partition]
                    epoch, topic_id = assignment.generation.epoch, assignment.topic_partition.topic_id
                    if metadata.topic_id != topic_id:  # of another topic, or without metadata
                        self._confirm(assignment)
                    elif reason := fencing_reason(assignment, metadata):
                        raise Conflict(reason)
                    is_same = (metadata.generation.epoch, metadata.topic_id) == (epoch, topic_id)
                    is_ahead = is_same and committed.offset > offsets[partition].offset
                    if is_ahead or not condition(assignment, metadata):
                        del offsets[partition]
                if offsets:
                    self._commit(consumer, group, [*offsets.values()], read_at)
            except KafkaException as e:
                raise Retry(f"group {group}: committing offsets failed: {self._explain(e, group)}") from e
            finally:
                consumer.close()

    def _commit(self, consumer: Consumer, group: str, offsets: list[TopicPartition], read_at: float) -> None:
        """Commit offsets of a group that were read at `read_at` (`time.monotonic`). Raises KafkaException.

        Logs a warning if the commit may overwrite, or has overwritten, a reset of the group.
        """
        warning = ""
        try:
            consumer.commit(offsets=offsets, asynchronous=False)
            warning = _suspension_warning(read_at)
        except KafkaException as e:
            if (code := e.args[0].code()) in AMBIGUOUS_ERRORS:
                warning = "a commit of its offsets was not answered and may still take effect"
            elif (
                code == KafkaError.UNKNOWN_TOPIC_OR_PART
            ):  # a recreated topic has fewer partitions: others are committed
                warning = _suspension_warning(read_at)
            raise
        finally:
            if warning:
                self._log.warning(
                    "group %s: %s: an `agent group reset` made during this time may have been overwritten; run it "
                    "again",
                    *(group, warning),
                )


def _suspension_warning(read_at: float) -> str:
    """Return the warning about a process that was suspended between read and commit; empty if it was not."""
    seconds = time.monotonic() - read_at
    if seconds <= MEMBERLESS_COMMIT_SECONDS:
        return ""
    return (
        f"{seconds:.1f} s passed between reading its offsets and committing them, as when this process is suspended"
    )
