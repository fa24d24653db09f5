"""Questions about brokers and topics: whether they answer, what is missing, and how a topic is created."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicCollection, TopicPartition
from confluent_kafka.admin import AclOperation, AdminClient, NewTopic

from flafka.plugins.component import ConnectivityWarning
from flafka.plugins.errors import FlafkaError, Retry
from flafka.plugins.kafka.clients import ASK, CONNECT_SECONDS, METADATA_SECONDS, REQUEST_SECONDS, new_admin
from flafka.plugins.kafka.config import KafkaEndConfig
from flafka.plugins.kafka.errors import metadata, sentence

PROBE_SECONDS = 5.0
"""Time in which brokers must answer, or they count as away."""
NO_BROKERS = "kafka.bootstrap.servers is not set, and this user has started no cluster: run `agent cluster start`"


def create_topic(
    admin: AdminClient, name: str, partitions: int, replication: int, settings: Mapping[str, str], seconds: float
) -> bool:
    """Create a topic that survives the loss of a broker if it has several replicas. False if the topic exists.

    Raises KafkaException.

    Its records have the brokers' time. Brokers would refuse the time of a host whose clock is hours ahead. With the
    time of a slow clock, records would soon be older than the topic's retention.
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


def accepts(address: tuple[str, int]) -> bool:
    """Return True if somebody accepts a connection there."""
    try:
        socket.create_connection(address, timeout=CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def answers(client: Mapping[str, Any], address: tuple[str, int], topic: str) -> bool:
    """Return True if the broker there answers a question about that topic, asked with these properties."""
    host, port = address
    there = {**client, "bootstrap.servers": f"[{host}]:{port}" if ":" in host else f"{host}:{port}"}
    try:
        new_admin(ASK, there).list_topics(topic, timeout=PROBE_SECONDS)
    except KafkaException:
        return False
    return True


def unreachable(servers: str) -> list[str]:
    """Return the brokers of `host:port,…` that accept no connection, as `127.0.0.1:9092 (Connection refused)`."""

    def failure(server: str) -> str | None:
        host, _, port = server.rpartition("://")[2].rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
        except (OSError, ValueError) as e:
            return f"{server} ({getattr(e, 'strerror', None) or e})"
        return None

    named = [server for server in servers.replace(",", " ").split() if ":" in server]
    if not named:
        return []
    with ThreadPoolExecutor(len(named)) as threads:
        return [text for text in threads.map(failure, named) if text is not None]


def away(servers: str) -> str:
    """For the end of an error message: the brokers that take no connection; empty where all do."""
    found = unreachable(servers)
    return f"; no connection to {', '.join(found)}" if found else ""


def unanswered(servers: str) -> Iterator[str]:
    """A sentence for each of those brokers that takes no connection, beside others that do."""
    for text in unreachable(servers):
        yield f"no connection to broker {text}: is it running?"


def refused_group(group: str) -> str:
    """Return why the client takes no offsets of this consumer group into a transaction; empty if it does.

    The name has to consist of printable characters of ASCII (`str_is_printable` in librdkafka's rdkafka_cgrp.c).
    """
    wrong = next((character for character in group if not " " <= character <= "~"), "")
    if not wrong:
        return ""
    return (
        f"consumer group {group!r} has {wrong!r}, and the Kafka client takes printable ASCII alone into a "
        "transaction: give it another name, and the new group begins with the first event that the channel holds"
    )


class TopicMissing(str):
    """Sentence about a topic that does not exist. It is no error where the agent itself creates the topic."""

    topic: str

    def __new__(cls, topic: str, servers: str) -> TopicMissing:
        """Make the sentence from the names of the topic and of its brokers."""
        create = f"agent topic create {topic} --bootstrap-server {servers}"
        self = super().__new__(cls, f"there is no topic {topic} at {servers}: {create}")
        self.topic = topic
        return self


def missing(client: Callable[[], Mapping[str, Any]], config: KafkaEndConfig, topics: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for each reason why a component cannot work.

    No brokers are known, none answers, they are of another cluster, or topics do not exist.

    `client` makes the properties; what it raises as Retry is a sentence too.
    """
    servers = config.bootstrap_servers
    if not servers:
        yield NO_BROKERS
        return
    try:
        properties = dict(client())
        found = metadata(properties, PROBE_SECONDS)
    except Retry as e:
        yield str(e)
        return
    if foreign := config.foreign(found.cluster_id):
        yield foreign
        return
    for topic in topics:
        if topic not in found.topics:
            yield _unseen(properties, topic, servers)


def _unseen(client: Mapping[str, Any], topic: str, servers: str) -> str:
    """Return why a topic is not among those that brokers name to this client."""
    topics = TopicCollection([topic])
    admin = new_admin(ASK, client)  # which has to outlive its answer
    try:
        admin.describe_topics(topics, request_timeout=PROBE_SECONDS)[topic].result()
    except KafkaException as e:
        if e.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            return sentence(e, topic=topic, right="Describe", client=client)
    return TopicMissing(topic, servers)


def probed(client: Callable[[], Mapping[str, Any]], config: KafkaEndConfig, topics: Sequence[str]) -> Iterator[str]:
    """Yield what `check_connectivity` answers: the sentences of `missing`, and a warning for each absent broker."""
    yield from missing(client, config, topics)
    servers = config.bootstrap_servers or ""
    if len(found := list(unanswered(servers))) < len(servers.replace(",", " ").split()):
        yield from map(ConnectivityWarning, found)


# --- requests of a consumer, or of a client for administration

T = TypeVar("T")


_MOVES = frozenset(
    {KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS}
)


_BEGINS = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION}
)


def read_up_to(
    consumer: Consumer, at: TopicPartition, end: int, seconds: float, *, wait: bool = False
) -> Iterator[Message]:
    """Yield the records of one partition from `at` up to, not including, offset `end`.

    The consumer has `enable.partition.eof`.

    What cannot be read yet, as a transaction is open, is left out, or waited for. Raises Retry where nothing comes
    for so many seconds, and KafkaException.
    """
    consumer.assign([at])
    position, deadline = max(at.offset, 0), time.monotonic() + seconds
    while position < end:
        message = consumer.poll(0.1)
        if message is None:
            if time.monotonic() > deadline:
                why = "; a transaction may be open in it" if wait else ""
                raise Retry(f"topic {at.topic} does not come to its end within {seconds:.0f} s{why}")
            continue
        error, offset = message.error(), cast("int", message.offset())
        if error is None:
            position, deadline = offset + 1, time.monotonic() + seconds
            yield message
        elif error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            continue  # said by the coordinator, whom an assigned partition with an offset does not need
        elif error.code() != KafkaError._PARTITION_EOF:
            raise KafkaException(error)
        elif not wait:
            return
        else:
            position = offset


def committed_offsets(consumer: Consumer, partitions: list[TopicPartition], seconds: float) -> list[TopicPartition]:
    """Return the group's committed offsets, below 0 where it has none. Raises KafkaException, also for one partition.

    The client hands out a partition's error beside an offset that looks as if there were none: taken for one, it
    would begin anew. While the group's coordinator moves or begins, which the client does not wait for here, it is
    asked again, for as long as `seconds` say.
    """
    return _asked_again(lambda: _without_errors(consumer.committed(partitions, timeout=seconds)), _MOVES, seconds)


def members_of(admin: AdminClient, group: str, seconds: float) -> list[Any]:
    """Return the members of a group. Raises KafkaException if the brokers do not tell them within so many seconds."""

    def members() -> list[Any]:
        groups = admin.list_groups(group, timeout=seconds)
        for one in groups:
            if one.error is not None:
                raise KafkaException(one.error)
        return [member for one in groups for member in one.members]

    return _asked_again(members, _MOVES, seconds)


def watermarks(consumer: Consumer, partition: TopicPartition, seconds: float) -> tuple[int, int]:
    """Return the low and the high watermark of a partition of a topic that exists. Raises KafkaException.

    A broker may not have heard yet of a topic that another one has just made, or that it leads the partition: it is
    asked again, for as long as `seconds` say.
    """
    return _asked_again(lambda: consumer.get_watermark_offsets(partition, timeout=seconds), _BEGINS, seconds)


def _asked_again(ask: Callable[[], T], codes: Collection[int], seconds: float) -> T:
    """The answer; while it is one of these errors, the question is asked again for so long."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return ask()
        except KafkaException as e:
            if e.args[0].code() not in codes or time.monotonic() >= deadline:
                raise
        time.sleep(0.1)


def offsets_at(consumer: Consumer, times: list[TopicPartition], seconds: float) -> list[TopicPartition]:
    """Return the first offsets at or after times (ms since the epoch), which are given as offsets.

    They are below 0 where there is nothing so new. Raises KafkaException, also for one partition, for the reason that
    `committed_offsets` has.

    A broker that has not heard yet of its partition is asked again, as for `watermarks`.
    """
    return _asked_again(lambda: _without_errors(consumer.offsets_for_times(times, timeout=seconds)), _BEGINS, seconds)


def _without_errors(found: list[TopicPartition]) -> list[TopicPartition]:
    for at in found:
        if at.error is not None:
            raise KafkaException(at.error)
    return found


# --- topic ids and members, and what brokers of older versions lack

NO_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""Topic id, as librdkafka writes it, of all topics of brokers that are older than Apache Kafka 2.8 (KIP-516)."""
_UNIQUE = re.compile(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")


def topic_id(description: Any) -> str:
    """Return the id of the topic that librdkafka describes so; empty where brokers are older than Kafka 2.8."""
    id = str(description.topic_id)
    return "" if id == NO_TOPIC_ID else id


def required_topic_id(description: Any) -> str:
    """Return the id of the topic that librdkafka describes so. Raises FlafkaError where brokers are too old."""
    if not (id := topic_id(description)):
        raise FlafkaError(
            "the brokers are older than Apache Kafka 2.8, the oldest that the channel kafka can use: without topic "
            "ids it would take a topic that was created again for the deleted one, and lose its first events. "
            "Upgrade the brokers or use a channel of type file"
        )
    return id


def may_write(description: Any) -> bool:
    """Return False if the brokers say that this client lacks the right Write on a topic.

    `description` is of a request with `include_authorized_operations`. Brokers older than Kafka 2.3 name none.
    """
    operations = description.authorized_operations
    return not operations or AclOperation.WRITE in operations


class TopicIds:
    """Asks the brokers which topic has a name now."""

    def __init__(self, admin: AdminClient, topic: str) -> None:
        self._admin, self._topic = admin, topic
        self._partitions = 0
        self._unanswered = False

    def get(self) -> str:
        """Return the topic's id. Raises Retry where there is no such topic, or no answer, and FlafkaError where
        brokers are too old.
        """
        try:
            found = self._request().result(REQUEST_SECONDS)
        except (KafkaException, TimeoutError) as e:
            self._unanswered = True
            raise Retry(f"topic {self._topic} cannot be looked at: {sentence(e)}") from e
        self._partitions = len(found.partitions)
        return required_topic_id(found)

    def ask(self, answer: Callable[[str | None], None]) -> None:
        """Have it called, on a thread of the client's, with the id; with none where there is no answer.

        Where there is no such topic now, the id is empty.
        """

        def told(future: Any) -> None:
            error = future.exception()
            if error is None:
                self._partitions = len(future.result().partitions)
                answer(str(future.result().topic_id))
            else:
                gone = isinstance(error, KafkaException) and error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
                self._unanswered = not gone
                answer("" if gone else None)

        try:
            request = self._request()
        except KafkaException:
            answer(None)
        else:
            request.add_done_callback(told)

    def unread(self, group: str) -> frozenset[int]:
        """Return the partitions that no member of that group has; none during a rebalance, and without an answer."""
        # Not by `describe_consumer_groups`: when a group's coordinator is lost, what the admin client asked of it
        # aborts the process (librdkafka 2.16, issue 4605).
        try:
            found: list[Any] = self._admin.list_groups(group, timeout=METADATA_SECONDS)
        except KafkaException:
            return frozenset()
        known = [one for one in found if one.error is None and one.state == "Stable"]
        members = [member for one in known for member in one.members]
        owned = (partition for member in members for partition in assigned(member.assignment, self._topic))
        return frozenset(range(self._partitions)).difference(owned) if members else frozenset()

    def _request(self) -> Any:
        if self._unanswered:
            # The client goes on asking the broker that it took for the controller, which may be lost, for minutes;
            # whatever metadata it gets names another one.
            with contextlib.suppress(KafkaException):
                self._admin.list_topics(self._topic, timeout=METADATA_SECONDS)
            self._unanswered = False
        topics = TopicCollection([self._topic])
        return self._admin.describe_topics(topics, request_timeout=REQUEST_SECONDS)[self._topic]


def called(member: Any) -> str:
    """A member of a group, as an operator knows it: the name that lasts, where it has one, and its host."""
    return f"{_UNIQUE.sub('', member.id)} on {member.client_host.lstrip('/')}"


def assigned(assignment: bytes, topic: str) -> Iterator[int]:
    """The partitions of that topic in what the leader of a group has assigned to a member."""
    if not assignment:
        return
    _, topics = struct.unpack_from(">hi", assignment)
    at = 6
    for _ in range(topics):
        (length,) = struct.unpack_from(">h", assignment, at)
        name = assignment[at + 2 : at + 2 + length].decode()
        at += 2 + length
        (count,) = struct.unpack_from(">i", assignment, at)
        if name == topic:
            yield from struct.unpack_from(f">{count}i", assignment, at + 4)
        at += 4 + 4 * count
