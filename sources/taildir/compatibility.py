"""Differences between the source `taildir` and Flume's."""

from __future__ import annotations

from flafka.plugins import CompatibilityNote

TAILDIR = (
    CompatibilityNote(
        flume="position file rewritten in place, identity by inode",
        here="replaced atomically and synced, in Flume's format, so that you can migrate in both directions; "
        "a journal beside it has every offset at once, and identifies files by device, inode and content",
    ),
    CompatibilityNote(
        flume="lines written just before a rename out of the pattern are lost",
        here="read to the end under the new name",
    ),
    CompatibilityNote(
        flume="a missing directory is an error at the start",
        here="a warning, until the directory exists",
    ),
    CompatibilityNote(
        flume="a compressed file whose name matches is read as text",
        here="read from where reading stopped if it proves to be the rotated copy of a file that is gone; "
        "otherwise ignored, as its content was already read",
    ),
    CompatibilityNote(
        flume="a file that is created, rotated and deleted between two scans is lost",
        here="opened as soon as inotify reports it; a file that was deleted even earlier is counted "
        "(`FileMissedCount`) and degrades health",
    ),
    CompatibilityNote(
        flume="the NULs that `copytruncate` leaves under a writer that does not append are an event",
        here="they are skipped and counted (`NulByteCount`)",
    ),
    CompatibilityNote(
        flume="around a rotation, lines of the new file may overtake the last lines of the old one",
        here="the old file is read to its end first, so the lines of a rotated log stay in order",
    ),
    CompatibilityNote(
        flume="a line of any length is one event",
        here="a line longer than 4 MiB becomes several events, which `LineSplitCount` counts",
    ),
    CompatibilityNote(
        flume="every line is an event",
        here="`multiline.pattern` joins stack traces, with Filebeat's options",
    ),
)
