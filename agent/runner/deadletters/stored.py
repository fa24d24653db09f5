"""Dead letters as they lie in a topic or a file: read back, parts put together, with what became of them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from confluent_kafka import KafkaException, TopicPartition

from flafka.agent.runner.deadletters.letters import (
    VERSION,
    DeadLetters,
    FileDeadLetters,
    KafkaDeadLetters,
    check_version,
)
from flafka.agent.sidetopics import BESIDE
from flafka.agent.topology import AgentSpec, ChannelSpec
from flafka.plugins import Event, EventId, KafkaStream, Retry
from flafka.plugins.kafka.admin import offsets_at, read_up_to, watermarks
from flafka.plugins.kafka.clients import REQUEST_SECONDS, new_consumer, stream_client


@dataclass(frozen=True)
class StoredDeadLetter:
    """Dead letter in its store: the fields of `DeadLetter`, its name first, and whether it was replayed."""

    letter: str
    time: int
    """Time at which it was kept, in milliseconds since the epoch."""
    component: str
    id: EventId | None
    reason: str
    event: Event
    arrival: int
    undecodable: bool
    replayed: bool
    kept_by: str = ""
    """The configuration file of the agent that wrote it into a file; in a topic the consumer group for which a sink
    rejected it. Empty where no sink did, or where the agent had no configuration file."""


def read(letters: DeadLetters) -> Iterator[StoredDeadLetter]:
    """Yield dead letters, oldest first in each partition, each name once.

    Raises Retry while brokers are away, and FlafkaError for dead letters of another version.
    """
    found = (
        _of_file(letters) if isinstance(letters, FileDeadLetters) else _of_topic(cast("KafkaDeadLetters", letters))
    )
    seen: set[str] = set()
    for kept in found:
        if kept.letter not in seen:
            seen.add(kept.letter)
            yield kept


class Owned:
    """Set of the dead letters of one configuration, of all that lie in one file or topic.

    The names of agents, channels and sinks are `a1`, `c1` and `k1` in many configurations.
    """

    def __init__(self, spec: AgentSpec, channel: ChannelSpec, letters: DeadLetters, kept_by: str | None) -> None:
        """`kept_by` is the other configuration file or group that was asked for; None for the own ones."""
        self._kept_by, self._groups, self._known = kept_by, {}, {""}
        if isinstance(letters, FileDeadLetters):
            self._known.add(letters.configuration)
            return
        made = channel.make()
        for sink in spec.sinks:
            if sink.channel == channel.name:
                self._groups[sink.path] = made.kafka.stream(sink.group).group

    def __contains__(self, kept: StoredDeadLetter) -> bool:
        """Return True for a dead letter that was asked for, or whose owner is not known."""
        if self._kept_by is not None:
            return kept.kept_by == self._kept_by
        if (group := self._groups.get(kept.component)) is not None:
            return kept.kept_by == group or kept.kept_by.startswith(f"{group}.replay.")
        return bool(self._groups) or kept.kept_by in self._known


def _of_file(letters: FileDeadLetters) -> Iterator[StoredDeadLetter]:
    replayed = {name for fields in _lines(letters) for name in fields.get("replayed", ())}
    for fields in _lines(letters):
        if "body" in fields:
            yield _kept(fields, base64.b64decode(fields["body"]), replayed, fields.get("configuration") or "")


def _lines(letters: FileDeadLetters) -> Iterator[dict[str, Any]]:
    if not letters.path.exists():
        return
    with letters.path.open("rb") as file:
        for line in file:
            try:
                fields = json.loads(line)
            except ValueError:
                continue  # cut off by a crash: it was never acknowledged
            check_version(fields.get("version", VERSION), str(letters.path))
            yield fields


def _of_topic(letters: KafkaDeadLetters) -> Iterator[StoredDeadLetter]:
    replayed: set[str] = set()
    for _, headers, value in records(letters.stream, letters.topic):
        for header in ("flafka.replayed", "flafka.deadletter"):
            check_version(headers.get(header, b"%d" % VERSION).decode(errors="replace"), f"topic {letters.topic}")
        if "flafka.replayed" in headers:
            replayed.update(json.loads(value))
    parts: dict[str, dict[int, bytes]] = {}
    for _, headers, value in records(letters.stream, letters.topic):
        if "flafka.deadletter" not in headers:
            continue
        texts = ("letter", "component", "reason", "id", "group")
        others = ("time", "headers", "headers-length", "arrival", "undecodable")
        fields = {
            **{name: headers.get(f"flafka.{name}", b"").decode(errors="replace") for name in texts},
            **{name: json.loads(headers.get(f"flafka.{name}") or b"null") for name in others},
        }
        number, _, count = headers.get("flafka.part", b"1/1").decode().partition("/")
        have = parts.setdefault(fields["letter"], {})
        have[int(number)] = value
        if len(have) == int(count):
            del parts[fields["letter"]]
            body = b"".join(have[place] for place in sorted(have))
            if length := fields["headers-length"]:
                fields["headers"], body = json.loads(body[:length]), body[length:]
            yield _kept(fields, body, replayed, fields["group"])


def _kept(fields: Mapping[str, Any], body: bytes, replayed: set[str], kept_by: str) -> StoredDeadLetter:
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


def records(stream: KafkaStream, topic: str, since: int = 0) -> Iterator[tuple[int, dict[str, bytes], bytes]]:
    """Yield time in ms, headers and value of the records that a topic beside a channel's has now, from `since` on.

    Aborted transactions are left out. The oldest record of a partition comes first. Where there is no topic, nothing
    is yielded. Raises Retry while brokers are away.
    """
    # The channel's own group, which it neither joins nor commits to: clients with ACLs may use no other.
    consumer = new_consumer(BESIDE, {**stream_client(stream), "group.id": stream.group})
    try:
        found = consumer.list_topics(timeout=REQUEST_SECONDS).topics.get(topic)
        for partition in found.partitions if found is not None else ():
            (at,) = offsets_at(consumer, [TopicPartition(topic, partition, since)], REQUEST_SECONDS)
            _, end = watermarks(consumer, at, REQUEST_SECONDS)
            if at.offset < 0:  # there is nothing so new
                continue
            for message in read_up_to(consumer, at, end, REQUEST_SECONDS):
                pairs = cast("list[tuple[str, bytes | None]]", message.headers() or [])
                yield message.timestamp()[1], {name: value or b"" for name, value in pairs}, message.value() or b""
    except KafkaException as e:
        raise Retry(f"topic {topic} cannot be read: {e.args[0].str()}") from e
    finally:
        consumer.close()
