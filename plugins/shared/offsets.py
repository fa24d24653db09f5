"""Metadata of a committed offset of a channel's group, and the errors of a group that cannot go on."""

from __future__ import annotations

import re
import time
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode

from plugins.channel import PartitionClaim
from plugins.errors import FlafkaError, Retry

_OLDER = re.compile(r"epoch=\d+", re.ASCII)
_UNREAD = re.compile(r"epoch=0[1-9]\d*", re.ASCII)
_LOST = re.compile(r"\d+[?+]?", re.ASCII)


NUL = "\0"
"""The end of what was written."""
NO_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""Topic id, as librdkafka writes it, of all topics of brokers that are older than Apache Kafka 2.8 (KIP-516)."""
OUTSIDE_SECONDS = 2.0
"""Seconds after which `agent group reset` looks at the group once more. An owner that commits without membership
looks at the group before, and nothing keeps others from committing in between. If it took longer from its look to
the answer, it logs that. So one of the two sees that a reset was undone.
"""


class OffsetMetadata(NamedTuple):
    """Metadata of one committed offset, as a text `epoch=…&topic=…&ids=…&record=…&lost=…` that a NUL ends.

    librdkafka reads metadata up to a NUL, and past its end where there is none; its Python binding writes one by
    itself. Flume writes an empty text. Version 0.1 writes `epoch=N` alone, and reads anything else as epoch 0. So
    there are two more forms: `epoch=N` is written where members of version 0.1 may read it, and `epoch=0N` by a
    reset of their group. Version 0.1 takes the latter for `epoch=N` and never writes it. So it shows that nobody
    has read it since.
    """

    epoch: int = 0
    """Epoch of the latest deliberate reset, or of the latest move of a sink's commit log."""
    topic_id: str = ""
    """Id of the topic that the offset belongs to; empty while unknown."""
    ids: int = 1
    """Event-ID scheme of the group: `PartitionClaim.ids`. 0 after a reset: the next owner decides."""
    record: str = ""
    """Location of the commit log of the sink that committed it; empty if it has none."""
    shared_epoch: int = 0
    """Epoch of `PartitionClaim.shared_epoch`; never read from a text."""
    lost: str = ""
    """Lost records, as `RecordsLost.lost`; empty if there are none. A reset of the group removes it."""

    @classmethod
    def parse(cls, text: str | None) -> OffsetMetadata:
        """Return the metadata in that text; unknown parts are left out."""
        text = _written(text)
        found = dict(parse_qsl(text))
        epoch, ids = found.get("epoch", ""), found.get("ids", "0" if _UNREAD.fullmatch(text) else "")
        lost = found.get("lost", "")
        return cls(
            int(epoch) if epoch.isdecimal() else 0,
            topic if (topic := found.get("topic", "")) != NO_TOPIC_ID else "",
            int(ids) if ids.isdecimal() else 1,
            found.get("record", ""),
            lost=lost if _LOST.fullmatch(lost) else "",
        )

    @classmethod
    def of(cls, claim: PartitionClaim) -> OffsetMetadata:
        """Return the metadata to be committed for that partition."""
        return cls(claim.epoch, claim.topic_id, claim.ids, claim.record, claim.shared_epoch)

    def text(self) -> str:
        """To be written, by another client than librdkafka with a NUL behind it."""
        if self.epoch and self.ids == 0:
            return f"epoch=0{self.epoch}"
        if self.epoch and self.epoch == self.shared_epoch:
            return f"epoch={self.epoch}"
        fields = {
            "epoch": self.epoch or "",
            "topic": self.topic_id,
            "ids": self.ids,
            "record": self.record,
            "lost": self.lost,
        }
        return urlencode({name: value for name, value in fields.items() if value and (name, value) != ("ids", 1)})


def known_to_older(text: str | None) -> bool:
    """Return True if that metadata was written by version 0.1, or for it."""
    return _OLDER.fullmatch(_written(text)) is not None


def _written(text: str | None) -> str:
    """Return the written part of what was read: up to the NUL, which `agent group reset` of version 0.1 did not
    write.
    """
    text = (text or "").partition(NUL)[0]
    alone = _OLDER.match(text)
    return alone[0] if alone and not text.startswith("&", alone.end()) else text


def overtaken(claim: PartitionClaim, said: OffsetMetadata) -> str:
    """Return in words why an owner has to give a partition up, by the metadata of its committed offset; empty if it
    need not.

    An offset without metadata, as of another program or a group that was deleted, overtakes nothing.
    """
    if said.epoch > claim.epoch:
        return f"group {claim.group} was reset, or another agent has taken {claim.topic}-{claim.partition} over"
    if said.lost:
        return f"brokers have lost records of {claim.topic}-{claim.partition}, and group {claim.group} was not reset"
    if said.epoch == claim.epoch and said.record and claim.record not in ("", said.record):
        return f"another sink of group {claim.group} commits {claim.topic}-{claim.partition}, below {said.record}"
    return ""


def undone(claim: PartitionClaim, said: OffsetMetadata) -> bool:
    """Return True if an earlier owner, of an earlier epoch or of a deleted topic, has committed last, late.

    An offset without metadata, as of another program or a group that was deleted, is none of an owner's.
    """
    return said.topic_id not in ("", claim.topic_id) or is_earlier(said, claim.epoch)


def is_earlier(said: OffsetMetadata, epoch: int) -> bool:
    """Return True if an owner of an earlier epoch than that has committed it."""
    return said.epoch < epoch and (said.epoch, said.topic_id) != (0, "")


def names_topic(claim: PartitionClaim) -> bool:
    """Return True if the metadata that is committed for that partition names the topic."""
    return bool(OffsetMetadata.parse(OffsetMetadata.of(claim).text()).topic_id)


class RecordsLost(FlafkaError):
    """Loss of records by brokers before the offset of a group, which a person has to reset.

    The error lasts: `lost` is committed with the offset (`OffsetMetadata.lost`). The next owner of the partition
    raises it again, although new records may lie at the offset by then.
    """

    def __init__(self, claim: PartitionClaim, offset: int, lost: str) -> None:
        """`lost` is the first offset of the lost records: with a `?` an upper bound, with a `+` a lower one."""
        self.claim, self.offset, self.lost = claim, offset, lost
        start, place = lost.rstrip("?+"), f"{claim.topic}-{claim.partition}"
        what = f"group {claim.group} stands at offset {offset} of {place}, "
        cause = "as when a replica that was behind becomes leader, or brokers are restored from a backup"
        way_out = _reset(claim, f"{start}{_new_ids(claim)}")
        if lost.endswith("+"):
            super().__init__(
                f"{what}and the record before that is not the one that was read: the brokers have lost records "
                f"since, {cause}, and others have taken their offsets, somewhere from {start} on. Some may be "
                f"delivered twice. To go on with those: {way_out}"
            )
        elif not lost.endswith("?"):
            super().__init__(
                f"{what}and has read records {start} to {offset - 1}, {offset - int(start):,} in all, which the "
                f"brokers have lost since, {cause}; new records get offsets from {start} on. To go on with those: "
                f"{way_out}"
            )
        else:
            super().__init__(
                f"{what}which the brokers did not have: {place} ended at {start}: the brokers lost records, {cause}; "
                f"records that were put since then, below offset {start}, would be skipped. To accept the loss: "
                f"{way_out}"
            )


def out_of_range(claim: PartitionClaim, offset: int, low: int, high: int) -> FlafkaError | None:
    """Return the error, with the way out, where the brokers do not have the offset of a group; None if they do.

    The partition has records `low` up to, not including, `high`.
    """
    place = f"{claim.topic}-{claim.partition}"
    if offset < low and claim.replay:
        return Retry(
            f"records from {offset} on were removed from {place} by retention: the replay goes on with record {low}"
        )
    if offset > high and claim.replay:
        return Retry(f"the brokers have lost records from {high} on of {place}: the replay looks at what is left")
    if offset > high:
        return RecordsLost(claim, offset, f"{high}?")
    if offset < low:
        return FlafkaError(
            f"group {claim.group} stands at offset {offset} of {place}, which the brokers do not have: records "
            f"{offset} to {low - 1}, {low - offset:,} in all, were removed by retention unread. "
            f"To accept the loss: {_reset(claim, 'earliest')}"
        )
    return None


def truncated(claim: PartitionClaim, offset: int, start: int) -> FlafkaError:
    """Return the error, with the way out, where a group stands at `offset` and has read from `start` on what the
    brokers have lost since.
    """
    if not claim.replay:
        return RecordsLost(claim, offset, f"{start}")
    return FlafkaError(
        f"group {claim.group} stands at offset {offset} of {claim.topic}-{claim.partition}, and has read records "
        f"{start} to {offset - 1}, {offset - start:,} in all, which the brokers have lost since, as when a replica "
        "that was behind becomes leader. Run the replay again; where that says so once more, --again delivers all "
        "that the span has now"
    )


def _reset(claim: PartitionClaim, to: str) -> str:
    return f"agent group reset {claim.group} --topic {claim.topic}:{claim.partition} --to {to}"


def _new_ids(claim: PartitionClaim) -> str:
    """A group that version 0.1 may read cannot have them: it would name the events as before."""
    return "" if claim.shared_epoch else " --new-ids"


def begins_late(claim: PartitionClaim, start: int) -> str:
    """Return the warning about a group without an offset that begins behind records that are gone."""
    return (
        f"group {claim.group} has no position in {claim.topic}-{claim.partition}, and begins with record {start}, "
        "the first that is left: whether those before it were delivered is not known"
    )


def made_again(claim: PartitionClaim, left: int, unknown: int) -> str:
    """Return the error about a topic that was recreated; the loss in `unknown` partitions is not known."""
    more = f" (of {unknown} partitions that is not known)" if unknown else ""
    return (
        f"topic {claim.topic} was deleted and created again: group {claim.group} begins with the first record of "
        f"the new one. {left:,} records that the old one held when last looked at are lost{more}"
    )


def next_epoch(epoch: int) -> int:
    """The epoch after this one: never used before, also where the group and what it knew were deleted since."""
    return max(epoch + 1, int(time.time() * 1000))
