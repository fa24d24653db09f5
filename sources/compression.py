"""Compressed files, as a log rotation or an upload leaves them: recognition by magic number, and decompression."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from typing import IO, cast

import pyarrow as pa

MAGIC_NUMBERS = (b"\x1f\x8b\x08", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd", b"BZh91AY&SY")
"""First bytes of files that gzip, xz, zstd and bzip2 compressed."""


def decompressed(file: IO[bytes]) -> io.BufferedIOBase:
    """Return a stream of the uncompressed content of `file`, which is open at its start.

    The first bytes decide between gzip, bzip2 and xz; any other content is read as zstd. Errors come with the reads.
    """
    magic = file.read(3)
    file.seek(0)
    if magic == b"\x1f\x8b\x08":
        return gzip.GzipFile(fileobj=file)
    if magic == b"BZh":
        return bz2.BZ2File(file)
    if magic == b"\xfd7z":
        return lzma.LZMAFile(file)
    stream = pa.CompressedInputStream(pa.PythonFile(file, "r"), "zstd")
    return io.BufferedReader(cast(io.RawIOBase, stream))
