"""Connection of `agent topic`, `agent group` and `agent cluster` to Kafka, with the options of Kafka's own tools."""

import contextlib
import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from kafka import TopicPartition

    from flafka.agent.topology import AgentSpec
    from flafka.plugins.kafka.rights import Kind

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
TOPIC_OPTION = "--topic"
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


def topics_option(help: str) -> Callable[[Command], Command]:
    """Return the option `--topic` of topics or partitions, the texts of `select_partitions`."""
    return click.option(TOPIC_OPTION, "topics", multiple=True, metavar="TOPIC[:PARTITION,…]", help=help)


class MissingRight(Exception):
    """Error for a right that the user of a command lacks. `connect` makes it a ClickException."""

    def __init__(self, kind: "Kind", name: str, operation: str, reason: str) -> None:
        super().__init__(reason)
        self.kind, self.name, self.operation = kind, name, operation


@contextlib.contextmanager
def connect(
    bootstrap_server: str | None, command_config: Path | None, *, topic: str = "", group: str = "", right: str = ""
) -> Iterator[Any]:
    """Yield a `KafkaAdminClient` for the block, as `connect_clients` does."""
    with connect_clients(bootstrap_server, command_config, topic=topic, group=group, right=right) as (admin, _):
        yield admin


@contextlib.contextmanager
def connect_clients(
    bootstrap_server: str | None, command_config: Path | None, *, topic: str = "", group: str = "", right: str = ""
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield a `KafkaAdminClient`, and librdkafka's properties of further clients, for the block.

    Errors of Kafka, also in the block, become a ClickException of one line. `topic`, `group` and `right`, the
    operation that the block needs on them, or else on the cluster, are for errors of authorization. Without brokers
    in either argument, connect to the project's cluster, and refuse another cluster on its ports.
    """
    from confluent_kafka import KafkaException
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError

    from flafka.agent.services import ServiceError
    from flafka.agent.services.kafka import KafkaCluster
    from flafka.plugins import Retry
    from flafka.plugins.kafka.admin import unreachable_suffix
    from flafka.plugins.kafka.errors import explain_error, fetch_metadata
    from flafka.plugins.kafka.properties import QUIET
    from flafka.plugins.kafka.rights import describe_missing_right

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
    login = {**QUIET, **properties, "bootstrap.servers": servers}
    try:
        fetch_metadata(login, options["bootstrap_timeout_ms"] / 1000)
        client = KafkaAdminClient(**options)
    except Retry as error:
        raise click.ClickException(str(error)) from None
    except (KafkaError, OSError, ValueError) as error:  # OSError: file of a certificate; ValueError: host:port
        raise click.ClickException(f"cannot connect to {servers}: {reason(error)}") from None
    try:
        if not requested and (foreign := own.foreign_cluster_error(client.describe_cluster()["cluster_id"])):
            raise click.ClickException(f"{foreign}\n  to use it, name it with --bootstrap-server")
        yield client, login
    except KafkaException as error:
        text = explain_error(error, topic=topic, group=group, right=right, client=login)
        raise click.ClickException(f"{text}{unreachable_suffix(servers)}") from None
    except Retry as error:
        raise click.ClickException(str(error)) from None
    except (KafkaError, TimeoutError, MissingRight) as error:
        resources: dict[Kind, str] = {"topic": topic, "group": group}
        if (missing := _missing_right(error, resources, right)) is not None:
            names, operations = [missing.name] * bool(missing.name), [missing.operation] * bool(missing.operation)
            text = describe_missing_right(missing.kind, names, operations, login, str(missing))
            raise click.ClickException(text) from None
        raise click.ClickException(f"{reason(error)}{unreachable_suffix(servers)}") from None
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


def partitions_of(admin: Any, topic: str, *, right: str = "Describe") -> dict[int, dict[str, Any]]:
    """Return number → description of each partition of a topic, in order.

    `right` is an operation that includes Describe. Raises ClickException for an unknown topic, and MissingRight.
    """
    (described,) = admin.describe_topics([topic])
    raise_topic_errors([described], right=right)
    return dict(sorted((part["partition_index"], part) for part in described["partitions"]))


def select_partitions(admin: Any, texts: Iterable[str], *, right: str = "Describe") -> "list[TopicPartition]":
    """Return the partitions that texts `TOPIC` or `TOPIC:0,2` name, sorted.

    `right` is an operation that includes Describe. Raises ClickException for unknown ones, and MissingRight.
    """
    from kafka import TopicPartition

    keys = []
    for text in texts:
        topic, _, numbers = text.partition(":")
        existing = partitions_of(admin, topic, right=right)
        wanted = numbers.split(",") if numbers else map(str, existing)
        for number in wanted:
            if not number.isdecimal() or int(number) not in existing:
                raise click.BadParameter(f"{topic} has no partition {number!r}", param_hint=TOPIC_OPTION)
            keys.append(TopicPartition(topic, int(number)))
    return sorted(set(keys))


def raise_topic_errors(
    responses: Sequence[Mapping[str, Any]], *, right: str = "Describe", ignore: str | None = None
) -> None:
    """Raise ClickException for the first topic with an error, unless the error's class is named `ignore`.

    Raises MissingRight if the user lacks `right`, the operation that the request needs.
    """
    from kafka.errors import for_code

    for response in responses:
        error = for_code(response["error_code"])
        if response["error_code"] and error.__name__ != ignore:
            if error.__name__ == "InvalidTopicError":
                _raise_invalid_name(response["name"])
            unknown = error.__name__ == "UnknownTopicOrPartitionError"
            raise_if_denied(response, right)
            message = "no such topic" if unknown else response.get("error_message") or error.description
            raise click.ClickException(f"topic {response['name']}: {message}")


def raise_if_denied(response: Mapping[str, Any], right: str) -> None:
    """Raise MissingRight if the user lacks `right` on the topic of this response."""
    from kafka.errors import TopicAuthorizationFailedError

    if response["error_code"] == TopicAuthorizationFailedError.errno:
        raise MissingRight("topic", response["name"], right, TopicAuthorizationFailedError.__name__)


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


def _missing_right(error: BaseException, resources: "Mapping[Kind, str]", right: str) -> MissingRight | None:
    """Return the missing right of an error of authorization; None for another error.

    `resources` are the topic and the group of the request, and `right` is the operation that it needs.
    """
    if isinstance(error, MissingRight):
        return error
    name = type(error).__name__
    kind = next((kind for kind in resources if name == f"{kind.title()}AuthorizationFailedError"), None)
    if kind is not None:
        return MissingRight(kind, resources[kind], right, name)
    return MissingRight("cluster", "", right, name) if name == "ClusterAuthorizationFailedError" else None


def read_config(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return options of kafka-python, and equivalent properties of librdkafka, for a `client.properties`.

    Unused properties are printed to standard error. Raises UsageError for wrong or unsupported ones, and OSError if
    the file cannot be read.
    """
    import javaproperties
    from confluent_kafka.admin import AdminClient

    from flafka.plugins import Retry
    from flafka.plugins.kafka.errors import tls_context
    from flafka.plugins.kafka.kerberos import find_login, host_errors, named_of
    from flafka.plugins.kafka.logins import SECURITY_PREFIXES, uses_tokens
    from flafka.plugins.kafka.properties import QUIET, check_accepted, client_properties

    with path.open("rb") as file:
        written: dict[str, str] = javaproperties.load(file)
    # Other properties may have values of Java's client that librdkafka refuses, such as -1 for a buffer.
    used = {name: value for name, value in written.items() if name in OPTIONS or name.startswith(SECURITY_PREFIXES)}
    try:
        check_accepted(used, lambda client: AdminClient({**QUIET, **client}))
        properties = client_properties(used)
        if lacking := next(host_errors(properties), None):
            raise ValueError(f"{named_of(lacking[0], used)}: {lacking[1]}")
        options: dict[str, Any] = {option: properties[name] for name, option in OPTIONS.items() if name in properties}
        if "SSL" in options.get("security_protocol", "").upper():
            options["ssl_context"] = tls_context(properties)
        if (login := find_login(properties)) is not None:
            from flafka.agent.cli.kafka_kerberos import use_login

            use_login(login)
        if uses_tokens(properties):
            options["sasl_oauth_token_provider"] = _token_provider(properties)
    except (Retry, OSError, ValueError) as e:
        raise click.UsageError(f"{path}: {e}") from None
    for name, value in written.items():
        if name in MILLISECONDS:
            if not value.isdecimal():
                raise click.UsageError(f"{path}: {name}={value} is not a number of milliseconds")
            options[MILLISECONDS[name]] = int(value)
        elif name not in used:
            click.echo(f"{path}: {name} is not used", err=True)
    return options, properties


def _token_provider(properties: Mapping[str, Any]) -> Any:
    """Return kafka-python's provider of tokens for OAUTHBEARER. Raises OSError or ValueError for unusable properties.

    kafka-python asks for a token at each login.
    """
    from kafka.net.sasl.oauth import AbstractTokenProvider

    from flafka.agent.cli.kafka_kerberos import failing_login
    from flafka.plugins.kafka.logins import TokenRequest

    request = TokenRequest(properties)

    def token(_: object) -> str:
        with failing_login(OSError, ValueError):
            return request.token()

    methods = {"token": token, "extensions": lambda _: request.extensions}
    return type("TokenProvider", (AbstractTokenProvider,), methods)()
