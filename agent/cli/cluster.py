"""`agent cluster`: the project's Kafka cluster, and what concerns the brokers of any Kafka cluster."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flafka.agent.cli.cluster_brokers import describe, elect_leaders
from flafka.agent.cli.cluster_quotas import quotas
from flafka.agent.cli.cluster_reassign import reassign
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
    """Run the project's Kafka cluster: three brokers, on one machine or on three, with replication factor 3.

    \b
    start, stop, status            the project's brokers
    describe, elect-leaders,       any Kafka cluster, by default the project's:
    reassign, quotas               --bootstrap-server names another
    """


for command in (describe, elect_leaders, reassign, quotas):
    cluster.add_command(command)


@cluster.command()
@directory_option
@click.option("--heap", type=click.IntRange(min=160), metavar="MB", help="Heap of each broker. If unset, 256.")
@click.option("--node", type=click.IntRange(1, 3), help="Number of this machine in --nodes; stored for later starts.")
@click.option(
    "--nodes",
    metavar="HOST,HOST,HOST",
    help="The three hosts, each as host or host:port; the same list on all of them.",
)
@click.option(
    "--racks",
    metavar="RACK,RACK,RACK",
    help="Racks of brokers 1 to 3, such as rooms or zones; stored for later starts. With --nodes, the same list on "
    "all hosts.",
)
@json_option
def start(
    directory: Path | None,
    heap: int | None,
    node: int | None,
    nodes: str | None,
    racks: str | None,
    as_json: bool,
) -> None:
    """Start the brokers that are not running, and wait until all of them serve.

    With --node and --nodes, one broker runs on each of three hosts, and records survive the loss of a host. The first
    broker waits in the background for a second one. There is neither TLS nor authentication: open the
    ports, by default 19092 and 19095, to a trusted network only.

    With --racks, replicas of new topics are in as many racks as possible, and a consumer with client.rack reads from
    a replica in its rack. A broker that runs gets its rack at its next start.
    """
    if (node is None) != (nodes is None):
        raise click.UsageError("--node and --nodes belong together")
    hosts = [host.strip() for host in (nodes or "").split(",") if host.strip()]
    in_racks = [rack.strip() for rack in racks.split(",")] if racks else []
    with _cluster(directory, heap, node, hosts, in_racks) as cluster:
        click.echo(f"starting Kafka in {cluster.directory} …", err=True)
        status = cluster.start().status()
        _show(status, as_json)
        if outdated := [str(b.node) for b in status.brokers if b.state == "up" and b.rack != cluster.rack(b.node)]:
            click.echo(f"brokers that get their rack at their next start: {', '.join(outdated)}", err=True)
        if status.controller is None:
            click.echo("no controller yet: start a second host", err=True)


@cluster.command()
@directory_option
def stop(directory: Path | None) -> None:
    """Stop the brokers. Topics and groups stay on disk."""
    with _cluster(directory) as cluster:
        if not cluster.state() and not any(cluster.server(name).pid for name in cluster.names()):
            raise click.ClickException(f"no cluster in {cluster.directory}")
        cluster.stop()


@cluster.command()
@directory_option
@json_option
def status(directory: Path | None, as_json: bool) -> None:
    """Show the brokers. Exit code: 0 if all are up and every partition is fully replicated, else 1."""
    with _cluster(directory) as cluster:
        current = cluster.status()
    _show(current, as_json)
    if not current.up or current.under_replicated:
        raise SystemExit(1)


@contextlib.contextmanager
def _cluster(
    directory: Path | None,
    heap: int | None = None,
    node: int | None = None,
    hosts: Sequence[str] = (),
    racks: Sequence[str] = (),
) -> "Iterator[KafkaCluster]":
    """Yield the cluster in `directory`, by default the user's. A ServiceError becomes a ClickException.

    `node` and `hosts` are for three hosts. `heap` is in MB; None is the default. Without `racks`, the stored ones.
    """
    from flafka.agent.services import ServiceError
    from flafka.agent.services.kafka import HEAP_MB, KafkaCluster

    try:
        directory = directory or KafkaCluster.default().directory
        yield KafkaCluster(directory, heap_mb=heap or HEAP_MB, node=node, hosts=hosts, racks=racks)
    except ServiceError as error:
        raise click.ClickException(str(error)) from None


def _show(status: "KafkaStatus", as_json: bool) -> None:
    if as_json:
        show_json(asdict(status))
        return
    columns = ("node", "state", "port", "pid", "rss_mb", "controller", "host", "rack")
    rows = [
        (b.node, b.state, b.port, b.pid, b.rss_mb, "yes" if b.node == status.controller else None, b.host, b.rack)
        for b in status.brokers
    ]
    show(columns, rows, as_json=False)
    if status.foreign_listener:
        click.echo(status.foreign_listener, err=True)
    if status.under_replicated:
        click.echo(f"under-replicated: {', '.join(status.under_replicated)}", err=True)
