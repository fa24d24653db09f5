"""Names of the files that the HDFS sink delivers, and of its own files, which are below the directory `.flafka`."""

from __future__ import annotations

import hashlib
import posixpath
import re
from urllib.parse import quote

from flafka.plugins import Assignment, OffsetRange
from flafka.sinks.hdfs.location import RESERVED

MAX_NAME_BYTES, MAX_PATH_BYTES = 255, 7000
"""HDFS allows 255 and 8000 bytes; what the sink appends to the path of an event fits into the difference."""
_DELIVERED_NAME = re.compile(r"-\d{10,}-\d{10,}-[0-9a-f]{8}")
"""Part of a name that only files of this sink have."""


# --- delivered files


def partition_stem(topic: str, partition: int) -> str:
    """Return `<topic>-<partition>`, which all names of a partition's files have behind their prefix.

    The topic is escaped by `safe_name` and cut to 100 characters.
    """
    return f"{safe_name(topic)[:100]}-{partition}"


def final_path(bucket: str, assignment: Assignment, offsets: OffsetRange, suffix: str) -> str:
    """Return the path of the delivered file of a bucket that has the records at these offsets.

    `bucket` is a directory and the prefix of the name, as from `checked_bucket`. `suffix` is the end of the name,
    behind the hash and, for a replay, `-replay`.
    """
    dot, replay = "" if bucket.endswith("/") else ".", "-replay" if assignment.replay else ""
    hash = assignment_hash(assignment)[:8]
    name = _name(assignment.topic, assignment.partition, offsets.start, offsets.end - 1, hash)
    return f"{bucket}{dot}{name}{replay}{suffix}"


def longest_prefix(topic: str, partition: int, suffix: str) -> int:
    """Return the most bytes that the prefix of a file's name may have, so that the whole name fits into 255."""
    return MAX_NAME_BYTES - len(_name(topic, partition, 10**19, 10**19, "0" * 24)) - 1 - len(suffix.encode())


def _name(topic: str, partition: int, first: int, last: int, hash: str) -> str:
    """Return the middle of a file's name, from the topic up to the hash; `first` and `last` are inclusive offsets."""
    return f"{partition_stem(topic, partition)}-{first:010d}-{last:010d}-{hash}"


def checked_bucket(path: str | ValueError, root: str, longest: int) -> str:
    """Return the normalized path of an event: a directory, and the prefix of the names of files in it.

    `root` is the fixed part of hdfs.path, in which the path has to be. `longest` is the number of bytes that the
    prefix may have. Raises ValueError, with a sentence about the event, if `path` is an error, or is not allowed by
    HDFS or this sink.
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
    if not bucket.startswith(root.rstrip("/") + "/") or _DELIVERED_NAME.search(bucket):
        raise ValueError(f"its path {bucket!r} is reserved for this sink's own files")
    if any(len(name.encode()) > MAX_NAME_BYTES for name in names) or len(prefix.encode()) > longest:
        raise ValueError(f"its path {bucket[:300]!r} has a name that is too long for HDFS")
    if len(bucket.encode()) > MAX_PATH_BYTES:
        raise ValueError(f"its path, of {len(bucket)} characters, is too long for HDFS")
    return bucket


# --- the sink's own files


def epochs_directory(state: str, assignment: Assignment) -> str:
    """Return the directory of a group's commit logs of one topic, which has a directory for each epoch, by its
    number."""
    topic = assignment.topic_partition
    keys = map(safe_name, (topic.cluster, topic.topic_id, assignment.group))
    return posixpath.join(state, "chain", *keys)


def assignment_hash(assignment: Assignment) -> str:
    """Return a SHA-256 in hex, which differs between groups, epochs, clusters, and incarnations of a topic.

    All partitions of a topic have the same one.
    """
    topic = assignment.topic_partition
    parts = (topic.cluster, topic.topic_id, assignment.group, str(assignment.generation.epoch))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def upload_directory(state: str, assignment: Assignment) -> str:
    """Return the directory of all uploads of this partition, group and epoch.

    Committed files are renamed out of it; uploads that were never committed stay until a later commit deletes them.
    """
    return posixpath.join(state, "tmp", f"{assignment_hash(assignment)[:16]}-{assignment.partition}")


def stage_directory(state: str, assignment: Assignment, start: int, id: str) -> str:
    """Return the directory of the uploads of one stage, whose range of offsets begins with `start`.

    Once the commit log ends at a larger offset, the directory may be deleted, unless it has the last commit's mark.
    """
    return posixpath.join(upload_directory(state, assignment), f"{start:020d}-{id}")


def safe_name(text: str) -> str:
    """Return the file name of a text, unique to it: escaped by `=`, as some WebHDFS servers decode `%` twice.

    A name beyond 200 characters is cut, and ends with a hash of the text.
    """
    name = quote(text, safe="").replace("%", "=")
    if len(name) > 200:
        name = f"{name[:100]}={hashlib.sha256(text.encode()).hexdigest()}"
    return f"={name}" if not name or name.startswith(".") else name
