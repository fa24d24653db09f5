"""`agent tap`."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import click

from flafka.agent.cli.configuration import ChosenConfiguration, configuration_options, load_or_exit
from flafka.agent.cli.monitoring_client import MONITORING_RESPONSE_SECONDS
from flafka.agent.cli.output import json_option, printable
from flafka.agent.monitoring.taps import find_point, receive, socket_address, socket_file, tap_points
from flafka.agent.topology import AgentSpec


@click.command()
@click.argument("component")
@configuration_options
@click.option("--grep", metavar="REGEX", help="Only events whose body has a match of this regular expression (RE2).")
@click.option("--limit", type=click.IntRange(1), help="Number of events to show. If unset, all until Ctrl-C.")
@click.option("--headers", is_flag=True, help="Show the headers as well.")
@json_option
def tap(
    component: str, chosen: ChosenConfiguration, grep: str | None, limit: int | None, headers: bool, as_json: bool
) -> None:
    """Show events as they pass a component of a running agent, on its host and as its user.

    \b
    agent tap s1      events of a source, behind its interceptors.
    agent tap s1.i1   events before and after an interceptor.
    agent tap c1      events put into a channel.
    agent tap k1      events of a sink, after a failure once more; also k1.i1.

    The tap is best-effort: the agent never waits for it. Events beyond the speed of the reader are dropped from the
    output and counted on standard error. With --json, each event is an object on a line; a body that is not UTF-8 is
    in body_base64.
    """
    spec = load_or_exit(chosen)
    shown = 0
    with _tapped(spec, component, grep) as agent:
        try:
            for about, event in _events(agent):
                click.echo(_json(about, event) if as_json else "\n".join(_lines(about, event, headers=headers)))
                shown += 1
                if shown == limit:
                    return
        except KeyboardInterrupt:
            return
    raise click.ClickException("the agent has ended")


@contextmanager
def _tapped(spec: AgentSpec, component: str, grep: str | None) -> Iterator[socket.socket]:
    """Connect to the agent's tap of a component for the block, and yield the connection.

    Raises ClickException if no agent answers within 5 s, or if it refuses the component or the pattern.
    """
    point = find_point(tap_points(spec, {}), component)
    if isinstance(point, str):
        raise click.ClickException(point)
    file = socket_file(spec.name, spec.file)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent:
        agent.settimeout(MONITORING_RESPONSE_SECONDS)
        try:
            with socket_address(file) as address:
                agent.connect(address)
        except OSError as e:
            raise click.ClickException(
                f"no agent {spec.name} of {spec.file} answers at {file} ({e.strerror}): start it as this user "
                "and with this $XDG_STATE_HOME"
            ) from e
        request = {"component": point.path, "grep": grep}
        agent.sendall(json.dumps(request).encode() + b"\n")
        try:
            response, _ = receive(agent)
        except TimeoutError as e:
            raise click.ClickException(
                f"the agent does not answer within {MONITORING_RESPONSE_SECONDS:.0f} s: is its process stopped?"
            ) from e
        except (EOFError, OSError) as e:
            raise click.ClickException(
                "the agent refuses the connection: it has its maximum of readers, or runs as another user"
            ) from e
        if "error" in response:
            raise click.ClickException(response["error"])
        agent.settimeout(None)  # the next event may be hours away
        click.echo(f"waiting for events at {point.path}; Ctrl-C stops", err=True)
        yield agent


def _events(agent: socket.socket) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield attributes and event of each row, until the agent ends. Numbers of dropped events go to standard error.

    Raises ClickException for an error that the agent reports.
    """
    while True:
        try:
            about, batch = receive(agent)
        except (EOFError, ConnectionError):
            return
        if "error" in about:
            raise click.ClickException(about["error"])
        if count := about.get("left_out"):
            click.echo(f"… {count:,} more passed", err=True)
        ids = about.get("ids")
        for row, event in enumerate(batch or ()):
            yield {"time": about["time"], "stage": about.get("stage", ""), "id": ids[row] if ids else None}, event


def _json(about: dict[str, Any], event: Any) -> str:
    """Return an event as one line of JSON."""
    fields = {"time": datetime.fromtimestamp(about["time"]).astimezone().isoformat(timespec="milliseconds")}
    fields |= {name: about[name] for name in ("stage", "id") if about[name]}
    try:
        body = {"body": event.body.decode()}
    except UnicodeDecodeError:
        body = {"body_base64": base64.b64encode(event.body).decode()}
    return json.dumps({**fields, "headers": event.headers, **body}, ensure_ascii=False)


def _lines(about: dict[str, Any], event: Any, *, headers: bool) -> Iterator[str]:
    """Yield the lines for an event: its body, and with `headers` each header."""
    stage = about["stage"]
    yield (f"{stage:7}" if stage else "") + printable(event.body.decode(errors="backslashreplace"))
    if headers:
        for name, value in event.headers.items():
            yield printable(f"    {name} = {value}")
