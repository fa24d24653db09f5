"""Avro container files: of Flume's events, or of bodies that are Avro already."""

from __future__ import annotations

import bz2
import hashlib
import lzma
import secrets
import urllib.request
import zlib
from collections.abc import Callable
from functools import partial
from urllib.parse import urlsplit

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flafka.plugins import Batch, Retry
from flafka.plugins.shared import flumeevent
from flafka.plugins.shared.flumeevent import varint
from flafka.sinks.serializers.base import Blocks, Serialized, Serializer, serialized

EVENT_SCHEMA = (
    '{"type":"record","name":"Event","fields":[{"name":"headers","type":{"type":"map","values":"string"}},'
    '{"name":"body","type":"bytes"}]}'
)
SCHEMA_URL, SCHEMA_LITERAL = "flume.avro.schema.url", "flume.avro.schema.literal"
"""Headers that tell the schema of a body."""
Fetch = Callable[[str], bytes]
"""Gets what is at an address, or raises Retry."""
MAX_SCHEMA_BYTES = 1 << 20
FETCH_SECONDS = 30


def _snappy(block: memoryview) -> bytes:
    return bytes(pa.Codec("snappy").compress(block, asbytes=True)) + zlib.crc32(block).to_bytes(4, "big")


CODECS: dict[str, Callable[[memoryview], bytes]] = {
    "null": bytes,
    "deflate": partial(zlib.compress, wbits=-15),
    "snappy": _snappy,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstandard": lambda block: bytes(pa.Codec("zstd").compress(block, asbytes=True)),
}
"""The compressions of Avro, under its names for them."""


class Container(Blocks):
    """One container file."""

    def __init__(self, schema: str, codec: str, interval: int) -> None:
        super().__init__(interval)
        self._codec, self._sync = codec, secrets.token_bytes(16)
        entries = {b"avro.schema": schema.encode(), b"avro.codec": codec.encode()}
        pairs = b"".join(_sized(part) for pair in entries.items() for part in pair)
        self.header = b"Obj\x01" + varint(len(entries)) + pairs + varint(0) + self._sync

    def block(self, records: Serialized) -> bytes:
        """Count, length, records, mark."""
        data = CODECS[self._codec](records.data)
        return varint(len(records)) + varint(len(data)) + data + self._sync


class AvroEvent(Serializer):
    """Flume's events: a map of headers, and the body as bytes."""

    suffix = ".avro"

    def __init__(self, codec: str, interval: int) -> None:
        self._codec, self._interval = codec, interval

    def records(self, batch: Batch) -> Serialized:
        """Every event in Avro's binary form."""
        return serialized(flumeevent.encode(batch))

    def writer(self, kind: str) -> Container:
        """A container of events."""
        return Container(EVENT_SCHEMA, self._codec, self._interval)


class AvroBody(Serializer):
    """Bodies that are records of Avro already; the headers say of which schema, or the configuration does.

    Each schema has files of its own.
    """

    suffix = ".avro"

    def __init__(self, codec: str, interval: int, url: str | None, trusted: list[str], fetch: Fetch) -> None:
        """`url` is the schema of events without one; `trusted` are beginnings of addresses in headers to fetch."""
        self._codec, self._interval, self._url, self._trusted = codec, interval, url, trusted
        self._fetch = fetch
        self._known: dict[str, str] = {}

    def records(self, batch: Batch) -> Serialized:
        """The bodies."""
        return serialized(batch.bodies)

    def kinds(self, batch: Batch) -> tuple[list[str | ValueError], npt.NDArray[np.int64]]:
        """The schemas, as they are written into files. Raises Retry where one cannot be fetched now."""
        url, literal = batch.header(SCHEMA_URL), batch.header(SCHEMA_LITERAL)
        width = len(literal.dictionary) + 1
        different, which = np.unique(_codes(url) * width + _codes(literal), return_inverse=True)
        pairs = (divmod(int(code), width) for code in different)
        return [self._schema(_value(url, u), _value(literal, v)) for u, v in pairs], which.astype(np.int64)

    def writer(self, kind: str) -> Container:
        """A container of that schema."""
        return Container(kind, self._codec, self._interval)

    def _schema(self, url: str | None, literal: str | None) -> str | ValueError:
        try:
            if url is None and literal is not None:
                return _checked(literal.encode(), "its header flume.avro.schema.literal")
            if url is not None and url != self._url and not url.startswith(tuple(self._trusted)):
                return ValueError(
                    f"its header {SCHEMA_URL} is {url[:200]!r}, and no prefix in serializer.trustedSchemaURLs allows "
                    "it"
                )
            if (address := url or self._url) is None:
                return ValueError(f"it has no header {SCHEMA_URL} or {SCHEMA_LITERAL}, and no serializer.schemaURL")
            if address not in self._known:
                self._known[address] = _checked(self._fetch(address), address)
            return self._known[address]
        except ValueError as e:
            return e


def fetch(url: str) -> bytes:
    """What is at an address of `http`, `https` or `file`, or in a local file. Raises Retry."""
    address = url if urlsplit(url).scheme else f"file://{url}"
    try:
        with urllib.request.urlopen(address, timeout=FETCH_SECONDS) as answer:  # noqa: S310  # the operator's own
            return bytes(answer.read(MAX_SCHEMA_BYTES + 1))
    except (OSError, ValueError) as e:
        raise Retry(f"cannot fetch the schema {url}: {e}") from e


def schema_name(schema: str) -> str:
    """Tells files of this schema from others of the same place."""
    return hashlib.sha256(schema.encode()).hexdigest()[:8]


def _codes(column: pa.Array) -> npt.NDArray[np.int64]:
    """Which of its values each row has; one past them where it has none."""
    codes = column.indices.fill_null(len(column.dictionary)).to_numpy(zero_copy_only=False)
    return np.asarray(codes).astype(np.int64)


def _value(column: pa.Array, code: int) -> str | None:
    return str(column.dictionary[code].as_py()) if code < len(column.dictionary) else None


def _checked(schema: bytes, where: str) -> str:
    """ValueError for what is no schema; one in words that need no blanks, otherwise."""
    if len(schema) > MAX_SCHEMA_BYTES:
        raise ValueError(f"{where} is longer than {MAX_SCHEMA_BYTES} bytes")
    try:
        return msgspec.json.encode(msgspec.json.decode(schema)).decode()
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise ValueError(f"{where} is no Avro schema: {e}") from e


def _sized(data: bytes) -> bytes:
    return varint(len(data)) + data
