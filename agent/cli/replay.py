"""`agent replay`: redelivery of a time range of a channel's topic to one sink."""

from __future__ import annotations

import logging
import time
from datetime import datetime
from typing import TYPE_CHECKING

import click

from flafka.agent.cli.configuration import ChosenConfiguration, configuration_options, load_with_brokers
from flafka.agent.cli.hung_sinks import exit_if_sink_hangs
from flafka.agent.cli.kafka_admin import confirm, name_unreachable_brokers
from flafka.agent.cli.output import iso_time, json_option, show

if TYPE_CHECKING:
    from flafka.agent.runner.replaying import Outcome, Replay
    from flafka.agent.topology import AgentSpec

COLUMNS = ("sink", "type", "group", "partition", "first", "last", "records", "left", "events")
PROGRESS_SECONDS = 10.0


@click.command()
@configuration_options
@click.option("--sink", required=True, metavar="NAME", help="Sink to which the events are redelivered.")
@click.option(
    "--from",
    "start",
    required=True,
    metavar="TIME",
    callback=iso_time,
    help="Start, as ISO time, local without a zone: events that were put into the channel then or later.",
)
@click.option(
    "--to",
    "end",
    required=True,
    metavar="TIME",
    callback=iso_time,
    help="End, as ISO time: events that were put before it.",
)
@click.option(
    "--again",
    is_flag=True,
    help="Start from the beginning, and redeliver the events that this replay has delivered before.",
)
@click.option("--anyway", is_flag=True, help="Replay although the sink may store duplicates.")
@click.option("--dry-run", is_flag=True, help="Show the number of events that would be replayed, and the sink.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
def replay(
    chosen: ChosenConfiguration,
    sink: str,
    start: datetime,
    end: datetime,
    again: bool,
    anyway: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Redeliver the events of a time range from a channel's topic to one sink.

    The sink runs in this process, in a consumer group of its own. The agents may run: their committed offsets do not
    change. With the same arguments, an interrupted replay resumes, and no event is delivered twice within a replay.
    Stores that have events by id overwrite them; hdfs gets further files, with `-replay` in their names.

    Replay dead letters with `agent dlq replay`.
    """
    from flafka.agent.runner.replaying import open_replay

    if not start < end:
        raise click.UsageError("--from must be before --to")
    if end.timestamp() > time.time():
        raise click.UsageError("--to is in the future: events may be put until then")
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    spec = load_with_brokers(chosen)
    first, last = (max(0, int(limit.timestamp() * 1000)) for limit in (start, end))  # Kafka has no times before 1970
    with name_unreachable_brokers(spec), open_replay(spec, sink, first, last) as planned:
        planned = planned.from_beginning() if again else planned
        _show(planned, counted=dry_run, as_json=as_json)
        if (risk := planned.duplicate_risk()) and not anyway:
            raise click.ClickException(f"{planned.sink.path} may store duplicates: {risk}; --anyway accepts them")
        if not planned.records:
            done = "this replay is complete; --again repeats it" if planned.is_begun else "nothing to replay"
            click.echo(done, err=True)
            return
        if dry_run:
            return
        action = "resume the replay of" if planned.is_begun else "replay"
        confirm(f"{action} {planned.records:,} records to {planned.sink.path}?", yes)
        with exit_if_sink_hangs():
            outcome = planned.run(_ProgressLine())
        _report(planned, outcome, spec)


def _show(planned: Replay, *, counted: bool, as_json: bool) -> None:
    """Print the span of each partition and known losses.

    With `counted`, also print the number of undelivered events, for which all of them are read.
    """
    events = planned.events() if counted else {}
    sink = planned.sink
    rows = [
        (
            sink.path,
            sink.cls.type_name,
            planned.group,
            part.partition,
            part.span.start,
            part.span.end - 1,
            part.span.size,
            part.remaining.size,
            events.get(part.partition, 0) if counted else None,
        )
        for part in planned.parts
        if part.span.size
    ]
    show(COLUMNS, rows, as_json=as_json)
    for part in planned.parts:
        if lost := part.describe_loss():
            click.echo(lost, err=True)
    if counted and events:
        text = f"{sum(events.values()):,} events would be replayed to {sink.path} ({sink.cls.type_name})"
        names = ", ".join(interceptor.name for interceptor in sink.interceptors)
        click.echo(f"{text}, through its interceptors {names}" if names else text, err=True)


class _ProgressLine:
    """Progress line on standard error, every `PROGRESS_SECONDS`."""

    def __init__(self) -> None:
        self._printed = time.monotonic()

    def __call__(self, delivered: int) -> None:
        """Print the number of delivered events to standard error, at most every `PROGRESS_SECONDS`."""
        if time.monotonic() - self._printed >= PROGRESS_SECONDS:
            self._printed = time.monotonic()
            click.echo(f"{delivered:,} events delivered so far", err=True)


def _report(planned: Replay, outcome: Outcome, spec: AgentSpec) -> None:
    """Print the outcome to standard error. Exits with code 1 if events were rejected or removed."""
    click.echo(f"{outcome.delivered:,} events delivered to {planned.sink.path}", err=True)
    if outcome.filtered:
        click.echo(f"{outcome.filtered:,} events dropped by its interceptors", err=True)
    if outcome.rejected:
        result = "event became a dead letter" if outcome.rejected == 1 else "events became dead letters"
        click.echo(f"{outcome.rejected:,} {result}: {spec.command('dlq list')}", err=True)
    if outcome.removed:
        click.echo(f"{outcome.removed:,} records were removed by retention before they were delivered", err=True)
    if outcome.rejected or outcome.removed:
        raise SystemExit(1)
