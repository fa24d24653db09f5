"""Stored dead letters, read back from a file or a topic."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from confluent_kafka import KafkaException, TopicPartition

from flafka.agent.auxiliarytopics import DEAD_LETTER_READER
from flafka.agent.runner.deadletters.store import (
    VERSION,
    DeadLetterStore,
    FileDeadLetterStore,
    KafkaDeadLetterStore,
    check_version,
)
from flafka.agent.topology import AgentSpec, ChannelSpec
from flafka.plugins import Event, EventId, KafkaStream, Retry
from flafka.plugins.kafka.admin import offsets_for_times, read_up_to, visibility_error, watermarks
from flafka.plugins.kafka.clients import REQUEST_SECONDS, new_consumer, stream_client
from flafka.plugins.kafka.errors import explain_error
from flafka.plugins.kafka.rights import Role


@dataclass(frozen=True)
class StoredDeadLetter:
    """Dead letter as it is stored: the fields of `DeadLetter`, and `replayed`."""

    name: str
    time: int
    """Time at which it was stored, in milliseconds since the epoch."""
    component: str
    id: EventId | None
    reason: str
    event: Event
    arrival: int
    undecodable: bool
    replayed: bool
    kept_by: str = ""
    """Configuration file of the agent, for a dead letter in a file; consumer group of the sink, for one in a topic.

    Empty for an agent without a configuration file, and for a dead letter that no sink rejected.
    """


def read_dead_letters(store: DeadLetterStore) -> Iterator[StoredDeadLetter]:
    """Yield the dead letters of a store, oldest first in each partition. Of several with one name, only the first.

    A missing file or topic has none. Raises Retry while brokers are away, FlafkaError for dead letters of another
    version, and OSError if the file cannot be read.
    """
    if isinstance(store, FileDeadLetterStore):
        dead_letters = _read_file(store)
    else:
        dead_letters = _read_topic(cast("KafkaDeadLetterStore", store))
    seen: set[str] = set()
    for dead_letter in dead_letters:
        if dead_letter.name not in seen:
            seen.add(dead_letter.name)
            yield dead_letter


class OwnedDeadLetters:
    """Membership test for the dead letters of one configuration, in a store that several may share.

    Configurations share a file or topic if their agents, channels and sinks have the same names, as `a1` and `c1`.
    """

    def __init__(self, spec: AgentSpec, channel: ChannelSpec, store: DeadLetterStore, kept_by: str | None) -> None:
        """`kept_by` selects the dead letters of another configuration file or consumer group.

        None selects the ones of this configuration, `spec`.
        """
        self._kept_by, self._groups, self._owners = kept_by, {}, {""}
        if isinstance(store, FileDeadLetterStore):
            self._owners.add(store.configuration)
            return
        kafka = channel.make().kafka
        for sink in spec.sinks:
            if sink.channel == channel.name:
                self._groups[sink.path] = kafka.stream(sink.group).group

    def __contains__(self, dead_letter: StoredDeadLetter) -> bool:
        """Return True for a dead letter of the selected configuration file or consumer group.

        Without a selection, return True for a dead letter of this configuration: of its file, of its groups and their
        replays, or without a known owner.
        """
        owner = dead_letter.kept_by
        if self._kept_by is not None:
            return owner == self._kept_by
        if (group := self._groups.get(dead_letter.component)) is not None:
            return owner == group or owner.startswith(f"{group}.replay.")
        return bool(self._groups) or owner in self._owners


def _read_file(store: FileDeadLetterStore) -> Iterator[StoredDeadLetter]:
    """Yield the dead letters of a file in its order, after a first pass over its marks of replays."""
    replayed = {name for fields in _lines(store) for name in fields.get("replayed", ())}
    for fields in _lines(store):
        if "body" in fields:
            body = base64.b64decode(fields["body"])
            yield _dead_letter(fields, body, replayed, fields.get("configuration") or "")


def _lines(store: FileDeadLetterStore) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a file, without lines that a crash cut off. A missing file has none.

    Raises FlafkaError for a line of another version.
    """
    if not store.path.exists():
        return
    with store.path.open("rb") as file:
        for line in file:
            try:
                fields = json.loads(line)
            except ValueError:
                continue  # a crash cut the line off, before it was acknowledged
            check_version(fields.get("version", VERSION), str(store.path))
            yield fields


def _read_topic(store: KafkaDeadLetterStore) -> Iterator[StoredDeadLetter]:
    """Yield the dead letters of a topic, after a first pass over its marks of replays. Parts of a body are joined.

    Raises Retry, and FlafkaError for a record of another version.
    """
    replayed: set[str] = set()
    for _, headers, value in read_records(store.stream, store.topic):
        for header in ("flafka.replayed", "flafka.deadletter"):
            check_version(headers.get(header, b"%d" % VERSION).decode(errors="replace"), f"topic {store.topic}")
        if "flafka.replayed" in headers:
            replayed.update(json.loads(value))
    parts: dict[str, dict[int, bytes]] = {}
    for _, headers, value in read_records(store.stream, store.topic):
        if "flafka.deadletter" not in headers:
            continue
        texts = ("letter", "component", "reason", "id", "group")
        json_values = ("time", "headers", "headers-length", "arrival", "undecodable")
        fields = {
            **{name: headers.get(f"flafka.{name}", b"").decode(errors="replace") for name in texts},
            **{name: json.loads(headers.get(f"flafka.{name}") or b"null") for name in json_values},
        }
        number, _, count = headers.get("flafka.part", b"1/1").decode().partition("/")
        own_parts = parts.setdefault(fields["letter"], {})
        own_parts[int(number)] = value
        if len(own_parts) == int(count):
            del parts[fields["letter"]]
            body = b"".join(own_parts[index] for index in sorted(own_parts))
            if length := fields["headers-length"]:
                fields["headers"], body = json.loads(body[:length]), body[length:]
            yield _dead_letter(fields, body, replayed, fields["group"])


def _dead_letter(fields: Mapping[str, Any], body: bytes, replayed: set[str], kept_by: str) -> StoredDeadLetter:
    time, id = int(fields["time"] or 0), None
    if fields["id"] not in (None, "null"):
        id = EventId.parse(fields["id"])
    return StoredDeadLetter(
        fields["letter"],
        time,
        fields["component"],
        id,
        fields["reason"],
        Event(body, dict(fields["headers"] or {})),
        int(fields["arrival"] or time),
        bool(fields["undecodable"]),
        fields["letter"] in replayed,
        kept_by,
    )


def read_records(
    stream: KafkaStream, topic: str, since: int = 0, role: Role = DEAD_LETTER_READER
) -> Iterator[tuple[int, dict[str, bytes], bytes]]:
    """Yield timestamp in ms, headers and value of each record of a topic, from time `since` (ms since the epoch) on.

    The end offsets are read once, so the iteration ends. Records of aborted transactions are skipped. Partitions come
    one after another, each in order. A missing topic has no records. Raises Retry while brokers are away.
    """
    # The channel's own group, without joining it or committing to it: ACLs may allow no other group.
    client = stream_client(stream)
    consumer = new_consumer(role, {**client, "group.id": stream.group})
    try:
        metadata = consumer.list_topics(timeout=REQUEST_SECONDS).topics.get(topic)
        if metadata is None and (refusal := visibility_error(client, topic, ["Read"])):
            raise Retry(refusal)
        for partition in metadata.partitions if metadata is not None else ():
            (start,) = offsets_for_times(consumer, [TopicPartition(topic, partition, since)], REQUEST_SECONDS)
            _, end = watermarks(consumer, start, REQUEST_SECONDS)
            if start.offset < 0:  # the partition has no record of that time or later
                continue
            for message in read_up_to(consumer, start, end, REQUEST_SECONDS):
                pairs = cast("list[tuple[str, bytes | None]]", message.headers() or [])
                yield message.timestamp()[1], {name: value or b"" for name, value in pairs}, message.value() or b""
    except KafkaException as e:
        why = explain_error(e, topic=topic, right="Read", client=client)
        raise Retry(f"topic {topic} cannot be read: {why}") from e
    finally:
        consumer.close()
