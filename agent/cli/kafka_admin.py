"""Connection of `agent topic` and `agent group` to Kafka, with Kafka's own options and readable errors."""

import contextlib
import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from flafka.agent.topology import AgentSpec

Command = TypeVar("Command", bound=Callable[..., Any])

# librdkafka's names, and those of Java that it takes, to kafka-python's.
OPTIONS = {
    "bootstrap.servers": "bootstrap_servers",
    "client.id": "client_id",
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "sasl.kerberos.service.name": "sasl_kerberos_service_name",
}
MILLISECONDS = {"request.timeout.ms": "request_timeout_ms", "default.api.timeout.ms": "bootstrap_timeout_ms"}


def connection_options(command: Command) -> Command:
    """Add `--bootstrap-server` and `--command-config`."""
    command = click.option(
        "--command-config",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="File with TLS and SASL properties, as for Kafka's own tools.",
    )(command)
    return click.option(
        "--bootstrap-server",
        metavar="HOST:PORT,…",
        help="Brokers as host:port. If unset, the cluster of `agent cluster start`.",
    )(command)


@contextlib.contextmanager
def connect(bootstrap_server: str | None, command_config: Path | None) -> Iterator[Any]:
    """A `KafkaAdminClient`; what fails inside is reported in one line, with exit code 1."""
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError

    from flafka.agent.services import ServiceError
    from flafka.agent.services.kafka import KafkaCluster
    from flafka.plugins import Retry
    from flafka.plugins.kafka.admin import away
    from flafka.plugins.kafka.errors import metadata
    from flafka.plugins.kafka.properties import QUIET

    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # errors are reported once, here
    options, asking = read_config(command_config) if command_config else ({}, {})
    own = KafkaCluster.default()
    named = bootstrap_server or options.get("bootstrap_servers")
    try:
        servers = named or own.bootstrap_servers
    except ServiceError as error:
        raise click.ClickException(
            f"{error}\n  start it with `agent cluster start`, or name yours with --bootstrap-server"
        ) from None
    options = {"bootstrap_timeout_ms": 10_000, **options, "bootstrap_servers": servers}
    try:
        metadata({**QUIET, **asking, "bootstrap.servers": servers}, options["bootstrap_timeout_ms"] / 1000)
        client = KafkaAdminClient(**options)
    except Retry as error:
        raise click.ClickException(str(error)) from None
    except (KafkaError, OSError, ValueError) as error:  # OSError: a certificate's file; ValueError: host:port
        raise click.ClickException(f"cannot connect to {servers}: {reason(error)}") from None
    try:
        if not named and (foreign := own.foreign(client.describe_cluster()["cluster_id"])):
            raise click.ClickException(f"{foreign}\n  or name it with --bootstrap-server, if it is the one you mean")
        yield client
    except (KafkaError, TimeoutError) as error:
        raise click.ClickException(_denied(error, asking) or f"{reason(error)}{away(servers)}") from None
    finally:
        client.close()


@contextlib.contextmanager
def naming_brokers(spec: "AgentSpec") -> Iterator[None]:
    """For commands that use an agent's own connections: what fails inside says which of its brokers are away."""
    from flafka.plugins import FlafkaError
    from flafka.plugins.kafka.admin import away

    try:
        yield
    except FlafkaError as error:
        components = (*spec.sources, *spec.channels, *spec.sinks)
        named = {getattr(component.config, "bootstrap_servers", None) or "" for component in components}
        if not (found := away(",".join(sorted({one for names in named for one in names.split(",")})))):
            raise
        raise FlafkaError(f"{error}{found}") from error


def confirm(question: str, yes: bool) -> None:
    """Ask on a terminal, unless `--yes`; elsewhere nobody could answer, so refuse with exit code 2."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("nothing was changed: without a terminal to ask on, this needs --yes")
    click.confirm(question, abort=True)


def partitions_of(admin: Any, topic: str) -> dict[int, dict[str, Any]]:
    """A topic's partitions by number, in order. Raises `click.ClickException` when there is no such topic."""
    (found,) = admin.describe_topics([topic])
    refuse_errors([found])
    return dict(sorted((part["partition_index"], part) for part in found["partitions"]))


def refuse_errors(
    answers: Sequence[Mapping[str, Any]], *, right: str = "Describe", ignore: str | None = None
) -> None:
    """Raise `click.ClickException` for the first topic whose answer carries an error, unless it is `ignore`.

    `right` is the one that the request needs.
    """
    from kafka.errors import for_code

    for answer in answers:
        error = for_code(answer["error_code"])
        if answer["error_code"] and error.__name__ != ignore:
            if error.__name__ == "InvalidTopicError":
                _refuse_name(answer["name"])
            unknown = error.__name__ == "UnknownTopicOrPartitionError"
            if error.__name__ == "TopicAuthorizationFailedError":
                raise click.ClickException(f"topic {answer['name']}: this user lacks the right {right} on it")
            message = "no such topic" if unknown else answer.get("error_message") or error.description
            raise click.ClickException(f"topic {answer['name']}: {message}")


def _refuse_name(topic: str) -> None:
    from flafka.plugins.kafka.config import checked_topic

    try:
        checked_topic(topic)
    except ValueError as error:
        raise click.ClickException(f"the topic's name {error}") from None


def reason(error: BaseException) -> str:
    """A client's error in one line, without the request and the response that kafka-python prints with it."""
    message = re.search(r"error_message=(['\"])(.+?)\1", str(error))
    return message[2] if message else str(error).partition("\n")[0] or type(error).__name__


def _denied(error: BaseException, asking: Mapping[str, Any]) -> str:
    """Return which user lacks a right; empty for another error."""
    name = type(error).__name__
    if not name.endswith("AuthorizationFailedError"):
        return ""
    user = asking.get("sasl.username")
    kind = re.sub(r"(?<!^)([A-Z])", r" \1", name.removesuffix("AuthorizationFailedError")).lower()
    return f"{f'user {user}' if user else 'this client'} lacks a right on this {kind} ({reason(error)})"


def read_config(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read a `client.properties`: options of kafka-python, and librdkafka's properties for the same.

    Raises `click.UsageError` for what neither can express.
    """
    import javaproperties

    from flafka.plugins import Retry
    from flafka.plugins.kafka.errors import tls_context
    from flafka.plugins.kafka.properties import client_properties

    with path.open("rb") as file:
        properties: dict[str, str] = javaproperties.load(file)
    try:
        asking = client_properties(properties)
        options: dict[str, Any] = {ours: asking[name] for name, ours in OPTIONS.items() if name in asking}
        if "SSL" in options.get("security_protocol", "").upper():
            options["ssl_context"] = tls_context(asking)
    except (Retry, OSError, ValueError) as e:
        raise click.UsageError(f"{path}: {e}") from None
    for name, value in properties.items():
        if name in MILLISECONDS:
            if not value.isdecimal():
                raise click.UsageError(f"{path}: {name}={value}: not a number of milliseconds")
            options[MILLISECONDS[name]] = int(value)
        elif name == "sasl.jaas.config":
            if not {"sasl_plain_username", "sasl_plain_password"} <= options.keys():
                raise click.UsageError(f"{path}: {name}: no username and password in it")
        elif name not in OPTIONS and not name.startswith("ssl."):
            click.echo(f"{path}: {name} is not used", err=True)
    return options, asking
