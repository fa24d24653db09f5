"""`agent cluster reassign`: moves of replicas to other brokers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flafka.agent.cli import replication_throttle as throttles
from flafka.agent.cli.cluster_brokers import CLUSTER, TOPICS
from flafka.agent.cli.kafka_admin import (
    MissingRight,
    confirm,
    connect,
    connection_options,
    raise_topic_errors,
    select_partitions,
    topics_option,
)
from flafka.agent.cli.output import INTERRUPTED, Verbs, json_option, show
from flafka.agent.cli.replica_plan import ReplicaMove, plan_moves
from flafka.plugins.kafka.rights import Access, Role

if TYPE_CHECKING:
    from kafka import TopicPartition

_OPTIONAL = tuple((name, "throttles cannot be set and removed") for name in ("DescribeConfigs", "AlterConfigs"))
REASSIGN = Role(
    "`agent cluster reassign start`, `agent cluster reassign cancel`",
    (Access("cluster", CLUSTER, ("Alter",), _OPTIONAL), Access("topic", TOPICS, ("Describe",), _OPTIONAL)),
)
LIST = Role(
    "`agent cluster reassign list`, `agent cluster reassign wait`",
    (Access("cluster", CLUSTER, ("Describe",)), Access("topic", TOPICS, ("Describe",))),
)
REASSIGNMENT_POLL_SECONDS, METADATA_WAIT_SECONDS = 0.5, 30.0
"""Interval between two requests for the progress of a reassignment, and time for all brokers to know its result."""
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


@click.group(cls=Verbs)
def reassign() -> None:
    """Move replicas of partitions to other brokers."""


@reassign.command()
@connection_options
@topics_option("Topic or partitions. May be repeated. If unset, all topics, internal ones as well.")
@click.option("--brokers", metavar="ID,ID,…", help="Brokers that get the replicas. If unset, all live brokers.")
@click.option("--replication-factor", type=click.IntRange(min=1), help="Number of replicas. If unset, as it is.")
@click.option(
    "--throttle", type=click.IntRange(min=1), metavar="BYTES", help="Bytes per second of the copies on each broker."
)
@click.option("--no-wait", is_flag=True, help="Do not wait for the end; `agent cluster reassign wait` does.")
@yes_option
@json_option
def start(
    bootstrap_server: str | None,
    command_config: Path | None,
    topics: tuple[str, ...],
    brokers: str | None,
    replication_factor: int | None,
    throttle: int | None,
    no_wait: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Spread replicas evenly over brokers and their racks: show the plan, ask, and wait until all are copied.

    \b
    # Two replicas of each partition.
    agent cluster reassign start --topic logs --replication-factor 2 --yes
    # One partition on named brokers.
    agent cluster reassign start --topic logs:0 --brokers 2,3 --yes
    # Evenly over all live brokers again, with at most 10 MB a second.
    agent cluster reassign start --topic logs --throttle 10000000 --yes

    Replicas that may stay are not moved. The first replica is the preferred leader. To empty a broker, name all
    others with --brokers. The throttle must exceed the rate of new records, or the copies never end. It is removed
    at the end. After Ctrl-C the copies continue, and `agent cluster reassign wait` or `cancel` removes it.
    """
    with connect(bootstrap_server, command_config, right="Alter") as admin:
        if ongoing := admin.list_partition_reassignments():
            raise click.ClickException(
                f"partitions under reassignment: {_names(ongoing)}: run `agent cluster reassign wait`, or `cancel`"
            )
        racks = _target_racks(admin, brokers)
        replicas = _replicas(admin, select_partitions(admin, topics) if topics else None)
        try:
            moves = plan_moves(replicas, racks, replication_factor)
        except ValueError as e:
            raise click.ClickException(f"{e}: give --replication-factor or other --brokers") from None
        rows = [(move.topic, move.partition, _ids(move.replicas), _ids(move.new_replicas)) for move in moves]
        show(("topic", "partition", "replicas", "new_replicas"), rows, as_json=as_json)
        if not moves:
            click.echo("nothing to move", err=True)
            return
        confirm(f"reassign {len(moves)} partitions?", yes)
        limits = throttles.throttle_settings(moves, throttle) if throttle else {}
        throttles.apply(admin, limits)
        try:
            _alter(admin, {(move.topic, move.partition): move.new_replicas for move in moves})
        except Exception:
            throttles.apply(admin, throttles.removal(limits))
            raise
        if no_wait:
            return
        _wait(admin, moves)
        throttles.apply(admin, throttles.removal(limits))
        _await_replicas(admin, moves)
    if any(move.replicas[0] != move.new_replicas[0] for move in moves):
        click.echo("other preferred leaders: `agent cluster elect-leaders` makes them leaders at once", err=True)


@reassign.command("list")
@connection_options
@json_option
def list_reassignments(bootstrap_server: str | None, command_config: Path | None, as_json: bool) -> None:
    """List partitions under reassignment, with the bytes that are still to be copied.

    \b
    agent cluster reassign list
    """
    with connect(bootstrap_server, command_config, right="Describe") as admin:
        ongoing = admin.list_partition_reassignments()
        to_copy = _bytes_to_copy(admin, ongoing)
    rows = [
        (
            *(key.topic, key.partition),
            *(_ids(ongoing[key][nodes]) or None for nodes in ("replicas", "adding_replicas", "removing_replicas")),
            to_copy[key],
        )
        for key in sorted(ongoing)
    ]
    show(("topic", "partition", "replicas", "adding", "removing", "bytes_to_copy"), rows, as_json=as_json)


@reassign.command()
@connection_options
@json_option
def wait(bootstrap_server: str | None, command_config: Path | None, as_json: bool) -> None:
    """Wait until no partition is under reassignment, and remove the throttles of all topics and brokers.

    \b
    agent cluster reassign wait
    """
    with connect(bootstrap_server, command_config, right="Describe") as admin:
        _wait(admin)
        _remove_throttles(admin, as_json)


@reassign.command()
@connection_options
@topics_option("Topic or partitions. May be repeated. If unset, all.")
@yes_option
@json_option
def cancel(
    bootstrap_server: str | None, command_config: Path | None, topics: tuple[str, ...], yes: bool, as_json: bool
) -> None:
    """Cancel reassignments: the partitions keep their former replicas. Then remove the throttles.

    \b
    agent cluster reassign cancel --yes
    """
    from kafka.errors import NoReassignmentInProgressError

    with connect(bootstrap_server, command_config, right="Alter") as admin:
        chosen = set(select_partitions(admin, topics)) if topics else None
        ongoing = [key for key in sorted(admin.list_partition_reassignments()) if chosen is None or key in chosen]
        if ongoing:
            confirm(f"cancel the reassignment of {_names(ongoing)}?", yes)
            _alter(admin, {(key.topic, key.partition): None for key in ongoing}, ignore=NoReassignmentInProgressError)
        click.echo(f"cancelled reassignments: {len(ongoing)}", err=True)
        if not admin.list_partition_reassignments():
            _remove_throttles(admin, as_json)
        else:
            show(("resource", "name"), [], as_json=as_json)


def _target_racks(admin: Any, brokers: str | None) -> dict[int, str | None]:
    """Return the rack of each broker of the option `--brokers`, or of all live ones. Raises click's errors."""
    live = {
        broker["broker_id"]: broker["rack"]
        for broker in admin.describe_cluster()["brokers"]
        if not broker.get("is_fenced")
    }
    if brokers is None:
        return live
    words = [word.strip() for word in brokers.split(",")]
    if wrong := [word for word in words if not word.isdecimal() or int(word) not in live]:
        known = ", ".join(map(str, sorted(live)))
        raise click.BadParameter(f"{wrong[0]!r} is no live broker; live are {known}", param_hint="--brokers")
    return {int(word): live[int(word)] for word in words}


def _replicas(admin: Any, keys: Iterable[TopicPartition] | None) -> dict[tuple[str, int], list[int]]:
    """Return the replicas of these partitions, or of all that this user may describe."""
    wanted = None if keys is None else set(keys)
    topics = admin.describe_topics(None if wanted is None else sorted({key.topic for key in wanted}))
    raise_topic_errors(topics, ignore="UnknownTopicOrPartitionError")
    return {
        (topic["name"], part["partition_index"]): part["replica_nodes"]
        for topic in topics
        for part in topic["partitions"]
        if wanted is None or (topic["name"], part["partition_index"]) in wanted
    }


def _alter(
    admin: Any, replicas: Mapping[tuple[str, int], Sequence[int] | None], ignore: type[Exception] | None = None
) -> None:
    """Request these replicas, or for None the end of a reassignment. Raises ClickException if brokers refuse one."""
    from kafka import TopicPartition

    results = admin.alter_partition_reassignments({TopicPartition(*key): nodes for key, nodes in replicas.items()})
    refused = {key: error for key, error in results.items() if error not in (None, ignore)}
    for key, error in sorted(refused.items()):
        if error.__name__ == "ClusterAuthorizationFailedError":
            raise MissingRight("cluster", "", "Alter", error.__name__)
        raise click.ClickException(f"{key.topic}-{key.partition} is not reassigned: {error.description}")


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Explain a Ctrl-C in the block, and exit."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo("the reassignment continues: see `agent cluster reassign list`, `wait` and `cancel`", err=True)
        raise SystemExit(INTERRUPTED) from None


def _wait(admin: Any, moves: Sequence[ReplicaMove] | None = None) -> None:
    """Block until the partitions of these moves, or all, are not under reassignment; show the progress."""
    keys = None if moves is None else {(move.topic, move.partition) for move in moves}
    shown = None
    with _interruptible():
        while True:
            every = admin.list_partition_reassignments()
            ongoing = {key: nodes for key, nodes in every.items() if keys is None or tuple(key) in keys}
            if not ongoing:
                return
            if (progress := (len(ongoing), sum(_bytes_to_copy(admin, ongoing).values()))) != shown:
                click.echo(f"partitions to move: {progress[0]}, bytes to copy: {progress[1]:,}", err=True)
                shown = progress
            time.sleep(REASSIGNMENT_POLL_SECONDS)


def _bytes_to_copy(
    admin: Any, ongoing: Mapping[TopicPartition, Mapping[str, list[int]]]
) -> dict[TopicPartition, int]:
    """Return the bytes that the new replicas of each partition have still to copy, by the sizes of its logs.

    Brokers that do not answer are not counted.
    """
    from kafka import TopicPartition
    from kafka.errors import KafkaError

    asked: dict[int, dict[str, list[int]]] = {}
    for key, nodes in ongoing.items():
        for broker in {*nodes["replicas"], *nodes["adding_replicas"]}:
            asked.setdefault(broker, {}).setdefault(key.topic, []).append(key.partition)
    sizes: dict[TopicPartition, dict[int, int]] = {key: {} for key in ongoing}
    for broker, partitions in asked.items():
        with contextlib.suppress(KafkaError):
            (described,) = admin.describe_log_dirs(partitions, brokers=[broker])
            for topic in (topic for directory in described["log_dirs"] for topic in directory["topics"]):
                for part in topic["partitions"]:
                    sizes[TopicPartition(topic["name"], part["partition_index"])][broker] = part["partition_size"]
    return {
        key: sum(
            max(max(of_broker.values(), default=0) - of_broker.get(broker, 0), 0)
            for broker in ongoing[key]["adding_replicas"]
        )
        for key, of_broker in sizes.items()
    }


def _await_replicas(admin: Any, moves: Sequence[ReplicaMove]) -> None:
    """Block until brokers describe the new replicas. Raises ClickException if a partition does not get them."""
    deadline = time.monotonic() + METADATA_WAIT_SECONDS
    new = {(move.topic, move.partition): list(move.new_replicas) for move in moves}
    topics = sorted({move.topic for move in moves})
    while True:
        described = admin.describe_topics(topics)
        present = {
            (topic["name"], part["partition_index"]): part["replica_nodes"]
            for topic in described
            for part in topic["partitions"]
        }
        if not (others := [key for key, nodes in new.items() if present.get(key) != nodes]):
            return
        if time.monotonic() > deadline:
            names = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(others))
            raise click.ClickException(f"not moved, as the reassignment was cancelled meanwhile: {names}")
        time.sleep(0.1)


def _remove_throttles(admin: Any, as_json: bool) -> None:
    """Remove and show the throttles of all topics and live brokers."""
    settings = throttles.find_throttles(admin, _target_racks(admin, None))
    if settings is None:
        click.echo("throttles are not removed, as this user lacks the right DescribeConfigs on the cluster", err=True)
    throttles.apply(admin, settings or {})
    rows = [(kind.lower(), name) for kind, name in sorted(settings or ())]
    show(("resource", "name"), rows, as_json=as_json)
    if rows:
        click.echo("removed the throttles of these topics and brokers", err=True)


def _ids(brokers: Iterable[int]) -> str:
    return ",".join(map(str, brokers))


def _names(keys: Iterable[TopicPartition]) -> str:
    return ", ".join(f"{key.topic}-{key.partition}" for key in sorted(keys))
