"""The Spark sink."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flafka.plugins import FlafkaError, KafkaStream, StreamingSink, require
from flafka.plugins.errors import ANY_FAILURE
from flafka.plugins.kafka.properties import java_properties
from flafka.sinks.spark.config import ConsoleOutput, KafkaOutput, ParquetOutput, SparkSinkConfig
from flafka.sinks.spark.loading import load, place_in
from flafka.sinks.spark.rows import telling_rows

RECORD_FORMAT = ("flafka.format", "raw/1")
"""What a Kafka channel knows a record by that holds one event, as it is."""
SECURITY = ("security.", "sasl.", "ssl.")
"""Of the channel's client properties, those that writing to the same brokers needs too."""


class SparkSink(StreamingSink[SparkSinkConfig]):
    """Runs a function of yours over the stream of events, on Spark: windows, joins and state are exactly once; a
    topic gets each result at least once, Parquet files exactly once for readers that know Spark's `_spark_metadata`.
    """

    type_name = "spark"

    @property
    def checkpoint(self) -> str | None:
        """As configured."""
        return self.config.checkpoint

    @property
    def pipeline(self) -> str:
        """The function."""
        return self.config.processor

    @property
    def modules(self) -> str | None:
        """Where the function's module is, and others that it imports."""
        return self.config.path and str(Path(self.config.path).absolute())

    def frames(self, events: Any) -> Mapping[str, Any]:
        """What the function makes of the events, by output. FlafkaError where it raises or returns something else."""
        name, outputs = self.config.processor, self.config.outputs()
        function = load(name, self.config.path)
        module = sys.modules[name.partition(":")[0]]
        # Executors need not have the module: it travels with the query.
        require("pyspark.cloudpickle", "spark").register_pickle_by_value(module)
        try:
            with telling_rows():
                returned = function(events, dict(self.config.own_options))
        except ANY_FAILURE as e:  # SystemExit would end this sink's thread, and nobody would hear of it
            text = f"{type(e).__name__}: {e}".splitlines()[0]
            raise FlafkaError(f"processor {name} raised {text}{place_in(e, module)}") from e
        return checked(name, returned, outputs)

    def topics(self) -> set[str]:
        """Where its outputs go."""
        return {output.topic for output in self.config.outputs().values() if isinstance(output, KafkaOutput)}

    def files(self, name: str) -> str | None:
        """Where Parquet goes."""
        output = self.config.outputs()[name]
        return output.path if isinstance(output, ParquetOutput) else None

    def writer(self, name: str, frame: Any, stream: KafkaStream) -> Any:
        """A `DataStreamWriter` of that frame into that output."""
        output = self.config.outputs()[name]
        if isinstance(output, KafkaOutput):
            client = {n: value for n, value in java_properties(stream.client).items() if n.startswith(SECURITY)}
            brokers = {"bootstrap.servers": stream.bootstrap_servers, "acks": "all", **client}
            writer = records(frame).writeStream.format("kafka").option("topic", output.topic)
            writer = writer.options(**{f"kafka.{n}": value for n, value in brokers.items()})
        elif isinstance(output, ParquetOutput):
            writer = frame.writeStream.format("parquet").option("path", output.path)
            writer = writer.partitionBy(*output.partition_by) if output.partition_by else writer
        else:
            assert isinstance(output, ConsoleOutput)
            rows = output.rows
            writer = frame.writeStream.foreachBatch(lambda batch, _: batch.show(rows, truncate=False))
        return writer.outputMode(output.mode)


def checked(name: str, returned: Any, outputs: Iterable[str]) -> Mapping[str, Any]:
    """What a processor returned, by output; FlafkaError where that is not what its outputs need."""
    frame_class = require("pyspark.sql", "spark").DataFrame
    outputs = list(outputs)
    if isinstance(returned, frame_class) and len(outputs) == 1:
        returned = {outputs[0]: returned}
    elif isinstance(returned, frame_class):
        raise FlafkaError(
            f"processor {name} returned one DataFrame, and there are outputs {', '.join(outputs)}: return a dict "
            "with a DataFrame for each"
        )
    if not isinstance(returned, dict):
        raise FlafkaError(
            f"processor {name} returned {type(returned).__name__}: it must return a DataFrame, or a dict of them by "
            "the names of their outputs"
        )
    if set(returned) != set(outputs):
        raise FlafkaError(
            f"processor {name} returned {', '.join(map(str, returned)) or 'nothing'}, and its outputs are "
            f"{', '.join(outputs)}: the names must be the same"
        )
    for output, frame in returned.items():
        if not isinstance(frame, frame_class) or not frame.isStreaming:
            what = "a DataFrame that is no stream" if isinstance(frame, frame_class) else type(frame).__name__
            raise FlafkaError(
                f"processor {name} returned {what} for output {output}: it must be made of the events it was given"
            )
    return returned


def records(frame: Any) -> Any:
    """A frame's rows as Kafka records: key, value, headers."""
    functions = require("pyspark.sql.functions", "spark")
    col, lit = functions.col, functions.lit
    mark = functions.array(
        functions.struct(lit(RECORD_FORMAT[0]).alias("key"), lit(RECORD_FORMAT[1]).cast("binary").alias("value"))
    )
    if "body" not in frame.columns:
        row = functions.to_json(functions.struct("*"))
        return frame.select(row.cast("binary").alias("value"), mark.alias("headers"))
    kinds = dict(frame.dtypes)

    def in_bytes(name: str) -> Any:
        return col(name) if kinds[name] == "binary" else col(name).cast("string").cast("binary")

    chosen = [in_bytes("body").alias("value")]
    if "key" in frame.columns:
        chosen.append(in_bytes("key").alias("key"))
    if "headers" in frame.columns:
        own = functions.transform(
            functions.map_entries("headers"),
            lambda entry: functions.struct(
                entry["key"].alias("key"), entry["value"].cast("string").cast("binary").alias("value")
            ),
        )
        mark = functions.concat(functions.coalesce(own, functions.slice(mark, 1, 0)), mark)
    return frame.select(*chosen, mark.alias("headers"))
