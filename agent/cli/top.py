"""`agent top`: rates, lag and states of components on a terminal, as on the page at `/`."""

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

from flafka.agent.cli.configuration import ChosenConfiguration, configuration_options
from flafka.agent.cli.monitoring_client import AgentUnreachable, MonitoringClient, client_of
from flafka.agent.cli.output import format_milliseconds, format_number, format_seconds, json_option
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
"""Kind → counter of its events."""
COLUMNS = ("COMPONENT", "EV/S", "EVENTS", "LAG", "BEHIND", "BATCH", "DEAD", "STATE", "NEXT TRY")
UNKNOWN = "unknown"
NUMERIC_COLUMNS = range(1, COLUMNS.index("STATE"))
"""Indexes of the columns that are aligned to the right."""


@dataclass(frozen=True)
class ComponentRow:
    """Current values of one component."""

    id: str
    kind: str
    name: str
    type: str
    state: str
    """ok, standby, degraded or failing."""
    reason: str
    rate: float | None
    """Events per second."""
    events: float | None
    lag: float | None
    """Undelivered events or records of a sink, or events in a channel outside Kafka; None if unknown."""
    lag_unit: str
    """Unit of `lag`: `events`, or `records` of a Kafka channel whose records hold many events each."""
    lag_seconds: float | None
    """Time since the oldest of them was put into the channel; None if unknown."""
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
@click.option("--url", metavar="URL", help="Address of the agent's monitoring, instead of a configuration.")
@click.option(
    "--token",
    envvar="FLAFKA_TOKEN",
    help="The agent's monitoring.token. If unset, the environment variable FLAFKA_TOKEN, or else the one of the "
    "configuration.",
)
@click.option(
    "--cacert",
    metavar="FILE",
    type=click.Path(),
    help="Certificates to trust, in PEM. If unset, the one in the agent's keystore; with --url, those of this host.",
)
@click.option(
    "--interval", type=click.FloatRange(0.1), default=2.0, show_default=True, help="Interval of updates in seconds."
)
@click.option(
    "--count",
    type=click.IntRange(1),
    help="Number of updates. If unset, one in a pipe and with --json, and on a terminal until Ctrl-C.",
)
@json_option
def top(
    chosen: ChosenConfiguration | None,
    url: str | None,
    token: str | None,
    cacert: str | None,
    interval: float,
    count: int | None,
    as_json: bool,
) -> None:
    """Show the event rate, lag, retries and dead letters of each component of a running agent.

    LAG counts the undelivered events of a sink, or records of a Kafka channel with many events in each. For a channel
    outside Kafka, it counts the stored events. BEHIND is the age of the oldest of them. BATCH is the duration of the
    latest batch: of a source, until its channels have stored it; of a sink, until it is durable. With --json and
    --count, each update is one line.
    """
    client = client_of(chosen, url, token, cacert)
    graph = client.get("/api/graph")
    if chosen is not None:
        _refuse_another(chosen, client, graph)
    if not as_json and sys.stdout.isatty() and count is None:
        _live(client, graph, interval)
        return
    for number in range(count or 1):
        if number:
            time.sleep(interval)
        state = client.get("/api/state")
        if as_json:
            click.echo(json.dumps(as_json_values(graph, state), indent=None if count else 2))
        else:
            click.echo("\n".join(lines(graph, state)) + "\n" * (number + 1 < (count or 1)))


def _refuse_another(chosen: ChosenConfiguration, client: MonitoringClient, graph: dict[str, Any]) -> None:
    """Raise ClickException if the agent that answers has another name or file than the configuration."""
    name, file = chosen_agent(chosen.file, chosen.name, chosen.more), Path(graph["file"])
    if graph["agent"] == name and (not file.is_absolute() or file.resolve() == chosen.file.resolve()):
        return
    raise click.ClickException(
        f"at {client} answers agent {graph['agent']} of {file}, not agent {name} of {chosen.file.absolute()}: "
        f"set another monitoring.port for one of them. For the agent that answers: agent top --url {client}"
    )


def rows(graph: dict[str, Any], state: dict[str, Any]) -> Iterator[ComponentRow]:
    """Yield the rows of all components: sources, channels, sinks. Interceptors follow a source, and precede a sink.

    `graph` and `state` are the JSON of `/api/graph` and `/api/state`.
    """
    for node in sorted(graph["nodes"], key=lambda node: ("source", "channel", "sink").index(node["kind"])):
        interceptors = [_row(interceptor, state) for interceptor in node["interceptors"]]
        if node["kind"] == "sink":
            yield from (*interceptors, _row(node, state))
        else:
            yield from (_row(node, state), *interceptors)


def _row(node: dict[str, Any], state: dict[str, Any]) -> ComponentRow:
    """Return the row of one component from its node of the graph and the present state."""
    key, kind = node["metrics"], node["kind"]
    figures = {name: float(text) for name, text in state["figures"].get(key, {}).items() if _is_number(text)}
    kinds = [word for word in ("failing", "degraded", "standby") if key in state.get(word, {})]
    reason = state[kinds[0]][key] if kinds else ""
    lag, unit = figures.get("Lag"), node.get("lag_unit", "")
    if kind == "channel" and node["type"] != "kafka":
        lag, unit = figures.get("ChannelSize"), "events"
    retry_time = figures.get("RetryTime")
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
        int(figures["RetryAttempt"]) if retry_time else None,
        max(0.0, retry_time / 1000 - state["time"]) if retry_time else None,
    )


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).replace("-", "", 1).isdecimal()


def as_json_values(graph: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    """Return an update as JSON values: the agent, a row for each component, and the problems."""
    about = {name: state[name] for name in ("agent", "state", "host", "pid", "version", "time", "started")}
    return {
        **about,
        "file": graph["file"],
        "components": [asdict(row) for row in rows(graph, state)],
        "problems": [{"component": component, "reason": reason} for component, reason in problems(state)],
    }


def headline(state: dict[str, Any]) -> str:
    """Return `a1 is ok, up 3.5 h on host (process 12, version 0.3.0)` for a state."""
    up = format_seconds(state["time"] - state["started"])
    return (
        f"{state['agent']} is {state['state']}, up {up} on {state['host']} "
        f"(process {state['pid']}, version {state['version']})"
    )


def problems(state: dict[str, Any]) -> list[tuple[str, str]]:
    """Return component and reason for failing and degraded components, and for brokers or topics with problems."""
    entries = [*state["failing"].items(), *state["degraded"].items()]
    for cluster in state["kafka"]:
        channel = f"CHANNEL.{cluster['channel']}"
        if cluster["error"]:
            entries.append((channel, f"no answer of its brokers: {cluster['error']}"))
            continue
        unreachable = [broker["address"] for broker in cluster["brokers"] if not broker["up"]]
        if unreachable:
            entries.append((channel, f"brokers that do not answer: {', '.join(unreachable)}"))
        if cluster["under_replicated"] or cluster["leaderless"]:
            without = f", {cluster['leaderless']} without a leader" if cluster["leaderless"] else ""
            lacking = f"{cluster['under_replicated']} of {cluster['partitions']} partitions lack replicas{without}"
            entries.append((channel, f"topic {cluster['topic']}: {lacking}"))
    return entries


def cells(row: ComponentRow) -> tuple[str, ...]:
    """Return the texts of a row of the table, in the order of `COLUMNS`."""
    state = row.state
    if row.filtered and row.state == "ok":
        state = f"{format_number(row.filtered)} dropped"
    if row.dropped_datagrams:
        state = f"{format_number(row.dropped_datagrams)} lost"
    retry = f"#{row.retry_attempt + 1} {format_seconds(row.retry_seconds)}" if row.retry_attempt is not None else ""
    indent = "  " if row.kind == "interceptor" else ""
    dead = format_number(row.dead_letters) if row.dead_letters else ""
    behind = ["", ""]
    if row.kind == "sink":
        unit = row.lag_unit.removesuffix("s") if row.lag == 1 else row.lag_unit
        behind = [UNKNOWN if row.lag is None else f"{format_number(row.lag)} {unit}".rstrip()]
        behind.append(
            format_seconds(row.lag_seconds) if row.lag_seconds is not None else UNKNOWN if row.lag != 0 else "0 s"
        )
    elif row.lag is not None:
        behind = [f"{format_number(row.lag)} event{'s' * (row.lag != 1)}", ""]
    batch = format_milliseconds(row.batch_milliseconds) if row.batch_milliseconds is not None else ""
    return (
        f"{indent}{row.name} {row.type}",
        format_number(row.rate),
        format_number(row.events),
        *behind,
        batch,
        dead,
        state,
        retry,
    )


def lines(graph: dict[str, Any], state: dict[str, Any]) -> list[str]:
    """Return an update as lines of text of any length: headline, table, problems."""
    table = [COLUMNS, *(cells(row) for row in rows(graph, state))]
    widths = [max(len(cells[column]) for cells in table) for column in range(len(COLUMNS))]
    texts = [
        "  ".join(
            cell.rjust(width) if column in NUMERIC_COLUMNS else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row_cells, widths, strict=True))
        ).rstrip()
        for row_cells in table
    ]
    return [headline(state), *texts, *(f"{component}: {reason}" for component, reason in problems(state))]


# --- on a terminal


def _live(client: MonitoringClient, graph: dict[str, Any], interval: float) -> None:
    """Update the terminal every `interval` seconds until Ctrl-C. If the agent stops answering, old values stay."""
    from rich.console import Console
    from rich.live import Live

    state, error = client.get("/api/state"), ""
    console = Console()
    try:
        with Live(
            draw(graph, state, error, console.height), console=console, screen=True, auto_refresh=False
        ) as live:
            while True:
                live.update(draw(graph, state, error, console.height), refresh=True)
                time.sleep(interval)
                try:
                    new_state = client.get("/api/state")
                    if _configuration_id(new_state) != _configuration_id(state):
                        graph = client.get("/api/graph")
                    state, error = new_state, ""
                except AgentUnreachable as e:
                    error = e.message
    except KeyboardInterrupt:
        pass


def _configuration_id(state: dict[str, Any]) -> tuple[Any, Any]:
    """Return a value that changes with a restart or a reload, after which the graph may differ."""
    return state["started"], state.get("configured")


def select_rows(rows: Sequence[ComponentRow], limit: int) -> list[ComponentRow]:
    """Return at most `limit` rows in their order, and always at least one.

    Rows that are not ok are preferred, then sources, channels and sinks to interceptors, then high rates.
    """
    if len(rows) <= limit:
        return [*rows]
    by_importance = sorted(rows, key=lambda row: (row.state == "ok", row.kind == "interceptor", -(row.rate or 0)))
    selected = {row.id for row in by_importance[: max(limit - 1, 1)]}
    return [row for row in rows if row.id in selected]


def draw(graph: dict[str, Any], state: dict[str, Any], error: str, height: int) -> RenderableType:
    """Return an update as a table of the terminal's width and about `height` lines; long reasons may exceed it.

    `error` is the reason why the agent does not answer any more; empty if it answers.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    colours = {"ok": "green", "standby": "cyan", "degraded": "yellow", "failing": "red"}
    all_problems = problems(state)
    all_rows = list(rows(graph, state))
    shown = select_rows(all_rows, max(height - 5 - 2 * min(len(all_problems), 5), 5))
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold", expand=True)
    for number, column in enumerate(COLUMNS):
        right = number in NUMERIC_COLUMNS
        table.add_column(
            *(column,),
            justify="right" if right else "left",
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if number == 0 else None,
            min_width={"COMPONENT": 12, "STATE": 8, "NEXT TRY": 8}.get(column, len(column)),
        )
    for row in shown:
        name, *numbers, health, retry = cells(row)
        colour = colours[row.state]
        table.add_row(Text(name), *map(Text, numbers), Text(health, style=colour), Text(retry))
    hidden = len(all_rows) - len(shown)
    parts: list[RenderableType] = [Text(headline(state), style=f"bold {colours[state['state']]}")]
    if error:
        parts.append(Text(f"{error} The values are the last that it sent.", style="bold red"))
    parts.append(table)
    if hidden:
        parts.append(Text(f"… {hidden} more on a higher terminal", style="dim"))
    parts += (Text.assemble((f"{component}: ", "bold"), reason) for component, reason in all_problems[:5])
    if len(all_problems) > 5:
        parts.append(Text(f"… {len(all_problems) - 5} more problems", style="dim"))
    return Group(*parts)
