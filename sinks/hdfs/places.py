"""Where the sink keeps what is its own on HDFS, below the directory `.flafka`."""

from __future__ import annotations

import hashlib
import posixpath
from urllib.parse import quote

from plugins import PartitionClaim


def epochs_directory(state: str, claim: PartitionClaim) -> str:
    """The directory of a group's chains: in it is one for each epoch, by its number."""
    keys = map(safe_name, (claim.cluster_id, claim.topic_id, claim.group))
    return posixpath.join(state, "chain", *keys)


def claim_hash(claim: PartitionClaim) -> str:
    """Tells apart the claims of two groups, epochs, clusters, or topics of the same name."""
    parts = (claim.cluster_id, claim.topic_id, claim.group, str(claim.epoch))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def temporary(state: str, claim: PartitionClaim) -> str:
    """The directory of everything that this claim has uploaded and not committed."""
    return posixpath.join(state, "tmp", f"{claim_hash(claim)[:16]}-{claim.partition}")


def stage_directory(state: str, claim: PartitionClaim, start: int, id: str) -> str:
    """The directory of what one stage has uploaded; its name tells the start, and so when it may go."""
    return posixpath.join(temporary(state, claim), f"{start:020d}-{id}")


def safe_name(text: str) -> str:
    """A file name for this text and no other: escaped by `=`, as some WebHDFS servers decode `%` twice."""
    name = quote(text, safe="").replace("%", "=")
    if len(name) > 200:
        name = f"{name[:100]}={hashlib.sha256(text.encode()).hexdigest()}"
    return f"={name}" if not name or name.startswith(".") else name
