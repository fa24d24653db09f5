"""Names of the files that the sink delivers, and of its own ones, which lie below the directory `.flafka`."""

from __future__ import annotations

import hashlib
import posixpath
import re
from urllib.parse import quote

from flafka.plugins import Assignment, OffsetRange
from flafka.sinks.hdfs.location import RESERVED

LONGEST_NAME, LONGEST_PATH = 255, 7000
"""Bytes; HDFS allows 255 and 8000, and the temporary and final names add a little."""
_FINAL = re.compile(r"-\d{10,}-\d{10,}-[0-9a-f]{8}")
"""Part of a name that only files of this sink have."""


# --- delivered files


def stem(topic: str, partition: int) -> str:
    """Common part of the names of a partition's files, behind the part that the path of their events gives."""
    return f"{safe_name(topic)[:100]}-{partition}"


def final_path(bucket: str, assignment: Assignment, offsets: OffsetRange, suffix: str) -> str:
    """Path of the file of a bucket that has these records."""
    dot, replay = "" if bucket.endswith("/") else ".", "-replay" if assignment.replay else ""
    hash = assignment_hash(assignment)[:8]
    name = _name(assignment.topic, assignment.partition, offsets.start, offsets.end - 1, hash)
    return f"{bucket}{dot}{name}{replay}{suffix}"


def longest_prefix(topic: str, partition: int, suffix: str) -> int:
    """Number of bytes that the path of an event may give to the name of a file."""
    return LONGEST_NAME - len(_name(topic, partition, 10**19, 10**19, "0" * 24)) - 1 - len(suffix.encode())


def _name(topic: str, partition: int, first: int, last: int, hash: str) -> str:
    return f"{stem(topic, partition)}-{first:010d}-{last:010d}-{hash}"


def possible(path: str | ValueError, root: str, longest: int) -> str:
    """Return the bucket of a path, as HDFS wants it; `longest` is how many bytes the first part of a name may have.

    Raises ValueError, a sentence about the event, where the path is one, or HDFS or this sink does not want it.
    """
    if isinstance(path, ValueError):
        raise path
    directory, _, prefix = path.rpartition("/")
    names = [name for name in directory.split("/") if name]
    bucket = "/".join(("", *names, prefix))
    if ":" in bucket:
        raise ValueError(f"its path {bucket!r} has a ':', which HDFS does not allow")
    if reserved := RESERVED.intersection(names):
        raise ValueError(f"its path {bucket!r} has the reserved name {min(reserved)!r}")
    if not bucket.startswith(root.rstrip("/") + "/") or _FINAL.search(bucket):
        raise ValueError(f"its path {bucket!r} is reserved for this sink's own files")
    if any(len(name.encode()) > LONGEST_NAME for name in names) or len(prefix.encode()) > longest:
        raise ValueError(f"its path {bucket[:300]!r} has a name that is too long for HDFS")
    if len(bucket.encode()) > LONGEST_PATH:
        raise ValueError(f"its path, of {len(bucket)} characters, is too long for HDFS")
    return bucket


# --- files of the sink's own


def epochs_directory(state: str, assignment: Assignment) -> str:
    """The directory of a group's chains: in it is one for each epoch, by its number."""
    at = assignment.topic_partition
    keys = map(safe_name, (at.cluster, at.topic_id, assignment.group))
    return posixpath.join(state, "chain", *keys)


def assignment_hash(assignment: Assignment) -> str:
    """Hash that differs between groups, epochs, clusters, and topics of the same name."""
    at = assignment.topic_partition
    parts = (at.cluster, at.topic_id, assignment.group, str(assignment.generation.epoch))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def temporary(state: str, assignment: Assignment) -> str:
    """The directory of everything that was uploaded in this partition assignment and not committed."""
    return posixpath.join(state, "tmp", f"{assignment_hash(assignment)[:16]}-{assignment.partition}")


def stage_directory(state: str, assignment: Assignment, start: int, id: str) -> str:
    """The directory of what one stage has uploaded; the start in its name says when it may be deleted."""
    return posixpath.join(temporary(state, assignment), f"{start:020d}-{id}")


def safe_name(text: str) -> str:
    """A file name for this text and no other: escaped by `=`, as some WebHDFS servers decode `%` twice."""
    name = quote(text, safe="").replace("%", "=")
    if len(name) > 200:
        name = f"{name[:100]}={hashlib.sha256(text.encode()).hexdigest()}"
    return f"={name}" if not name or name.startswith(".") else name
