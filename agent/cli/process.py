"""`agent process`."""

from __future__ import annotations

import contextlib
import os
import tempfile

import click

from agent.cli.configured import Chosen, configuration_options, load_or_exit
from agent.own_cluster import with_own_cluster
from agent.topology import AgentSpec, SinkSpec
from plugins import FlafkaError, StreamingSink


@click.command()
@click.argument("sink", required=False)
@configuration_options
@click.option(
    "--rows", default=20, show_default=True, help="Maximum number of rows of each micro-batch that are shown."
)
def process(sink: str | None, chosen: Chosen, rows: int) -> None:
    """Run the processor of SINK, of type spark, once over the events that its channel holds, and show its results.

    For development: nothing is written, committed or kept. SINK may be left out if there is only one.
    """
    from agent.runner.spark.driver import reason
    from agent.runner.spark.job import Job, SinkJob
    from agent.runner.spark.processing import Processing
    from agent.runner.spark.session import start_session, stop_session
    from agent.state import state_directory

    spec = with_own_cluster(load_or_exit(chosen))
    found = _sink(spec, sink)
    with tempfile.TemporaryDirectory(prefix="flafka-process-", ignore_cleanup_errors=True) as directory:
        os.environ["SPARK_LOCAL_DIRS"] = directory
        log_file = state_directory() / f"{spec.name}.process.log"  # not in that directory: an error may name it
        log_file.unlink(missing_ok=True)
        job = SinkJob(found, spec.channel(found.channel))
        whole = Job(spec.name, (job,), spec.options, str(log_file), directory)
        processing = Processing(whole, job)
        spark, gateway = start_session(spec.name, spec.options, log_file, whole.modules)
        try:
            processing.preview(spark, rows)
        except FlafkaError:
            raise
        except Exception as e:
            why = gateway.why_ended(1) or reason(f"{type(e).__name__}: {e}")
            raise FlafkaError(f"{found.path}: {why}") from e
        finally:
            with contextlib.suppress(Exception):
                stop_session(spark, gateway)


def _sink(spec: AgentSpec, name: str | None) -> SinkSpec:
    there = [sink for sink in spec.sinks if issubclass(sink.cls, StreamingSink)]
    chosen = [sink for sink in there if name in (None, sink.name)]
    if len(chosen) != 1:
        names = ", ".join(sink.name for sink in there) or "none"
        raise FlafkaError(f"{'which sink?' if name is None else f'no sink {name} of type spark;'} There are: {names}")
    return chosen[0]
