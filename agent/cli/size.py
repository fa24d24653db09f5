"""`agent size`: estimate of the resources for a load, from measured costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from flafka.agent.cli.output import json_option, show
from flafka.agent.sizing import COSTS, SINKS, SOURCES, Load, read_costs, requirements

POSITIVE = click.FloatRange(min=0, min_open=True)


@click.command()
@click.option("--events", type=POSITIVE, required=True, help="Events per second.")
@click.option("--bytes", type=POSITIVE, required=True, help="Average size of an event's body, in bytes.")
@click.option(
    "--hosts",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of hosts that send at the same time.",
)
@click.option("--source", type=click.Choice(SOURCES), default="syslog", show_default=True, help="Type of the source.")
@click.option(
    "--masks",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="Number of patterns of the interceptor mask.",
)
@click.option("--sink", type=click.Choice(SINKS), default="hdfs-text", show_default=True, help="Type of the sink.")
@click.option(
    "--runner", type=click.Choice(["local", "spark"]), default="local", show_default=True, help="Runner of the sink."
)
@click.option("--retention", type=POSITIVE, default=168, show_default=True, help="Retention in Kafka, in hours.")
@click.option(
    "--replication", type=click.IntRange(1), default=3, show_default=True, help="Replication factor in Kafka."
)
@click.option(
    "--busy",
    type=click.FloatRange(1, 100),
    default=50,
    show_default=True,
    help="Average use of machines, in per cent of their capacity. The rest is for peaks and for catching up.",
)
@click.option(
    "--roll",
    type=POSITIVE,
    default=300,
    show_default=True,
    help="Interval between files, or between triggers of Spark, in seconds.",
)
@click.option(
    "--directories",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of directories written at the same time.",
)
@click.option(
    "--costs",
    "file",
    type=click.Path(path_type=Path),
    default=COSTS,
    help="File with the measured costs of your machine. If unset, the shipped costs.",
)
@json_option
def size(file: Path, as_json: bool, **load: Any) -> None:
    """Estimate the cores, brokers, partitions, disk and files that a load needs.

    The estimate uses the costs of one machine, in agent/sizing/costs.toml, each measured by ./dev bench or assumed.
    docs/performance.md has the formulas.
    """
    if load["runner"] == "spark" and not load["sink"].startswith("hdfs"):
        raise click.UsageError(f"the sink {load['sink']} has no measured cost on Spark: use --runner local")
    estimate = requirements(Load(**{**load, "busy": load["busy"] / 100}), read_costs(file))
    rows = [(need, round(amount, 1), unit, because) for need, amount, unit, because in estimate]
    show(("need", "amount", "unit", "because"), rows, as_json=as_json)
