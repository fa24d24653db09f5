"""Streaming DataFrames of sample events without Kafka, for tests and trials of processors."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from flafka.plugins import Batch, Event, FlafkaError, Origin
from flafka.plugins.dataframe import EVENTS, to_arrow


def read_samples(file: Path) -> list[Event]:
    """Return the events of a file with one event per line. Empty lines are skipped.

    A line is the body, unless it is a JSON object with exactly `body` and `headers`. Raises FlafkaError if the file
    cannot be read, or has no event.
    """
    try:
        lines = file.read_bytes().splitlines()
    except OSError as e:
        raise FlafkaError(f"{file} cannot be read: {e.strerror}") from e
    events = [_event(line) for line in lines if line.strip()]
    if not events:
        raise FlafkaError(f"{file} is empty: it must have one event per line")
    return events


def _event(line: bytes) -> Event:
    """Return the event of one line: a JSON object with exactly `body` and `headers`, or else the body itself."""
    try:
        parsed = json.loads(line)
    except ValueError:
        return Event(line)
    if (
        not isinstance(parsed, dict)
        or parsed.keys() != {"body", "headers"}
        or not isinstance(parsed["headers"], dict)
    ):
        return Event(line)
    body = parsed["body"] if isinstance(parsed["body"], str) else json.dumps(parsed["body"])
    return Event(body.encode(), {name: str(value) for name, value in parsed["headers"].items()})


def write_micro_batch(directory: Path, topic: str, number: int, events: Sequence[Event]) -> None:
    """Write the events of one micro-batch as a file, for `stream_of`, which reads lower numbers first.

    The time of an event is its header `timestamp`, in ms, or else the present time. `topic` is part of its event ID.
    The directory is created if it is missing.
    """
    now = int(time.time() * 1000)
    texts = [event.headers.get("timestamp", "") for event in events]
    timestamps = [int(text) if text.isdigit() else now for text in texts]
    origin = Origin.of_records(topic, 0, [number * 1_000_000 + n for n in range(len(events))], timestamps)
    directory.mkdir(exist_ok=True)
    file = directory / f"{number:06}.parquet"
    pq.write_table(pa.Table.from_batches([to_arrow(Batch.of(events, origin))]), file)
    os.utime(file, (number, number))  # Spark reads the oldest file first


def stream_of(spark: Any, directory: Path) -> Any:
    """Return the files of a directory as a streaming DataFrame with the columns `EVENTS`.

    Each file is a micro-batch, the oldest first.
    """
    return spark.readStream.schema(EVENTS).option("maxFilesPerTrigger", 1).parquet(str(directory))
