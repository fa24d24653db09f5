"""`agent replay`."""

from __future__ import annotations

import logging
import time
from datetime import datetime
from typing import TYPE_CHECKING

import click

from flafka.agent.cli.configured import Chosen, configuration_options, load_with_cluster
from flafka.agent.cli.hanging import ending_though_a_sink_hangs
from flafka.agent.cli.kafka_admin import confirm, naming_brokers
from flafka.agent.cli.output import iso_time, json_option, show

if TYPE_CHECKING:
    from flafka.agent.runner.replaying import Outcome, Replay
    from flafka.agent.topology import AgentSpec

COLUMNS = ("sink", "type", "group", "partition", "first", "last", "records", "left", "events")
PROGRESS_SECONDS = 10.0


@click.command()
@configuration_options
@click.option("--sink", required=True, metavar="NAME", help="Sink that gets the events again.")
@click.option(
    "--from",
    "start",
    required=True,
    metavar="TIME",
    callback=iso_time,
    help="ISO time, local without a zone: events that came into the channel then, or later.",
)
@click.option(
    "--to", "end", required=True, metavar="TIME", callback=iso_time, help="ISO time: events that came before it."
)
@click.option("--again", is_flag=True, help="Begin anew: deliver once more what this replay has delivered before.")
@click.option("--anyway", is_flag=True, help="Replay although this sink cannot promise each event once.")
@click.option("--dry-run", is_flag=True, help="Show how many events would be replayed, and where to.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def replay(
    chosen: Chosen,
    sink: str,
    start: datetime,
    end: datetime,
    again: bool,
    anyway: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Send what a channel's topic holds of a span of time to one sink again.

    The sink is run here, in a consumer group of the replay's own; the agents may run, and their positions stay where
    they are. Run again with the same arguments, it resumes: nothing is delivered twice within a replay.
    Stores that have events by id overwrite them; hdfs gets more files, with `-replay` in their names.

    Dead letters are replayed by `agent dlq replay`.
    """
    from flafka.agent.runner.replaying import replay_of

    if not start < end:
        raise click.UsageError("--from must be before --to")
    if end.timestamp() > time.time():
        raise click.UsageError("--to is in the future: events may come until then")
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    spec = load_with_cluster(chosen)
    first, last = (max(0, int(at.timestamp() * 1000)) for at in (start, end))  # Kafka knows none before 1970
    with naming_brokers(spec), replay_of(spec, sink, first, last) as planned:
        planned = planned.again() if again else planned
        _show(planned, counted=dry_run, as_json=as_json)
        if (why := planned.repeats()) and not anyway:
            raise click.ClickException(
                f"{planned.sink.path} is not replayed to: {why}. --anyway replays to it all the same"
            )
        if not planned.records:
            done = "this replay is complete; --again delivers it once more" if planned.begun else "nothing to replay"
            click.echo(done, err=True)
            return
        if dry_run:
            return
        going_on = "go on with the replay of" if planned.begun else "replay"
        confirm(f"{going_on} {planned.records:,} records to {planned.sink.path}?", yes)
        with ending_though_a_sink_hangs():
            outcome = planned.run(_ProgressLine())
        _tell(planned, outcome, spec)


def _show(planned: Replay, *, counted: bool, as_json: bool) -> None:
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
            part.left.size,
            events.get(part.partition, 0) if counted else None,
        )
        for part in planned.parts
        if part.span.size
    ]
    show(COLUMNS, rows, as_json=as_json)
    for part in planned.parts:
        if lost := part.lost():
            click.echo(lost, err=True)
    if counted and events:
        text = f"{sum(events.values()):,} events would be replayed to {sink.path} ({sink.cls.type_name})"
        names = ", ".join(one.name for one in sink.interceptors)
        click.echo(f"{text}, through its interceptors {names}" if names else text, err=True)


class _ProgressLine:
    """A line on standard error every so many seconds."""

    def __init__(self) -> None:
        self._told = time.monotonic()

    def __call__(self, delivered: int) -> None:
        if time.monotonic() - self._told >= PROGRESS_SECONDS:
            self._told = time.monotonic()
            click.echo(f"{delivered:,} events delivered so far", err=True)


def _tell(planned: Replay, outcome: Outcome, spec: AgentSpec) -> None:
    click.echo(f"{outcome.delivered:,} events delivered to {planned.sink.path}", err=True)
    if outcome.filtered:
        click.echo(f"{outcome.filtered:,} events dropped by its interceptors", err=True)
    if outcome.rejected:
        became = "event became a dead letter" if outcome.rejected == 1 else "events became dead letters"
        click.echo(f"{outcome.rejected:,} {became}: {spec.command('dlq list')}", err=True)
    if outcome.removed:
        click.echo(f"{outcome.removed:,} records were removed by retention before they were delivered", err=True)
    if outcome.rejected or outcome.removed:
        raise SystemExit(1)
