"""Keytab files with principals and no real keys."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path


def write_keytab(path: Path, versions: Mapping[str, int]) -> Path:
    """Write a keytab of format 2 with one key of each principal, and return its path."""
    data = b"\x05\x02"
    for principal, version in versions.items():
        name, _, realm = principal.rpartition("@")
        components = name.split("/")
        entry = struct.pack(">H", len(components))
        entry += b"".join(struct.pack(">H", len(text.encode())) + text.encode() for text in (realm, *components))
        entry += struct.pack(">IIB", 1, 1_700_000_000, version & 0xFF)  # type of the name, time, version
        entry += struct.pack(">HH", 18, 32) + bytes(32) + struct.pack(">I", version)  # type, length and key
        data += struct.pack(">i", -5) + bytes(5) + struct.pack(">i", len(entry)) + entry  # after a deleted entry
    path.write_bytes(data)
    return path
