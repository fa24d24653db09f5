"""What a function of the user's was given when it failed: Spark tells the error alone."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from plugins import require

NOTE = "its arguments were: "
"""Begins the line behind the error, in the traceback that Spark brings back from its workers."""
LONGEST = 300
"""Characters of the arguments that are shown."""


@contextlib.contextmanager
def telling_rows() -> Iterator[None]:
    """UDFs that are first used within tell, when they raise, what they were called with."""
    udf = require("pyspark.sql.udf", "spark").UserDefinedFunction
    kinds = require("pyspark.util", "spark").PythonEvalType
    by_value = (kinds.SQL_BATCHED_UDF, kinds.SQL_ARROW_BATCHED_UDF, kinds.SQL_SCALAR_PANDAS_UDF)
    create = udf._create_judf

    def told(self: Any, function: Callable[..., Any]) -> Any:
        return create(self, telling(function) if self.evalType in by_value else function)

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
