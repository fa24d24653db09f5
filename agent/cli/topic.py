"""`agent topic`: Kafka topics."""

from pathlib import Path

import click

from flafka.agent.cli.kafka_admin import (
    confirm,
    connect,
    connection_options,
    partitions_of,
    raise_if_denied,
    raise_topic_errors,
)
from flafka.agent.cli.output import Verbs, json_option, show, show_json
from flafka.agent.cli.topic_consume import consume
from flafka.agent.cli.topic_produce import produce
from flafka.plugins.kafka.rights import Access, Role

_RESOURCE = "the topics of `agent topic`"
DESCRIBE = Role(
    "`agent topic list`, `agent topic describe`",
    (Access("topic", _RESOURCE, ("Describe",), (("DescribeConfigs", "settings are not shown"),)),),
)
CREATE = Role("`agent topic create`", (Access("topic", _RESOURCE, ("Create", "Describe")),))
DELETE = Role("`agent topic delete`", (Access("topic", _RESOURCE, ("Delete",)),))


@click.group(cls=Verbs)
def topic() -> None:
    """List, create, describe and delete Kafka topics, produce to them and consume from them."""


topic.add_command(consume)
topic.add_command(produce)


@topic.command("list")
@connection_options
@click.option("--all", "with_internal", is_flag=True, help="Show Kafka's internal topics as well.")
@json_option
def list_topics(
    bootstrap_server: str | None, command_config: Path | None, with_internal: bool, as_json: bool
) -> None:
    """List topics with the number of their partitions and replicas."""
    with connect(bootstrap_server, command_config) as admin:
        topics = sorted(admin.describe_topics(), key=lambda topic: str(topic["name"]))
    rows = [
        (topic["name"], len(topic["partitions"]), max(len(part["replica_nodes"]) for part in topic["partitions"]))
        for topic in topics
        if with_internal or not topic["is_internal"]
    ]
    show(("topic", "partitions", "replicas"), rows, as_json=as_json)


@topic.command()
@click.argument("name")
@connection_options
@json_option
def describe(name: str, bootstrap_server: str | None, command_config: Path | None, as_json: bool) -> None:
    """Show the partitions and offsets of a topic, and on standard error its settings."""
    from kafka import TopicPartition
    from kafka.admin import ConfigResource, OffsetSpec
    from kafka.errors import UnknownTopicOrPartitionError

    with connect(bootstrap_server, command_config, topic=name, right="Describe") as admin:
        partitions = partitions_of(admin, name)
        with_leader = [TopicPartition(name, number) for number, part in partitions.items() if part["leader_id"] >= 0]
        try:
            first = admin.list_partition_offsets(dict.fromkeys(with_leader, OffsetSpec.EARLIEST))
            end = admin.list_partition_offsets(dict.fromkeys(with_leader, OffsetSpec.LATEST))
        except UnknownTopicOrPartitionError:  # a broker may describe a topic for a moment after its deletion
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
        partition_rows = [dict(zip(columns, row, strict=True)) for row in rows]
        show_json({"topic": name, "configs": configs, "partitions": partition_rows})
        return
    show(columns, rows, as_json=False)
    for key, value in configs.items():
        click.echo(f"{key}={value}", err=True)


@topic.command()
@click.argument("name")
@connection_options
@click.option(
    "--partitions", type=click.IntRange(min=1), help="Number of partitions. If unset, the cluster's default."
)
@click.option(
    "--replication-factor", type=click.IntRange(min=1), help="Number of replicas. If unset, the cluster's default."
)
@click.option(
    "--config", "configs", multiple=True, metavar="NAME=VALUE", help="Setting of the topic. May be repeated."
)
@click.option("--if-not-exists", is_flag=True, help="Succeed if the topic exists.")
def create(
    name: str,
    bootstrap_server: str | None,
    command_config: Path | None,
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
) -> None:
    """Create a topic, and wait until each partition has a leader."""
    settings = dict(_setting(text) for text in configs)
    wanted = {"num_partitions": partitions or -1, "replication_factor": replication_factor or -1, "configs": settings}
    with connect(bootstrap_server, command_config, topic=name, right="Create") as admin:
        response = admin.create_topics({name: wanted}, raise_errors=False)
        raise_topic_errors(
            response["topics"], right="Create", ignore="TopicAlreadyExistsError" if if_not_exists else None
        )
        for described in admin.describe_topics([name]):
            raise_if_denied(described, "Describe")
        admin.wait_for_topics([name])


@topic.command()
@click.argument("name")
@connection_options
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def delete(name: str, bootstrap_server: str | None, command_config: Path | None, yes: bool) -> None:
    """Delete a topic and all its records."""
    with connect(bootstrap_server, command_config, topic=name, right="Delete") as admin:
        partitions_of(admin, name, right="Delete")
        confirm(f"delete topic {name} and all its records?", yes)
        raise_topic_errors(admin.delete_topics([name], raise_errors=False)["topics"], right="Delete")


def _setting(text: str) -> tuple[str, str]:
    """Return name and value of a text NAME=VALUE. Raises BadParameter."""
    name, equals, value = text.partition("=")
    if not equals:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--config")
    return name, value
