"""Options of the Spark sink and of its outputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import pydantic

from flafka.plugins import Config, Problem, cross_field_validator, option
from flafka.plugins.kafka.config import check_writable_topic
from flafka.plugins.problems import suggest
from flafka.sinks.spark.loading import SessionRequired, load_processor


def check_spark_path(path: str) -> str:
    """Return the path unchanged. Raises ValueError for WebHDFS.

    The Hadoop in pyspark lacks a class of the WebHDFS client.
    """
    if path.startswith(("webhdfs://", "swebhdfs://")):
        raise ValueError(f"must be hdfs://host:port/…, not {path!r}: the Hadoop client in pyspark cannot use WebHDFS")
    return path


class Output(Config):
    """Options of all outputs."""

    mode: Literal["append", "update", "complete"] = option(
        "append",
        name="mode",
        description="Spark's output mode: rows that are final, rows that have changed, or all rows.",
    )


class KafkaOutput(Output):
    """Kafka records: the columns `body`, `key` and `headers` of each row, or, without a `body`, the row as JSON."""

    topic: str = option(name="topic", description="Topic to write to, on the brokers of the sink's channel.")

    _check_topic = pydantic.field_validator("topic")(check_writable_topic)


class ParquetOutput(Output):
    """Parquet files."""

    path: str = option(name="path", description="Directory to write to: hdfs://host:port/…, or a local one.")
    partition_by: list[str] = option([], name="partitionBy", description="Columns whose values become directories.")

    _check_path = pydantic.field_validator("path")(check_spark_path)

    @pydantic.field_validator("mode")
    @classmethod
    def _check_mode(cls, value: str) -> str:
        if value != "append":
            raise ValueError("must be append, as files cannot be changed")
        return value


class ConsoleOutput(Output):
    """Rows in the agent's log."""

    rows: int = option(20, name="rows", ge=1, description="Maximum number of rows of each micro-batch in the log.")


OUTPUTS: dict[str, type[Output]] = {"kafka": KafkaOutput, "parquet": ParquetOutput, "console": ConsoleOutput}
"""Outputs by the value of their option `type`."""


class SparkSinkConfig(Config):
    """Options of the Spark sink."""

    path: str | None = option(
        None,
        name="processor.path",
        must_exist=True,
        description="Directory from which the module is imported, in addition to Python's path.",
    )
    processor: str = option(
        name="processor",
        description="Function, as `module:function`. Its arguments are the events, a streaming DataFrame, and its "
        "options, a dict. It returns a streaming DataFrame, or a dict of several by the names of their outputs.",
    )
    own_options: dict[str, str] = option(
        {}, name="option.", description="`option.<name>` is an option of the function."
    )
    output: dict[str, str] = option(
        name="output.",
        path="own",
        description="`output.<name>.type` is `kafka` (with `topic`), `parquet` (with `path` and, optionally, "
        "`partitionBy`) or `console` (with `rows`). `output.<name>.mode` is `append`, `update` or `complete`. To "
        "deliver an output with another sink, write it to the topic of the channel that this sink drains.",
    )
    checkpoint: str | None = option(
        None,
        name="checkpoint",
        path="own",
        description="Directory of the processor's state and offsets. If executors run on other hosts, all of them "
        "have to reach it, as in hdfs://host:port/…. If unset, it is in the agent's state directory.",
    )

    _unchecked: str = pydantic.PrivateAttr("")
    """Reason why the function could not be loaded without a session; empty if it was loaded."""

    @cross_field_validator("processor", "path")
    def _check_processor(self) -> None:
        try:
            load_processor(self.processor, self.path)
        except SessionRequired as e:  # the driver has a session
            self._unchecked = str(e)

    def warnings(self) -> Iterator[Problem]:
        """Yield a note if the function can be checked only when the agent starts."""
        yield from super().warnings()
        if self._unchecked:
            yield Problem("processor", f"is checked only when the agent starts: {self._unchecked}", is_note=True)

    _check_checkpoint = pydantic.field_validator("checkpoint")(check_spark_path)

    @pydantic.field_validator("output")
    @classmethod
    def _check_outputs(cls, value: dict[str, str]) -> dict[str, str]:
        read_outputs(value)
        return value

    def outputs(self) -> dict[str, Output]:
        """Return the configuration of each output by its name."""
        return read_outputs(self.output)


def read_outputs(properties: dict[str, str]) -> dict[str, Output]:
    """Return the configuration of each output by name, from the options `output.`, as `<name>.<option>` and value.

    Raises ValueError, with a text `<name>.<option>: …`, at the first problem.
    """
    by_output: dict[str, dict[str, str]] = {}
    for key, value in properties.items():
        name, _, option_name = key.partition(".")
        if not option_name:
            raise ValueError(f"{key}: is not understood; expected output.<name>.<option>, as output.{key}.type")
        by_output.setdefault(name, {})[option_name] = value
    outputs = {}
    for name, texts in by_output.items():
        kind = texts.pop("type", "")
        if kind not in OUTPUTS:
            near = suggest(kind, list(OUTPUTS)) or f"; there are: {', '.join(OUTPUTS)}"
            raise ValueError(f"{name}.type: " + (f"unknown output type {kind!r}{near}" if kind else "is required"))
        output, problems = OUTPUTS[kind].parse(texts)
        for problem in problems:
            raise ValueError(f"{name}.{problem.option}: {problem.message}")
        assert output is not None
        outputs[name] = output
    return outputs
