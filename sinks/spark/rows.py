"""What a function of the user's was given when it failed: Spark tells the error alone."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from flafka.plugins import require

NOTE = "its arguments were: "
"""Begins the line behind the error, in the traceback that Spark brings back from its workers."""
LONGEST = 300
"""Characters of the arguments that are shown."""


@contextlib.contextmanager
def telling_rows() -> Iterator[None]:
    """Functions that are first used within tell, when they raise, what they were called with."""
    udf = require("pyspark.sql.udf", "spark").UserDefinedFunction
    kinds = require("pyspark.util", "spark").PythonEvalType
    told_by = {
        **dict.fromkeys((kinds.SQL_BATCHED_UDF, kinds.SQL_ARROW_BATCHED_UDF, kinds.SQL_SCALAR_PANDAS_UDF), telling),
        **dict.fromkeys(
            (
                kinds.SQL_MAP_PANDAS_ITER_UDF,
                kinds.SQL_MAP_ARROW_ITER_UDF,
                kinds.SQL_GROUPED_MAP_PANDAS_UDF_WITH_STATE,
            ),
            telling_batches,
        ),
    }
    create = udf._create_judf

    def told(self: Any, function: Callable[..., Any]) -> Any:
        wrapping = told_by.get(self.evalType)
        return create(self, wrapping(function) if wrapping is not None else function)

    udf._create_judf = told
    try:
        yield
    finally:
        udf._create_judf = create


def telling(function: Callable[..., Any]) -> Callable[..., Any]:
    """That function, whose exceptions have its arguments as a note."""
    note, longest = NOTE, LONGEST  # an executor gets this function by value

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as e:
            texts = [*(repr(value) for value in args), *(f"{name}={value!r}" for name, value in kwargs.items())]
            text = " ".join(", ".join(texts).split())
            e.add_note(note + (text if len(text) <= longest else text[:longest] + " …"))
            raise

    return wrapped


def telling_batches(function: Callable[..., Any]) -> Callable[..., Any]:
    """That function of iterators over batches of rows (`mapInPandas`, `applyInPandasWithState` and the like), whose
    exceptions have the first row of the batch it was at as a note, and its key.
    """
    note, longest = NOTE, LONGEST

    @functools.wraps(function)
    def wrapped(*args: Any) -> Iterator[Any]:
        latest: list[Any] = []

        def watched(batches: Iterator[Any]) -> Iterator[Any]:
            for batch in batches:
                latest[:] = [batch]
                yield batch

        try:
            yield from function(*(watched(value) if hasattr(value, "__next__") else value for value in args))
        except Exception as e:
            texts = [repr(value) for value in args if isinstance(value, tuple)]
            for batch in latest:
                rows = batch[:1]
                row = (rows.to_pylist() if hasattr(rows, "to_pylist") else rows.to_dict("records"))[:1]
                texts.append(f"rows that begin with {row[0]!r}" if row else "no rows")
            text = " ".join(", ".join(texts).split())
            e.add_note(note + (text if len(text) <= longest else text[:longest] + " …"))
            raise

    return wrapped
