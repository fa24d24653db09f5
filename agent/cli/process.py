"""`agent process`."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path

import click

from flafka.agent.cli.configuration import ChosenConfiguration, configuration_options, load_or_exit
from flafka.agent.cli.default_brokers import with_default_brokers
from flafka.agent.cli.kafka_admin import name_unreachable_brokers
from flafka.agent.cli.output import json_option
from flafka.agent.topology import AgentSpec, SinkSpec
from flafka.plugins import FlafkaError, StreamingSink
from flafka.plugins.kafka.topic import KafkaBackedChannel


@click.command()
@click.argument("sink", required=False)
@configuration_options
@click.option("--rows", default=20, show_default=True, help="Maximum number of rows shown for each micro-batch.")
@click.option(
    "--events",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help='File with events instead of the channel: lines with a body, or with JSON: {"headers": {…}, "body": "…"}.',
)
@json_option
def process(sink: str | None, chosen: ChosenConfiguration, rows: int, file: Path | None, as_json: bool) -> None:
    """Run the processor of SINK, of type spark, once on the events of its channel, and show the results.

    For development: nothing is written or committed. SINK is optional if there is only one sink. With --events, no
    broker is needed. With --json, each row is a JSON object on a line, with its output; bytes are in base64.
    """
    from flafka.agent.runner.spark.driver import failure_reason
    from flafka.agent.runner.spark.job import Job, SinkJob
    from flafka.agent.runner.spark.processing import Processing
    from flafka.agent.runner.spark.sample import read_samples
    from flafka.agent.runner.spark.session import start_session, stop_session
    from flafka.agent.state import state_directory

    spec = load_or_exit(chosen)
    samples = read_samples(file) if file is not None else None
    if samples is None:
        spec = with_default_brokers(spec)
    sink_spec = _find_sink(spec, sink)
    if samples is None:
        with name_unreachable_brokers(spec):
            _refuse_empty_channel(spec, sink_spec)
    with tempfile.TemporaryDirectory(prefix="flafka-process-", ignore_cleanup_errors=True) as directory:
        os.environ["SPARK_LOCAL_DIRS"] = directory
        log_file = (
            state_directory() / f"{spec.name}.process.log"
        )  # outside the temporary directory: an error may name it
        log_file.unlink(missing_ok=True)
        sink_job = SinkJob(sink_spec, spec.channel(sink_spec.channel))
        job = Job(spec.name, (sink_job,), spec.options, str(log_file), directory)
        processing = Processing(job, sink_job)
        with _spinner("Spark starts …"):
            spark, gateway = start_session(spec.name, spec.options, log_file, job.modules)
        try:
            processing.preview(spark, rows, samples, as_json=as_json)
        except FlafkaError:
            raise
        except Exception as e:
            cause = gateway.why_ended(1) or failure_reason(f"{type(e).__name__}: {e}", sink_job)
            raise FlafkaError(f"{sink_spec.path}: {cause}") from e
        finally:
            with contextlib.suppress(Exception):
                stop_session(spark, gateway)


def _refuse_empty_channel(spec: AgentSpec, sink: SinkSpec) -> None:
    """Raise FlafkaError if the topic of the channel has no records, before the slow start of Spark."""
    channel: KafkaBackedChannel = spec.channel(sink.channel).make()
    with contextlib.closing(channel):
        channel.open()
        starts, ends = channel.kafka.beginning_offsets(), channel.kafka.end_offsets()
    if all(starts.get(partition, 0) >= end for partition, end in ends.items()):
        raise FlafkaError(
            f"channel {sink.channel} is empty: topic {channel.kafka.topic} has no events. Put events into it, or run "
            "the processor on a file with events: --events FILE"
        )


def _spinner(text: str) -> AbstractContextManager[object]:
    """Return a context that shows a spinner with the elapsed time if standard error is a terminal."""
    if not sys.stderr.isatty():
        return contextlib.nullcontext()
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    progress = Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False)
    progress.add_task(text, total=None)
    return progress


def _find_sink(spec: AgentSpec, name: str | None) -> SinkSpec:
    """Return the stream processor with this name, or the only one for None. Raises FlafkaError."""
    sinks = [sink for sink in spec.sinks if issubclass(sink.cls, StreamingSink)]
    matches = [sink for sink in sinks if name in (None, sink.name)]
    if len(matches) != 1:
        names = ", ".join(sink.name for sink in sinks) or "none"
        problem = "name a sink of type spark" if name is None else f"there is no sink {name} of type spark"
        raise FlafkaError(f"{problem}; the configuration has: {names}")
    return matches[0]
