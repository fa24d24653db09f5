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

from flafka.agent.cli.configured import Chosen, configuration_options, load_or_exit
from flafka.agent.cli.output import json_option
from flafka.agent.monitoring.taps import find as find_point
from flafka.agent.monitoring.taps import points, reachable, receive, socket_file
from flafka.agent.topology import AgentSpec


@click.command()
@click.argument("component")
@configuration_options
@click.option("--grep", metavar="REGEX", help="Only events in whose body this regular expression (RE2) is found.")
@click.option("--limit", type=click.IntRange(1), help="Number of events to show. If unset, all until Ctrl-C.")
@click.option("--headers", is_flag=True, help="Show the headers as well.")
@json_option
def tap(component: str, chosen: Chosen, grep: str | None, limit: int | None, headers: bool, as_json: bool) -> None:
    """Show events of a running agent as they pass a component. Only its user may ask, on its host.

    \b
    agent tap s1      of a source, behind its interceptors: as channels get them.
    agent tap s1.i1   before and after an interceptor.
    agent tap c1      as they are put into a channel.
    agent tap k1      as a sink gets them: again where it failed; k1.i1 as above.

    The agent does not wait for it. Of a stream that is faster than what reads this, some are left out, and counted
    on standard error. With --json, an object a line; a body that is no UTF-8 is in body_base64.
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
    if isinstance(found := find_point(points(spec, {}), component), str):
        raise click.ClickException(found)
    file = socket_file(spec.name, spec.file)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent:
        try:
            with reachable(file) as address:
                agent.connect(address)
        except OSError as e:
            raise click.ClickException(
                f"no agent {spec.name} of {spec.file} answers at {file} ({e.strerror}): is it started, by this "
                "user and with this $XDG_STATE_HOME?"
            ) from e
        asked = {"component": found.path, "grep": grep}
        agent.sendall(json.dumps(asked).encode() + b"\n")
        try:
            answer, _ = receive(agent)
        except (EOFError, OSError) as e:
            raise click.ClickException("the agent takes no more readers, or not this user's") from e
        if "error" in answer:
            raise click.ClickException(answer["error"])
        click.echo(f"waiting for events at {found.path}; Ctrl-C ends this", err=True)
        yield agent


def _events(agent: socket.socket) -> Iterator[tuple[dict[str, Any], Any]]:
    """Each event with what is said of it, until the agent ends."""
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
    told = {"time": datetime.fromtimestamp(about["time"]).astimezone().isoformat(timespec="milliseconds")}
    told |= {name: about[name] for name in ("stage", "id") if about[name]}
    try:
        body = {"body": event.body.decode()}
    except UnicodeDecodeError:
        body = {"body_base64": base64.b64encode(event.body).decode()}
    return json.dumps({**told, "headers": event.headers, **body}, ensure_ascii=False)


def _lines(about: dict[str, Any], event: Any, *, headers: bool) -> Iterator[str]:
    stage = about["stage"]
    yield (f"{stage:7}" if stage else "") + _printable(event.body.decode(errors="backslashreplace"))
    if headers:
        for name, value in event.headers.items():
            yield _printable(f"    {name} = {value}")


def _printable(text: str) -> str:
    """Without what would move a terminal's cursor or change its colours."""
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text)
