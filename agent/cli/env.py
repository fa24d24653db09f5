"""`agent env`: addresses of the servers of `agent cluster` and `agent sandbox`."""

from __future__ import annotations

import shlex

import click

from flafka.agent.cli.output import show, show_json


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with every port.")
@click.option("--export", is_flag=True, help='Print lines for a shell: eval "$(agent env --export)".')
def env(as_json: bool, export: bool) -> None:
    """Show the addresses and directories of the servers of `agent cluster` and `agent sandbox`.

    FLAFKA_INSTANCE=1 to 9 selects another set of servers, with directories and ports of its own. A server that was
    never started has no address yet. --export sets the variables that conf/flafka.conf and conf/edge.conf refer to.
    """
    from flafka.agent.cli.sandbox import clusters
    from flafka.agent.services.cluster import data_directory

    if as_json and export:
        raise click.UsageError("--json and --export exclude each other")
    with clusters() as all_clusters:
        started = {name: cluster for name, cluster in all_clusters.items() if cluster.state()}
        if export:
            for cluster in started.values():
                for variable, value in cluster.variables().items():
                    click.echo(f"export {variable}={shlex.quote(value)}")
            return
        if as_json:
            servers = {
                name: {
                    "address": cluster.address if name in started else None,
                    "ports": cluster.ports if name in started else {},
                    "directory": str(cluster.directory),
                    "variables": dict(cluster.variables()) if name in started else {},
                }
                for name, cluster in all_clusters.items()
            }
            show_json({"directory": str(data_directory()), "servers": servers})
            return
        rows = [(n, c.address if n in started else None, c.directory) for n, c in all_clusters.items()]
    show(("service", "address", "directory"), rows, as_json=False)
