"""Avro container files of Flume's events, or of bodies that are Avro already."""

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
from flafka.plugins.wire import flumeevent
from flafka.plugins.wire.flumeevent import encode_long
from flafka.sinks.serializers.base import BlockWriter, Serialized, Serializer, as_records

EVENT_SCHEMA = (
    '{"type":"record","name":"Event","fields":[{"name":"headers","type":{"type":"map","values":"string"}},'
    '{"name":"body","type":"bytes"}]}'
)
SCHEMA_URL, SCHEMA_LITERAL = "flume.avro.schema.url", "flume.avro.schema.literal"
"""Headers with the schema of a body, or its URL."""
FetchSchema = Callable[[str], bytes]
"""Function that returns the content at a URL, or raises Retry."""
MAX_SCHEMA_BYTES = 1 << 20
SCHEMA_FETCH_SECONDS = 30


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
"""Compressions of Avro, by their names in its specification."""


class AvroFile(BlockWriter):
    """Writer of one container file."""

    def __init__(self, schema: str, codec: str, interval: int) -> None:
        super().__init__(interval)
        self._codec, self._sync = codec, secrets.token_bytes(16)
        entries = {b"avro.schema": schema.encode(), b"avro.codec": codec.encode()}
        pairs = b"".join(_sized(part) for pair in entries.items() for part in pair)
        self.header = b"Obj\x01" + encode_long(len(entries)) + pairs + encode_long(0) + self._sync

    def block(self, records: Serialized) -> bytes:
        """Return a block: number of records, length in bytes, compressed records, sync marker."""
        data = CODECS[self._codec](records.data)
        return encode_long(len(records)) + encode_long(len(data)) + data + self._sync


class AvroEvent(Serializer):
    """Serializer of Flume's events: a map of headers, and the body as bytes."""

    suffix = ".avro"

    def __init__(self, codec: str, interval: int) -> None:
        self._codec, self._interval = codec, interval

    def records(self, batch: Batch) -> Serialized:
        """Return the events in Avro's binary encoding."""
        return as_records(flumeevent.encode(batch))

    def writer(self, kind: str) -> AvroFile:
        """Return the writer of a file of events; `kind` has no effect."""
        return AvroFile(EVENT_SCHEMA, self._codec, self._interval)


class AvroBody(Serializer):
    """Serializer of bodies that are Avro records already. Headers or the configuration name their schema.

    Each schema has its own files.
    """

    suffix = ".avro"

    def __init__(self, codec: str, interval: int, url: str | None, trusted: list[str], fetch: FetchSchema) -> None:
        """Create a serializer; `url` is the default schema, or None.

        `trusted` are the allowed prefixes of URLs in headers, and `fetch` returns the content at a URL.
        """
        self._codec, self._interval, self._url, self._trusted = codec, interval, url, trusted
        self._fetch = fetch
        self._known: dict[str, str] = {}

    def records(self, batch: Batch) -> Serialized:
        """Return the bodies as records, without a check that they are Avro."""
        return as_records(batch.bodies)

    def kinds(self, batch: Batch) -> tuple[list[str | ValueError], npt.NDArray[np.int64]]:
        """Return the schemas as kinds, and the index for each event, as `Serializer.kinds`.

        A kind is a ValueError if the event names no schema, an URL that is not trusted, or a schema that is no JSON.
        Raises Retry if a schema cannot be fetched now.
        """
        url, literal = batch.header(SCHEMA_URL), batch.header(SCHEMA_LITERAL)
        width = len(literal.dictionary) + 1
        distinct, indexes = np.unique(_codes(url) * width + _codes(literal), return_inverse=True)
        pairs = (divmod(int(code), width) for code in distinct)
        return [self._schema(_value(url, u), _value(literal, v)) for u, v in pairs], indexes.astype(np.int64)

    def writer(self, kind: str) -> AvroFile:
        """Return the writer of a file with the schema `kind`."""
        return AvroFile(kind, self._codec, self._interval)

    def _schema(self, url: str | None, literal: str | None) -> str | ValueError:
        """Return the schema for a pair of headers, or the reason why there is none; None is a missing header.

        The header with a URL wins over the header with a schema, and both win over the default. Raises Retry if the
        schema cannot be fetched.
        """
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


def fetch_schema(url: str) -> bytes:
    """Return the content at a URL of `http`, `https` or `file`, or of a local file.

    At most one byte more than `MAX_SCHEMA_BYTES` is read. Raises Retry if it cannot be fetched.
    """
    address = url if urlsplit(url).scheme else f"file://{url}"
    try:
        with urllib.request.urlopen(address, timeout=SCHEMA_FETCH_SECONDS) as answer:  # noqa: S310  # configured or allowed
            return bytes(answer.read(MAX_SCHEMA_BYTES + 1))
    except (OSError, ValueError) as e:
        raise Retry(f"cannot fetch the schema {url}: {e}") from e


def schema_name(schema: str) -> str:
    """Return a hash of a schema with 8 hexadecimal digits, for the names of its files."""
    return hashlib.sha256(schema.encode()).hexdigest()[:8]


def _codes(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return the index in the dictionary for each row, or the dictionary's length for null."""
    codes = column.indices.fill_null(len(column.dictionary)).to_numpy(zero_copy_only=False)
    return np.asarray(codes).astype(np.int64)


def _value(column: pa.Array, code: int) -> str | None:
    return str(column.dictionary[code].as_py()) if code < len(column.dictionary) else None


def _checked(schema: bytes, where: str) -> str:
    """Return a schema as JSON without blanks.

    Raises ValueError, which names `where`, if it is not JSON, or too long.
    """
    if len(schema) > MAX_SCHEMA_BYTES:
        raise ValueError(f"{where} is longer than {MAX_SCHEMA_BYTES} bytes")
    try:
        return msgspec.json.encode(msgspec.json.decode(schema)).decode()
    except (msgspec.DecodeError, UnicodeDecodeError) as e:
        raise ValueError(f"{where} is no Avro schema: {e}") from e


def _sized(data: bytes) -> bytes:
    return encode_long(len(data)) + data
