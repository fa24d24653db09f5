"""`agent cluster quotas`: limits of clients by user and client id (KIP-546)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from flafka.agent.cli.cluster_brokers import CLUSTER
from flafka.agent.cli.kafka_admin import MissingRight, connect, connection_options
from flafka.agent.cli.output import Verbs, json_option, show
from flafka.plugins.kafka.rights import Access, Role

Command = TypeVar("Command", bound=Callable[..., Any])

LIST = Role("`agent cluster quotas list`", (Access("cluster", CLUSTER, ("DescribeConfigs",)),))
SET = Role(
    "`agent cluster quotas set`, `agent cluster quotas remove`", (Access("cluster", CLUSTER, ("AlterConfigs",)),)
)
QUOTAS = ("producer_byte_rate", "consumer_byte_rate", "request_percentage")
QUOTA_WAIT_SECONDS = 10.0
"""Time in which brokers learn of a change from the controller."""
DEFAULT = "<default>"
"""Name of the default user and of the default client id, as Kafka's own tools show it."""
USER, CLIENT_ID = "user", "client-id"
"""Types of entities in Kafka's protocol."""
_EXACT, _DEFAULT_NAME = 0, 1
"""Match types of Kafka's protocol."""


class Entity(NamedTuple):
    """User and client id that a quota is for, a name or `DEFAULT`; None for every one without a quota of its own."""

    user: str | None
    client_id: str | None

    def parts(self) -> dict[str, str | None]:
        """Return the names by type, as in Kafka's protocol; None is the default."""
        named = {USER: self.user, CLIENT_ID: self.client_id}
        return {kind: None if name == DEFAULT else name for kind, name in named.items() if name is not None}

    def __str__(self) -> str:
        named = {"user": self.user, "client id": self.client_id}
        return ", ".join(f"{kind} {name}" for kind, name in named.items() if name is not None)


def entity_options(command: Command) -> Command:
    """Return the command with options for the user and the client id of a quota."""
    for option, flag, what in (("client-id", "client-id-defaults", "client id"), ("user", "user-defaults", "user")):
        command = click.option(f"--{flag}", is_flag=True, help=f"Each {what} without a quota of its own.")(command)
        command = click.option(f"--{option}", metavar="NAME", help=f"The {what}.")(command)
    return command


@click.group(cls=Verbs)
def quotas() -> None:
    """List, set and remove quotas of clients."""


@quotas.command("list")
@connection_options
@entity_options
@json_option
def list_quotas(
    bootstrap_server: str | None,
    command_config: Path | None,
    user: str | None,
    user_defaults: bool,
    client_id: str | None,
    client_id_defaults: bool,
    as_json: bool,
) -> None:
    """List the quotas of all users and client ids, or of the named ones.

    \b
    agent cluster quotas list
    agent cluster quotas list --client-id loader

    For each client Kafka uses one quota: of user and client id, else of the user, else of the client id. Names come
    before defaults.
    """
    entity = _entity(user, user_defaults, client_id, client_id_defaults)
    with connect(bootstrap_server, command_config, right="DescribeConfigs") as admin:
        _show(_described(admin, entity), as_json)


@quotas.command("set")
@connection_options
@entity_options
@click.option("--producer-byte-rate", type=click.IntRange(min=1), help="Bytes per second on each broker.")
@click.option("--consumer-byte-rate", type=click.IntRange(min=1), help="Bytes per second on each broker.")
@click.option(
    "--request-percentage",
    type=click.FloatRange(min=0, min_open=True),
    help="Time of request threads on each broker, in percent of one thread.",
)
@json_option
def set_quotas(
    bootstrap_server: str | None,
    command_config: Path | None,
    user: str | None,
    user_defaults: bool,
    client_id: str | None,
    client_id_defaults: bool,
    as_json: bool,
    **values: float | None,
) -> None:
    """Set quotas for a user, a client id or both, and show them. Brokers delay a client that exceeds one.

    \b
    # For a client id.
    agent cluster quotas set --client-id loader --producer-byte-rate 1000000
    # Half of the time of a thread.
    agent cluster quotas set --client-id loader --request-percentage 50
    # For each user without a quota of its own.
    agent cluster quotas set --user-defaults --consumer-byte-rate 5000000
    """
    entity = _required(_entity(user, user_defaults, client_id, client_id_defaults))
    changes = {name: values[name] for name in QUOTAS if values[name] is not None}
    if not changes:
        raise click.UsageError("name a quota, such as --producer-byte-rate")
    with connect(bootstrap_server, command_config, right="AlterConfigs") as admin:
        _alter(admin, entity, changes)
        _show(_await_change(admin, entity, changes), as_json)


@quotas.command("remove")
@connection_options
@entity_options
@click.option(
    "--quota", "names", multiple=True, metavar="NAME", help="Quota to remove. May be repeated. If unset, all."
)
@json_option
def remove_quotas(
    bootstrap_server: str | None,
    command_config: Path | None,
    user: str | None,
    user_defaults: bool,
    client_id: str | None,
    client_id_defaults: bool,
    names: tuple[str, ...],
    as_json: bool,
) -> None:
    """Remove quotas of a user, a client id or both, and show those that are left.

    \b
    agent cluster quotas remove --client-id loader --quota request_percentage
    agent cluster quotas remove --user-defaults
    """
    entity = _required(_entity(user, user_defaults, client_id, client_id_defaults))
    with connect(bootstrap_server, command_config, right="AlterConfigs") as admin:
        present = [name for _, name, _ in _exact(admin, entity)]
        if missing := [name for name in names or ("",) if not present or (name and name not in present)]:
            raise click.ClickException(f"{entity} has no quota {missing[0]}".rstrip())
        changes: dict[str, float | None] = dict.fromkeys(names or present)
        _alter(admin, entity, changes)
        _show(_await_change(admin, entity, changes), as_json)


Quota = tuple[Entity, str, float]
"""Entity, name and value of a quota."""


def _entity(user: str | None, user_defaults: bool, client_id: str | None, client_id_defaults: bool) -> Entity:
    """Return the entity that options name. Raises UsageError for a name beside the defaults."""
    for name, default, option in ((user, user_defaults, "--user"), (client_id, client_id_defaults, "--client-id")):
        if name is not None and default:
            raise click.UsageError(f"{option} and {option}-defaults exclude each other")
    return Entity(DEFAULT if user_defaults else user, DEFAULT if client_id_defaults else client_id)


def _required(entity: Entity) -> Entity:
    """Return the entity unchanged. Raises UsageError if it names neither a user nor a client id."""
    if not entity.parts():
        options = "--user, --user-defaults, --client-id, --client-id-defaults"
        raise click.UsageError(f"name a user or a client id: {options}")
    return entity


def _exact(admin: Any, entity: Entity) -> list[Quota]:
    """Return the quotas of exactly this entity, without a further user or client id."""
    return [quota for quota in _described(admin, entity) if quota[0] == entity]


def _await_change(admin: Any, entity: Entity, changes: Mapping[str, float | None]) -> list[Quota]:
    """Return the quotas of an entity once a broker knows these changes, at the latest after `QUOTA_WAIT_SECONDS`."""
    deadline = time.monotonic() + QUOTA_WAIT_SECONDS
    while True:
        found = _exact(admin, entity)
        values = {name: value for _, name, value in found}
        if all(values.get(name) == value for name, value in changes.items()) or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def _described(admin: Any, entity: Entity) -> list[Quota]:
    """Return all quotas with the user and the client id of this entity, sorted. Raises KafkaError."""
    from kafka.errors import for_code
    from kafka.protocol.admin import DescribeClientQuotasRequest

    filters = [
        DescribeClientQuotasRequest.ComponentData(
            entity_type=kind, match_type=_DEFAULT_NAME if name is None else _EXACT, match=name
        )
        for kind, name in entity.parts().items()
    ]
    response = _send(admin, DescribeClientQuotasRequest(components=filters, strict=False))
    _raise_refusal(response, "DescribeConfigs")
    if response.error_code:
        raise for_code(response.error_code)(response.error_message)
    found = []
    for entry in response.entries or ():
        names = {part.entity_type: DEFAULT if part.entity_name is None else part.entity_name for part in entry.entity}
        of = Entity(names.get(USER), names.get(CLIENT_ID))
        if names.keys() <= {USER, CLIENT_ID}:
            found += [(of, value.key, value.value) for value in entry.values]
    return sorted(found, key=lambda quota: (quota[0].user or "", quota[0].client_id or "", quota[1]))


def _alter(admin: Any, entity: Entity, changes: dict[str, float | None]) -> None:
    """Set quotas of an entity; None removes one. Raises ClickException if brokers refuse a change."""
    from kafka.errors import for_code
    from kafka.protocol.admin import AlterClientQuotasRequest

    entry = AlterClientQuotasRequest.EntryData
    request = AlterClientQuotasRequest(
        entries=[
            entry(
                entity=[
                    entry.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.parts().items()
                ],
                ops=[
                    entry.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in changes.items()
                ],
            )
        ],
        validate_only=False,
    )
    for result in _send(admin, request).entries:
        _raise_refusal(result, "AlterConfigs")
        if result.error_code:
            text = result.error_message or for_code(result.error_code).description
            raise click.ClickException(f"the quotas of {entity} are not changed: {text}")


def _send(admin: Any, request: Any) -> Any:
    """Return the response of any broker to a request for which kafka-python has no method."""
    return admin._manager.run(admin._manager.send, request)


def _raise_refusal(response: Any, right: str) -> None:
    """Raise MissingRight if the error of a response is that this user lacks a right on the cluster."""
    from kafka.errors import ClusterAuthorizationFailedError

    if response.error_code == ClusterAuthorizationFailedError.errno:
        raise MissingRight("cluster", "", right, ClusterAuthorizationFailedError.__name__)


def _show(found: list[Quota], as_json: bool) -> None:
    rows = [(*entity, name, int(value) if value == int(value) else value) for entity, name, value in found]
    show(("user", "client_id", "quota", "value"), rows, as_json=as_json)
