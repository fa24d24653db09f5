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
from flafka.agent.cli.monitoring_client import AgentUnreachable, MonitoringClient, client_of, problems_of
from flafka.agent.cli.output import json_option
from flafka.agent.config import chosen_agent
from flafka.agent.monitoring.definitions import BATCH
from flafka.agent.units import format_count, format_milliseconds, format_number, format_seconds, format_time

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
SHOWN_PAST = 3
"""Number of ended problems below the others."""
MAX_PROBLEMS = 3
"""Number of problems on a terminal; in a pipe all are shown."""
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
    """Undelivered events or records of a sink; None if unknown, and for other components."""
    lag_unit: str
    """Unit of `lag`: `events`, or `records` of a Kafka channel whose records hold many events each."""
    lag_seconds: float | None
    """Time since the oldest of them was put into the channel; None if unknown."""
    held: float | None
    """Events in a channel outside Kafka; None for other components."""
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

    LAG counts the undelivered events of a sink, or records of a Kafka channel with many events in each. BEHIND is the
    age of the oldest of them. BATCH is the duration of the latest batch: of a source, until its channels have stored
    it; of a sink, until it is durable. Problems follow, the gravest first. With --json and --count, each update is
    one line.
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
    own = [problem for problem in problems_of(state) if problem["metrics"] == key]
    reasons = {problem["severity"]: problem["error"] or problem["title"] for problem in reversed(own)}
    if key in state["standby"]:
        reasons["standby"] = state["standby"][key]
    health = next((word for word in ("failing", "degraded", "standby") if word in reasons), "ok")
    is_outside_kafka = kind == "channel" and node["type"] != "kafka"
    retry_time = figures.get("RetryTime")
    name = node["name"] if kind != "interceptor" else ".".join(node["id"].split(".")[-3::2])
    return ComponentRow(
        *(node["id"], kind, name, node["type"]),
        health,
        reasons.get(health, ""),
        state["rates"].get(key, {}).get(RATE[kind]),
        figures.get(RATE[kind]),
        figures.get("Lag"),
        node.get("lag_unit", ""),
        figures.get("LagSeconds"),
        figures.get("ChannelSize") if is_outside_kafka else None,
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
    """Return an update as JSON values: the agent, a row for each component, and the problems as in `/healthz`."""
    about = {name: state[name] for name in ("agent", "state", "host", "pid", "version", "time", "started")}
    return {
        **about,
        "file": graph["file"],
        "components": [asdict(row) for row in rows(graph, state)],
        "problems": problems_of(state),
        "past": state.get("past", []),
    }


def headline(state: dict[str, Any]) -> str:
    """Return `a1 is ok, up 3.5 h on host (process 12, version 0.3.0)` for a state."""
    up = format_seconds(state["time"] - state["started"])
    return (
        f"{state['agent']} is {state['state']}, up {up} on {state['host']} "
        f"(process {state['pid']}, version {state['version']})"
    )


def problem_lines(problem: dict[str, Any]) -> tuple[str, list[str]]:
    """Return component and severity of a problem as a heading, and the lines below it."""
    heading = f"{problem['component']}: {problem['severity']}"
    if problem["since"]:  # unknown for an agent of release 0.3.0
        heading += f", since {format_time(problem['since'])}"
    if problem["attempts"]:
        heading += f", {format_count(problem['attempts'], 'attempts')}"
    texts = [f"{problem['title']} {problem['effect']} {problem['trend']}"]
    command, error = problem["command"], problem["error"]
    texts.append(f"Error: {error.removesuffix(command).rstrip(' :;,') if command else error}" if error else "")
    texts.append(f"Lost: {problem['loss']}" if problem["loss"] else "")
    texts.append(f"Deadline: {problem['deadline']}" if problem["deadline"] else "")
    texts.append(f"Because of {problem['cause']}." if problem["cause"] else "")
    if not problem["cause"]:
        steps = (("Do", problem["action"]), ("Run", command), ("See", problem["docs"]))
        texts += (f"{word}: {text}" for word, text in steps if text)
    below = [" ".join(text.split()) for text in texts if text]
    return heading, below


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
    if row.held and row.state == "ok":
        state = f"holds {format_number(row.held)}"
    behind = ["", ""]
    if row.kind == "sink":
        behind = [UNKNOWN if row.lag is None else format_count(row.lag, row.lag_unit or "events")]
        behind.append(
            format_seconds(row.lag_seconds) if row.lag_seconds is not None else UNKNOWN if row.lag != 0 else "0 s"
        )
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


def past_lines(state: dict[str, Any]) -> list[str]:
    """Return a line for each of the latest ended problems; none for an agent of release 0.3.0."""
    return [
        f"{past['component']}: over since {format_time(past['until'])}, after "
        f"{format_seconds(past['until'] - past['since'])}: {past['title']}"
        for past in state.get("past", [])[:SHOWN_PAST]
    ]


def lines(graph: dict[str, Any], state: dict[str, Any]) -> list[str]:
    """Return an update as lines of text of any length: headline, table, problems, the gravest first."""
    table = [COLUMNS, *(cells(row) for row in rows(graph, state))]
    widths = [max(len(cells[column]) for cells in table) for column in range(len(COLUMNS))]
    texts = [
        "  ".join(
            cell.rjust(width) if column in NUMERIC_COLUMNS else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row_cells, widths, strict=True))
        ).rstrip()
        for row_cells in table
    ]
    for problem in problems_of(state):
        heading, below = problem_lines(problem)
        texts += [heading, *(f"  {text}" for text in below)]
    return [headline(state), *texts, *past_lines(state)]


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
    """Return an update as problems and a table, of the terminal's width and about `height` lines.

    Long texts exceed the height.

    `error` is the reason why the agent does not answer any more; empty if it answers.
    """
    from rich.console import Group
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    colours = {"ok": "green", "standby": "cyan", "degraded": "yellow", "failing": "red"}
    colours |= {"warning": "yellow"}
    all_problems = problems_of(state)
    all_rows = list(rows(graph, state))
    shown = select_rows(all_rows, max(height - 4 - 6 * min(len(all_problems), MAX_PROBLEMS), 5))
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
        loss = f" Lost if it has ended: {state['loss_at_end']}" if "loss_at_end" in state else ""
        parts.append(Text(f"{error} The values are those of {format_time(state['time'])}.{loss}", style="bold red"))
    for problem in all_problems[:MAX_PROBLEMS]:
        heading, below = problem_lines(problem)
        parts.append(Text(heading, style=f"bold {colours[problem['severity']]}"))
        parts += (Padding(Text(text), (0, 0, 0, 2)) for text in below)
    if len(all_problems) > MAX_PROBLEMS:
        parts.append(Text(f"… {len(all_problems) - MAX_PROBLEMS} more problems", style="dim"))
    parts += (Text(text, style="dim") for text in past_lines(state))
    parts.append(table)
    if hidden:
        parts.append(Text(f"… {hidden} more on a higher terminal", style="dim"))
    return Group(*parts)
