"""Spark sink."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flafka.plugins import FlafkaError, KafkaStream, StreamingSink, require
from flafka.plugins.errors import ANY_FAILURE
from flafka.plugins.kafka.logins import SECURITY_PREFIXES
from flafka.plugins.kafka.properties import java_properties
from flafka.sinks.spark.config import ConsoleOutput, KafkaOutput, ParquetOutput, SparkSinkConfig
from flafka.sinks.spark.loading import error_location, load_processor
from flafka.sinks.spark.udferrors import annotated_udfs

RECORD_FORMAT = ("flafka.format", "raw/1")
"""Record header, by which a Kafka channel recognizes a record with one event."""
"""Client properties of the channel that a producer for the same brokers needs, too."""


class SparkSink(StreamingSink[SparkSinkConfig]):
    """Runs a user's function over the stream of events, on Spark.

    Windows, joins and state are exactly once. Topics get results at least once. Parquet files get them exactly once,
    for readers that know Spark's `_spark_metadata`.
    """

    type_name = "spark"

    @property
    def checkpoint(self) -> str | None:
        """Configured directory of the checkpoints; None for the agent's state directory."""
        return self.config.checkpoint

    @property
    def pipeline(self) -> str:
        """The option processor, `module:function`."""
        return self.config.processor

    @property
    def module_directory(self) -> str | None:
        """Directory of the function's module and of modules that it imports; None if Python's path has them."""
        return self.config.path and str(Path(self.config.path).absolute())

    def frames(self, events: Any) -> Mapping[str, Any]:
        """Return the function's DataFrames by output, from the DataFrame of events.

        Raises ValueError if the function cannot be imported, and FlafkaError if it raises or returns a wrong result.
        """
        name, outputs = self.config.processor, self.config.outputs()
        function = load_processor(name, self.config.path)
        module = sys.modules[name.partition(":")[0]]
        # Executors may not have the module, so that it is pickled with the query.
        require("pyspark.cloudpickle", "spark").register_pickle_by_value(module)
        try:
            with annotated_udfs():
                returned = function(events, dict(self.config.own_options))
        except ANY_FAILURE as e:  # SystemExit would end this sink's thread silently
            text = f"{type(e).__name__}: {e}".splitlines()[0]
            raise FlafkaError(f"processor {name} raised {text}{error_location(e, module)}") from e
        return check_frames(name, returned, outputs)

    def topics(self) -> set[str]:
        """Return the topics of the outputs of type kafka."""
        return {output.topic for output in self.config.outputs().values() if isinstance(output, KafkaOutput)}

    def output_directory(self, name: str) -> str | None:
        """Return the directory of the output `name` if it is of Parquet, else None."""
        output = self.config.outputs()[name]
        return output.path if isinstance(output, ParquetOutput) else None

    def writer(self, name: str, frame: Any, stream: KafkaStream) -> Any:
        """Return a `DataStreamWriter`, not started, that writes a DataFrame to the output `name`.

        Topics are written on the brokers of the channel, with the login of its client in `stream`.
        """
        output = self.config.outputs()[name]
        if isinstance(output, KafkaOutput):
            client = {
                n: value for n, value in java_properties(stream.client).items() if n.startswith(SECURITY_PREFIXES)
            }
            brokers = {"bootstrap.servers": stream.bootstrap_servers, "acks": "all", **client}
            writer = as_kafka_records(frame).writeStream.format("kafka").option("topic", output.topic)
            writer = writer.options(**{f"kafka.{n}": value for n, value in brokers.items()})
        elif isinstance(output, ParquetOutput):
            writer = frame.writeStream.format("parquet").option("path", output.path)
            writer = writer.partitionBy(*output.partition_by) if output.partition_by else writer
        else:
            assert isinstance(output, ConsoleOutput)
            rows = output.rows
            writer = frame.writeStream.foreachBatch(lambda batch, _: batch.show(rows, truncate=False))
        return writer.outputMode(output.mode)


def check_frames(name: str, returned: Any, outputs: Iterable[str]) -> Mapping[str, Any]:
    """Return the DataFrames of a processor's result, by output. A single DataFrame is that of the only output.

    Raises FlafkaError unless each output has one, and each is a stream. `name` is the processor, for errors.
    """
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
            kind = "a DataFrame that is no stream" if isinstance(frame, frame_class) else type(frame).__name__
            raise FlafkaError(
                f"processor {name} returned {kind} for output {output}: it must be derived from the events"
            )
    return returned


def as_kafka_records(frame: Any) -> Any:
    """Return a DataFrame of Kafka records, with the columns value and headers, and key if there is one.

    Without a column `body`, the value is the row as JSON. Each record has the header `RECORD_FORMAT`, behind those in
    the column `headers`.
    """
    functions = require("pyspark.sql.functions", "spark")
    col, lit = functions.col, functions.lit
    format_header = functions.array(
        functions.struct(lit(RECORD_FORMAT[0]).alias("key"), lit(RECORD_FORMAT[1]).cast("binary").alias("value"))
    )
    if "body" not in frame.columns:
        row = functions.to_json(functions.struct("*"))
        return frame.select(row.cast("binary").alias("value"), format_header.alias("headers"))
    types = dict(frame.dtypes)

    def as_binary(name: str) -> Any:
        return col(name) if types[name] == "binary" else col(name).cast("string").cast("binary")

    columns = [as_binary("body").alias("value")]
    if "key" in frame.columns:
        columns.append(as_binary("key").alias("key"))
    if "headers" in frame.columns:
        row_headers = functions.transform(
            functions.map_entries("headers"),
            lambda entry: functions.struct(
                entry["key"].alias("key"), entry["value"].cast("string").cast("binary").alias("value")
            ),
        )
        no_headers = functions.slice(format_header, 1, 0)
        format_header = functions.concat(functions.coalesce(row_headers, no_headers), format_header)
    return frame.select(*columns, format_header.alias("headers"))
