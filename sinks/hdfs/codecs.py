"""Compression as Hadoop's codecs do it, bytes in, bytes out; what is compressed in parts may be put together."""

from __future__ import annotations

import bz2
import gzip
import zlib
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pyarrow as pa

from flafka.plugins.problems import suggestion

PACKAGE = "org.apache.hadoop.io.compress"
BLOCK_BYTES = 200_000
"""Of Snappy and LZ4: less than Hadoop's buffers of 256 KiB, which have to hold a block and its overhead."""


class Codec(NamedTuple):
    """One of Hadoop's compressions."""

    java: str
    """Its class there."""
    extension: str
    compress: Callable[[bytes], bytes]


def _blocks(codec: str) -> Callable[[bytes], bytes]:
    """Hadoop's frame: length of a block, then length and bytes of what it was compressed to."""

    def compress(data: bytes) -> bytes:
        parts = []
        for start in range(0, len(data), BLOCK_BYTES):
            block = data[start : start + BLOCK_BYTES]
            small = pa.Codec(codec).compress(block, asbytes=True)
            parts += [len(block).to_bytes(4, "big"), len(small).to_bytes(4, "big"), small]
        return b"".join(parts)

    return compress


CODECS = {
    "gzip": Codec(f"{PACKAGE}.GzipCodec", ".gz", partial(gzip.compress, compresslevel=6, mtime=0)),
    "bzip2": Codec(f"{PACKAGE}.BZip2Codec", ".bz2", bz2.compress),
    "snappy": Codec(f"{PACKAGE}.SnappyCodec", ".snappy", _blocks("snappy")),
    "lz4": Codec(f"{PACKAGE}.Lz4Codec", ".lz4", _blocks("lz4_raw")),
    "zstandard": Codec(
        f"{PACKAGE}.ZStandardCodec", ".zst", lambda data: bytes(pa.Codec("zstd").compress(data, asbytes=True))
    ),
    "deflate": Codec(f"{PACKAGE}.DeflateCodec", ".deflate", zlib.compress),
    "default": Codec(f"{PACKAGE}.DefaultCodec", ".deflate", zlib.compress),
}
"""By the names that Flume knows them by: Hadoop's classes without `Codec`."""


def canonical(name: str) -> str:
    """For a validator: our name of a codec, `none` for Flume's `None`, or ValueError."""
    short = name.removeprefix(f"{PACKAGE}.").lower().removesuffix("codec")
    short = "zstandard" if short == "zstd" else short
    if short in CODECS or short == "none":
        return short
    if short in ("lzo", "lzop") or "hadoop.compression.lzo" in short:
        raise ValueError(
            f"{name}: LZO is in neither Hadoop nor this agent; write hdfs.codeC = lz4 or snappy, which are as fast"
        )
    near = suggestion(name, list(CODECS)) or f"; there are {', '.join(CODECS)}"
    raise ValueError(f"there is no codec {name!r}{near}")
