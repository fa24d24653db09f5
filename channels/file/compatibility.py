"""Compatibility notes of the file channel and the spillable memory channel."""

from __future__ import annotations

from flafka.plugins import CompatibilityNote

FILES = (
    CompatibilityNote(
        flume="events in the channel are in files of Flume's own format",
        here="other files, in the same directories, which are locked against Flume. The channel does not start "
        "before `agent migrate --import-channel` has moved the events in Flume's files into it",
    ),
)

FILE = (
    CompatibilityNote(
        flume="a put fails when the channel is full, or the disk has less than `minimumRequiredSpace`",
        here="the put waits, and its source with it",
    ),
    CompatibilityNote(
        flume="a damaged record keeps the channel from starting, until Flume's tool has removed it",
        here="all intact records are delivered; the log has the file and the byte of each damage, "
        "`EventLostCount` counts lost events, and damaged bytes are moved to files `*.damaged`. Only a missing file "
        "prevents the start, until it is restored or `agent group reset` accepts the loss",
    ),
    CompatibilityNote(
        flume="after a kill, an event whose take was open at a checkpoint, was rolled back, and was repeated, is "
        "delivered twice",
        here="once",
    ),
)

SPILLABLE = (
    CompatibilityNote(
        flume="events are in memory, and lost with the process",
        here="events are written to files at once, without waiting for the disk: only a power failure loses events, "
        "those of the last seconds",
    ),
)
