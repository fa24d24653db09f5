"""`agent size`: what a load takes, from costs of one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from flafka.agent.cli.output import json_option, show
from flafka.agent.sizing import COSTS, SINKS, SOURCES, Load, costs, needs

POSITIVE = click.FloatRange(min=0, min_open=True)


@click.command()
@click.option("--events", type=POSITIVE, required=True, help="Events a second.")
@click.option("--bytes", type=POSITIVE, required=True, help="Bytes of an event's body, on average.")
@click.option("--hosts", type=click.IntRange(1), default=1, show_default=True, help="Hosts that send at a time.")
@click.option("--source", type=click.Choice(SOURCES), default="syslog", show_default=True, help="How events come in.")
@click.option(
    "--masks", type=click.IntRange(0), default=1, show_default=True, help="Patterns of the interceptor mask."
)
@click.option("--sink", type=click.Choice(SINKS), default="hdfs-text", show_default=True, help="Where events go.")
@click.option(
    "--runner", type=click.Choice(["local", "spark"]), default="local", show_default=True, help="What delivers."
)
@click.option("--retention", type=POSITIVE, default=168, show_default=True, help="Hours that Kafka keeps events.")
@click.option("--replication", type=click.IntRange(1), default=3, show_default=True, help="Replicas in Kafka.")
@click.option(
    "--busy",
    type=click.FloatRange(1, 100),
    default=50,
    show_default=True,
    help="Per cent of their capacity to which machines are used; the rest is for peaks and for catching up.",
)
@click.option(
    "--roll",
    type=POSITIVE,
    default=300,
    show_default=True,
    help="Seconds from file to file, or trigger to trigger.",
)
@click.option(
    "--directories", type=click.IntRange(1), default=1, show_default=True, help="Directories written at a time."
)
@click.option(
    "--costs",
    "file",
    type=click.Path(path_type=Path),
    default=COSTS,
    help="Costs of a machine of your own.",
)
@json_option
def size(file: Path, as_json: bool, **load: Any) -> None:
    """Estimate what a load takes: cores, brokers, partitions, disk, files.

    It computes with costs of one machine. agent/sizing/costs.toml says of each whether ./dev bench has measured it or
    whether it is assumed; docs/performance.md has the formulas.
    """
    if load["runner"] == "spark" and not load["sink"].startswith("hdfs"):
        raise click.UsageError(f"the sink {load['sink']} has no measured cost on Spark: take --runner local")
    found = needs(Load(**{**load, "busy": load["busy"] / 100}), costs(file))
    rows = [(what, round(amount, 1), unit, because) for what, amount, unit, because in found]
    show(("need", "amount", "unit", "because"), rows, as_json=as_json)
