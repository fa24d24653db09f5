"""Keytab files of MIT Kerberos, format 2 (0x0502): the principals and key versions in them, never the keys."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

VERSION = b"\x05\x02"


def read_principals(path: Path | str) -> dict[str, int]:
    """Return the newest key version by principal, such as `flume/host@EXAMPLE.COM`.

    Raises OSError if the file cannot be read, and ValueError if it is no keytab.
    """
    data = Path(path).read_bytes()
    if not data.startswith(VERSION):
        raise ValueError(f"{path} is not a keytab")
    versions: dict[str, int] = {}
    try:
        for principal, version in _entries(data):
            versions[principal] = max(version, versions.get(principal, 0))
    except (struct.error, UnicodeDecodeError) as e:
        raise ValueError(f"{path} is not a keytab, or is damaged") from e
    return versions


def _entries(data: bytes) -> Iterator[tuple[str, int]]:
    """Yield principal and key version of each entry. Raises struct.error for a truncated entry."""
    position = len(VERSION)
    while position < len(data):
        (size,) = struct.unpack_from(">i", data, position)
        position += 4
        if size == 0:
            return
        if size > 0:  # a deleted entry has a negative size
            yield _entry(data[position : position + size])
        position += abs(size)


def _entry(entry: bytes) -> tuple[str, int]:
    """Return principal and key version of an entry: components, name type, time, version, key, longer version."""
    (count,) = struct.unpack_from(">H", entry)
    position, texts = 2, []
    for _ in range(count + 1):
        (length,) = struct.unpack_from(">H", entry, position)
        texts.append(entry[position + 2 : position + 2 + length].decode())
        position += 2 + length
    realm, *components = texts
    position += 4 + 4
    version, _, length = struct.unpack_from(">BHH", entry, position)
    position += 5 + length
    if len(entry) - position >= 4:
        version = struct.unpack_from(">I", entry, position)[0] or version
    return f"{'/'.join(components)}@{realm}", version
