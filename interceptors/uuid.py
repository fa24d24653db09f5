"""The interceptor `uuid`: an identifier for every event."""

from __future__ import annotations

import os
from collections.abc import Collection

import numpy as np
import pyarrow as pa

from flafka.interceptors.patterns import preserve_existing
from flafka.plugins import Batch, Config, Interceptor, option
from flafka.plugins.columns import Array

_LENGTH = 36
_DASHES = (8, 13, 18, 23)
_DIGITS = np.delete(np.arange(_LENGTH), _DASHES)
_HEXADECIMAL = np.frombuffer(b"0123456789abcdef", np.uint8)


class UUIDConfig(Config):
    """Options of the interceptor `uuid`."""

    header_name: str = option("id", name="headerName", min_length=1, description="Name of the header to set.")
    preserve_existing: bool = preserve_existing(True)
    prefix: str = option("", name="prefix", description="Text before each identifier.")


class UUIDInterceptor(Interceptor[UUIDConfig]):
    """Sets a header to a random UUID (version 4), another for every event; no event is lost or changed otherwise.

    Not pure: the same event gets another identifier when it is sent again.
    """

    type_name = "uuid"
    aliases = (
        "org.apache.flume.sink.solr.morphline.UUIDInterceptor$Builder",
        "org.apache.flume.sink.solr.morphline.UUIDInterceptor",
    )
    pure = False
    random = staticmethod(os.urandom)
    """So many random bytes."""

    def sets_headers(self) -> Collection[str]:
        """Its one."""
        return (self.config.header_name,)

    def intercept(self, batch: Batch) -> Batch:
        """Set the header."""
        new = uuids(self.random(16 * len(batch)), self.config.prefix)
        values = pa.DictionaryArray.from_arrays(np.arange(len(batch), dtype=np.int32), new)
        return batch.with_header(self.config.header_name, values, keep=self.config.preserve_existing)


def uuids(random: bytes, prefix: str = "") -> Array:
    """UUIDs of version 4 as a string array, made of 16 random bytes each."""
    drawn = np.frombuffer(random, np.uint8).reshape(-1, 16).copy()
    drawn[:, 6] = drawn[:, 6] & 0x0F | 0x40
    drawn[:, 8] = drawn[:, 8] & 0x3F | 0x80
    lead = np.frombuffer(prefix.encode(), np.uint8)
    width = len(lead) + _LENGTH
    text = np.full((len(drawn), width), ord("-"), np.uint8)
    text[:, : len(lead)] = lead
    text[:, len(lead) + _DIGITS[0::2]] = _HEXADECIMAL[drawn >> 4]
    text[:, len(lead) + _DIGITS[1::2]] = _HEXADECIMAL[drawn & 0x0F]
    ends = np.arange(len(drawn) + 1, dtype=np.int32) * width
    return pa.StringArray.from_buffers(len(drawn), pa.py_buffer(ends), pa.py_buffer(text))
