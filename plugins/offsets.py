"""What a committed offset of a channel's group says besides the offset, in the metadata that Kafka keeps with it."""

from __future__ import annotations

import time
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode

from plugins.components import Claim

MILLIS = 10**12
"""An epoch from here on is the time at which it was opened, in ms; versions before 0.2 counted from 1."""


class OffsetMetadata(NamedTuple):
    """The metadata of one committed offset, as a text `epoch=…&topic=…&ids=…&record=…`.

    Versions before 0.2 write `epoch=N` alone, and read anything else as epoch 0. Flume writes an empty text.
    """

    epoch: int = 0
    """Of the latest deliberate reset, or of the latest move of a sink's commit record."""
    topic_id: str = ""
    """Of the topic that the offset belongs to; empty where it is not known."""
    ids: int = 1
    """How the group's events are named: see `Claim.ids`."""
    record: str = ""
    """Where the sink that committed it keeps a commit record of its own; empty where it keeps none."""

    @classmethod
    def parse(cls, text: str | None) -> OffsetMetadata:
        """What that text says; whatever is not understood is as if it were not there."""
        found = dict(parse_qsl(text or ""))
        epoch, ids = found.get("epoch", ""), found.get("ids", "")
        return cls(
            int(epoch) if epoch.isdecimal() else 0,
            found.get("topic", ""),
            int(ids) if ids.isdecimal() else 1,
            found.get("record", ""),
        )

    @classmethod
    def of(cls, claim: Claim) -> OffsetMetadata:
        """What is to be written for that claim."""
        return cls(claim.epoch, claim.topic_id, claim.ids, claim.record)

    def text(self) -> str:
        """To be written."""
        if 0 < self.epoch < MILLIS:
            # An agent of an older version in the same group would take anything more for epoch 0, and go back.
            return f"epoch={self.epoch}"
        fields = {"epoch": self.epoch or "", "topic": self.topic_id, "ids": self.ids, "record": self.record}
        return urlencode({name: value for name, value in fields.items() if value and (name, value) != ("ids", 1)})


def next_epoch(epoch: int) -> int:
    """The epoch after this one: never used before, also where the group and what it knew were deleted since."""
    return max(epoch + 1, int(time.time() * 1000))
