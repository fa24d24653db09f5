"""`agent dlq`: events that could not be delivered."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from agent.cli.configured import Chosen, configuration_options, load_or_exit
from agent.cli.output import json_option, show

if TYPE_CHECKING:
    from agent.runner.kept import Kept


@click.group()
def dlq() -> None:
    """Look at dead letters: events that could not be delivered, with the reason."""


@dlq.command("list")
@configuration_options
@json_option
def list_letters(chosen: Chosen, as_json: bool) -> None:
    """Count dead letters by channel, component and reason, with the time of the first and the last."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for channel, kept in _letters(chosen):
        times = found.setdefault((channel, kept.component, kept.reason), [0, kept.time, kept.time])
        times[:] = [times[0] + 1, min(times[1], kept.time), max(times[2], kept.time)]
    rows = [(*key, count, _time(first), _time(last)) for key, (count, first, last) in sorted(found.items())]
    show(("channel", "component", "reason", "events", "first", "last"), rows, as_json=as_json)


@dlq.command("show")
@configuration_options
@click.option("--component", metavar="PATH", help="Only those of this component, such as a1.sinks.k1.")
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="The first so many.")
@json_option
def show_letters(chosen: Chosen, component: str | None, limit: int, as_json: bool) -> None:
    """Show dead letters whole: reason, headers, bytes. In JSON the body is in base64."""
    shown: list[tuple[str, Kept]] = []
    for channel, kept in _letters(chosen):
        if component in (None, kept.component) and len(shown) < limit:
            shown.append((channel, kept))
    if as_json:
        click.echo(json.dumps([_as_json(channel, kept) for channel, kept in shown], indent=2))
        return
    for channel, kept in shown:
        click.secho(f"{kept.id or 'in no channel'}  {_time(kept.time)}  {kept.component} ({channel})", bold=True)
        click.echo(f"  reason   {kept.reason}")
        for name, value in kept.event.headers.items():
            click.echo(f"  header   {name} = {value}")
        click.echo(f"  body     {len(kept.event.body):,} bytes: {kept.event.body!r}")


def _letters(chosen: Chosen) -> Iterator[tuple[str, Kept]]:
    from agent.own_cluster import with_own_cluster
    from agent.runner.deadletters import dead_letters_of
    from agent.runner.kept import read

    spec = with_own_cluster(load_or_exit(chosen))
    for channel in spec.channels:
        for kept in read(dead_letters_of(spec.name, channel, channel.make(), spec.options)):
            yield channel.name, kept


def _time(millis: int) -> str:
    return datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="milliseconds")


def _as_json(channel: str, kept: Kept) -> dict[str, object]:
    return {
        "channel": channel,
        "component": kept.component,
        "id": kept.id,
        "time": kept.time,
        "reason": kept.reason,
        "headers": kept.event.headers,
        "body": base64.b64encode(kept.event.body).decode(),
    }
