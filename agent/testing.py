"""Test helper for plugins: a processor of the `spark` sink on sample events, with a real Spark and without Kafka."""

from __future__ import annotations

import atexit
import functools
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from flafka.agent.options import AgentOptions
from flafka.agent.runner.spark.sample import stream_of, write_micro_batch
from flafka.agent.runner.spark.session import start_session, stop_session
from flafka.plugins import Event, require

TOPIC = "test"


def run_processor(
    processor: Any,
    *batches: Iterable[Event],
    options: Mapping[str, str] | None = None,
    mode: Literal["append", "update", "complete"] = "append",
) -> Any:
    """Return the rows that a processor makes of events: a list, or a dict of lists by name of several DataFrames.

    Each of `batches` is one micro-batch, so that windows can close and events can be late. The column `timestamp`, an
    event's arrival, is its header `timestamp` in milliseconds, by default now. `mode` is the output mode of all
    outputs; in `complete` only the rows of the last micro-batch are returned. Exceptions of the processor are raised
    unchanged; exceptions of its functions on Spark's workers are raised as pyspark's exceptions.

        def test_alerts():
            rows = run_processor(alerts, [Event(b'{"user": "eve"}')], options={"limit": "3"})
            assert [row.user for row in rows] == ["eve"]
    """
    spark = session()
    # As in the sink, the module is pickled by value: Spark's workers may lack it.
    if (module := sys.modules.get(processor.__module__)) is not None:
        require("pyspark.cloudpickle", "spark").register_pickle_by_value(module)
    with tempfile.TemporaryDirectory(prefix="flafka-testing-") as directory:
        for number, events in enumerate(batches):
            write_micro_batch(Path(directory, "events"), TOPIC, number, list(events))
        stream = stream_of(spark, Path(directory, "events"))
        returned = processor(stream, dict(options or {}))
        frames = returned if isinstance(returned, dict) else {"": returned}
        rows = {name: _rows(frame, mode, f"{directory}/checkpoint{name}") for name, frame in frames.items()}
    return rows if isinstance(returned, dict) else rows[""]


@functools.cache
def session() -> Any:
    """Return the Spark session of this process, with one core. The first call starts it; it is stopped at exit."""
    log_file = Path(tempfile.gettempdir(), f"flafka-testing-{os.getpid()}.log")
    # Spark's workers need the directories of modules that the processor imports, as pytest finds them.
    installed = tuple(map(Path, (sys.prefix, sys.base_prefix)))
    own = [p for p in sys.path if p and not any(Path(p).is_relative_to(prefix) for prefix in installed)]
    spark, gateway = start_session("testing", AgentOptions(spark_master="local[1]"), log_file, own)
    atexit.register(stop_session, spark, gateway)
    atexit.register(log_file.unlink)
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    return spark


def _rows(frame: Any, mode: str, checkpoint: str) -> list[Any]:
    """Return the rows that a streaming DataFrame yields for all micro-batches, in the output mode `mode`."""
    rows: list[Any] = []

    def keep(batch: Any, _: int) -> None:
        if mode == "complete":
            rows.clear()
        rows.extend(batch.collect())

    writer = frame.writeStream.foreachBatch(keep).outputMode(mode).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
    return rows
