"""Differences of the channels that keep files from Flume's."""

from __future__ import annotations

from flafka.plugins import CompatibilityNote

FILES = (
    CompatibilityNote(
        flume="what waits in the channel is in files of Flume's own",
        here="other files, in the same directories; these are locked, so that no Flume can use them. "
        "`agent migrate --import-channel` moves what Flume left there into the channel, which does not start before",
    ),
)

FILE = (
    CompatibilityNote(
        flume="a put fails when the channel is full, or the disk has less than `minimumRequiredSpace`",
        here="it waits; the source waits with it",
    ),
    CompatibilityNote(
        flume="a damaged record keeps the channel from starting, until Flume's tool has removed it",
        here="what is whole is delivered; the file and the byte of each damage are in the log, events that are "
        "lost are counted (`EventLostCount`), and damaged bytes are kept in files `*.damaged`. Only a file that is "
        "missing as a whole keeps the channel from starting, until it is back or `agent group reset` accepts the "
        "loss",
    ),
    CompatibilityNote(
        flume="after a kill, an event that was being taken at a checkpoint, was given back, and was taken again, is "
        "delivered twice",
        here="once",
    ),
)

SPILLABLE = (
    CompatibilityNote(
        flume="events are in memory, and lost with the process",
        here="they are in files at once, without waiting for the disk: only a loss of power loses those of "
        "the last seconds",
    ),
)
