"""`agent trace`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from flafka.agent.cli.configured import Chosen, configuration_options, load_with_cluster
from flafka.agent.cli.kafka_admin import naming_brokers
from flafka.agent.cli.output import json_option, show_json, utc

if TYPE_CHECKING:
    from flafka.agent.tracing import SinkTrace, Trace

COLOURS = {"delivered": "green", "waiting": "yellow", "dead letter": "red", "missing": "red"}


@click.command()
@click.argument("event_id")
@configuration_options
@json_option
def trace(event_id: str, chosen: Chosen, as_json: bool) -> None:
    """Say where an event came from and where it went, as the channel, the stores and the dead letters have it now.

    EVENT_ID is the id of a document or the key of a row, such as events~0a1b2c3d4e-0-17-3. `agent dlq`,
    `agent tap --json` and the log have the same ids. Nothing is changed; the agents may run.

    Exit code: 0 if the event was found anywhere, else 1.
    """
    from flafka.agent.tracing import id_in
    from flafka.agent.tracing import trace as followed

    spec = load_with_cluster(chosen)
    with naming_brokers(spec):
        found = followed(spec, id_in(spec, event_id))
    if as_json:
        show_json(found.data())
    else:
        click.echo("\n".join(_lines(found)))
    sys.exit(not found.found)


def _lines(found: Trace) -> Iterator[str]:
    if found.channel:
        place = ", ".join(f"{word} {value}" for word, value in found.place.items() if value != "")
        yield click.style(f"{found.channel}  {place}, event {found.id.index}", bold=True)
    if found.missing:
        yield f"  not there    {found.missing}"
    if found.arrival is not None and found.event is not None:
        yield f"  came         {utc(found.arrival)}"
        for name, value in found.event.headers.items():
            yield f"  header       {name} = {value!r}"
        yield f"  body         {len(found.event.body):,} bytes: {found.event.body!r}"
    if found.sources:
        yield f"  from         {' or '.join(found.sources)}"
    for letter in found.letters:
        if letter.component not in {one.sink for one in found.sinks if one.state == "dead letter"}:
            replayed = ", replayed since" if letter.replayed else ""
            yield f"  dead letter  of {letter.component}, {utc(letter.time)}{replayed}: {letter.reason}"
    for one in found.sinks:
        yield from _at(one)


def _at(one: SinkTrace) -> Iterator[str]:
    state = click.style(one.state, fg=COLOURS.get(one.state))
    yield f"{click.style(one.sink, bold=True)} ({one.type})  {state}{f': {one.why}' if one.why else ''}"
    for place in one.places:
        yield from (f"  {word:<12} {value}" for word, value in _facts(place))


def _facts(place: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for word, value in place.items():
        if word == "first":
            yield "records", f"{value} to {place.get('last')}, the event among them"
        elif word not in ("last", "epoch", "replay"):
            text = json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list)) else str(value)
            yield word, f"{text} (a replay)" if word == "group" and place.get("replay") else text
