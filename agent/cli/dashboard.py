"""`agent dashboard`: one page for a fleet of agents."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from concurrent.futures import wait
from functools import partial
from pathlib import Path

import click
import uvicorn

from flafka.agent.cli.configuration import ChosenConfiguration, configuration_options
from flafka.agent.cli.discovery import discover_clients
from flafka.agent.cli.fleet import Fleet
from flafka.agent.cli.monitoring_client import MonitoringClient, client_of_url
from flafka.agent.cli.output import json_option, show_json
from flafka.agent.monitoring.fleet import fleet_app
from flafka.agent.monitoring.server import open_listener


@click.command()
@partial(configuration_options, required=False)
@click.option(
    "--agents",
    metavar="FILE|HOST:PORT,…",
    help="Addresses of the agents' monitoring: a list with commas, or a file with one a line. With TLS, "
    "https://HOST:PORT. In a file, the name of a file with the agent's token may follow. If unset, the agents "
    "that read the Kafka channels of the configuration.",
)
@click.option(
    "--token",
    envvar="FLAFKA_TOKEN",
    default="",
    help="The monitoring.token of the agents without another one. If unset, the environment variable FLAFKA_TOKEN, "
    "or else the one of the configuration.",
)
@click.option(
    "--cacert",
    metavar="FILE",
    help="Certificates to trust, in PEM. If unset, with --agents the authorities of this host, and without it the "
    "certificate in the keystore of the configuration.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=14140,
    show_default=True,
    help="Port of the page, on the loopback address of this host; 0 is any free one.",
)
@click.option(
    "--interval", type=click.FloatRange(0.5), default=5.0, show_default=True, help="Interval of polls in seconds."
)
@json_option
def dashboard(
    chosen: ChosenConfiguration | None,
    agents: str | None,
    token: str,
    cacert: str | None,
    port: int,
    interval: float,
    as_json: bool,
) -> None:
    """Serve one page for several agents, until Ctrl-C: state, rates, lag, version and configuration of each.

    The agents need nothing but their monitoring, which this command polls. A name on the page leads to the agent's
    own page. With --json, print the state of all agents once.

    Without --agents, brokers are asked once, at the start, for the hosts of the consumer groups of a configuration's
    Kafka channels. On each host an agent with the monitoring.port of that configuration is expected. Agents with
    sources alone, with sinks on Spark, or not running, are in no group and not found: name them with --agents.
    """
    if (agents is None) == (chosen is None):
        raise click.UsageError("which agents? Name their addresses with --agents, or a configuration with -c FILE")
    clients = (
        discover_clients(chosen, token, cacert)
        if chosen is not None
        else [*dict.fromkeys(_clients(agents or "", token, cacert))]
    )
    if not clients:
        raise click.UsageError(f"--agents {agents}: there is no address in it")
    if cacert is not None and all(client.tls is None for client in clients):
        raise click.UsageError("--cacert has no effect: no address begins with https://")
    fleet = Fleet(clients, interval)
    try:
        if as_json:
            wait(fleet.poll())
            show_json(fleet.state())
        else:
            fleet.start()
            _serve(fleet, port)
    finally:
        fleet.stop()


def _serve(fleet: Fleet, port: int) -> None:
    """Serve the page until Ctrl-C. Raises ClickException if the port cannot be used."""
    try:
        listener = open_listener("127.0.0.1", port)
    except OSError as e:
        raise click.ClickException(f"port {port}: {e.strerror}; choose another one with --port") from e
    token = secrets.token_urlsafe(16)  # other users of this host must not see what the agents' tokens protect
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/?token={token}"
    click.echo(f"{len(fleet.agents)} agent{'s' * (len(fleet.agents) != 1)} at {url}\nCtrl-C stops")
    settings = uvicorn.Config(
        fleet_app(fleet.state, fleet.page_of, token),
        loop="asyncio",
        http="h11",
        ws="none",
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=1,
    )
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises the signal again after its shutdown
        uvicorn.Server(settings).run(sockets=[listener])


def _clients(agents: str, token: str, authority: str | None) -> Iterator[MonitoringClient]:
    """Yield the client of each address in a list or a file. Raises UsageError."""
    file = Path(agents)
    if not file.is_file():
        if "/" in agents and "://" not in agents:
            raise click.UsageError(f"--agents {agents}: there is no such file")
        for address in filter(None, agents.split(",")):
            yield _client("--agents", address.strip(), token, authority)
        return
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise click.UsageError(f"--agents {agents}: {getattr(e, 'strerror', None) or e}") from e
    for number, line in enumerate(lines, 1):
        words, place = line.partition("#")[0].split(), f"{agents}:{number}"
        if len(words) > 2:
            raise click.UsageError(f"{place}: expected an address, and perhaps a file with the token")
        if words:
            yield _client(f"{place}:", words[0], _token_in(words[1], place) if words[1:] else token, authority)


def _client(place: str, address: str, token: str, authority: str | None) -> MonitoringClient:
    try:
        return client_of_url(address, token, authority)
    except ValueError as e:
        raise click.UsageError(f"{place} {e}") from None


def _token_in(file: str, place: str) -> str:
    """Return the token in a file. Raises ClickException."""
    try:
        return Path(file).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as e:
        raise click.ClickException(f"{place}: {file}: {getattr(e, 'strerror', None) or e}") from e
