"""`agent group`: consumer groups, their lag and their offsets."""

import base64
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from flafka.agent.cli import file_group, group_move
from flafka.agent.cli.kafka_admin import confirm, connect, connection_options, partitions_of, refuse_errors
from flafka.agent.cli.output import Verbs, json_option, show
from flafka.plugins import Assignment, Generation, next_epoch, partitions
from flafka.plugins.kafka.offsets import (
    NUL,
    OUTSIDE_SECONDS,
    OffsetMetadata,
    RecordsLost,
    is_earlier,
)

if TYPE_CHECKING:
    from kafka import TopicPartition
    from kafka.errors import KafkaError
    from kafka.structs import OffsetAndMetadata

T = TypeVar("T")

TRIES = 5
"""Number of attempts to move a group."""
COORDINATOR_SECONDS = 30.0
"""Time to wait for a coordinator, in seconds. Kafka creates its topic of offsets when a cluster's first group is
asked for. After the loss of a broker another one becomes coordinator.
"""


@click.group(cls=Verbs)
def group() -> None:
    """List consumer groups, show their lag, move their offsets or their sinks' commit log."""


group.add_command(group_move.move)


@group.command("list")
@connection_options
@json_option
def list_groups(bootstrap_server: str | None, command_config: Path | None, as_json: bool) -> None:
    """List groups with their state."""
    with connect(bootstrap_server, command_config) as admin:
        found = sorted(
            (found["group_id"], found.get("group_state"), found.get("group_type")) for found in admin.list_groups()
        )
    show(("group", "state", "type"), found, as_json=as_json)


@group.command()
@click.argument("name")
@connection_options
@json_option
@file_group.or_of_files(file_group.describe)
def describe(name: str, bootstrap_server: str | None, command_config: Path | None, as_json: bool) -> None:
    """Show, per partition, the committed offset, the lag in offsets and the member that reads it.

    The lag is that of Kafka's own tool: the ends of transactions count, so it may stay above the lag of `agent top`.
    An offset of a topic or partition that was deleted since, and perhaps created again, counts as none. If brokers
    have lost records that the group had read, the reset that it needs is on standard error.
    """
    from kafka.admin import OffsetSpec

    from flafka.agent.runner.retries import with_brokers

    with connect(bootstrap_server, command_config) as admin:
        _refuse_unknown(admin, name)
        committed = _committed(admin, name)
        owners = _owners(_members(admin, name))
        if not committed and not owners:
            raise click.ClickException(f"group {name} has committed nothing, and nobody reads in it")
        ids = _topic_ids(admin, {*committed, *owners})
        if not (keys := sorted(ids)):
            raise click.ClickException(f"all partitions in which group {name} has offsets were deleted")
        end = admin.list_partition_offsets(dict.fromkeys(keys, OffsetSpec.LATEST))
        low = admin.list_partition_offsets(dict.fromkeys(keys, OffsetSpec.EARLIEST))
    rows = []
    for key in keys:
        offset = _offset(committed.get(key), ids[key])
        lag = None if offset is None else max(end[key].offset - offset, 0)
        member = owners.get(key, {})
        epoch = _said(committed.get(key)).generation.epoch or None
        who = (member.get("member_id"), member.get("client_host"))
        rows.append((key.topic, key.partition, offset, end[key].offset, lag, epoch, *who))
    columns = ("topic", "partition", "current_offset", "log_end_offset", "lag", "epoch", "consumer_id", "host")
    show(columns, rows, as_json=as_json)
    for key, at in sorted(committed.items()):
        if key in ids and (lost := _said(at).lost) and _offset(at, ids[key]) is not None:
            place = partitions.TopicPartition("", key.topic, "", key.partition)
            assignment = Assignment(place, name, _said(at).generation, at.offset)
            brokers = {"group": bootstrap_server} if bootstrap_server else {}
            click.echo(with_brokers(str(RecordsLost(assignment, lost, low[key].offset)), brokers), err=True)


@group.command()
@click.argument("name")
@connection_options
@click.option("--to", metavar="POSITION", help="earliest, latest, current, an offset, or a time: 2026-11-20T08:00.")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:PARTITION,…]",
    help="Topic or partitions to move. May be repeated. If unset, every partition that the group has committed.",
)
@click.option(
    "--new-ids",
    is_flag=True,
    help="Give events new ids from now on. Needed after brokers have lost records, as new records get the same "
    "offsets.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@file_group.or_of_files(file_group.reset)
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
    """Move a group's committed offsets. No member may be reading in the group.

    A time means the first record stored at that time or later; without a zone it is local time. `current` leaves the
    offsets where they are, and drops what an agent of another version has said with them. Every moved
    partition gets a new epoch, by which sinks with offsets of their own see that the move was made on purpose.
    """
    position = _position(to)
    with connect(bootstrap_server, command_config) as admin:
        if not topics:
            _refuse_unknown(admin, name, "; to begin one, name a --topic")
        if members := _members(admin, name):
            raise click.ClickException(_still_reading(name, members))
        committed = _committed(admin, name)
        ids = _topic_ids(admin, _selected(admin, topics) if topics else committed)
        if not ids:
            raise click.ClickException(f"group {name} has no offset in any partition there is: name a --topic")
        moves = _plan(admin, name, sorted(ids), position, committed, ids)
        show(_Move._fields, moves, as_json=as_json)
        confirm(f"move group {name} on {len(moves)} partitions?", yes)
        _commit(admin, name, moves, committed, ids, new_ids=new_ids)


class _Move(NamedTuple):
    """One line of the plan, shown before it is carried out."""

    topic: str
    partition: int
    current_offset: int | None
    new_offset: int
    epoch: int


def _position(text: str) -> "int | datetime | str":
    if text in ("earliest", "latest", "current"):
        return text
    if text.isdecimal():
        return int(text)
    try:
        return datetime.fromisoformat(text).astimezone()  # without a zone: the user's
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is not earliest, latest, current, an offset or an ISO time", param_hint="--to"
        ) from None


def _selected(admin: Any, topics: tuple[str, ...]) -> "list[TopicPartition]":
    from kafka import TopicPartition

    keys = []
    for text in topics:
        topic, _, numbers = text.partition(":")
        existing = partitions_of(admin, topic)
        wanted = numbers.split(",") if numbers else map(str, existing)
        for number in wanted:
            if not number.isdecimal() or int(number) not in existing:
                raise click.BadParameter(f"{topic} has no partition {number!r}", param_hint="--topic")
            keys.append(TopicPartition(topic, int(number)))
    return sorted(set(keys))


def _plan(
    admin: Any,
    name: str,
    keys: "list[TopicPartition]",
    position: "int | datetime | str",
    committed: "Mapping[TopicPartition, OffsetAndMetadata]",
    ids: "Mapping[TopicPartition, str]",
) -> list[_Move]:
    from kafka.admin import OffsetSpec

    def offsets(at: Any) -> dict[Any, int]:
        return {key: found.offset for key, found in admin.list_partition_offsets(dict.fromkeys(keys, at)).items()}

    first, end = offsets(OffsetSpec.EARLIEST), offsets(OffsetSpec.LATEST)
    if isinstance(position, datetime):
        found = offsets(int(position.timestamp() * 1000))
        target = {key: offset if offset >= 0 else end[key] for key, offset in found.items()}  # -1: nothing that new
    elif isinstance(position, int):
        target = dict.fromkeys(keys, position)
    elif position == "current":
        target = {}
        for key in keys:
            if (at := _offset(committed.get(key), ids[key])) is None:
                place = f"{key.topic}-{key.partition}"
                raise click.ClickException(f"group {name} has no offset in {place}: --to needs another value")
            target[key] = at
    else:
        target = first if position == "earliest" else end
    moves = []
    for key in keys:
        if not first[key] <= target[key] <= end[key]:
            raise click.ClickException(
                f"{key.topic}-{key.partition} holds offsets {first[key]} to {end[key]}, not {target[key]}"
            )
        now = committed.get(key)
        epoch = next_epoch(_said(now).generation.epoch)
        moves.append(_Move(key.topic, key.partition, _offset(now, ids[key]), target[key], epoch))
    return moves


def _commit(
    admin: Any,
    name: str,
    moves: list[_Move],
    committed: "Mapping[TopicPartition, OffsetAndMetadata]",
    ids: "Mapping[TopicPartition, str]",
    *,
    new_ids: bool,
) -> None:
    from kafka import TopicPartition
    from kafka.structs import OffsetAndMetadata

    offsets = {}
    for move in moves:
        key = TopicPartition(move.topic, move.partition)
        said = _said(committed.get(key))  # the commit log of a sink stays where it is
        scheme = move.epoch if new_ids else max(said.generation.id_scheme, Generation().id_scheme)
        generation = Generation(move.epoch, scheme, said.generation.commit_log)
        text = OffsetMetadata(generation, ids[key]).text()
        offsets[key] = OffsetAndMetadata(move.new_offset, text + NUL, None)
    for _ in range(TRIES):
        _write(admin, name, offsets)
        time.sleep(OUTSIDE_SECONDS)
        if not (offsets := _undone(admin, name, offsets)):
            return
        places = ", ".join(f"{key.topic}-{key.partition}" for key in offsets)
        undone = f"a commit that was under way has undone this for {places}"
        if members := _members(admin, name):
            raise click.ClickException(f"{undone}, and {_still_reading(name, members)}")
        click.echo(f"{undone}: moving it again", err=True)
    raise click.ClickException(f"{undone}, {TRIES} times: stop what delivers from it, and run this again")


def _write(admin: Any, name: str, offsets: "Mapping[TopicPartition, OffsetAndMetadata]") -> None:
    from kafka.errors import NoError

    def names(found: "Mapping[TopicPartition, type[KafkaError]]") -> str:
        return " ".join(error.__name__ for error in found.values())

    for key, error in _by_coordinator(lambda: admin.alter_group_offsets(name, offsets), names).items():
        if error is not NoError:
            raise click.ClickException(f"{key.topic}-{key.partition} was not moved: {error.description}")


def _undone(
    admin: Any, name: str, offsets: "Mapping[TopicPartition, OffsetAndMetadata]"
) -> "dict[TopicPartition, OffsetAndMetadata]":
    """Return the moves that a commit of a Spark driver, which had looked at the group before, has undone."""
    now = _committed(admin, name)
    return {
        key: at
        for key, at in offsets.items()
        if key in now and is_earlier(_said(now[key]), _said(at).generation.epoch)
    }


def _said(committed: "OffsetAndMetadata | None") -> OffsetMetadata:
    return OffsetMetadata.parse(committed.metadata if committed else None)


def _offset(committed: "OffsetAndMetadata | None", topic_id: str) -> int | None:
    """Return the group's offset; None if it belongs to a deleted topic of the same name."""
    return committed.offset if committed and _said(committed).topic_id in ("", topic_id) else None


def _topic_ids(admin: Any, keys: "Iterable[TopicPartition]") -> "dict[TopicPartition, str]":
    """Return the topic id, as librdkafka writes it, of each of these partitions that exists.

    Groups keep offsets of partitions that are gone, as where a topic was created again with fewer of them.
    """
    keys = set(keys)
    found = admin.describe_topics(sorted({key.topic for key in keys})) if keys else []
    refuse_errors(found, ignore="UnknownTopicOrPartitionError")
    ids = {one["name"]: one.get("topic_id") for one in found}  # brokers before Kafka 2.8 have none
    there = {(one["name"], part["partition_index"]) for one in found for part in one["partitions"]}
    return {
        key: base64.b64encode(uuid.UUID(str(id)).bytes).decode().rstrip("=") if (id := ids[key.topic]) else ""
        for key in keys
        if (key.topic, key.partition) in there
    }


def _committed(admin: Any, name: str) -> "dict[TopicPartition, OffsetAndMetadata]":
    found = _by_coordinator(lambda: admin.list_group_offsets(name)[name], lambda _: "")
    return {key: offset for key, offset in found.items() if offset.offset >= 0}


def _by_coordinator(ask: Callable[[], T], errors: Callable[[T], str]) -> T:
    """Return the answer of a group's coordinator. While there is none, or another broker becomes it, it is asked
    again.

    `errors` returns the names of the errors within an answer.
    """
    from kafka.errors import CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError

    passing = (CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError)
    deadline = time.monotonic() + COORDINATOR_SECONDS
    while True:
        late = time.monotonic() > deadline
        try:
            found = ask()
        except passing:
            if late:
                raise
        else:
            if late or not any(kind.__name__ in errors(found) for kind in passing):
                return found
        time.sleep(0.2)


def _refuse_unknown(admin: Any, name: str, hint: str = "") -> None:
    """Raise ClickException for an unknown group. Before its first group a cluster has no coordinator that could say
    so.
    """
    if name not in {found["group_id"] for found in admin.list_groups()}:
        raise click.ClickException(f"no group {name}: `agent group list` shows those there are{hint}")


def _members(admin: Any, name: str) -> list[dict[str, Any]]:
    """Live members; empty for a group that does not exist."""
    found = _by_coordinator(lambda: admin.describe_groups([name])[name], lambda found: found["error"] or "")
    if found["error"] and "GroupIdNotFound" not in found["error"]:
        raise click.ClickException(f"group {name}: {found['error']}")
    members: list[dict[str, Any]] = found["members"]
    return members


def _owners(members: list[dict[str, Any]]) -> "dict[TopicPartition, dict[str, Any]]":
    from kafka import TopicPartition

    return {
        TopicPartition(assigned["topic"], number): member
        for member in members
        for assigned in (member["member_assignment"] or {}).get("assigned_partitions", ())
        for number in assigned["partitions"]
    }


def _still_reading(name: str, members: list[dict[str, Any]]) -> str:
    who = ", ".join(
        f"{member['group_instance_id'] or member['client_id']} on {member['client_host'].lstrip('/')}"
        for member in members
    )
    return (
        f"group {name} is being read by {who}\n"
        "  stop what reads it first; one that was killed counts as a member until its session times out"
    )
