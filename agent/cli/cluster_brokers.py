"""`agent cluster describe` and `agent cluster elect-leaders`: the brokers of a cluster and what they lead."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import click

from flafka.agent.cli.kafka_admin import (
    MissingRight,
    connect,
    connection_options,
    raise_topic_errors,
    select_partitions,
    topics_option,
)
from flafka.agent.cli.output import json_option, show, show_json
from flafka.plugins.kafka.rights import Access, Role

CLUSTER = "the cluster"
TOPICS = "the topics of `agent cluster`"
DESCRIBE = Role("`agent cluster describe`", (Access("topic", TOPICS, ("Describe",)),))
ELECT = Role(
    "`agent cluster elect-leaders`",
    (Access("cluster", CLUSTER, ("Alter",)), Access("topic", TOPICS, ("Describe",))),
)


@click.command()
@connection_options
@json_option
def describe(bootstrap_server: str | None, command_config: Path | None, as_json: bool) -> None:
    """Show the brokers of a Kafka cluster with their racks, and the numbers of their replicas and leaders.

    \b
    agent cluster describe

    The first replica of a partition is its preferred leader. If a broker leads fewer partitions than it is preferred
    for, `agent cluster elect-leaders` helps. Topics that this user may not describe are not counted.
    """
    with connect(bootstrap_server, command_config, right="Describe") as admin:
        cluster = admin.describe_cluster()
        partitions = [part for topic in admin.describe_topics() for part in topic["partitions"]]
    leaders = Counter(part["leader_id"] for part in partitions)
    preferred = Counter(part["replica_nodes"][0] for part in partitions)
    replicas = Counter(node for part in partitions for node in part["replica_nodes"])
    columns = ("broker", "host", "port", "rack", "state", "leaders", "preferred", "replicas")
    rows = [
        (
            *(broker["broker_id"], broker["host"], broker["port"], broker["rack"]),
            "fenced" if broker.get("is_fenced") else "up",
            *(counted[broker["broker_id"]] for counted in (leaders, preferred, replicas)),
        )
        for broker in sorted(cluster["brokers"], key=lambda broker: int(broker["broker_id"]))
    ]
    if as_json:
        brokers = [dict(zip(columns, row, strict=True)) for row in rows]
        show_json({"cluster_id": cluster["cluster_id"], "brokers": brokers})
        return
    show(columns, rows, as_json=False)
    click.echo(f"cluster {cluster['cluster_id']}", err=True)


@click.command("elect-leaders")
@connection_options
@topics_option("Topic or partitions. May be repeated. If unset, all partitions of the cluster.")
@json_option
def elect_leaders(
    bootstrap_server: str | None, command_config: Path | None, topics: tuple[str, ...], as_json: bool
) -> None:
    """Make the preferred replica of each partition, the first one, its leader.

    \b
    agent cluster elect-leaders
    agent cluster elect-leaders --topic logs:0 --json

    Brokers do the same every five minutes, unless auto.leader.rebalance.enable is false. Partitions that have their
    preferred leader are not shown. Exit code: 1 if a preferred replica is not in sync, else 0.
    """
    from kafka.protocol.admin import ElectionType

    with connect(bootstrap_server, command_config, right="Alter") as admin:
        selected: dict[str, list[int]] | None = None
        if topics:
            selected = {}
            for key in select_partitions(admin, topics):
                selected.setdefault(key.topic, []).append(key.partition)
        response = admin.elect_leaders(ElectionType.PREFERRED, selected, raise_errors=False)
        results, led = _results(response)
        partitions = _partitions(admin, sorted({topic for topic, _ in results}))
    rows = []
    for key, result in sorted(results.items()):
        part = partitions.get(key, {"leader_id": -1, "replica_nodes": []})
        # The description of a broker may not show the election yet.
        leader = part["replica_nodes"][0] if result == ELECTED and part["replica_nodes"] else part["leader_id"]
        rows.append((*key, leader if leader >= 0 else None, result))
    show(("topic", "partition", "leader", "result"), rows, as_json=as_json)
    if led:
        click.echo(f"partitions with their preferred leader already: {led}", err=True)
    if any(result != ELECTED for result in results.values()):
        raise SystemExit(1)


ELECTED = "elected"


def _results(response: Any) -> tuple[dict[tuple[str, int], str], int]:
    """Return the result of each election by topic and partition, and the number of those that were not needed.

    Raises MissingRight, and KafkaError for another failure of the whole request.
    """
    from kafka.errors import ClusterAuthorizationFailedError, ElectionNotNeededError, for_code

    parts = [(topic.topic, part) for topic in response.replica_election_results for part in topic.partition_result]
    codes = {getattr(response, "error_code", 0), *(part.error_code for _, part in parts)}
    if ClusterAuthorizationFailedError.errno in codes:
        raise MissingRight("cluster", "", "Alter", ClusterAuthorizationFailedError.__name__)
    if getattr(response, "error_code", 0):
        raise for_code(response.error_code)
    results = {
        (topic, part.partition_id): (part.error_message or for_code(part.error_code).description)
        if part.error_code
        else ELECTED
        for topic, part in parts
        if part.error_code != ElectionNotNeededError.errno
    }
    return results, len(parts) - len(results)


def _partitions(admin: Any, topics: list[str]) -> dict[tuple[str, int], Any]:
    """Return the description of each partition of these topics; deleted topics have none."""
    described = admin.describe_topics(topics) if topics else []
    raise_topic_errors(described, ignore="UnknownTopicOrPartitionError")
    return {(topic["name"], part["partition_index"]): part for topic in described for part in topic["partitions"]}
