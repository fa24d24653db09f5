"""Dead letters as they lie in a topic or a file: read back, parts put together."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from agent.runner.deadletters import DeadLetters, FileDeadLetters, KafkaDeadLetters
from plugins import Event, Retry
from plugins.kafkaclient import QUIET, client_properties

ANSWER_SECONDS = 10.0


@dataclass(frozen=True)
class Kept:
    """One dead letter."""

    time: int
    """When it was kept, in milliseconds since the epoch."""
    component: str
    id: str | None
    """Where the channel held it; None where no channel took it."""
    reason: str
    event: Event
    """Its bytes are those the channel held."""


def read(letters: DeadLetters) -> Iterator[Kept]:
    """All of them, oldest first in each partition. Raises Retry while brokers are away."""
    if isinstance(letters, FileDeadLetters):
        yield from _of_file(letters)
    elif isinstance(letters, KafkaDeadLetters):
        yield from _of_topic(letters)


def _of_file(letters: FileDeadLetters) -> Iterator[Kept]:
    if not letters.path.exists():
        return
    with letters.path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return  # cut off by a crash: it was never acknowledged
            fields = json.loads(line)
            yield _kept(fields, base64.b64decode(fields["body"]))


def _of_topic(letters: KafkaDeadLetters) -> Iterator[Kept]:
    parts: dict[tuple[Any, ...], dict[int, bytes]] = {}
    for headers, value in _records(letters):
        fields = {
            **{name: headers.get(f"flafka.{name}", b"").decode(errors="replace") for name in ("component", "reason")},
            **{name: json.loads(headers.get(f"flafka.{name}", b"null")) for name in ("time", "headers")},
            "id": (headers.get("flafka.id") or b"null").decode(errors="replace"),
        }
        fields["id"] = None if fields["id"] == "null" else fields["id"]
        number, _, count = headers.get("flafka.part", b"1/1").decode().partition("/")
        key = (fields["id"] or fields["time"], fields["component"], fields["reason"], count)
        have = parts.setdefault(key, {})
        have[int(number)] = value
        if len(have) == int(count):
            del parts[key]
            yield _kept(fields, b"".join(have[place] for place in sorted(have)))


def _kept(fields: Mapping[str, Any], body: bytes) -> Kept:
    event = Event(body, dict(fields["headers"] or {}))
    return Kept(int(fields["time"] or 0), fields["component"], fields["id"], fields["reason"], event)


def _records(letters: KafkaDeadLetters) -> Iterator[tuple[dict[str, bytes], bytes]]:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": letters.stream.bootstrap_servers,
            **QUIET,
            **client_properties(letters.stream.client),
            "group.id": "flafka-dlq",
            "enable.auto.commit": False,
        }
    )
    try:
        topic = consumer.list_topics(timeout=ANSWER_SECONDS).topics.get(letters.topic)
        for partition in topic.partitions if topic is not None else ():
            at = TopicPartition(letters.topic, partition, OFFSET_BEGINNING)
            first, end = consumer.get_watermark_offsets(at, timeout=ANSWER_SECONDS)
            consumer.assign([at])
            while first < end:
                message = consumer.poll(ANSWER_SECONDS)
                if message is None:
                    raise Retry(f"topic {letters.topic} does not come to its end within {ANSWER_SECONDS:.0f} s")
                if (error := message.error()) is not None:
                    raise Retry(f"topic {letters.topic}: {error.str()}")
                first = int(message.offset() or 0) + 1
                pairs = cast("list[tuple[str, bytes | None]]", message.headers() or [])
                headers = {name: value or b"" for name, value in pairs}
                if "flafka.deadletter" in headers:
                    yield headers, message.value() or b""
    except KafkaException as e:
        raise Retry(f"topic {letters.topic} cannot be read: {e.args[0].str()}") from e
    finally:
        consumer.close()
