"""Requests to brokers: connectivity checks, creation of topics, offsets, topic ids and group members."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicCollection, TopicPartition
from confluent_kafka.admin import AclOperation, AdminClient, NewTopic

from flafka.plugins.component import ConnectivityWarning
from flafka.plugins.errors import FlafkaError, Retry
from flafka.plugins.kafka.clients import BROKER_CONNECT_SECONDS, METADATA_SECONDS, QUERY, REQUEST_SECONDS, new_admin
from flafka.plugins.kafka.config import KafkaClientConfig
from flafka.plugins.kafka.errors import explain_error, fetch_metadata
from flafka.plugins.kafka.renewal import ClientRenewal

CONNECTIVITY_SECONDS = 5.0
"""Time in which brokers must answer a connectivity check."""
NO_BROKERS = "kafka.bootstrap.servers is not set, and this user has started no cluster: run `agent cluster start`"


def create_topic(
    admin: AdminClient, name: str, partitions: int, replication: int, settings: Mapping[str, str], seconds: float
) -> bool:
    """Create a topic that survives the loss of a broker if it has several replicas.

    Return False if the topic exists already; it is not changed then. Raises KafkaException, and TimeoutError after
    `seconds`.

    The topic's records have the brokers' timestamps, unless `settings` say otherwise. Brokers would refuse timestamps
    of a clock that is hours ahead; with timestamps of a slow clock, records would exceed the topic's retention too
    early.
    """
    safe = {"min.insync.replicas": str(min(2, replication)), "message.timestamp.type": "LogAppendTime"}
    settings = {**safe, **settings}
    wanted = NewTopic(name, num_partitions=partitions, replication_factor=replication, config=settings)
    try:
        admin.create_topics([wanted])[name].result(seconds)
    except KafkaException as e:
        if e.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
        return False
    return True


def is_accepting(address: tuple[str, int]) -> bool:
    """Return True if a process accepts a connection at the address within `BROKER_CONNECT_SECONDS`."""
    try:
        socket.create_connection(address, timeout=BROKER_CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def is_answering(client: Mapping[str, Any], address: tuple[str, int], topic: str) -> bool:
    """Return True if one broker answers a metadata request about a topic within `CONNECTIVITY_SECONDS`.

    `client` holds properties of librdkafka; `address`, the broker's host and port, replaces their
    `bootstrap.servers`. An error of the topic is an answer as well.
    """
    host, port = address
    properties = {**client, "bootstrap.servers": f"[{host}]:{port}" if ":" in host else f"{host}:{port}"}
    try:
        new_admin(QUERY, properties).list_topics(topic, timeout=CONNECTIVITY_SECONDS)
    except KafkaException:
        return False
    return True


def unreachable_brokers(servers: str) -> list[str]:
    """Return the brokers of `host:port,…` that accept no connection, as in `127.0.0.1:9092 (Connection refused)`.

    A broker without a port is not tried.
    """

    def failure(server: str) -> str | None:
        host, _, port = server.rpartition("://")[2].rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=BROKER_CONNECT_SECONDS).close()
        except (OSError, ValueError) as e:
            return f"{server} ({getattr(e, 'strerror', None) or e})"
        return None

    named = [server for server in servers.replace(",", " ").split() if ":" in server]
    if not named:
        return []
    with ThreadPoolExecutor(len(named)) as threads:
        return [text for text in threads.map(failure, named) if text is not None]


def unreachable_suffix(servers: str) -> str:
    """Return the end of an error about brokers that accept no connection; empty if all accept one."""
    brokers = unreachable_brokers(servers)
    return f"; no connection to {', '.join(brokers)}" if brokers else ""


def unreachable_warnings(servers: str) -> Iterator[str]:
    """Yield a sentence for each broker that accepts no connection."""
    for text in unreachable_brokers(servers):
        yield f"no connection to broker {text}: is it running?"


def group_id_error(group: str) -> str:
    """Return the reason why the client takes no offsets of this consumer group into a transaction; empty if it does.

    The name must consist of printable ASCII characters (`str_is_printable` in librdkafka's rdkafka_cgrp.c).
    """
    invalid = next((character for character in group if not " " <= character <= "~"), "")
    if not invalid:
        return ""
    return (
        f"consumer group {group!r} has {invalid!r}, and the Kafka client takes printable ASCII alone into a "
        "transaction: give it another name, and the new group begins with the first event that the channel holds"
    )


class TopicMissing(str):
    """Sentence about a topic that does not exist. No error if the agent itself creates the topic."""

    topic: str

    def __new__(cls, topic: str, servers: str) -> TopicMissing:
        """Return the sentence about a topic of these brokers."""
        create = f"agent topic create {topic} --bootstrap-server {servers}"
        self = super().__new__(cls, f"there is no topic {topic} at {servers}: {create}")
        self.topic = topic
        return self


def connectivity_errors(
    client: Callable[[], Mapping[str, Any]], config: KafkaClientConfig, topics: Sequence[str], right: str
) -> Iterator[str]:
    """Yield a sentence for each reason why a component cannot use these topics.

    Reasons are unknown or unreachable brokers, brokers of another cluster, and missing topics or rights. `client`
    returns the client's properties; the text of a Retry that it raises is a reason as well. `right` is the operation
    that the component needs on the topics: Read or Write.
    """
    servers = config.bootstrap_servers
    if not servers:
        yield NO_BROKERS
        return
    try:
        properties = dict(client())
        metadata = fetch_metadata(properties, CONNECTIVITY_SECONDS)
    except Retry as e:
        yield str(e)
        return
    if error := config.foreign_cluster_error(metadata.cluster_id):
        yield error
        return
    for topic in topics:
        if topic not in metadata.topics:
            yield visibility_error(properties, topic, [right]) or TopicMissing(topic, servers)


def visibility_error(client: Mapping[str, Any], topic: str, needed: Collection[str]) -> str:
    """Return a sentence if this client may not describe a topic, which brokers then treat as missing; else empty.

    `needed` are the operations that the client needs on the topic. Each includes Describe, so that it has none.
    """
    error = _description_error(new_admin(QUERY, client), topic)
    return explain_error(error, topic=topic, right=needed, client=client) if error is not None else ""


def refused_operations(admin: AdminClient, topic: str, needed: Collection[str]) -> Collection[str]:
    """Return the operations that a client lacks on a topic that it was not allowed to create.

    They are the `needed` ones if the client may not describe the topic, which may exist then; else Create.
    """
    return needed if _description_error(admin, topic) is not None else ["Create"]


def _description_error(admin: AdminClient, topic: str) -> KafkaException | None:
    """Return the error if this client may not describe a topic; None if it may, and without an answer."""
    try:
        # The future needs the client: `admin` is alive until the end of this function.
        admin.describe_topics(TopicCollection([topic]), request_timeout=CONNECTIVITY_SECONDS)[topic].result()
    except KafkaException as e:
        if e.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            return e
    return None


def connectivity_problems(
    client: Callable[[], Mapping[str, Any]], config: KafkaClientConfig, topics: Sequence[str], right: str
) -> Iterator[str]:
    """Yield the errors of `connectivity_errors`, and a warning for each broker that accepts no connection.

    There are no warnings if no broker accepts one. The result of `Component.check_connectivity`.
    """
    yield from connectivity_errors(client, config, topics, right)
    servers = config.bootstrap_servers or ""
    if len(warnings := list(unreachable_warnings(servers))) < len(servers.replace(",", " ").split()):
        yield from map(ConnectivityWarning, warnings)


T = TypeVar("T")


_COORDINATOR_ERRORS = frozenset(
    {KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS}
)
"""Error codes while the coordinator of a group moves or loads."""
_NEW_TOPIC_ERRORS = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION}
)
"""Error codes of a broker that does not know yet a topic that was just created."""


def read_up_to(
    consumer: Consumer, start: TopicPartition, end: int, seconds: float, *, wait: bool = False
) -> Iterator[Message]:
    """Yield the records of one partition from `start`, inclusive, to offset `end`, exclusive.

    The consumer must have `enable.partition.eof`. Records after an open transaction are omitted; with `wait`, the
    function waits for the end of the transaction. Raises Retry after `seconds` without a record, and KafkaException.
    """
    consumer.assign([start])
    position, deadline = max(start.offset, 0), time.monotonic() + seconds
    while position < end:
        message = consumer.poll(0.1)
        if message is None:
            if time.monotonic() > deadline:
                hint = "; a transaction may be open in it" if wait else ""
                raise Retry(f"topic {start.topic} cannot be read to its end within {seconds:.0f} s{hint}")
            continue
        error, offset = message.error(), cast("int", message.offset())
        if error is None:
            position, deadline = offset + 1, time.monotonic() + seconds
            yield message
        elif error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            continue  # of the group's coordinator, which a manually assigned partition does not need
        elif error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        elif not wait:
            return
        else:
            position = offset


def committed_offsets(consumer: Consumer, partitions: list[TopicPartition], seconds: float) -> list[TopicPartition]:
    """Return the group's committed offset of each of these partitions; a negative offset if a partition has none.

    Raises KafkaException, also for the error of a single partition. The client returns such an error beside an
    invalid offset: without the exception, the group would start at the first record. The request is repeated for
    `seconds` while the group's coordinator moves or loads, for which the client does not wait here.
    """
    return _request_again(
        lambda: _raise_errors(consumer.committed(partitions, timeout=seconds)), _COORDINATOR_ERRORS, seconds
    )


def memberless_offsets(consumer: Consumer, partitions: list[TopicPartition], seconds: float) -> list[TopicPartition]:
    """Return the committed offsets as `committed_offsets`, for a consumer that has no subscription and assignment.

    If the client has waited in vain for a coordinator that refuses the group, this raises the refusal.
    """
    try:
        return committed_offsets(consumer, partitions, seconds)
    except KafkaException:
        message = consumer.poll(0)  # the client reports the refusal so, and the request as timed out
        if message is None or (error := message.error()) is None:
            raise
        if error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
            raise
        raise KafkaException(error) from None


def members_of(admin: AdminClient, group: str, seconds: float) -> list[Any]:
    """Return the members of a group. Raises KafkaException if the brokers do not answer within `seconds`."""

    def members() -> list[Any]:
        groups = admin.list_groups(group, timeout=seconds)
        for description in groups:
            if description.error is not None:
                raise KafkaException(description.error)
        return [member for description in groups for member in description.members]

    return _request_again(members, _COORDINATOR_ERRORS, seconds)


def group_refusal(admin: AdminClient, group: str) -> KafkaException | None:
    """Return the error if this client may not describe a group; None if it may, and without an answer.

    Brokers leave such a group out of the list that `members_of` requests, as if it had no members.
    """
    try:
        admin.describe_consumer_groups([group], request_timeout=CONNECTIVITY_SECONDS)[group].result()
    except KafkaException as e:
        if e.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            return e
    return None


def partition_numbers(consumer: Consumer, topic: str, seconds: float) -> list[int]:
    """Return the numbers of a topic's partitions; empty if there is no such topic.

    Raises KafkaException, also if the client may not describe the topic.
    """
    described = consumer.list_topics(topic, timeout=seconds).topics[topic]
    if described.error is not None and described.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        raise KafkaException(described.error)
    return [*described.partitions]


def watermarks(consumer: Consumer, partition: TopicPartition, seconds: float) -> tuple[int, int]:
    """Return the low and the high watermark of a partition of an existing topic. Raises KafkaException.

    The request is repeated for `seconds`, because a broker may not know yet that the topic was created, or that it
    leads the partition.
    """
    return _request_again(
        lambda: consumer.get_watermark_offsets(partition, timeout=seconds), _NEW_TOPIC_ERRORS, seconds
    )


def _request_again(request: Callable[[], T], codes: Collection[int], seconds: float) -> T:
    """Return the result of a request, repeated for `seconds` while it fails with one of these error codes."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return request()
        except KafkaException as e:
            if e.args[0].code() not in codes or time.monotonic() >= deadline:
                raise
        time.sleep(0.1)


def offsets_for_times(consumer: Consumer, times: list[TopicPartition], seconds: float) -> list[TopicPartition]:
    """Return the offset of the first record at or after each time; a negative offset if there is none.

    The times, in milliseconds since the epoch, are the offsets of `times`. Raises KafkaException, also for the error
    of a single partition, as `committed_offsets`. The request is repeated as for `watermarks`.
    """
    return _request_again(
        lambda: _raise_errors(consumer.offsets_for_times(times, timeout=seconds)), _NEW_TOPIC_ERRORS, seconds
    )


def _raise_errors(offsets: list[TopicPartition]) -> list[TopicPartition]:
    """Return these offsets. Raises KafkaException for the error of one of them."""
    for offset in offsets:
        if offset.error is not None:
            raise KafkaException(offset.error)
    return offsets


NO_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""Topic id, in librdkafka's notation, of all topics of brokers older than Apache Kafka 2.8 (KIP-516)."""
_UUID_SUFFIX = re.compile(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")


def topic_id(description: Any) -> str:
    """Return the topic id in librdkafka's description of a topic; empty if brokers are older than Kafka 2.8."""
    id = str(description.topic_id)
    return "" if id == NO_TOPIC_ID else id


def required_topic_id(description: Any) -> str:
    """Return the topic id in librdkafka's description of a topic. Raises FlafkaError if brokers are too old."""
    if not (id := topic_id(description)):
        raise FlafkaError(
            "the brokers are older than Apache Kafka 2.8, the oldest that the channel kafka can use: without topic "
            "ids it would take a recreated topic for the deleted one, and lose its first events. "
            "Upgrade the brokers or use a channel of type file"
        )
    return id


def has_write_access(admin: AdminClient, topic: str) -> bool:
    """Return False if this client lacks the right Write on a topic; True also if brokers do not answer."""
    return not lacking_operations(admin, topic, ["Write"])


def lacking_operations(admin: AdminClient, topic: str, operations: Iterable[str]) -> list[str]:
    """Return the operations among these, such as Read, that this client may not do on a topic.

    Empty if brokers do not answer the question. Brokers older than Kafka 2.3 return no operations.
    """
    futures = admin.describe_topics(TopicCollection([topic]), include_authorized_operations=True)
    try:
        allowed = futures[topic].result(CONNECTIVITY_SECONDS).authorized_operations
    except (KafkaException, TimeoutError):  # a missing right shows when it is needed
        return []
    return [name for name in operations if allowed and AclOperation[name.upper()] not in allowed]


class TopicIds:
    """Requests for the present id of a topic. Any thread may call."""

    def __init__(
        self,
        admin: AdminClient,
        topic: str,
        client: Mapping[str, Any] | None = None,
        renewal: ClientRenewal | None = None,
    ) -> None:
        """`client` are the properties of `admin`, for errors about missing rights.

        `renewal` replaces the client once its certificates have changed.
        """
        self._admin, self._topic, self._client, self._renewal = admin, topic, client, renewal
        self._former: AdminClient | None = None
        """Replaced client, which must outlive its last request."""
        self._partitions = 0
        self._refresh_due = False
        """True if the client needs new metadata after a request without an answer."""

    def get(self) -> str:
        """Return the topic's id. Raises Retry if there is no such topic or no answer.

        Raises FlafkaError if brokers are too old. Blocks for up to `REQUEST_SECONDS`.
        """
        try:
            description = self._describe().result(REQUEST_SECONDS)
        except (KafkaException, TimeoutError) as e:
            self._refresh_due = True
            why = explain_error(e, topic=self._topic, right="Read", client=self._client)
            raise Retry(f"topic {self._topic} cannot be described: {why}") from e
        self._partitions = len(description.partitions)
        return required_topic_id(description)

    def request(self, callback: Callable[[str | None], None]) -> None:
        """Request the topic's id without blocking, and pass it to a callback, on a thread of the client's.

        The id is empty if there is no such topic, and None without an answer.
        """

        def pass_on(future: Any) -> None:
            error = future.exception()
            if error is None:
                self._partitions = len(future.result().partitions)
                callback(str(future.result().topic_id))
            else:
                code = error.args[0].code() if isinstance(error, KafkaException) else None
                is_deleted = code == KafkaError.UNKNOWN_TOPIC_OR_PART
                self._refresh_due = not is_deleted
                callback("" if is_deleted else None)

        try:
            future = self._describe()
        except KafkaException:
            callback(None)
        else:
            future.add_done_callback(pass_on)

    def unassigned_partitions(self, group: str) -> frozenset[int]:
        """Return the partitions of the topic that no member of that group has.

        The result is empty during a rebalance, without members, and without an answer within `METADATA_SECONDS`.
        """
        # Not by `describe_consumer_groups`: if the group's coordinator is lost, a pending request aborts the process
        # (librdkafka 2.16, issue 4605).
        try:
            groups: list[Any] = self._admin.list_groups(group, timeout=METADATA_SECONDS)
        except KafkaException:
            return frozenset()
        stable = [
            description for description in groups if description.error is None and description.state == "Stable"
        ]
        members = [member for description in stable for member in description.members]
        owned = (partition for member in members for partition in assigned_partitions(member.assignment, self._topic))
        return frozenset(range(self._partitions)).difference(owned) if members else frozenset()

    def _describe(self) -> Any:
        """Return the future of a request about the topic. Raises KafkaException. May block for `METADATA_SECONDS`."""
        if self._renewal is not None and (admin := self._renewal.renew(partial(new_admin, QUERY))) is not None:
            self._former, self._admin = self._admin, admin
        if self._refresh_due:
            # Without new metadata, the client sends requests to a lost controller for minutes.
            with contextlib.suppress(KafkaException):
                self._admin.list_topics(self._topic, timeout=METADATA_SECONDS)
            self._refresh_due = False
        topics = TopicCollection([self._topic])
        return self._admin.describe_topics(topics, request_timeout=REQUEST_SECONDS)[self._topic]


def member_name(member: Any) -> str:
    """Return the client or instance id of a group's member, without its UUID, and its host."""
    return f"{_UUID_SUFFIX.sub('', member.id)} on {member_host(member)}"


def member_host(member: Any) -> str:
    """Return the address from which the brokers see a group's member; they write it as `/10.0.0.1`."""
    return str(member.client_host).rpartition("/")[2]


def assigned_partitions(assignment: bytes, topic: str) -> Iterator[int]:
    """Yield the partitions of a topic in the assignment of a group's member, which is in Kafka's binary format."""
    if not assignment:
        return
    _, topics = struct.unpack_from(">hi", assignment)
    position = 6
    for _ in range(topics):
        (length,) = struct.unpack_from(">h", assignment, position)
        name = assignment[position + 2 : position + 2 + length].decode()
        position += 2 + length
        (count,) = struct.unpack_from(">i", assignment, position)
        if name == topic:
            yield from struct.unpack_from(f">{count}i", assignment, position + 4)
        position += 4 + 4 * count
