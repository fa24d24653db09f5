"""`agent dlq`: dead letters."""

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

from flafka.agent.cli.configuration import ChosenConfiguration, configuration_options, load_with_brokers
from flafka.agent.cli.hung_sinks import exit_if_sink_hangs
from flafka.agent.cli.kafka_admin import confirm, name_unreachable_brokers
from flafka.agent.cli.output import Verbs, iso_time, json_option, show, show_json, utc

if TYPE_CHECKING:
    from flafka.agent.runner.deadletters.reading import StoredDeadLetter
    from flafka.agent.topology import AgentSpec


@click.group(cls=Verbs)
def dlq() -> None:
    """List, show and replay dead letters: events that could not be delivered, with their reasons."""


@dataclass(frozen=True)
class DeadLetterFilter:
    """Conditions that a dead letter must meet; None and an empty `id` match all."""

    component: str | None
    reason: str | None
    id: tuple[str, ...]
    since: datetime | None
    until: datetime | None
    kept_by: str | None

    def __call__(self, dead_letter: StoredDeadLetter) -> bool:
        """Return True if the dead letter meets all conditions; `kept_by` is not checked here."""
        from flafka.agent.runner.deadletters.errorgroups import matches_pattern

        time = datetime.fromtimestamp(dead_letter.time / 1000, UTC)
        return (
            self.component in (None, dead_letter.component)
            and (self.reason is None or matches_pattern(self.reason, dead_letter.reason))
            and (not self.id or str(dead_letter.id) in self.id)
            and (self.since is None or time >= self.since)
            and (self.until is None or time < self.until)
        )


GroupKey = tuple[str, str, str]
"""Channel, component and error group."""


class DeadLetterGroups:
    """Dead letters grouped by channel, component and error group, with the common text of their reasons."""

    def __init__(self) -> None:
        self._reasons: dict[GroupKey, str] = {}

    def add(self, channel: str, dead_letter: StoredDeadLetter) -> GroupKey:
        """Add a dead letter to its group, merge its reason into the group's, and return the key of the group."""
        from flafka.agent.runner.deadletters.errorgroups import error_group_of, merge_reasons

        reason = dead_letter.reason
        key = channel, dead_letter.component, error_group_of(reason, dead_letter.id, dead_letter.event)
        self._reasons[key] = merge_reasons(self._reasons.get(key, reason), reason)
        return key

    def columns(self, key: GroupKey) -> tuple[str, str, str]:
        """Return channel, component and common reason of a group."""
        return *key[:2], self._reasons[key]


def selection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command with the options that select dead letters; it gets a `selection: DeadLetterFilter`."""

    @click.option("--component", metavar="PATH", help="Only dead letters of this component, such as a1.sinks.k1.")
    @click.option(
        "--reason",
        metavar="TEXT",
        help="Only dead letters whose reason contains this text; … in it matches any text.",
    )
    @click.option("--id", metavar="ID", multiple=True, help="Only the event with this id. May be repeated.")
    @click.option(
        "--since", metavar="TIME", callback=iso_time, help="Only dead letters stored at this ISO time or later."
    )
    @click.option("--until", metavar="TIME", callback=iso_time, help="Only dead letters stored before this ISO time.")
    @click.option(
        "--kept-by",
        metavar="NAME",
        help="Dead letters of another configuration file or consumer group, such as one that was renamed.",
    )
    @wraps(command)
    def wrapped(*args: Any, **options: Any) -> Any:
        names = DeadLetterFilter.__dataclass_fields__
        selection = DeadLetterFilter(**{name: options.pop(name) for name in names})
        return command(*args, selection=selection, **options)

    return wrapped


@dlq.command("list")
@configuration_options
@selection_options
@json_option
def list_dead_letters(chosen: ChosenConfiguration, selection: DeadLetterFilter, as_json: bool) -> None:
    """Count dead letters by channel, component and reason, with the time of the first and the last.

    Reasons that differ only in details of the event, such as its values, are one group; … replaces what differs.
    """
    groups = DeadLetterGroups()
    counts: dict[GroupKey, list[int]] = {}
    for channel, dead_letter in _dead_letters(load_with_brokers(chosen), selection):
        time = dead_letter.time
        row = counts.setdefault(groups.add(channel, dead_letter), [0, 0, time, time])
        row[:] = [row[0] + 1, row[1] + dead_letter.replayed, min(row[2], time), max(row[3], time)]
    columns = ("channel", "component", "reason", "events", "replayed", "first", "last")
    rows = [(*groups.columns(key), *row[:2], utc(row[2]), utc(row[3])) for key, row in counts.items()]
    rows.sort()
    show(columns, rows, as_json=as_json)


@dlq.command("show")
@configuration_options
@selection_options
@click.option(
    "--limit", type=click.IntRange(1), default=20, show_default=True, help="Maximum number of dead letters to show."
)
@json_option
def show_dead_letters(chosen: ChosenConfiguration, selection: DeadLetterFilter, limit: int, as_json: bool) -> None:
    """Show dead letters with reason, headers and body. In JSON the body is in base64."""
    shown: list[tuple[str, StoredDeadLetter]] = []
    for channel, dead_letter in _dead_letters(load_with_brokers(chosen), selection):
        if len(shown) < limit:
            shown.append((channel, dead_letter))
    if as_json:
        show_json([_as_json(channel, dead_letter) for channel, dead_letter in shown])
        return
    for channel, dead_letter in shown:
        replayed = ", replayed" if dead_letter.replayed else ""
        id, time, event = dead_letter.id or "in no channel", utc(dead_letter.time), dead_letter.event
        click.secho(f"{id}  {time}  {dead_letter.component} ({channel}{replayed})", bold=True)
        click.echo(f"  reason   {dead_letter.reason}")
        for name, value in event.headers.items():
            click.echo(f"  header   {name} = {value}")
        click.echo(f"  body     {len(event.body):,} bytes: {event.body!r}")


@dlq.command("replay")
@configuration_options
@selection_options
@click.option(
    "--limit",
    type=click.IntRange(1),
    help="Maximum number of dead letters to replay, as a trial.",
)
@click.option("--again", is_flag=True, help="Include dead letters that were replayed before.")
@click.option("--dry-run", is_flag=True, help="Show the dead letters that would be replayed, and their destinations.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
def replay_dead_letters(
    chosen: ChosenConfiguration,
    selection: DeadLetterFilter,
    limit: int | None,
    again: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Redeliver dead letters to their sink or channel, and mark them as replayed.

    An event that a sink rejected is redelivered to that sink alone, with its body, headers and id. An event that is
    rejected again becomes a new dead letter. The agents may run meanwhile.
    """
    from flafka.agent.runner.deadletterreplay import replay, replayer_of

    spec = load_with_brokers(chosen)
    replayers = {channel.name: replayer_of(spec, channel) for channel in spec.channels}
    groups = DeadLetterGroups()
    plan: Counter[tuple[GroupKey, str | None]] = Counter()
    names: dict[str, set[str]] = {name: set() for name in replayers}
    for channel, dead_letter in _dead_letters(spec, selection):
        if (dead_letter.replayed and not again) or sum(map(len, names.values())) == limit:
            continue
        destination = replayers[channel].destination(dead_letter)
        plan[groups.add(channel, dead_letter), destination] += 1
        if destination is not None:
            names[channel].add(dead_letter.name)
    planned = [(*groups.columns(key), destination, events) for (key, destination), events in plan.items()]
    show(("channel", "component", "reason", "to", "events"), planned, as_json=as_json)
    for component in sorted({component for (_, component, _), destination in plan if destination is None}):
        click.echo(f"{component} is not in this configuration: its dead letters are not replayed", err=True)
    count = sum(map(len, names.values()))
    if dry_run or not count:
        click.echo(f"{count} dead letters would be replayed" if count else "nothing to replay", err=True)
        return
    confirm(f"replay {count} dead letters?", yes)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    outcome: Counter[str] = Counter()
    for name, selected in names.items():
        if selected:
            with name_unreachable_brokers(spec), exit_if_sink_hangs():
                outcome += replay(replayers[name], selected, again=again)
    click.echo(f"{outcome.pop('', 0)} dead letters replayed", err=True)
    for reason, events in outcome.items():
        click.echo(f"{events} dead letters not replayed: {reason}", err=True)
    if outcome:
        raise SystemExit(1)


def _dead_letters(spec: AgentSpec, selection: DeadLetterFilter) -> Iterator[tuple[str, StoredDeadLetter]]:
    """Yield channel and dead letter for all dead letters of this configuration that are selected.

    At the end, numbers of dead letters of other configurations are printed to standard error. Raises FlafkaError.
    """
    from flafka.agent.runner.deadletters.reading import OwnedDeadLetters, read_dead_letters
    from flafka.agent.runner.deadletters.store import dead_letter_store

    foreign: Counter[tuple[str, str]] = Counter()
    with name_unreachable_brokers(spec):
        for channel in spec.channels:
            store = dead_letter_store(spec.name, channel, channel.make(), spec.options, spec.file)
            owned = OwnedDeadLetters(spec, channel, store, selection.kept_by)
            for dead_letter in filter(selection, read_dead_letters(store)):
                if dead_letter in owned:
                    yield channel.name, dead_letter
                elif selection.kept_by is None:
                    foreign[dead_letter.kept_by, dead_letter.component] += 1
    for (name, component), events in sorted(foreign.items()):
        text = f"{events:,} more dead letters of {component} belong to {name}, not to this configuration"
        click.echo(f"{text}: --kept-by {shlex.quote(name)} selects them", err=True)


def _as_json(channel: str, dead_letter: StoredDeadLetter) -> dict[str, object]:
    return {
        "channel": channel,
        "component": dead_letter.component,
        "id": str(dead_letter.id) if dead_letter.id is not None else None,
        "time": dead_letter.time,
        "reason": dead_letter.reason,
        "replayed": dead_letter.replayed,
        "kept_by": dead_letter.kept_by or None,
        "headers": dead_letter.event.headers,
        "body": base64.b64encode(dead_letter.event.body).decode(),
    }
