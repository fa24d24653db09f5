"""`agent cluster`: the project's own Kafka cluster."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flafka.agent.cli.output import Verbs, json_option, show, show_json

if TYPE_CHECKING:
    from flafka.agent.services.kafka import KafkaCluster, KafkaStatus

directory_option = click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the cluster. If unset, FLAFKA_CLUSTER_DIR, or else ~/.local/share/flafka/cluster.",
)


@click.group(cls=Verbs)
def cluster() -> None:
    """Run the project's own Kafka cluster: three brokers, on this machine or on three, replication 3."""


@cluster.command()
@directory_option
@click.option("--heap", type=click.IntRange(min=160), metavar="MB", help="Heap of each broker. If unset, 256.")
@click.option("--node", type=click.IntRange(1, 3), help="Number of this machine in --nodes. It is remembered.")
@click.option(
    "--nodes",
    metavar="HOST,HOST,HOST",
    help="The three hosts, each as host or host:port; the same list on all of them.",
)
@json_option
def start(directory: Path | None, heap: int | None, node: int | None, nodes: str | None, as_json: bool) -> None:
    """Start the brokers that are not running, and wait until all of them serve.

    With --node and --nodes, one broker runs on each of three hosts, and records survive the loss of a host. The first
    host to be started waits for a second one in the background. There is neither TLS nor authentication: keep the
    ports, 19092 and 19095 unless you name others, inside a network that you trust.
    """
    if (node is None) != (nodes is None):
        raise click.UsageError("--node and --nodes belong together")
    hosts = [host.strip() for host in (nodes or "").split(",") if host.strip()]
    with _cluster(directory, heap, node, hosts) as found:
        click.echo(f"starting Kafka in {found.directory} …", err=True)
        status = found.start().status()
        _show(status, as_json)
        if status.controller is None:
            click.echo("no controller yet: the brokers serve when a second host has been started", err=True)


@cluster.command()
@directory_option
def stop(directory: Path | None) -> None:
    """Stop the brokers. Topics and groups stay on disk."""
    with _cluster(directory) as found:
        if not found.state() and not any(found.server(name).pid for name in found.names()):
            raise click.ClickException(f"no cluster in {found.directory}")
        found.stop()


@cluster.command()
@directory_option
@json_option
def status(directory: Path | None, as_json: bool) -> None:
    """Show the brokers. Exit code 0: all are up and every partition is fully replicated; else 1."""
    with _cluster(directory) as found:
        seen = found.status()
    _show(seen, as_json)
    if not seen.up or seen.under_replicated:
        raise SystemExit(1)


@contextlib.contextmanager
def _cluster(
    directory: Path | None, heap: int | None = None, node: int | None = None, hosts: Sequence[str] = ()
) -> "Iterator[KafkaCluster]":
    """The cluster; what fails inside is reported without a traceback, with exit code 1."""
    from flafka.agent.services import ServiceError
    from flafka.agent.services.kafka import HEAP_MB, KafkaCluster

    try:
        where = directory or KafkaCluster.default().directory
        yield KafkaCluster(where, heap_mb=heap or HEAP_MB, node=node, hosts=hosts)
    except ServiceError as error:
        raise click.ClickException(str(error)) from None


def _show(status: "KafkaStatus", as_json: bool) -> None:
    if as_json:
        show_json(asdict(status))
        return
    columns = ("node", "state", "port", "pid", "rss_mb", "controller", "host")
    rows = [
        (b.node, b.state, b.port, b.pid, b.rss_mb, "yes" if b.node == status.controller else None, b.host)
        for b in status.brokers
    ]
    show(columns, rows, as_json=False)
    if status.stranger:
        click.echo(status.stranger, err=True)
    if status.under_replicated:
        click.echo(f"under-replicated: {', '.join(status.under_replicated)}", err=True)
