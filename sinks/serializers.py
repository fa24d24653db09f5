"""How sinks that write files turn events into bytes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

TEXT = frozenset({"text", "org.apache.flume.serialization.bodytexteventserializer$builder"})
"""What the text serializer is called in a configuration, in lower case."""


class Serialized(NamedTuple):
    """Events as one run of bytes."""

    data: memoryview
    ends: npt.NDArray[np.int64]
    """Where each event ends in `data`."""


def text(bodies: Any, newline: bool) -> Serialized:
    """The bodies one after the other, each with a newline behind it where asked for. Copies nothing but that."""
    if newline:
        empty, end = pa.scalar(b"", pa.binary()), pa.scalar(b"\n", pa.binary())
        bodies = pc.binary_join_element_wise(bodies, empty, end)
    _, offsets, data = bodies.buffers()
    bounds = np.frombuffer(offsets, np.int32, len(bodies) + 1, bodies.offset * 4).astype(np.int64)
    run = memoryview(data if data is not None else b"")[bounds[0] : bounds[-1]]
    return Serialized(run, bounds[1:] - bounds[0])


def check(name: str) -> str:
    """For a validator: the name, or ValueError for a serializer that does not exist yet."""
    if name.lower() not in TEXT:
        raise ValueError(f"serializer {name!r} is not built yet; write text, which is also the default")
    return name
