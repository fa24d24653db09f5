"""`agent dlq`: events that could not be delivered."""

from __future__ import annotations

import base64
import logging
import shlex
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from flafka.agent.cli.configured import Chosen, configuration_options, load_with_cluster
from flafka.agent.cli.hanging import ending_though_a_sink_hangs
from flafka.agent.cli.kafka_admin import confirm, naming_brokers
from flafka.agent.cli.output import Verbs, iso_time, json_option, show, show_json, utc

if TYPE_CHECKING:
    from flafka.agent.runner.deadletters.stored import StoredDeadLetter
    from flafka.agent.topology import AgentSpec


@click.group(cls=Verbs)
def dlq() -> None:
    """Show dead letters, which are events that could not be delivered, with their reasons, and replay them."""


@dataclass(frozen=True)
class Selection:
    """Which letters a command is about."""

    component: str | None
    reason: str | None
    id: tuple[str, ...]
    since: datetime | None
    until: datetime | None
    kept_by: str | None

    def __call__(self, kept: StoredDeadLetter) -> bool:
        """Whether this is one of them."""
        from flafka.agent.runner.deadletters.causes import matches

        time = datetime.fromtimestamp(kept.time / 1000, UTC)
        return (
            self.component in (None, kept.component)
            and (self.reason is None or matches(self.reason, kept.reason))
            and (not self.id or str(kept.id) in self.id)
            and (self.since is None or time >= self.since)
            and (self.until is None or time < self.until)
        )


class Lots:
    """Letters of one channel, component and cause, and what their reasons have in common."""

    def __init__(self) -> None:
        self._reasons: dict[tuple[str, str, str], str] = {}

    def of(self, channel: str, kept: StoredDeadLetter) -> tuple[str, str, str]:
        """Which lot this letter belongs to."""
        from flafka.agent.runner.deadletters.causes import cause_of, common

        lot = channel, kept.component, cause_of(kept.reason, kept.id, kept.event)
        self._reasons[lot] = common(self._reasons.get(lot, kept.reason), kept.reason)
        return lot

    def shown(self, lot: tuple[str, str, str]) -> tuple[str, str, str]:
        """Channel, component, and the reason as it is to be shown."""
        return *lot[:2], self._reasons[lot]


def selection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose letters; the command gets a `selection: Selection`."""

    @click.option("--component", metavar="PATH", help="Only letters of this component, such as a1.sinks.k1.")
    @click.option(
        "--reason", metavar="TEXT", help="Only letters whose reason contains this text; … in it stands for anything."
    )
    @click.option("--id", metavar="ID", multiple=True, help="Only the event with this id. May be repeated.")
    @click.option("--since", metavar="TIME", callback=iso_time, help="Only letters kept at this ISO time or later.")
    @click.option("--until", metavar="TIME", callback=iso_time, help="Only letters kept before this ISO time.")
    @click.option(
        "--kept-by",
        metavar="NAME",
        help="Letters of another configuration file or consumer group, such as one that has another name now.",
    )
    @wraps(command)
    def wrapped(*args: Any, **options: Any) -> Any:
        names = Selection.__dataclass_fields__
        selection = Selection(**{name: options.pop(name) for name in names})
        return command(*args, selection=selection, **options)

    return wrapped


@dlq.command("list")
@configuration_options
@selection_options
@json_option
def list_letters(chosen: Chosen, selection: Selection, as_json: bool) -> None:
    """Count dead letters by channel, component and reason, with the time of the first and the last.

    Reasons that differ only in what is particular to an event count as one; … stands where they differ.
    """
    lots = Lots()
    found: dict[tuple[str, str, str], list[int]] = {}
    for channel, kept in _letters(load_with_cluster(chosen), selection):
        row = found.setdefault(lots.of(channel, kept), [0, 0, kept.time, kept.time])
        row[:] = [row[0] + 1, row[1] + kept.replayed, min(row[2], kept.time), max(row[3], kept.time)]
    columns = ("channel", "component", "reason", "events", "replayed", "first", "last")
    rows = [(*lots.shown(key), *row[:2], utc(row[2]), utc(row[3])) for key, row in found.items()]
    rows.sort()
    show(columns, rows, as_json=as_json)


@dlq.command("show")
@configuration_options
@selection_options
@click.option(
    "--limit", type=click.IntRange(1), default=20, show_default=True, help="Maximum number of letters to show."
)
@json_option
def show_letters(chosen: Chosen, selection: Selection, limit: int, as_json: bool) -> None:
    """Show dead letters whole: reason, headers, bytes. In JSON the body is in base64."""
    shown: list[tuple[str, StoredDeadLetter]] = []
    for channel, kept in _letters(load_with_cluster(chosen), selection):
        if len(shown) < limit:
            shown.append((channel, kept))
    if as_json:
        show_json([_as_json(channel, kept) for channel, kept in shown])
        return
    for channel, kept in shown:
        replayed = ", replayed" if kept.replayed else ""
        head = f"{kept.id or 'in no channel'}  {utc(kept.time)}  {kept.component} ({channel}{replayed})"
        click.secho(head, bold=True)
        click.echo(f"  reason   {kept.reason}")
        for name, value in kept.event.headers.items():
            click.echo(f"  header   {name} = {value}")
        click.echo(f"  body     {len(kept.event.body):,} bytes: {kept.event.body!r}")


@dlq.command("replay")
@configuration_options
@selection_options
@click.option(
    "--limit",
    type=click.IntRange(1),
    help="Maximum number of letters to replay, to try whether they are accepted now.",
)
@click.option("--again", is_flag=True, help="Include letters that were replayed before.")
@click.option("--dry-run", is_flag=True, help="Show what would be replayed, and where to.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def replay_letters(
    chosen: Chosen, selection: Selection, limit: int | None, again: bool, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Put dead letters back where they came from, each of them once: replayed letters are marked.

    What a sink rejected is given to that sink again, with its bytes, headers and id; other sinks do not see it.
    An event that is rejected again becomes a new letter. The agents may run meanwhile.
    """
    from flafka.agent.runner.deadletterreplay import replay, replayer_of

    spec = load_with_cluster(chosen)
    replayers = {channel.name: replayer_of(spec, channel) for channel in spec.channels}
    lots = Lots()
    plan: Counter[tuple[tuple[str, str, str], str | None]] = Counter()
    names: dict[str, set[str]] = {name: set() for name in replayers}
    for channel, kept in _letters(spec, selection):
        if (kept.replayed and not again) or sum(map(len, names.values())) == limit:
            continue
        destination = replayers[channel].destination(kept)
        plan[lots.of(channel, kept), destination] += 1
        if destination is not None:
            names[channel].add(kept.letter)
    planned = [(*lots.shown(lot), destination, events) for (lot, destination), events in plan.items()]
    show(("channel", "component", "reason", "to", "events"), planned, as_json=as_json)
    for component in sorted({component for (_, component, _), destination in plan if destination is None}):
        click.echo(f"{component} is not in this configuration: its letters stay", err=True)
    count = sum(map(len, names.values()))
    if dry_run or not count:
        click.echo(f"{count} letters would be replayed" if count else "nothing to replay", err=True)
        return
    confirm(f"replay {count} letters?", yes)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    outcome: Counter[str] = Counter()
    for name, some in names.items():
        if some:
            with naming_brokers(spec), ending_though_a_sink_hangs():
                outcome += replay(replayers[name], some, again=again)
    click.echo(f"{outcome.pop('', 0)} letters replayed", err=True)
    for reason, events in outcome.items():
        click.echo(f"{events} stay dead letters: {reason}", err=True)
    if outcome:
        raise SystemExit(1)


def _letters(spec: AgentSpec, selection: Selection) -> Iterator[tuple[str, StoredDeadLetter]]:
    from flafka.agent.runner.deadletters.letters import dead_letters_of
    from flafka.agent.runner.deadletters.stored import Owned, read

    others: Counter[tuple[str, str]] = Counter()
    with naming_brokers(spec):
        for channel in spec.channels:
            letters = dead_letters_of(spec.name, channel, channel.make(), spec.options, spec.file)
            owned = Owned(spec, channel, letters, selection.kept_by)
            for kept in filter(selection, read(letters)):
                if kept in owned:
                    yield channel.name, kept
                elif selection.kept_by is None:
                    others[kept.kept_by, kept.component] += 1
    for (name, component), events in sorted(others.items()):
        text = f"{events:,} more letters of {component} are those of {name}, and not of this configuration"
        click.echo(f"{text}: --kept-by {shlex.quote(name)} selects them", err=True)


def _as_json(channel: str, kept: StoredDeadLetter) -> dict[str, object]:
    return {
        "channel": channel,
        "component": kept.component,
        "id": str(kept.id) if kept.id is not None else None,
        "time": kept.time,
        "reason": kept.reason,
        "replayed": kept.replayed,
        "kept_by": kept.kept_by or None,
        "headers": kept.event.headers,
        "body": base64.b64encode(kept.event.body).decode(),
    }
