"""Connection of `agent topic` and `agent group` to Kafka, with the options of Kafka's own tools."""

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
"""Property of librdkafka, or its alias of the Java client → option of kafka-python."""
MILLISECONDS = {"request.timeout.ms": "request_timeout_ms", "default.api.timeout.ms": "bootstrap_timeout_ms"}


def connection_options(command: Command) -> Command:
    """Return the command with the options `--bootstrap-server` and `--command-config`."""
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
    """Yield a `KafkaAdminClient` for the block.

    Errors of Kafka, also in the block, become a ClickException of one line. Without brokers in either argument,
    connect to the project's cluster, and refuse another cluster on its ports.
    """
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError

    from flafka.agent.services import ServiceError
    from flafka.agent.services.kafka import KafkaCluster
    from flafka.plugins import Retry
    from flafka.plugins.kafka.admin import unreachable_suffix
    from flafka.plugins.kafka.errors import fetch_metadata
    from flafka.plugins.kafka.properties import QUIET

    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # errors are reported once, here
    options, properties = read_config(command_config) if command_config else ({}, {})
    own = KafkaCluster.default()
    requested = bootstrap_server or options.get("bootstrap_servers")
    try:
        servers = requested or own.bootstrap_servers
    except ServiceError as error:
        raise click.ClickException(
            f"{error}\n  start it with `agent cluster start`, or name another with --bootstrap-server"
        ) from None
    options = {"bootstrap_timeout_ms": 10_000, **options, "bootstrap_servers": servers}
    try:
        fetch_metadata({**QUIET, **properties, "bootstrap.servers": servers}, options["bootstrap_timeout_ms"] / 1000)
        client = KafkaAdminClient(**options)
    except Retry as error:
        raise click.ClickException(str(error)) from None
    except (KafkaError, OSError, ValueError) as error:  # OSError: file of a certificate; ValueError: host:port
        raise click.ClickException(f"cannot connect to {servers}: {reason(error)}") from None
    try:
        if not requested and (foreign := own.foreign_cluster_error(client.describe_cluster()["cluster_id"])):
            raise click.ClickException(f"{foreign}\n  to use it, name it with --bootstrap-server")
        yield client
    except (KafkaError, TimeoutError) as error:
        denied = _authorization_error(error, properties)
        raise click.ClickException(denied or f"{reason(error)}{unreachable_suffix(servers)}") from None
    finally:
        client.close()


@contextlib.contextmanager
def name_unreachable_brokers(spec: "AgentSpec") -> Iterator[None]:
    """Add the brokers of the agent that do not answer to the text of a FlafkaError of the block."""
    from flafka.plugins import FlafkaError
    from flafka.plugins.kafka.admin import unreachable_suffix

    try:
        yield
    except FlafkaError as error:
        components = (*spec.sources, *spec.channels, *spec.sinks)
        lists = {getattr(component.config, "bootstrap_servers", None) or "" for component in components}
        servers = sorted({server for names in lists for server in names.split(",")})
        if not (suffix := unreachable_suffix(",".join(servers))):
            raise
        raise FlafkaError(f"{error}{suffix}") from error


def confirm(question: str, yes: bool) -> None:
    """Ask for confirmation on a terminal, unless `yes`; a "no" aborts. Raises UsageError without a terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(
            "nothing was changed: without a terminal for the confirmation, this command needs --yes"
        )
    click.confirm(question, abort=True)


def partitions_of(admin: Any, topic: str) -> dict[int, dict[str, Any]]:
    """Return number → description of each partition of a topic, in order.

    Raises ClickException for an unknown topic.
    """
    (described,) = admin.describe_topics([topic])
    raise_topic_errors([described])
    return dict(sorted((part["partition_index"], part) for part in described["partitions"]))


def raise_topic_errors(
    responses: Sequence[Mapping[str, Any]], *, right: str = "Describe", ignore: str | None = None
) -> None:
    """Raise ClickException for the first topic with an error, unless the error's class is named `ignore`.

    `right` is the right that the request needs, for the text.
    """
    from kafka.errors import for_code

    for response in responses:
        error = for_code(response["error_code"])
        if response["error_code"] and error.__name__ != ignore:
            if error.__name__ == "InvalidTopicError":
                _raise_invalid_name(response["name"])
            unknown = error.__name__ == "UnknownTopicOrPartitionError"
            if error.__name__ == "TopicAuthorizationFailedError":
                raise click.ClickException(f"this user lacks the right {right} on topic {response['name']}")
            message = "no such topic" if unknown else response.get("error_message") or error.description
            raise click.ClickException(f"topic {response['name']}: {message}")


def _raise_invalid_name(topic: str) -> None:
    """Raise ClickException with the reason why Kafka does not accept the name of a topic, if it is known."""
    from flafka.plugins.kafka.config import check_topic_name

    try:
        check_topic_name(topic)
    except ValueError as error:
        raise click.ClickException(f"the topic's name {error}") from None


def reason(error: BaseException) -> str:
    """Return the message of an error of kafka-python as one line, without its request and response."""
    message = re.search(r"error_message=(['\"])(.+?)\1", str(error))
    return message[2] if message else str(error).partition("\n")[0] or type(error).__name__


def _authorization_error(error: BaseException, properties: Mapping[str, Any]) -> str:
    """Return a text with the user who lacks a right, for an error of authorization; empty for another error."""
    name = type(error).__name__
    if not name.endswith("AuthorizationFailedError"):
        return ""
    user = properties.get("sasl.username")
    kind = re.sub(r"(?<!^)([A-Z])", r" \1", name.removesuffix("AuthorizationFailedError")).lower()
    return f"{f'user {user}' if user else 'this client'} lacks a right on this {kind} ({reason(error)})"


def read_config(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return options of kafka-python, and equivalent properties of librdkafka, for a `client.properties`.

    Unused properties are printed to standard error. Raises UsageError for wrong or unsupported ones, and OSError if
    the file cannot be read.
    """
    import javaproperties

    from flafka.plugins import Retry
    from flafka.plugins.kafka.errors import tls_context
    from flafka.plugins.kafka.properties import client_properties

    with path.open("rb") as file:
        java_properties: dict[str, str] = javaproperties.load(file)
    try:
        properties = client_properties(java_properties)
        options: dict[str, Any] = {option: properties[name] for name, option in OPTIONS.items() if name in properties}
        if "SSL" in options.get("security_protocol", "").upper():
            options["ssl_context"] = tls_context(properties)
    except (Retry, OSError, ValueError) as e:
        raise click.UsageError(f"{path}: {e}") from None
    for name, value in java_properties.items():
        if name in MILLISECONDS:
            if not value.isdecimal():
                raise click.UsageError(f"{path}: {name}={value} is not a number of milliseconds")
            options[MILLISECONDS[name]] = int(value)
        elif name == "sasl.jaas.config":
            if not {"sasl_plain_username", "sasl_plain_password"} <= options.keys():
                raise click.UsageError(f"{path}: {name} has no username and password")
        elif name not in OPTIONS and not name.startswith("ssl."):
            click.echo(f"{path}: {name} is not used", err=True)
    return options, properties
