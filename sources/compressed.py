"""Files that a rotation or an upload has compressed, told by how they begin."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from typing import IO, cast

import pyarrow as pa

COMPRESSED = (b"\x1f\x8b\x08", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd", b"BZh91AY&SY")
"""How files begin that gzip, xz, zstd and bzip2 made."""


def unpacked(packed: IO[bytes]) -> io.BufferedIOBase:
    """What such a file holds, as a stream; `packed` is open at its start."""
    beginning = packed.read(3)
    packed.seek(0)
    if beginning == b"\x1f\x8b\x08":
        return gzip.GzipFile(fileobj=packed)
    if beginning == b"BZh":
        return bz2.BZ2File(packed)
    if beginning == b"\xfd7z":
        return lzma.LZMAFile(packed)
    stream = pa.CompressedInputStream(pa.PythonFile(packed, "r"), "zstd")
    return io.BufferedReader(cast(io.RawIOBase, stream))
