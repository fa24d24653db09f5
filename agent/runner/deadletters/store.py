"""Dead letters, and their stores: a file of this host, or a topic beside the channel's."""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import logging
import os
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from flafka.agent.auxiliarytopics import DEAD_LETTERS, explain_write_error, new_auxiliary_producer
from flafka.agent.options import AgentOptions
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
from flafka.plugins.kafka.clients import stream_client
from flafka.plugins.kafka.errors import FATAL_EXCEPTIONS
from flafka.plugins.kafka.renewal import ClientRenewal
from flafka.plugins.kafka.topic import KafkaBackedChannel
from flafka.plugins.storage import make_directory, sync_directory

log = logging.getLogger(__name__)

PART_BYTES = 900_000
"""Longest part of a body in one record of a topic; a larger body is stored as several records."""
VERSION = 1
"""Version of a stored dead letter.

A record of a topic has it as the value of its header `flafka.deadletter`. A line of a file has no version, which
stands for version 1; lines of later versions have a field `version`.
"""
HEADER_BYTES = 100_000
"""Largest JSON of event headers that is stored in a record header; larger ones precede the body."""


@dataclass(frozen=True)
class DeadLetter:
    """Event that can never be delivered, with the reason."""

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
    """Unique name. All attempts of one delivery by a sink give the same name, so that duplicates count once."""
    group: str = ""
    """Consumer group of the sink that rejected the event; empty if no sink did."""


class DeadLetterStore(Protocol):
    """Durable store of dead letters. Two dead letters of one name count once."""

    def put(self, dead_letters: Iterable[DeadLetter]) -> None:
        """Store dead letters, and return once all are durable. Raises Retry, after which some may be stored."""

    def close(self) -> None:
        """Release files and connections. Idempotent."""


class FileDeadLetterStore:
    """Store of dead letters as lines of JSON in one file, with bodies in base64. Each `put` ends with an fsync."""

    def __init__(self, path: Path, configuration: str = "") -> None:
        """`path` is the file, created at the first `put`.

        `configuration` is the agent's file, since agents and channels of other files may have the same names.
        """
        self.path, self.configuration = path, configuration
        self._lock = threading.Lock()
        self._directory_synced = False
        """True once the directory entry of the file is durable."""

    def put(self, dead_letters: Iterable[DeadLetter]) -> None:
        """Append dead letters as lines, and sync the file.

        Thread-safe, also between processes. Raises Retry for an OSError.
        """
        known = {"configuration": self.configuration} if self.configuration else {}
        self._append(
            _json({**_fields(dead_letter), **known, "body": base64.b64encode(dead_letter.event.body).decode()})
            for dead_letter in dead_letters
        )

    def mark_replayed(self, names: Iterable[str]) -> None:
        """Append a durable line that marks the dead letters with these names as replayed.

        Raises Retry for an OSError.
        """
        self._append([_json({"time": _now(), "replayed": list(names)})])

    @contextmanager
    def replay_lock(self) -> Iterator[None]:
        """Hold an exclusive lock on replays of this file for the block. Does not wait.

        Raises Retry while another process holds the lock, or if the lock file cannot be written.
        """
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
            raise Retry(f"process {holder} is replaying the dead letters of {self.path}: wait for its end") from None
        finally:
            os.close(lock)

    def _append(self, lines: Iterable[bytes]) -> None:
        """Append lines in one write, and sync the file and its directory. Raises Retry for an OSError."""
        data = b"".join(lines)
        try:
            with self._lock:
                is_known = self._directory_synced and self.path.exists()
                if not is_known:
                    make_directory(self.path.parent)
                with self.path.open("ab+") as file:
                    fcntl.flock(file, fcntl.LOCK_EX)  # an agent and a replay may both write
                    if file.seek(0, os.SEEK_END) and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
                        file.write(b"\n")  # a crash cut the last line off
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                    if not is_known:
                        sync_directory(self.path.parent)
                        self._directory_synced = True
        except OSError as e:
            raise Retry(f"dead letters cannot be written to {self.path}: {e.strerror}") from e

    def close(self) -> None:
        """Do nothing, as no file stays open between calls."""


class KafkaDeadLetterStore:
    """Store of dead letters in a replicated topic, which is created at the first `put`.

    The value of a record is the body, and its headers have the other fields.
    """

    def __init__(self, stream: KafkaStream, topic: str, replication: int) -> None:
        """`topic` is the topic of dead letters in the cluster of `stream`; `replication` is its replication factor.

        Nothing is opened or created before the first `put`.
        """
        self.stream, self.topic, self.replication = stream, topic, replication
        self._lock = threading.Lock()
        self._producer: Any = None
        self._renewal = ClientRenewal(stream.client, lambda: stream_client(stream), log)

    def put(self, dead_letters: Iterable[DeadLetter]) -> None:
        """Produce dead letters, and wait up to 30 s for all in-sync replicas. Thread-safe.

        Raises Retry, after which some may be stored, and the next call uses a new producer.
        """
        errors: list[object] = []

        def on_delivery(error: Any, _: Any) -> None:
            if error is not None:
                errors.append(error)

        with self._lock:
            try:
                if self._producer is None:
                    self._producer = self._new_producer()
                elif (renewed := self._renewal.renew(lambda _: self._new_producer())) is not None:
                    self._producer = renewed
                for dead_letter in dead_letters:
                    for part, headers in _parts(dead_letter):
                        self._produce(value=part, headers=headers, on_delivery=on_delivery)
                    self._producer.poll(0)
                if self._producer.flush(30):
                    errors.append("no acknowledgement within 30 s")
            except Retry as e:
                errors.append(e)
            except FATAL_EXCEPTIONS as e:
                errors.append(e.__cause__ or e)
            if errors and self._producer is not None:
                self._producer.purge()
                self._producer = None
        if errors:
            why = explain_write_error(errors[0], self.stream, self.topic)
            raise Retry(f"dead letters cannot be written to topic {self.topic}: {why}")

    def _new_producer(self) -> Any:
        """Return a producer, and create the topic if it is missing. Raises Retry."""
        properties = {"message.timeout.ms": 30_000}
        return new_auxiliary_producer(DEAD_LETTERS, self.stream, self.topic, self.replication, days=30, **properties)

    def _produce(self, **record: Any) -> None:
        """Enqueue one record for the producer; blocks while the producer's queue is full."""
        while True:
            try:
                self._producer.produce(self.topic, **record)
                return
            except BufferError:  # the queue has room again once some records are stored or have timed out
                self._producer.poll(0.1)

    def close(self) -> None:
        """Drop the producer, which each `put` has flushed."""
        self._producer = None


def dead_letter_store(
    agent: str,
    spec: ChannelSpec,
    channel: Channel,
    options: AgentOptions,
    configuration: str = "",
) -> DeadLetterStore:
    """Return the dead letter store of a channel: a topic beside the channel's, or a file for channels outside Kafka.

    The topic has the suffix `.deadletters`. The file is in the option `deadletters_directory` or the state directory.
    `configuration` is the agent's file, which is part of each line of a file of dead letters. Nothing is opened.
    """
    if isinstance(channel, KafkaBackedChannel):
        stream = channel.kafka.stream(None)
        return KafkaDeadLetterStore(stream, f"{stream.topic}.deadletters", channel.replication)
    directory = Path(options.deadletters_directory or state_directory())
    known = str(Path(configuration).absolute()) if configuration else ""
    return FileDeadLetterStore(directory / f"{agent}.{spec.name}.deadletters.jsonl", known)


def rejected_dead_letters(path: str, reasons: Mapping[EventId, str], polled: PolledBatch) -> list[DeadLetter]:
    """Return a dead letter for each event of `polled` whose ID is in `reasons`, in order of the batch.

    The events have the bytes and headers of the channel. `path` is the component that rejects them.
    """
    batch = polled.batch
    ids = batch.ids()
    rows = [row for row, id in enumerate(ids) if id in reasons]
    if not rows:
        return []
    assert batch.origin is not None
    arrivals = batch.origin.timestamps[rows].tolist()
    dead_letters = []
    for row, arrival, event in zip(rows, arrivals, Batch(batch.records.take(rows)), strict=True):
        id = ids[row]
        name = _name(path, id, polled)
        dead_letters.append(
            DeadLetter(path, id, event, reasons[id], arrival, name=name, group=polled.assignment.group)
        )
    return dead_letters


def undecodable_dead_letters(path: str, polled: PolledBatch) -> list[DeadLetter]:
    """Return a dead letter for each record of `polled` that the channel cannot decode, with its value as the body.

    Record headers become event headers, and the key the header `key`; bytes that are no UTF-8 are replaced there.
    """
    dead_letters = []
    for undecodable in polled.undecodable:
        record = undecodable.record
        headers = {name: value.decode(errors="replace") for name, value in record.headers if value is not None}
        if record.key is not None:
            headers["key"] = record.key.decode(errors="replace")
        event, name = Event(record.value or b"", headers), _name(path, undecodable.id, polled)
        reason, group = undecodable.reason, polled.assignment.group
        dead_letters.append(DeadLetter(path, undecodable.id, event, reason, record.timestamp, True, name, group))
    return dead_letters


def _name(path: str, id: EventId, polled: PolledBatch) -> str:
    assignment = polled.assignment
    return dead_letter_name(path, assignment.group, assignment.generation.epoch, id, polled.replays.get(id, ""))


def dead_letter_name(path: str, group: str, epoch: int, id: EventId | None, replay: int | str) -> str:
    """Return the name of the dead letter of one delivery: 32 hex digits, equal for all attempts.

    A group reset, with another `epoch`, or a replay of the event, with another `replay`, gives another name.
    """
    delivery = (path, group, str(epoch), str(id), str(replay))
    return hashlib.sha256("\0".join(delivery).encode()).hexdigest()[:32]


def check_version(version: object, place: str) -> None:
    """Raise FlafkaError if `version` is not `VERSION`.

    `place` is the file or topic with the dead letter, for the text.
    """
    if str(version) != str(VERSION):
        raise FlafkaError(
            f"{place} holds a dead letter of version {version}, and this agent reads version {VERSION}: deliver or "
            "replay it with the agent that wrote it"
        )


def _json(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields).encode() + b"\n"


def replay_record(names: Iterable[str]) -> dict[str, Any]:
    """Return the arguments of `produce` for the record that marks the dead letters with these names as replayed."""
    headers = [("flafka.replayed", b"%d" % VERSION), ("flafka.time", b"%d" % _now())]
    return {"value": json.dumps(list(names)).encode(), "headers": headers}


def _fields(dead_letter: DeadLetter) -> dict[str, Any]:
    """Return the fields of a stored dead letter except its body, with the present time in ms."""
    return {
        "letter": dead_letter.name,
        "group": dead_letter.group,
        "time": _now(),
        "component": dead_letter.component,
        "id": str(dead_letter.id) if dead_letter.id else None,
        "reason": dead_letter.reason,
        "arrival": dead_letter.arrival,
        "undecodable": dead_letter.undecodable,
        "headers": dead_letter.event.headers,
    }


def _now() -> int:
    return int(time.time() * 1000)


def _parts(dead_letter: DeadLetter) -> Iterator[tuple[bytes, list[tuple[str, str | bytes | None]]]]:
    """Yield value and headers of each record for a dead letter; a body above `PART_BYTES` has several records."""
    body, fields = dead_letter.event.body, _fields(dead_letter)
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
