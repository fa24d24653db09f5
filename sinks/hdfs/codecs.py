"""Hadoop's compression codecs. Outputs may be concatenated, and are one compressed file then."""

from __future__ import annotations

import bz2
import gzip
import zlib
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pyarrow as pa

from flafka.plugins.problems import suggest

PACKAGE = "org.apache.hadoop.io.compress"
FRAME_BLOCK_BYTES = 200_000
"""Size of a block of Snappy and LZ4: with its overhead, less than Hadoop's buffers of 256 KiB."""


class Codec(NamedTuple):
    """Compression codec of Hadoop."""

    java: str
    """Name of the Java class."""
    extension: str
    """Suffix of compressed files, with its dot."""
    compress: Callable[[bytes], bytes]


def _framed(codec: str) -> Callable[[bytes], bytes]:
    """Return a compressor to Hadoop's frames, by the name of a codec of Arrow.

    A frame is the length of a block, the length of its compressed form, and these bytes. Lengths are big-endian, with
    4 bytes. A block has at most `FRAME_BLOCK_BYTES`.
    """

    def compress(data: bytes) -> bytes:
        parts = []
        for start in range(0, len(data), FRAME_BLOCK_BYTES):
            block = data[start : start + FRAME_BLOCK_BYTES]
            compressed = pa.Codec(codec).compress(block, asbytes=True)
            parts += [len(block).to_bytes(4, "big"), len(compressed).to_bytes(4, "big"), compressed]
        return b"".join(parts)

    return compress


CODECS = {
    "gzip": Codec(f"{PACKAGE}.GzipCodec", ".gz", partial(gzip.compress, compresslevel=6, mtime=0)),
    "bzip2": Codec(f"{PACKAGE}.BZip2Codec", ".bz2", bz2.compress),
    "snappy": Codec(f"{PACKAGE}.SnappyCodec", ".snappy", _framed("snappy")),
    "lz4": Codec(f"{PACKAGE}.Lz4Codec", ".lz4", _framed("lz4_raw")),
    "zstandard": Codec(
        f"{PACKAGE}.ZStandardCodec", ".zst", lambda data: bytes(pa.Codec("zstd").compress(data, asbytes=True))
    ),
    "deflate": Codec(f"{PACKAGE}.DeflateCodec", ".deflate", zlib.compress),
    "default": Codec(f"{PACKAGE}.DefaultCodec", ".deflate", zlib.compress),
}
"""Codecs by their names in Flume: the names of Hadoop's classes without `Codec`."""


def canonical_codec(name: str) -> str:
    """Return the key of a codec in `CODECS`, or `none` for Flume's `None`. Raises ValueError for an unknown one.

    `name` is a name of Flume or of Hadoop's class, in upper or lower case, with or without package and `Codec`.
    """
    short = name.removeprefix(f"{PACKAGE}.").lower().removesuffix("codec")
    short = "zstandard" if short == "zstd" else short
    if short in CODECS or short == "none":
        return short
    if short in ("lzo", "lzop") or "hadoop.compression.lzo" in short:
        raise ValueError(
            f"{name}: LZO is in neither Hadoop nor this agent; write hdfs.codeC = lz4 or snappy, which are as fast"
        )
    near = suggest(name, list(CODECS)) or f"; there are {', '.join(CODECS)}"
    raise ValueError(f"there is no codec {name!r}{near}")
