"""`agent cluster`: the project's own Kafka cluster."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agent.cli.output import json_option, show

if TYPE_CHECKING:
    from agent.services.kafka import KafkaCluster, KafkaStatus

directory_option = click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="The cluster's directory; default: FLAFKA_CLUSTER_DIR, else ~/.local/share/flafka/cluster.",
)


@click.group()
def cluster() -> None:
    """Run the project's own Kafka cluster: three brokers on this machine, replication 3."""


@cluster.command()
@directory_option
@click.option("--heap", type=click.IntRange(min=160), metavar="MB", help="Heap of each broker; default 256.")
@json_option
def start(directory: Path | None, heap: int | None, as_json: bool) -> None:
    """Start the brokers that do not run, and wait until all of them serve."""
    with _cluster(directory, heap) as found:
        click.echo(f"starting Kafka in {found.directory} …", err=True)
        _show(found.start().status(), as_json)


@cluster.command()
@directory_option
def stop(directory: Path | None) -> None:
    """Stop the brokers. Topics and groups stay on disk."""
    with _cluster(directory) as found:
        if not found.state():
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
def _cluster(directory: Path | None, heap: int | None = None) -> "Iterator[KafkaCluster]":
    """The cluster; what fails inside is reported without a traceback, with exit code 1."""
    from agent.services import ServiceError
    from agent.services.kafka import HEAP_MB, KafkaCluster

    try:
        yield KafkaCluster(directory or KafkaCluster.default().directory, heap_mb=heap or HEAP_MB)
    except ServiceError as error:
        raise click.ClickException(str(error)) from None


def _show(status: "KafkaStatus", as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(asdict(status), indent=2))
        return
    columns = ("node", "state", "port", "pid", "rss_mb", "controller")
    show(
        columns,
        [
            (
                broker.node,
                broker.state,
                broker.port,
                broker.pid,
                broker.rss_mb,
                "yes" if broker.node == status.controller else None,
            )
            for broker in status.brokers
        ],
        as_json=False,
    )
    if status.under_replicated:
        click.echo(f"under-replicated: {', '.join(status.under_replicated)}", err=True)
