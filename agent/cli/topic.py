"""`agent topic`: Kafka topics."""

from pathlib import Path

import click

from flafka.agent.cli.kafka_admin import confirm, connect, connection_options, partitions_of, refuse_errors
from flafka.agent.cli.output import Verbs, json_option, show, show_json


@click.group(cls=Verbs)
def topic() -> None:
    """List, create, describe and delete Kafka topics."""


@topic.command("list")
@connection_options
@click.option("--all", "with_internal", is_flag=True, help="Show Kafka's internal topics as well.")
@json_option
def list_topics(
    bootstrap_server: str | None, command_config: Path | None, with_internal: bool, as_json: bool
) -> None:
    """List topics with the number of their partitions and replicas."""
    with connect(bootstrap_server, command_config) as admin:
        found = sorted(admin.describe_topics(), key=lambda topic: str(topic["name"]))
    rows = [
        (topic["name"], len(topic["partitions"]), max(len(part["replica_nodes"]) for part in topic["partitions"]))
        for topic in found
        if with_internal or not topic["is_internal"]
    ]
    show(("topic", "partitions", "replicas"), rows, as_json=as_json)


@topic.command()
@click.argument("name")
@connection_options
@json_option
def describe(name: str, bootstrap_server: str | None, command_config: Path | None, as_json: bool) -> None:
    """Show a topic's partitions and offsets; its own settings follow on standard error."""
    from kafka import TopicPartition
    from kafka.admin import ConfigResource, OffsetSpec
    from kafka.errors import UnknownTopicOrPartitionError

    with connect(bootstrap_server, command_config) as admin:
        partitions = partitions_of(admin, name)
        led = [TopicPartition(name, number) for number, part in partitions.items() if part["leader_id"] >= 0]
        try:
            first = admin.list_partition_offsets(dict.fromkeys(led, OffsetSpec.EARLIEST))
            end = admin.list_partition_offsets(dict.fromkeys(led, OffsetSpec.LATEST))
        except UnknownTopicOrPartitionError:  # a broker may describe it for a moment after it was deleted
            raise click.ClickException(f"topic {name}: no such topic") from None
        settings = admin.describe_configs([ConfigResource("TOPIC", name)])["topic"][name]
    columns = ("partition", "leader", "replicas", "isr", "log_start_offset", "log_end_offset")
    rows = []
    for number, part in partitions.items():
        key = TopicPartition(name, number)
        leader, start_offset, end_offset = (
            (part["leader_id"], first[key].offset, end[key].offset) if key in first else (None, None, None)
        )
        replicas, isr = (",".join(map(str, part[nodes])) for nodes in ("replica_nodes", "isr_nodes"))
        rows.append((number, leader, replicas, isr, start_offset, end_offset))
    configs = {key: setting["value"] for key, setting in sorted(settings.items())}
    if as_json:
        found = [dict(zip(columns, row, strict=True)) for row in rows]
        show_json({"topic": name, "configs": configs, "partitions": found})
        return
    show(columns, rows, as_json=False)
    for key, value in configs.items():
        click.echo(f"{key}={value}", err=True)


@topic.command()
@click.argument("name")
@connection_options
@click.option("--partitions", type=click.IntRange(min=1), help="If unset, the cluster's default.")
@click.option("--replication-factor", type=click.IntRange(min=1), help="If unset, the cluster's default.")
@click.option(
    "--config", "configs", multiple=True, metavar="NAME=VALUE", help="Setting of the topic. May be repeated."
)
@click.option("--if-not-exists", is_flag=True, help="Succeed also if the topic exists already.")
def create(
    name: str,
    bootstrap_server: str | None,
    command_config: Path | None,
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
) -> None:
    """Create a topic, and return when every partition has a leader."""
    settings = dict(_setting(text) for text in configs)
    wanted = {"num_partitions": partitions or -1, "replication_factor": replication_factor or -1, "configs": settings}
    with connect(bootstrap_server, command_config) as admin:
        answer = admin.create_topics({name: wanted}, raise_errors=False)
        refuse_errors(answer["topics"], right="Create", ignore="TopicAlreadyExistsError" if if_not_exists else None)
        admin.wait_for_topics([name])


@topic.command()
@click.argument("name")
@connection_options
@click.option("--yes", is_flag=True, help="Do not ask.")
def delete(name: str, bootstrap_server: str | None, command_config: Path | None, yes: bool) -> None:
    """Delete a topic and everything in it."""
    with connect(bootstrap_server, command_config) as admin:
        partitions_of(admin, name)
        confirm(f"delete topic {name} and everything in it?", yes)
        refuse_errors(admin.delete_topics([name], raise_errors=False)["topics"], right="Delete")


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--config")
    return name, value
