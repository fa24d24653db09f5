"""Interceptor `uuid`: a header with a UUID for every event."""

from __future__ import annotations

import os
from collections.abc import Collection

import numpy as np
import pyarrow as pa

from flafka.interceptors.patterns import preserve_existing_option
from flafka.plugins import Batch, Config, Interceptor, option
from flafka.plugins.columns import Array

_UUID_CHARACTERS = 36
_DASHES = (8, 13, 18, 23)
_DIGITS = np.delete(np.arange(_UUID_CHARACTERS), _DASHES)
_HEXADECIMAL = np.frombuffer(b"0123456789abcdef", np.uint8)


class UUIDConfig(Config):
    """Options of the interceptor `uuid`."""

    header_name: str = option("id", name="headerName", min_length=1, description="Name of the header to set.")
    preserve_existing: bool = preserve_existing_option(True)
    prefix: str = option("", name="prefix", description="Text before each UUID.")


class UUIDInterceptor(Interceptor[UUIDConfig]):
    """Sets a header to a random UUID (version 4) per event; no event is lost or changed otherwise.

    Not pure: a repeated event gets another UUID.
    """

    type_name = "uuid"
    aliases = (
        "org.apache.flume.sink.solr.morphline.UUIDInterceptor$Builder",
        "org.apache.flume.sink.solr.morphline.UUIDInterceptor",
    )
    pure = False
    random = staticmethod(os.urandom)
    """Function that returns a number of random bytes."""

    def sets_headers(self) -> Collection[str]:
        """Return the name of the header."""
        return (self.config.header_name,)

    def intercept(self, batch: Batch) -> Batch:
        """Return the events with a new UUID each as header, after `prefix`.

        With `preserveExisting`, an event that has the header keeps its value.
        """
        dictionary = uuids(self.random(16 * len(batch)), self.config.prefix)
        values = pa.DictionaryArray.from_arrays(np.arange(len(batch), dtype=np.int32), dictionary)
        return batch.with_header(self.config.header_name, values, preserve_existing=self.config.preserve_existing)


def uuids(random: bytes, prefix: str = "") -> Array:
    """Return UUIDs of version 4 as a string array, each from 16 bytes of `random` and after `prefix`."""
    values = np.frombuffer(random, np.uint8).reshape(-1, 16).copy()
    values[:, 6] = values[:, 6] & 0x0F | 0x40
    values[:, 8] = values[:, 8] & 0x3F | 0x80
    prefix_bytes = np.frombuffer(prefix.encode(), np.uint8)
    width = len(prefix_bytes) + _UUID_CHARACTERS
    text = np.full((len(values), width), ord("-"), np.uint8)
    text[:, : len(prefix_bytes)] = prefix_bytes
    text[:, len(prefix_bytes) + _DIGITS[0::2]] = _HEXADECIMAL[values >> 4]
    text[:, len(prefix_bytes) + _DIGITS[1::2]] = _HEXADECIMAL[values & 0x0F]
    ends = np.arange(len(values) + 1, dtype=np.int32) * width
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(ends), pa.py_buffer(text))
