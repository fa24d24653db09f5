"""`agent group`: consumer groups, their lag and their committed offsets."""

import base64
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from flafka.agent.cli import file_group, group_move
from flafka.agent.cli.kafka_admin import (
    MissingRight,
    confirm,
    connect,
    connection_options,
    raise_topic_errors,
    select_partitions,
)
from flafka.agent.cli.output import Verbs, json_option, show
from flafka.agent.cli.positions import Position, find_offsets, parse_position
from flafka.plugins import Assignment, Generation, next_epoch, partitions
from flafka.plugins.kafka.offsets import (
    MEMBERLESS_COMMIT_SECONDS,
    NUL,
    OffsetMetadata,
    RecordsLost,
    is_earlier_epoch,
)
from flafka.plugins.kafka.rights import Access, Role

DESCRIBE = Role(
    "`agent group list`, `agent group describe`",
    (
        Access("group", "the consumer groups of `agent group`", ("Describe",)),
        Access("topic", "the topics of the groups of `agent group`", ("Describe",)),
    ),
)
RESET = Role(
    "`agent group reset`",
    (
        Access("group", "the consumer groups of `agent group`", ("Read",)),
        Access("topic", "the topics of the groups of `agent group`", ("Read",)),
    ),
)

if TYPE_CHECKING:
    from kafka import TopicPartition
    from kafka.errors import KafkaError
    from kafka.structs import OffsetAndMetadata

T = TypeVar("T")

RESET_ATTEMPTS = 5
"""Maximum number of attempts to reset a group."""
COORDINATOR_SECONDS = 30.0
"""Timeout for a group coordinator: Kafka creates `__consumer_offsets` on first use, and fails over after a loss."""


@click.group(cls=Verbs)
def group() -> None:
    """List consumer groups, show their lag, reset their offsets, and move the commit logs of their sinks."""


group.add_command(group_move.move)


@group.command("list")
@connection_options
@json_option
def list_groups(bootstrap_server: str | None, command_config: Path | None, as_json: bool) -> None:
    """List groups with their state."""
    with connect(bootstrap_server, command_config) as admin:
        groups = sorted((g["group_id"], g.get("group_state"), g.get("group_type")) for g in _listed(admin))
    show(("group", "state", "type"), groups, as_json=as_json)


@group.command()
@click.argument("name")
@connection_options
@json_option
@file_group.with_file_channel(file_group.describe)
def describe(name: str, bootstrap_server: str | None, command_config: Path | None, as_json: bool) -> None:
    """Show the committed offset, the lag and the member of each partition.

    As in Kafka's own tool, the lag is in offsets and counts transaction markers, so it may stay above the lag of
    `agent top`. Offsets of a topic that was deleted or recreated are not shown. If brokers have lost records that the
    group had read, standard error has the reset that is needed.
    """
    from kafka.admin import OffsetSpec

    from flafka.agent.runner.retries import add_brokers

    with connect(bootstrap_server, command_config, group=name, right="Describe") as admin:
        _refuse_unknown(admin, name)
        committed = _committed(admin, name)
        members = _member_by_partition(_members(admin, name))
        if not committed and not members:
            raise click.ClickException(
                f"group {name} has neither committed offsets nor members, or this user lacks the right Describe on "
                "its topics"
            )
        ids = _topic_ids(admin, {*committed, *members})
        if not (keys := sorted(ids)):
            raise click.ClickException(f"all partitions with offsets of group {name} were deleted")
        end = admin.list_partition_offsets(dict.fromkeys(keys, OffsetSpec.LATEST))
        low = admin.list_partition_offsets(dict.fromkeys(keys, OffsetSpec.EARLIEST))
    rows = []
    for key in keys:
        offset = _offset(committed.get(key), ids[key])
        lag = None if offset is None else max(end[key].offset - offset, 0)
        member = members.get(key, {})
        epoch = _metadata(committed.get(key)).generation.epoch or None
        consumer = (member.get("member_id"), member.get("client_host"))
        rows.append((key.topic, key.partition, offset, end[key].offset, lag, epoch, *consumer))
    columns = ("topic", "partition", "current_offset", "log_end_offset", "lag", "epoch", "consumer_id", "host")
    show(columns, rows, as_json=as_json)
    for key, commit in sorted(committed.items()):
        if key in ids and (lost := _metadata(commit).lost) and _offset(commit, ids[key]) is not None:
            partition = partitions.TopicPartition("", key.topic, "", key.partition)
            assignment = Assignment(partition, name, _metadata(commit).generation, commit.offset)
            brokers = {"group": bootstrap_server} if bootstrap_server else {}
            click.echo(add_brokers(str(RecordsLost(assignment, lost, low[key].offset)), brokers), err=True)


@group.command()
@click.argument("name")
@connection_options
@click.option("--to", metavar="POSITION", help="earliest, latest, current, an offset, or a time: 2026-11-20T08:00.")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:PARTITION,…]",
    help="Topic or partitions to reset. May be repeated. If unset, all partitions with committed offsets.",
)
@click.option(
    "--new-ids",
    is_flag=True,
    help="Give events new ids from now on. Needed after brokers have lost records, because new records reuse their "
    "offsets.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
@file_group.with_file_channel(file_group.reset)
def reset(
    name: str,
    bootstrap_server: str | None,
    command_config: Path | None,
    to: str,
    topics: tuple[str, ...],
    new_ids: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Reset the committed offsets of a group. The group must have no members.

    A time selects the first record stored then or later; without a zone it is local time. `current` keeps the offsets
    and drops the commit metadata of an agent of another version. Each partition gets a new fencing epoch, so
    that sinks with a commit log accept the reset.
    """
    target = parse_position(to, "--to", ("earliest", "latest", "current"))
    with connect(bootstrap_server, command_config, group=name, right="Read") as admin:
        if not topics:
            _refuse_unknown(admin, name, "; to create a group, name a --topic")
        if members := _members(admin, name):
            raise click.ClickException(_has_members_error(name, members))
        committed = _committed(admin, name)
        ids = _topic_ids(admin, select_partitions(admin, topics, right="Read") if topics else committed)
        if not ids:
            raise click.ClickException(f"group {name} has no offset in an existing partition: name a --topic")
        moves = _plan(admin, name, sorted(ids), target, committed, ids)
        show(_PartitionReset._fields, moves, as_json=as_json)
        confirm(f"reset group {name} in {len(moves)} partitions?", yes)
        _commit(admin, name, moves, committed, ids, new_ids=new_ids)


class _PartitionReset(NamedTuple):
    """Planned reset of one partition."""

    topic: str
    partition: int
    current_offset: int | None
    new_offset: int
    epoch: int


def _plan(
    admin: Any,
    name: str,
    keys: "list[TopicPartition]",
    target: Position,
    committed: "Mapping[TopicPartition, OffsetAndMetadata]",
    ids: "Mapping[TopicPartition, str]",
) -> list[_PartitionReset]:
    """Return the planned reset of each partition in `keys`: its new offset, and a later fencing epoch.

    `target` is an offset, a time, `earliest`, `latest` or `current`. After the last record, a time selects the end.
    `committed` has the offsets of the group `name`, and `ids` the topic IDs, by partition. Raises ClickException for
    an offset outside of a partition, and for `current` if the group has no offset in the present topic.
    """
    wanted: Position | dict[TopicPartition, int] = target
    if target == "current":
        wanted = {}
        for key in keys:
            if (offset := _offset(committed.get(key), ids[key])) is None:
                partition = f"{key.topic}-{key.partition}"
                raise click.ClickException(f"group {name} has no offset in {partition}: --to needs another value")
            wanted[key] = offset
    new_offsets = find_offsets(admin, keys, wanted)
    moves = []
    for key in keys:
        now = committed.get(key)
        epoch = next_epoch(_metadata(now).generation.epoch)
        moves.append(_PartitionReset(key.topic, key.partition, _offset(now, ids[key]), new_offsets[key], epoch))
    return moves


def _commit(
    admin: Any,
    name: str,
    moves: list[_PartitionReset],
    committed: "Mapping[TopicPartition, OffsetAndMetadata]",
    ids: "Mapping[TopicPartition, str]",
    *,
    new_ids: bool,
) -> None:
    """Commit the planned offsets, and check that no concurrent commit has overwritten them.

    Retries up to `RESET_ATTEMPTS` times. Raises ClickException after that, or if the group has members.
    """
    from kafka import TopicPartition
    from kafka.structs import OffsetAndMetadata

    offsets = {}
    for move in moves:
        key = TopicPartition(move.topic, move.partition)
        current = _metadata(committed.get(key)).generation
        scheme = move.epoch if new_ids else max(current.id_scheme, Generation().id_scheme)
        generation = Generation(move.epoch, scheme, current.commit_log)
        text = OffsetMetadata(generation, ids[key]).text()
        offsets[key] = OffsetAndMetadata(move.new_offset, text + NUL, None)
    for _ in range(RESET_ATTEMPTS):
        _write(admin, name, offsets)
        time.sleep(MEMBERLESS_COMMIT_SECONDS)
        if not (offsets := _overwritten(admin, name, offsets)):
            return
        names = ", ".join(f"{key.topic}-{key.partition}" for key in offsets)
        undone = f"a concurrent commit has overwritten the reset of {names}"
        if members := _members(admin, name):
            raise click.ClickException(f"{undone}, and {_has_members_error(name, members)}")
        click.echo(f"{undone}: trying again", err=True)
    raise click.ClickException(
        f"{undone}, {RESET_ATTEMPTS} times: stop the consumers of the group, and run this again"
    )


def _write(admin: Any, name: str, offsets: "Mapping[TopicPartition, OffsetAndMetadata]") -> None:
    """Commit these offsets for the group. Raises ClickException if Kafka refuses one."""
    from kafka.errors import NoError, TopicAuthorizationFailedError

    def names(errors: "Mapping[TopicPartition, type[KafkaError]]") -> str:
        return " ".join(error.__name__ for error in errors.values())

    for key, error in _retry_coordinator(lambda: admin.alter_group_offsets(name, offsets), names).items():
        if error is not NoError:
            if error is TopicAuthorizationFailedError:
                raise MissingRight("topic", key.topic, "Read", error.__name__)
            raise click.ClickException(f"{key.topic}-{key.partition} was not reset: {error.description}")


def _overwritten(
    admin: Any, name: str, offsets: "Mapping[TopicPartition, OffsetAndMetadata]"
) -> "dict[TopicPartition, OffsetAndMetadata]":
    """Return the offsets of the partitions in which a Spark driver has committed with an earlier epoch since."""
    now = _committed(admin, name)
    return {
        key: commit
        for key, commit in offsets.items()
        if key in now and is_earlier_epoch(_metadata(now[key]), _metadata(commit).generation.epoch)
    }


def _metadata(committed: "OffsetAndMetadata | None") -> OffsetMetadata:
    """Return the parsed commit metadata; empty metadata for None."""
    return OffsetMetadata.parse(committed.metadata if committed else None)


def _offset(committed: "OffsetAndMetadata | None", topic_id: str) -> int | None:
    """Return the committed offset; None without one, or if it belongs to a deleted topic of the same name."""
    return committed.offset if committed and _metadata(committed).topic_id in ("", topic_id) else None


def _topic_ids(admin: Any, keys: "Iterable[TopicPartition]") -> "dict[TopicPartition, str]":
    """Return partition → topic ID, as librdkafka writes it, for each of `keys` that exists.

    Before Kafka 2.8 the ID is empty. Groups keep the offsets of deleted partitions, as of a topic that was recreated
    with fewer partitions. Raises ClickException for errors except missing topics.
    """
    keys = set(keys)
    topics = admin.describe_topics(sorted({key.topic for key in keys})) if keys else []
    raise_topic_errors(topics, ignore="UnknownTopicOrPartitionError")
    ids = {topic["name"]: topic.get("topic_id") for topic in topics}  # None before Kafka 2.8
    existing = {(topic["name"], part["partition_index"]) for topic in topics for part in topic["partitions"]}
    return {
        key: base64.b64encode(uuid.UUID(str(id)).bytes).decode().rstrip("=") if (id := ids[key.topic]) else ""
        for key in keys
        if (key.topic, key.partition) in existing
    }


def _committed(admin: Any, name: str) -> "dict[TopicPartition, OffsetAndMetadata]":
    """Return the committed offsets of a group by partition; empty for an unknown group."""
    offsets = _retry_coordinator(lambda: admin.list_group_offsets(name)[name], lambda _: "")
    return {key: offset for key, offset in offsets.items() if offset.offset >= 0}


def _retry_coordinator(request: Callable[[], T], errors: Callable[[T], str]) -> T:
    """Return the response of `request`, repeated for up to `COORDINATOR_SECONDS` while no broker is the coordinator.

    `errors` returns the names of the errors within a response. Raises the last error after that time.
    """
    from kafka.errors import CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError

    retriable = (CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError)
    deadline = time.monotonic() + COORDINATOR_SECONDS
    while True:
        is_last = time.monotonic() > deadline
        try:
            response = request()
        except retriable:
            if is_last:
                raise
        else:
            if is_last or not any(kind.__name__ in errors(response) for kind in retriable):
                return response
        time.sleep(0.2)


def _refuse_unknown(admin: Any, name: str, hint: str = "") -> None:
    """Raise ClickException, with `hint` at its end, if the cluster has no group of this name.

    The groups are listed because a cluster without any group has no coordinator to ask. Brokers leave out groups that
    the user may not see: where users log in, the group is asked for as well.
    """
    from kafka.errors import GroupAuthorizationFailedError, KafkaError

    if name not in {listed["group_id"] for listed in _listed(admin)}:
        if admin.config["security_protocol"].upper() != "PLAINTEXT":
            try:
                error = admin.describe_groups([name])[name]["error"] or ""
            except GroupAuthorizationFailedError:  # of the request for the coordinator
                raise
            except KafkaError:
                error = ""
            if GroupAuthorizationFailedError.__name__ in error:
                raise GroupAuthorizationFailedError
        raise click.ClickException(f"no group {name}: `agent group list` shows all groups{hint}")


def _listed(admin: Any) -> list[dict[str, Any]]:
    """Return all groups of the cluster. A broker refuses the list while it loads the offsets of any group."""
    listed: list[dict[str, Any]] = _retry_coordinator(admin.list_groups, lambda _: "")
    return listed


def _members(admin: Any, name: str) -> list[dict[str, Any]]:
    """Return the live members of a group; empty for an unknown group. Raises ClickException for other errors."""
    described = _retry_coordinator(lambda: admin.describe_groups([name])[name], lambda group: group["error"] or "")
    if described["error"] and "GroupIdNotFound" not in described["error"]:
        raise click.ClickException(f"group {name}: {described['error']}")
    members: list[dict[str, Any]] = described["members"]
    return members


def _member_by_partition(members: list[dict[str, Any]]) -> "dict[TopicPartition, dict[str, Any]]":
    """Return the member of each assigned partition."""
    from kafka import TopicPartition

    return {
        TopicPartition(assigned["topic"], number): member
        for member in members
        for assigned in (member["member_assignment"] or {}).get("assigned_partitions", ())
        for number in assigned["partitions"]
    }


def _has_members_error(name: str, members: list[dict[str, Any]]) -> str:
    """Return the text for a group that cannot be reset because of these members."""
    consumers = ", ".join(
        f"{member['group_instance_id'] or member['client_id']} on {member['client_host'].lstrip('/')}"
        for member in members
    )
    return (
        f"group {name} is being read by {consumers}\n"
        "  stop these consumers first; a killed consumer remains a member until its session times out"
    )
