"""What the files that the sink delivers are called, and which of the paths that events ask for they may have."""

from __future__ import annotations

import re

from plugins import PartitionClaim
from sinks.hdfs.location import RESERVED
from sinks.hdfs.places import claim_hash, safe_name

LONGEST_NAME, LONGEST_PATH = 255, 7000
"""Bytes; HDFS allows 255 and 8000, and the temporary and final names add a little."""
_FINAL = re.compile(r"-\d{10,}-\d{10,}-[0-9a-f]{8}")
"""What only names of this sink's files hold."""


def stem(topic: str, partition: int) -> str:
    """What the names of a partition's files have in common, behind what the path of their events gives."""
    return f"{safe_name(topic)[:100]}-{partition}"


def final_path(bucket: str, claim: PartitionClaim, start: int, end: int, suffix: str) -> str:
    """Where the file of a bucket lies that has records `start` up to, not including, `end`."""
    dot, replay = "" if bucket.endswith("/") else ".", "-replay" if claim.replay else ""
    name = _name(claim.topic, claim.partition, start, end - 1, claim_hash(claim)[:8])
    return f"{bucket}{dot}{name}{replay}{suffix}"


def longest_prefix(topic: str, partition: int, suffix: str) -> int:
    """How many bytes the path of an event may give to the name of a file."""
    return LONGEST_NAME - len(_name(topic, partition, 10**19, 10**19, "0" * 24)) - 1 - len(suffix.encode())


def _name(topic: str, partition: int, first: int, last: int, hash: str) -> str:
    return f"{stem(topic, partition)}-{first:010d}-{last:010d}-{hash}"


def possible(place: tuple[str | ValueError, str | ValueError], root: str, longest: int) -> tuple[str, str]:
    """The bucket and kind of files at a place, where each of the two may be the error that it came to; `longest` is
    how many bytes the first part of a name may have.

    Raises ValueError, a sentence about the event, where one of them is an error, or HDFS or we do not want the path.
    """
    path, kind = place
    if isinstance(path, ValueError):
        raise path
    if isinstance(kind, ValueError):
        raise kind
    return _bucket(path, root, longest), kind


def _bucket(path: str, root: str, longest: int) -> str:
    """The path as HDFS wants it, or ValueError, a sentence about the event, where HDFS or we do not want it."""
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
