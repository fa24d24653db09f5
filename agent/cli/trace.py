"""`agent trace`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from flafka.agent.cli.configuration import ChosenConfiguration, configuration_options, load_with_brokers
from flafka.agent.cli.kafka_admin import name_unreachable_brokers
from flafka.agent.cli.output import json_option, show_json, utc

if TYPE_CHECKING:
    from flafka.agent.tracing import SinkTrace, Trace

COLOURS = {"delivered": "green", "waiting": "yellow", "dead letter": "red", "missing": "red"}


@click.command()
@click.argument("event_id")
@configuration_options
@json_option
def trace(event_id: str, chosen: ChosenConfiguration, as_json: bool) -> None:
    """Show where an event came from and where it was delivered, from the channel, the stores and the dead letters.

    EVENT_ID is the id of a document or the key of a row, such as events~0a1b2c3d4e-0-17-3. `agent dlq`,
    `agent tap --json` and the log have the same ids. This command only reads; the agents may run.

    Exit code: 0 if the event is in the channel, a store or the dead letters, else 1.
    """
    from flafka.agent.tracing import parse_event_id
    from flafka.agent.tracing import trace as trace_event

    spec = load_with_brokers(chosen)
    with name_unreachable_brokers(spec):
        event_trace = trace_event(spec, parse_event_id(spec, event_id))
    if as_json:
        show_json(event_trace.to_json())
    else:
        click.echo("\n".join(_lines(event_trace)))
    sys.exit(not event_trace.is_found)


def _lines(event_trace: Trace) -> Iterator[str]:
    """Yield the lines of a trace: channel, event, sources, dead letters, then each sink."""
    if event_trace.channel:
        place = ", ".join(f"{word} {value}" for word, value in event_trace.place.items() if value != "")
        yield click.style(f"{event_trace.channel}  {place}, event {event_trace.id.index}", bold=True)
    if event_trace.missing:
        yield f"  not there    {event_trace.missing}"
    if event_trace.arrival is not None and event_trace.event is not None:
        yield f"  came         {utc(event_trace.arrival)}"
        for name, value in event_trace.event.headers.items():
            yield f"  header       {name} = {value!r}"
        yield f"  body         {len(event_trace.event.body):,} bytes: {event_trace.event.body!r}"
    if event_trace.sources:
        yield f"  from         {' or '.join(event_trace.sources)}"
    for dead_letter in event_trace.dead_letters:
        if dead_letter.component not in {one.sink for one in event_trace.sinks if one.state == "dead letter"}:
            replayed = ", replayed since" if dead_letter.replayed else ""
            time, reason = utc(dead_letter.time), dead_letter.reason
            yield f"  dead letter  of {dead_letter.component}, {time}{replayed}: {reason}"
    for sink_trace in event_trace.sinks:
        yield from _sink_lines(sink_trace)


def _sink_lines(sink: SinkTrace) -> Iterator[str]:
    """Yield the lines for one sink: its state, and the locations of the event in its store."""
    state = click.style(sink.state, fg=COLOURS.get(sink.state))
    yield f"{click.style(sink.sink, bold=True)} ({sink.type})  {state}{f': {sink.why}' if sink.why else ''}"
    for place in sink.places:
        yield from (f"  {word:<12} {value}" for word, value in _facts(place))


def _facts(place: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield name and text of each fact about a location in a store."""
    for word, value in place.items():
        if word == "first":
            yield "records", f"{value} to {place.get('last')}, the event among them"
        elif word not in ("last", "epoch", "replay"):
            text = json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else str(value)
            yield word, f"{text} (a replay)" if word == "group" and place.get("replay") else text
