"""The columns of a batch: their types, and how they are made of what a component gives."""

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
"""Header names come from senders; those past this many in one batch share one map column."""

HEADER_TYPE = pa.dictionary(pa.int32(), pa.string())
OVERFLOW_TYPE = pa.map_(pa.string(), pa.string())


def header_column(values: Any, rows: int) -> Array:
    """Dictionary-encoded values of one header for so many rows: of an array, a list, or one text for all of them.

    Raises ValueError where they are not as many.
    """
    if isinstance(values, str):
        return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([values], pa.string()))
    if isinstance(values, list) and len(values) == rows:
        return pa.array(values, HEADER_TYPE)  # in a fifth of the time, which is what a batch of one event takes
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
    """Raises ContractViolation about the first of them of which no batch can be made."""
    for event in events:
        if not isinstance(event, Event):
            raise ContractViolation(
                f"Batch.of takes events, such as Event(b'…', {{'host': 'web1'}}), not {_shown(event)}"
            )
        if not isinstance(event.body, bytes | bytearray | memoryview | str):
            raise ContractViolation(f"the body of an event must be bytes, not {_shown(event.body)}")
        for name, value in event.headers.items() if isinstance(event.headers, dict) else [(event.headers, "")]:
            if not (isinstance(name, str) and isinstance(value, str | None)):
                raise ContractViolation(f"the headers of an event must be texts by name, not {_shown(event.headers)}")


def _shown(thing: object) -> str:
    """A thing that is not what it should be: its type, and how it begins."""
    return f"the {type(thing).__name__} {thing!r:.60}"
