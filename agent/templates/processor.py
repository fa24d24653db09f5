"""A processor: a PySpark function over the stream of events. docs/processors.md says what it gets and returns."""

from __future__ import annotations

from typing import Any

from pyspark.sql import functions as F  # noqa: N812  # as PySpark is written


def my_processor(events: Any, options: dict[str, str]) -> Any:
    """The events whose body contains `option.word`, with the number of their bytes in a header: the part to write
    anew."""
    text = F.col("body").cast("string")
    found = events.where(text.contains(options["word"]))
    return found.select("body", F.create_map(F.lit("bytes"), F.length("body").cast("string")).alias("headers"))
