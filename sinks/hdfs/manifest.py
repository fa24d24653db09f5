"""A manifest: what one commit of the sink has, as it lies on HDFS."""

from __future__ import annotations

import posixpath

import msgspec

from flafka.plugins import Assignment, FlafkaError, LastRecord, OffsetRange, Retry

VERSION = 3
"""Version of the manifests that are written and read."""
BEGIN = "begin"
"""Name of the first manifest of a commit log: an empty one, or the fence of a log that never began."""


class File(msgspec.Struct, frozen=True):
    """One file of a commit: where it was uploaded, where readers find it, its length in bytes."""

    temporary: str
    final: str
    length: int


class Manifest(msgspec.Struct, frozen=True):
    """One commit: records `start` up to, not including, `end` are in these files, or were dropped on purpose."""

    id: str
    """Different for each stage, so that an owner knows its own."""
    topic: str
    partition: int
    start: int
    end: int
    events: int
    files: tuple[File, ...]
    version: int = 1
    last: LastRecord = LastRecord()
    """See `Receipt.last_record`."""
    successor: Successor | None = None
    """The next log, in the last manifest of one: nothing can be committed behind it."""
    mark: str = ""
    """The directory that is made once all files have their final names; empty if there are no files."""

    @property
    def name(self) -> str:
        """Name of its file: no other manifest of the log can have it."""
        return BEGIN if self.begins else f"{self.start:020d}"

    @property
    def offsets(self) -> OffsetRange:
        """Offsets of its records. Raises ValueError for a fence that takes back the commit before it."""
        return OffsetRange(self.start, self.end)

    @property
    def begins(self) -> bool:
        """Return True if it is the first one of its log."""
        return self.start == self.end and self.successor is None


class Successor(msgspec.Struct, frozen=True):
    """The chain that has taken the place of another one."""

    state: str
    epoch: int


def manifest_in(path: str, content: bytes | None, assignment: Assignment) -> Manifest:
    """Return the manifest at that path, in a commit log of that group.

    Raises Retry if the content is None, as the file is gone, and FlafkaError if it is damaged or of another version.
    """
    if content is None:
        raise Retry(f"{path} has disappeared")
    try:
        manifest = msgspec.json.decode(content, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise FlafkaError(f"{path} is no manifest of this sink, which cannot go on without it: {e}") from e
    if manifest.version != VERSION:
        raise FlafkaError(
            f"{path} is a manifest of version {manifest.version}, and this sink reads version {VERSION}: "
            "deliver what the channel holds with the agent that wrote it (agent start --drain), remove the directory "
            f"{posixpath.dirname(path)}, and run agent group reset {assignment.group}"
        )
    return manifest
