"""`agent process`."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path

import click

from flafka.agent.cli.configured import Chosen, configuration_options, load_or_exit
from flafka.agent.cli.kafka_admin import naming_brokers
from flafka.agent.cli.output import json_option
from flafka.agent.cli.own_cluster import with_own_cluster
from flafka.agent.topology import AgentSpec, SinkSpec
from flafka.plugins import FlafkaError, StreamingSink
from flafka.plugins.kafka.topic import KafkaBackedChannel


@click.command()
@click.argument("sink", required=False)
@configuration_options
@click.option(
    "--rows", default=20, show_default=True, help="Maximum number of rows of each micro-batch that are shown."
)
@click.option(
    "--events",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help='File of events to use instead of the channel: a line is a body, or JSON: {"headers": {…}, "body": "…"}.',
)
@json_option
def process(sink: str | None, chosen: Chosen, rows: int, file: Path | None, as_json: bool) -> None:
    """Run the processor of SINK, of type spark, once over the events that its channel holds, and show its results.

    For development: nothing is written, committed or kept. SINK may be left out if there is only one. With --events
    no broker is needed. With --json, each row is an object a line, with the output it is for; bytes are in base64.
    """
    from flafka.agent.runner.spark.driver import reason
    from flafka.agent.runner.spark.job import Job, SinkJob
    from flafka.agent.runner.spark.processing import Processing
    from flafka.agent.runner.spark.sample import read_samples
    from flafka.agent.runner.spark.session import start_session, stop_session
    from flafka.agent.state import state_directory

    spec = load_or_exit(chosen)
    samples = read_samples(file) if file is not None else None
    if samples is None:
        spec = with_own_cluster(spec)
    found = _sink(spec, sink)
    if samples is None:
        with naming_brokers(spec):
            _refuse_empty(spec, found)
    with tempfile.TemporaryDirectory(prefix="flafka-process-", ignore_cleanup_errors=True) as directory:
        os.environ["SPARK_LOCAL_DIRS"] = directory
        log_file = state_directory() / f"{spec.name}.process.log"  # not in that directory: an error may name it
        log_file.unlink(missing_ok=True)
        job = SinkJob(found, spec.channel(found.channel))
        whole = Job(spec.name, (job,), spec.options, str(log_file), directory)
        processing = Processing(whole, job)
        with _waiting("Spark starts …"):
            spark, gateway = start_session(spec.name, spec.options, log_file, whole.modules)
        try:
            processing.preview(spark, rows, samples, as_json=as_json)
        except FlafkaError:
            raise
        except Exception as e:
            why = gateway.why_ended(1) or reason(f"{type(e).__name__}: {e}", job)
            raise FlafkaError(f"{found.path}: {why}") from e
        finally:
            with contextlib.suppress(Exception):
                stop_session(spark, gateway)


def _refuse_empty(spec: AgentSpec, sink: SinkSpec) -> None:
    """Before Spark is started, which takes a while."""
    channel: KafkaBackedChannel = spec.channel(sink.channel).make()
    with contextlib.closing(channel):
        channel.open()
        starts, ends = channel.kafka.starts(), channel.kafka.ends()
    if all(starts.get(partition, 0) >= end for partition, end in ends.items()):
        raise FlafkaError(
            f"channel {sink.channel} is empty: topic {channel.kafka.topic} has no events. Put some in, or try the "
            "processor on a file of samples: --events FILE"
        )


def _waiting(text: str) -> AbstractContextManager[object]:
    """Shows on a terminal that something goes on, with the seconds that it has taken."""
    if not sys.stderr.isatty():
        return contextlib.nullcontext()
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    progress = Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False)
    progress.add_task(text, total=None)
    return progress


def _sink(spec: AgentSpec, name: str | None) -> SinkSpec:
    there = [sink for sink in spec.sinks if issubclass(sink.cls, StreamingSink)]
    chosen = [sink for sink in there if name in (None, sink.name)]
    if len(chosen) != 1:
        names = ", ".join(sink.name for sink in there) or "none"
        raise FlafkaError(f"{'which sink?' if name is None else f'no sink {name} of type spark;'} There are: {names}")
    return chosen[0]
