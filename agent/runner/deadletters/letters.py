"""Events that can never be delivered: kept, with the reason, where an operator finds them."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from flafka.agent.options import AgentOptions
from flafka.agent.sidetopics import producer_to
from flafka.agent.state import state_directory
from flafka.agent.topology import ChannelSpec
from flafka.plugins import (
    Batch,
    Channel,
    Event,
    EventId,
    FlafkaError,
    KafkaStream,
    PolledBatch,
    Retry,
)
from flafka.plugins.kafka.errors import BROKEN, sentence
from flafka.plugins.kafka.topic import KafkaBackedChannel
from flafka.plugins.shared.disk import make_directory, sync_directory

PART_BYTES = 900_000
"""A larger body is kept in parts of this size."""
VERSION = 1
"""Version of a stored dead letter. In a topic it is the value of the header `flafka.deadletter`. A line of a file has
no number; a later one has a field `version`."""
HEADER_BYTES = 100_000
"""Event headers that are larger, as JSON, go in front of the body rather than into a record header."""


@dataclass(frozen=True)
class DeadLetter:
    """One event with why it could not be delivered."""

    component: str
    id: EventId | None
    """Location of the event in the channel; None where no channel took it."""
    event: Event
    """Event as the channel held it: after the source's interceptors, before the sink's."""
    reason: str
    arrival: int | None = None
    """Time at which the channel took the event, in milliseconds since the epoch."""
    undecodable: bool = False
    """True for a record of the channel's topic that is no event: its value, with its own headers and key."""
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Unique name. Each attempt of the same delivery by a sink gives the same name, so that what is kept twice counts
    once."""
    group: str = ""
    """Consumer group for which a sink rejected it; empty where no sink did."""


class DeadLetters(Protocol):
    """Keeps dead letters. Two of one name count once."""

    def put(self, letters: Iterable[DeadLetter]) -> None:
        """Return when all are durable. Raises Retry."""

    def close(self) -> None:
        """Release files and connections."""


class FileDeadLetters:
    """Keeps dead letters as lines of JSON in one file, bodies in base64; each `put` ends with an fsync."""

    def __init__(self, path: Path, configuration: str = "") -> None:
        """`configuration` is the file of the agent: agents and channels of other files may have the same names."""
        self.path, self.configuration = path, configuration
        self._lock = threading.Lock()
        self._named = False
        """True once the name of the file is synced to the disk, unless it was removed."""

    def put(self, letters: Iterable[DeadLetter]) -> None:
        """Append, and sync."""
        known = {"configuration": self.configuration} if self.configuration else {}
        self._append(
            _json({**_fields(letter), **known, "body": base64.b64encode(letter.event.body).decode()})
            for letter in letters
        )

    def mark(self, letters: Iterable[str]) -> None:
        """Note, durably, that these dead letters were replayed. Raises Retry."""
        self._append([_json({"time": _now(), "replayed": list(letters)})])

    @contextmanager
    def replaying(self) -> Iterator[None]:
        """Let nobody else replay these dead letters meanwhile. Raises Retry while somebody does."""
        try:
            lock = os.open(self.path.with_suffix(".replay.lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o640)
        except OSError as e:
            raise Retry(f"dead letters of {self.path} cannot be replayed: {e.filename}: {e.strerror}") from e
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.pwrite(lock, b"%-20d" % os.getpid(), 0)
            yield
        except BlockingIOError:
            holder = os.pread(lock, 20, 0).decode().strip()
            raise Retry(f"process {holder} replays the dead letters of {self.path} now: wait for its end") from None
        finally:
            os.close(lock)

    def _append(self, lines: Iterable[bytes]) -> None:
        data = b"".join(lines)
        try:
            with self._lock:
                known = self._named and self.path.exists()
                if not known:
                    make_directory(self.path.parent)
                with self.path.open("ab+") as file:
                    fcntl.flock(file, fcntl.LOCK_EX)  # an agent and a replay may both write
                    if file.seek(0, os.SEEK_END) and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
                        file.write(b"\n")  # a crash cut the last line off
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                    if not known:
                        sync_directory(self.path.parent)
                        self._named = True
        except OSError as e:
            raise Retry(f"dead letters cannot be written to {self.path}: {e.strerror}") from e

    def close(self) -> None:
        """Do nothing: no file is held open."""


class KafkaDeadLetters:
    """Keeps them in a replicated topic: the value is the body, record headers tell the rest. Created on first use."""

    def __init__(self, stream: KafkaStream, topic: str, replication: int) -> None:
        self.stream, self.topic, self.replication = stream, topic, replication
        self._lock = threading.Lock()
        self._producer: Any = None

    def put(self, letters: Iterable[DeadLetter]) -> None:
        """Produce, and wait for all in-sync replicas. Raises Retry; with another producer the next time."""
        errors: list[str] = []

        def heard(error: Any, _: Any) -> None:
            if error is not None:
                errors.append(error.str())

        with self._lock:
            try:
                if self._producer is None:
                    ours = {"message.timeout.ms": 30_000}
                    self._producer = producer_to(self.stream, self.topic, self.replication, days=30, **ours)
                for letter in letters:
                    for part, headers in _parts(letter):
                        self._produce(value=part, headers=headers, on_delivery=heard)
                    self._producer.poll(0)
                if self._producer.flush(30):
                    errors.append("no acknowledgement within 30 s")
            except BROKEN as e:
                errors.append(sentence(e.__cause__ or e))
            if errors and self._producer is not None:
                self._producer.purge()
                self._producer = None
        if errors:
            raise Retry(f"dead letters cannot be written to topic {self.topic}: {errors[0]}")

    def _produce(self, **record: Any) -> None:
        while True:
            try:
                self._producer.produce(self.topic, **record)
                return
            except BufferError:  # the queue is full, until some are stored or time out
                self._producer.poll(0.1)

    def close(self) -> None:
        """Every `put` has flushed already."""
        self._producer = None


def dead_letters_of(
    agent: str,
    spec: ChannelSpec,
    channel: Channel,
    options: AgentOptions,
    configuration: str = "",
) -> DeadLetters:
    """Return the store for rejected events of this channel: a topic beside the channel's, or a file without Kafka.

    `configuration` is the agent's file, which a file of dead letters notes.
    """
    if isinstance(channel, KafkaBackedChannel):
        stream = channel.kafka.stream(None)
        return KafkaDeadLetters(stream, f"{stream.topic}.deadletters", channel.replication)
    directory = Path(options.deadletters_directory or state_directory())
    known = str(Path(configuration).absolute()) if configuration else ""
    return FileDeadLetters(directory / f"{agent}.{spec.name}.deadletters.jsonl", known)


def letters_of(path: str, reasons: Mapping[EventId, str], polled: PolledBatch) -> list[DeadLetter]:
    """Dead letters of the rejected events, with the bytes in which the channel held them."""
    batch = polled.batch
    ids = batch.ids()
    rows = [row for row, id in enumerate(ids) if id in reasons]
    if not rows:
        return []
    assert batch.origin is not None
    arrivals = batch.origin.timestamps[rows].tolist()
    letters = []
    for row, arrival, event in zip(rows, arrivals, Batch(batch.records.take(rows)), strict=True):
        id = ids[row]
        name = _name(path, id, polled)
        letters.append(DeadLetter(path, id, event, reasons[id], arrival, name=name, group=polled.assignment.group))
    return letters


def letters_of_records(path: str, polled: PolledBatch) -> list[DeadLetter]:
    """Dead letters of its records that are in no format of the channel's: as they are, with headers and key."""
    letters = []
    for one in polled.undecodable:
        record = one.record
        headers = {name: value.decode(errors="replace") for name, value in record.headers if value is not None}
        if record.key is not None:
            headers["key"] = record.key.decode(errors="replace")
        event, name, group = Event(record.value or b"", headers), _name(path, one.id, polled), polled.assignment.group
        letters.append(DeadLetter(path, one.id, event, one.reason, record.timestamp, True, name, group))
    return letters


def _name(path: str, id: EventId, polled: PolledBatch) -> str:
    assignment = polled.assignment
    return letter_name(path, assignment.group, assignment.generation.epoch, id, polled.replays.get(id, ""))


def letter_name(path: str, group: str, epoch: int, id: EventId | None, replay: int | str) -> str:
    """One for each delivery of an event: a reset of the group, or a replay, makes another one of it."""
    delivery = (path, group, str(epoch), str(id), str(replay))
    return hashlib.sha256("\0".join(delivery).encode()).hexdigest()[:32]


def check_version(version: object, place: str) -> None:
    """Raise FlafkaError, with the way out, for a dead letter of another version in that place."""
    if str(version) != str(VERSION):
        raise FlafkaError(
            f"{place} holds a dead letter of version {version}, and this agent reads version {VERSION}: deliver or "
            "replay it with the agent that wrote it"
        )


def _json(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields).encode() + b"\n"


def marker(letters: Iterable[str]) -> dict[str, Any]:
    """The record, as `produce` takes it, that notes in the topic of dead letters that these were replayed."""
    headers = [("flafka.replayed", b"%d" % VERSION), ("flafka.time", b"%d" % _now())]
    return {"value": json.dumps(list(letters)).encode(), "headers": headers}


def _fields(letter: DeadLetter) -> dict[str, Any]:
    return {
        "letter": letter.name,
        "group": letter.group,
        "time": _now(),
        "component": letter.component,
        "id": str(letter.id) if letter.id else None,
        "reason": letter.reason,
        "arrival": letter.arrival,
        "undecodable": letter.undecodable,
        "headers": letter.event.headers,
    }


def _now() -> int:
    return int(time.time() * 1000)


def _parts(letter: DeadLetter) -> Iterator[tuple[bytes, list[tuple[str, str | bytes | None]]]]:
    body, fields = letter.event.body, _fields(letter)
    if len(text := _text(fields["headers"])) > HEADER_BYTES:
        body, fields = text + body, {**fields, "headers": None, "headers-length": len(text)}
    count = max(1, -(-len(body) // PART_BYTES))
    for number in range(count):
        headers: list[tuple[str, str | bytes | None]] = [
            ("flafka.deadletter", b"%d" % VERSION),
            *((f"flafka.{name}", _text(value)) for name, value in fields.items()),
            ("flafka.part", f"{number + 1}/{count}".encode()),
        ]
        yield body[number * PART_BYTES : (number + 1) * PART_BYTES], headers


def _text(value: Any) -> bytes:
    return (value if isinstance(value, str) else json.dumps(value)).encode(errors="surrogateescape")
