"""`agent top`: the figures of the page at `/`, on a terminal."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flafka.agent.cli.address import Address, NoAnswer, address_of
from flafka.agent.cli.configured import Chosen, configuration_options
from flafka.agent.cli.output import brief, json_option, short, span
from flafka.agent.config import chosen_agent
from flafka.agent.monitoring.definitions import BATCH

if TYPE_CHECKING:
    from rich.console import RenderableType

RATE = {
    "source": "EventAcceptedCount",
    "interceptor": "EventReceivedCount",
    "channel": "EventPutSuccessCount",
    "sink": "EventDrainSuccessCount",
}
"""By kind: the events that are counted as its own."""
COLUMNS = ("COMPONENT", "EV/S", "EVENTS", "LAG", "BEHIND", "BATCH", "DEAD", "STATE", "NEXT TRY")
UNKNOWN = "unknown"
NUMBERS = range(1, COLUMNS.index("STATE"))
"""The columns that are aligned to the right."""


@dataclass(frozen=True)
class ComponentRow:
    """One component now."""

    id: str
    kind: str
    name: str
    type: str
    state: str
    """ok, standby, degraded or failing."""
    reason: str
    rate: float | None
    """Events a second."""
    events: float | None
    lag: float | None
    """Undelivered events or records of a sink, None if not known. Events that a channel outside Kafka holds."""
    lag_unit: str
    """Unit of `lag`: `events`, or `records` of a Kafka channel whose records hold many events each."""
    lag_seconds: float | None
    """Seconds since the oldest of them came into the channel; None if not known."""
    batch_milliseconds: float | None
    """Duration of the latest batch."""
    dead_letters: float | None
    filtered: float | None
    """Events that an interceptor dropped."""
    dropped_datagrams: float | None
    retry_attempt: int | None
    retry_seconds: float | None


@click.command()
@partial(configuration_options, required=False)
@click.option("--url", metavar="URL", help="Address of the agent's metrics, instead of a configuration.")
@click.option(
    "--token", envvar="FLAFKA_TOKEN", help="The agent's monitoring.token. If unset, the one of the configuration."
)
@click.option(
    "--interval", type=click.FloatRange(0.1), default=2.0, show_default=True, help="Seconds between two looks."
)
@click.option(
    "--count",
    type=click.IntRange(1),
    help="Number of looks. If unset, one in a pipe and with --json, and on a terminal until Ctrl-C.",
)
@json_option
def top(
    chosen: Chosen | None, url: str | None, token: str | None, interval: float, count: int | None, as_json: bool
) -> None:
    """Show what a running agent does: each component's events a second, lag, retries and dead letters.

    LAG is what a sink has not delivered: events, or records of a Kafka channel, which hold many events each; of a
    channel that is not in Kafka, the events that it holds. BEHIND is the time since the oldest of them
    came. BATCH is how long the latest batch took: of a source until its channels held it,
    of a sink from the channel until it was durable. With --json and --count, each look is one line.
    """
    address = address_of(chosen, url, token)
    graph = address.ask("/api/graph")
    if chosen is not None:
        _refuse_another(chosen, address, graph)
    if not as_json and sys.stdout.isatty() and count is None:
        _live(address, graph, interval)
        return
    for number in range(count or 1):
        if number:
            time.sleep(interval)
        state = address.ask("/api/state")
        if as_json:
            click.echo(json.dumps(told(graph, state), indent=None if count else 2))
        else:
            click.echo("\n".join(lines(graph, state)) + "\n" * (number + 1 < (count or 1)))


def _refuse_another(chosen: Chosen, address: Address, graph: dict[str, Any]) -> None:
    """Raise ClickException where the agent that answers is not the one of the configuration."""
    name, file = chosen_agent(chosen.file, chosen.name, chosen.more), Path(graph["file"])
    if graph["agent"] == name and (not file.is_absolute() or file.resolve() == chosen.file.resolve()):
        return
    raise click.ClickException(
        f"at {address} answers agent {graph['agent']} of {file}, not agent {name} of {chosen.file.absolute()}: "
        f"two agents cannot have one monitoring.port. For the one that answers: agent top --url {address}"
    )


def rows(graph: dict[str, Any], state: dict[str, Any]) -> Iterator[ComponentRow]:
    """Yield the components in the order in which events pass them."""
    for node in sorted(graph["nodes"], key=lambda node: ("source", "channel", "sink").index(node["kind"])):
        own = [_row(one, state) for one in node["interceptors"]]
        if node["kind"] == "sink":
            yield from (*own, _row(node, state))
        else:
            yield from (_row(node, state), *own)


def _row(node: dict[str, Any], state: dict[str, Any]) -> ComponentRow:
    key, kind = node["metrics"], node["kind"]
    figures = {name: float(text) for name, text in state["figures"].get(key, {}).items() if _is_number(text)}
    kinds = [word for word in ("failing", "degraded", "standby") if key in state.get(word, {})]
    reason = state[kinds[0]][key] if kinds else ""
    lag, unit = figures.get("Lag"), node.get("lag_unit", "")
    if kind == "channel" and node["type"] != "kafka":
        lag, unit = figures.get("ChannelSize"), "events"
    again = figures.get("RetryTime")
    name = node["name"] if kind != "interceptor" else ".".join(node["id"].split(".")[-3::2])
    return ComponentRow(
        *(node["id"], kind, name, node["type"]),
        kinds[0] if kinds else "ok",
        reason,
        state["rates"].get(key, {}).get(RATE[kind]),
        figures.get(RATE[kind]),
        lag,
        unit,
        figures.get("LagSeconds"),
        figures.get(BATCH.name),
        figures.get("EventRejectedCount"),
        figures.get("EventFilteredCount") if kind == "interceptor" else None,
        figures.get("KernelDropCount"),
        int(figures["RetryAttempt"]) if again else None,
        max(0.0, again / 1000 - state["time"]) if again else None,
    )


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).replace("-", "", 1).isdecimal()


def told(graph: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    """One look as plain values for JSON."""
    about = {name: state[name] for name in ("agent", "state", "host", "pid", "version", "time", "started")}
    return {
        **about,
        "file": graph["file"],
        "components": [asdict(row) for row in rows(graph, state)],
        "problems": [{"component": one, "reason": reason} for one, reason in problems(state)],
    }


def head(state: dict[str, Any]) -> str:
    """`a1 is ok, up 3.5 h on host (process 12, version 0.2.0)`."""
    up = span(state["time"] - state["started"])
    return (
        f"{state['agent']} is {state['state']}, up {up} on {state['host']} "
        f"(process {state['pid']}, version {state['version']})"
    )


def problems(state: dict[str, Any]) -> list[tuple[str, str]]:
    """Components that fail or do less than they should, brokers that are away, and why."""
    found = [*state["failing"].items(), *state["degraded"].items()]
    for cluster in state["kafka"]:
        channel = f"CHANNEL.{cluster['channel']}"
        if cluster["error"]:
            found.append((channel, f"its brokers cannot be asked: {cluster['error']}"))
            continue
        away = [broker["address"] for broker in cluster["brokers"] if not broker["up"]]
        if away:
            found.append((channel, f"brokers that do not answer: {', '.join(away)}"))
        if cluster["under_replicated"] or cluster["leaderless"]:
            without = f", {cluster['leaderless']} without a leader" if cluster["leaderless"] else ""
            lacking = f"{cluster['under_replicated']} of {cluster['partitions']} partitions lack replicas{without}"
            found.append((channel, f"topic {cluster['topic']}: {lacking}"))
    return found


def cells(row: ComponentRow) -> tuple[str, ...]:
    """A row of the table."""
    state = row.state
    if row.filtered and row.state == "ok":
        state = f"{short(row.filtered)} dropped"
    if row.dropped_datagrams:
        state = f"{short(row.dropped_datagrams)} lost"
    again = f"#{row.retry_attempt + 1} {span(row.retry_seconds)}" if row.retry_attempt is not None else ""
    start = "  " if row.kind == "interceptor" else ""
    dead = short(row.dead_letters) if row.dead_letters else ""
    behind = ["", ""]
    if row.kind == "sink":
        unit = row.lag_unit.removesuffix("s") if row.lag == 1 else row.lag_unit
        behind = [UNKNOWN if row.lag is None else f"{short(row.lag)} {unit}".rstrip()]
        behind.append(span(row.lag_seconds) if row.lag_seconds is not None else UNKNOWN if row.lag != 0 else "0 s")
    elif row.lag is not None:
        behind = [f"{short(row.lag)} event{'s' * (row.lag != 1)}", ""]
    took = brief(row.batch_milliseconds) if row.batch_milliseconds is not None else ""
    return (f"{start}{row.name} {row.type}", short(row.rate), short(row.events), *behind, took, dead, state, again)


def lines(graph: dict[str, Any], state: dict[str, Any]) -> list[str]:
    """One look as lines of text, which are as long as they need to be."""
    table = [COLUMNS, *(cells(row) for row in rows(graph, state))]
    widths = [max(len(cells[column]) for cells in table) for column in range(len(COLUMNS))]
    texts = [
        "  ".join(
            cell.rjust(width) if column in NUMBERS else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(one, widths, strict=True))
        ).rstrip()
        for one in table
    ]
    return [head(state), *texts, *(f"{component}: {reason}" for component, reason in problems(state))]


# --- on a terminal


def _live(address: Address, graph: dict[str, Any], interval: float) -> None:
    from rich.console import Console
    from rich.live import Live

    state, trouble = address.ask("/api/state"), ""
    console = Console()
    try:
        with Live(
            drawn(graph, state, trouble, console.height), console=console, screen=True, auto_refresh=False
        ) as live:
            while True:
                live.update(drawn(graph, state, trouble, console.height), refresh=True)
                time.sleep(interval)
                try:
                    came = address.ask("/api/state")
                    if _configuration(came) != _configuration(state):
                        graph = address.ask("/api/graph")
                    state, trouble = came, ""
                except NoAnswer as e:
                    trouble = e.message
    except KeyboardInterrupt:
        pass


def _configuration(state: dict[str, Any]) -> tuple[Any, Any]:
    """Return what is another value after a restart or a reload, which may bring another graph."""
    return state["started"], state.get("configured")


def fitting(found: Sequence[ComponentRow], most: int) -> list[ComponentRow]:
    """The rows to show where there is room for so many: what is not well and what moves events first, in their
    order."""
    if len(found) <= most:
        return [*found]
    first = sorted(found, key=lambda row: (row.state == "ok", row.kind == "interceptor", -(row.rate or 0)))
    kept = {row.id for row in first[: max(most - 1, 1)]}
    return [row for row in found if row.id in kept]


def drawn(graph: dict[str, Any], state: dict[str, Any], trouble: str, height: int) -> RenderableType:
    """One look as a table as wide as the terminal, and at most so many lines high, but for long reasons."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    colours = {"ok": "green", "standby": "cyan", "degraded": "yellow", "failing": "red"}
    wrong = problems(state)
    every = list(rows(graph, state))
    shown = fitting(every, max(height - 5 - 2 * min(len(wrong), 5), 5))
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold", expand=True)
    for number, column in enumerate(COLUMNS):
        right = number in NUMBERS
        table.add_column(
            *(column,),
            justify="right" if right else "left",
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if number == 0 else None,
            min_width={"COMPONENT": 12, "STATE": 8, "NEXT TRY": 8}.get(column, len(column)),
        )
    for row in shown:
        named, *rest = cells(row)
        colour = colours[row.state]
        *numbers, health, again = rest
        table.add_row(Text(named), *map(Text, numbers), Text(health, style=colour), Text(again))
    left = len(every) - len(shown)
    parts: list[RenderableType] = [Text(head(state), style=f"bold {colours[state['state']]}")]
    if trouble:
        parts.append(Text(f"{trouble} What is shown is how it was.", style="bold red"))
    parts.append(table)
    if left:
        parts.append(Text(f"… {left} more, which fit on a higher terminal", style="dim"))
    parts += (Text.assemble((f"{component}: ", "bold"), reason) for component, reason in wrong[:5])
    if len(wrong) > 5:
        parts.append(Text(f"… {len(wrong) - 5} more problems", style="dim"))
    return Group(*parts)
