"""Types of a batch's columns, and conversions to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from flafka.plugins.errors import ContractViolation
from flafka.plugins.event import Event

Array = Any
"""A `pyarrow.Array`; pyarrow ships no types."""

MAX_HEADER_COLUMNS = 64
"""Maximum number of header columns of a batch. Senders choose names of headers: further ones share one map column."""

HEADER_TYPE = pa.dictionary(pa.int32(), pa.string())
OVERFLOW_TYPE = pa.map_(pa.string(), pa.string())


def header_column(values: Any, rows: int) -> Array:
    """Return the dictionary-encoded column of one header, from an array, a list, or one text for all rows.

    Raises ValueError if the number of values is not `rows`.
    """
    if isinstance(values, str):
        return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([values], pa.string()))
    if isinstance(values, list) and len(values) == rows:
        return pa.array(values, HEADER_TYPE)  # five times as fast, which matters for small batches
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    elif not isinstance(values, pa.Array):
        values = pa.array(values, pa.string())
    if len(values) != rows:
        raise ValueError(f"{rows} header values are needed, got {len(values)}")
    if values.type == HEADER_TYPE:
        return values
    return values.cast(pa.string()).dictionary_encode()


def check_events(events: Sequence[Any]) -> None:
    """Raise ContractViolation for the first object that is no valid event."""
    for event in events:
        if not isinstance(event, Event):
            raise ContractViolation(
                f"Batch.of takes events, such as Event(b'…', {{'host': 'web1'}}), not {_describe(event)}"
            )
        if not isinstance(event.body, bytes | bytearray | memoryview | str):
            raise ContractViolation(f"the body of an event must be bytes, not {_describe(event.body)}")
        for name, value in event.headers.items() if isinstance(event.headers, dict) else [(event.headers, "")]:
            if not (isinstance(name, str) and isinstance(value, str | None)):
                raise ContractViolation(
                    f"the headers of an event must be texts by name, not {_describe(event.headers)}"
                )


def _describe(value: object) -> str:
    """Return the type of a wrong value, and the beginning of its representation."""
    return f"the {type(value).__name__} {value!r:.60}"
