"""Events as a stream of Spark's without Kafka: for tests of processors, and to try one on a file of samples."""

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
from flafka.plugins.shared.frames import EVENTS, to_arrow


def read_samples(file: Path) -> list[Event]:
    """An event for each line that is not empty: its bytes are the body, but a JSON object with `body` and `headers`
    and nothing else says both. FlafkaError where the file cannot be read, or there is none in it.
    """
    try:
        lines = file.read_bytes().splitlines()
    except OSError as e:
        raise FlafkaError(f"{file} cannot be read: {e.strerror}") from e
    events = [_event(line) for line in lines if line.strip()]
    if not events:
        raise FlafkaError(f"{file} is empty: it has to have an event a line")
    return events


def _event(line: bytes) -> Event:
    try:
        said = json.loads(line)
    except ValueError:
        return Event(line)
    if not isinstance(said, dict) or said.keys() != {"body", "headers"} or not isinstance(said["headers"], dict):
        return Event(line)
    body = said["body"] if isinstance(said["body"], str) else json.dumps(said["body"])
    return Event(body.encode(), {name: str(value) for name, value in said["headers"].items()})


def write_micro_batch(directory: Path, topic: str, number: int, events: Sequence[Event]) -> None:
    """Put the events of one micro-batch where `stream_of` finds them; those of lower numbers come first."""
    now = int(time.time() * 1000)
    texts = [event.headers.get("timestamp", "") for event in events]
    timestamps = [int(text) if text.isdigit() else now for text in texts]
    origin = Origin.of_records(topic, 0, [number * 1_000_000 + n for n in range(len(events))], timestamps)
    directory.mkdir(exist_ok=True)
    file = directory / f"{number:06}.parquet"
    pq.write_table(pa.Table.from_batches([to_arrow(Batch.of(events, origin))]), file)
    os.utime(file, (number, number))  # Spark reads the oldest first


def stream_of(spark: Any, directory: Path) -> Any:
    """The micro-batches of that directory, as a processor gets a channel's events."""
    return spark.readStream.schema(EVENTS).option("maxFilesPerTrigger", 1).parquet(str(directory))
