"""How far the sinks of a file channel are: one small file, replaced as a whole."""

from __future__ import annotations

import json
import logging
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plugins import PartitionClaim
from plugins.shared.disk import replace

NAME = "flafka.positions"

Positions = Mapping[int, tuple[PartitionClaim, int]]
"""By partition: how far it is delivered, and the claim with which that was committed."""


def read(path: Path, id: str, data_dirs: str, log: logging.Logger) -> Positions:
    """Those of the files with that id. What is damaged, or about other files, counts as none, and is told."""
    if not path.exists():
        return {}
    lines = _unsealed(path.read_bytes())
    if lines is None:
        log.error("%s is damaged: all that the files of events still hold is delivered again", path)
        return {}
    found = {}
    for line in lines:
        position = line.pop("position")
        claim = PartitionClaim(**line)
        if claim.topic_id == id:
            found[claim.partition] = (claim, position)
    if lines and not found:
        log.warning("%s is about other files than those in %s: ignored", path, data_dirs)
    return found


def write(path: Path, positions: Positions) -> None:
    """Return when they are on the disk. Raises OSError."""
    os.close(replace(path, _sealed([{**claim._asdict(), "position": end} for claim, end in positions.values()])))


def _sealed(lines: list[dict[str, Any]]) -> bytes:
    text = json.dumps(lines).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)


def _unsealed(content: bytes) -> list[dict[str, Any]] | None:
    """None where it is not what was written."""
    checksum, _, text = content.rstrip(b"\n").partition(b" ")
    return json.loads(text) if checksum == b"%08x" % zlib.crc32(text) else None
