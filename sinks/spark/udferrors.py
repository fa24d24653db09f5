"""Notes with the arguments of a user's function on its exceptions, as Spark reports only the exception."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from flafka.plugins import require

NOTE_PREFIX = "its arguments were: "
"""Beginning of the note, a line behind the error in the traceback of Spark's workers."""
MAX_NOTE_CHARACTERS = 300
"""Limit of the arguments' text."""


@contextlib.contextmanager
def annotated_udfs() -> Iterator[None]:
    """Add notes with arguments to the exceptions of UDFs that are created within this context.

    Only kinds of UDFs that `annotate_arguments` or `annotate_batches` can wrap get them.
    """
    udf = require("pyspark.sql.udf", "spark").UserDefinedFunction
    kinds = require("pyspark.util", "spark").PythonEvalType
    wrappers = {
        **dict.fromkeys(
            (kinds.SQL_BATCHED_UDF, kinds.SQL_ARROW_BATCHED_UDF, kinds.SQL_SCALAR_PANDAS_UDF), annotate_arguments
        ),
        **dict.fromkeys(
            (
                kinds.SQL_MAP_PANDAS_ITER_UDF,
                kinds.SQL_MAP_ARROW_ITER_UDF,
                kinds.SQL_GROUPED_MAP_PANDAS_UDF_WITH_STATE,
            ),
            annotate_batches,
        ),
    }
    create = udf._create_judf

    def create_annotated(self: Any, function: Callable[..., Any]) -> Any:
        wrapper = wrappers.get(self.evalType)
        return create(self, wrapper(function) if wrapper is not None else function)

    udf._create_judf = create_annotated
    try:
        yield
    finally:
        udf._create_judf = create


def annotate_arguments(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function wrapped: an Exception that it raises gets a note with its arguments."""
    prefix, limit = NOTE_PREFIX, MAX_NOTE_CHARACTERS  # locals, as executors get this function by value

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as e:
            texts = [*(repr(value) for value in args), *(f"{name}={value!r}" for name, value in kwargs.items())]
            text = " ".join(", ".join(texts).split())
            e.add_note(prefix + (text if len(text) <= limit else text[:limit] + " …"))
            raise

    return wrapped


def annotate_batches(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of iterators over batches of rows, wrapped: an Exception that it raises gets a note.

    The note has the key and the first row of the current batch. For `mapInPandas` and similar functions.
    """
    prefix, limit = NOTE_PREFIX, MAX_NOTE_CHARACTERS

    @functools.wraps(function)
    def wrapped(*args: Any) -> Iterator[Any]:
        current: list[Any] = []

        def tracked(batches: Iterator[Any]) -> Iterator[Any]:
            for batch in batches:
                current[:] = [batch]
                yield batch

        try:
            yield from function(*(tracked(value) if hasattr(value, "__next__") else value for value in args))
        except Exception as e:
            texts = [repr(value) for value in args if isinstance(value, tuple)]
            for batch in current:
                rows = batch[:1]
                row = (rows.to_pylist() if hasattr(rows, "to_pylist") else rows.to_dict("records"))[:1]
                texts.append(f"rows that begin with {row[0]!r}" if row else "no rows")
            text = " ".join(", ".join(texts).split())
            e.add_note(prefix + (text if len(text) <= limit else text[:limit] + " …"))
            raise

    return wrapped
