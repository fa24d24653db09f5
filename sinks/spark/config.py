"""Options of the Spark sink, and of its outputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import pydantic

from flafka.plugins import Config, Problem, cross_field_validator, option
from flafka.plugins.kafka.config import own_topic
from flafka.plugins.problems import suggestion
from flafka.sinks.spark.loading import SessionNeeded, load


def spark_path(path: str) -> str:
    """A path that Spark's file systems know. The Hadoop in pyspark lacks a class that its WebHDFS client needs."""
    if path.startswith(("webhdfs://", "swebhdfs://")):
        raise ValueError(f"must be hdfs://host:port/…, not {path!r}: the Hadoop client in pyspark cannot use WebHDFS")
    return path


class Output(Config):
    """Options of every output."""

    mode: Literal["append", "update", "complete"] = option(
        "append", name="mode", description="Spark's output mode: finished rows, changed rows, or all rows."
    )


class KafkaOutput(Output):
    """Each row a record: its columns `body`, `key` and `headers`, or, without a `body`, the row as JSON."""

    topic: str = option(name="topic", description="Topic to write to, on the brokers of the sink's channel.")

    _check_topic = pydantic.field_validator("topic")(own_topic)


class ParquetOutput(Output):
    """Parquet files."""

    path: str = option(name="path", description="Directory to write to: hdfs://host:port/…, or one of this host.")
    partition_by: list[str] = option([], name="partitionBy", description="Columns whose values become directories.")

    _check_path = pydantic.field_validator("path")(spark_path)

    @pydantic.field_validator("mode")
    @classmethod
    def _appends(cls, value: str) -> str:
        if value != "append":
            raise ValueError("must be append, as files cannot be changed")
        return value


class ConsoleOutput(Output):
    """The agent's log."""

    rows: int = option(
        20, name="rows", ge=1, description="Maximum number of rows of each micro-batch that are shown."
    )


OUTPUTS: dict[str, type[Output]] = {"kafka": KafkaOutput, "parquet": ParquetOutput, "console": ConsoleOutput}


class SparkSinkConfig(Config):
    """Options of the Spark sink."""

    path: str | None = option(
        None,
        name="processor.path",
        file=True,
        description="Directory to import the module from, in addition to Python's own path.",
    )
    processor: str = option(
        name="processor",
        description="The function, as `module:function`. It gets the events, a streaming DataFrame, and its options, "
        "a dict. It returns a streaming DataFrame, or a dict of several by the names of their outputs.",
    )
    own_options: dict[str, str] = option(
        {}, name="option.", description="`option.<name>` is an option that the function gets."
    )
    output: dict[str, str] = option(
        name="output.",
        path="own",
        description="`output.<name>.type` is `kafka` (with `topic`), `parquet` (with `path` and, if wanted, "
        "`partitionBy`) or `console` (with `rows`). `output.<name>.mode` is `append`, `update` or `complete`. To "
        "deliver an output with another sink, write it to the topic of the channel that this sink drains.",
    )
    checkpoint: str | None = option(
        None,
        name="checkpoint",
        path="own",
        description="Directory of the processor's state and positions. If executors run on other hosts, all of them "
        "have to reach it, as in hdfs://host:port/…. If unset, it is in the agent's state directory.",
    )

    _unknown: str = pydantic.PrivateAttr("")
    """Reason why the function could not be looked up; empty where it was found."""

    @cross_field_validator("processor", "path")
    def _loads(self) -> None:
        try:
            load(self.processor, self.path)
        except SessionNeeded as e:  # the driver imports it with a session
            self._unknown = str(e)

    def warnings(self) -> Iterator[Problem]:
        """Yield a note if the function is not known before the agent starts."""
        yield from super().warnings()
        if self._unknown:
            yield Problem("processor", f"is checked only when the agent starts: {self._unknown}", note=True)

    _check_checkpoint = pydantic.field_validator("checkpoint")(spark_path)

    @pydantic.field_validator("output")
    @classmethod
    def _check_outputs(cls, value: dict[str, str]) -> dict[str, str]:
        read_outputs(value)
        return value

    def outputs(self) -> dict[str, Output]:
        """Every output, by name."""
        return read_outputs(self.output)


def read_outputs(properties: dict[str, str]) -> dict[str, Output]:
    """What stands under `output.`. ValueError `<name>.<option>: …` for the first thing that is wrong."""
    written: dict[str, dict[str, str]] = {}
    for key, value in properties.items():
        name, _, own = key.partition(".")
        if not own:
            raise ValueError(f"{key}: is not understood; expected output.<name>.<option>, as output.{key}.type")
        written.setdefault(name, {})[own] = value
    outputs = {}
    for name, texts in written.items():
        kind = texts.pop("type", "")
        if kind not in OUTPUTS:
            near = suggestion(kind, list(OUTPUTS)) or f"; there are: {', '.join(OUTPUTS)}"
            raise ValueError(f"{name}.type: " + (f"unknown output type {kind!r}{near}" if kind else "is required"))
        output, problems = OUTPUTS[kind].parse(texts)
        for problem in problems:
            raise ValueError(f"{name}.{problem.option}: {problem.message}")
        assert output is not None
        outputs[name] = output
    return outputs
