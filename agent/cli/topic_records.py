"""Records of a topic as text and as JSON, for `agent topic produce` and `agent topic consume`."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from flafka.agent.cli.output import printable, utc
from flafka.plugins import Assignment, Components, Event, Generation, PolledBatch, Record, partitions

Headers = Sequence[tuple[str, bytes | None]]

FORMAT, GROUP = "flafka.format", "flafka.group"
"""Record headers of a Kafka channel, from channels/kafka/records.py: format, and consumer group of a replayed record.

Commands do not import components."""
BASE64 = "base64"
_PRODUCED = {"key", f"key_{BASE64}", "value", f"value_{BASE64}", "headers", "partition", "timestamp"}
_IGNORED = {"topic", "offset"}


class NewRecord(NamedTuple):
    """Record to produce. A value of None is a tombstone; None for partition or timestamp lets the client choose."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int | None = None
    timestamp: int | None = None
    """Milliseconds since the epoch."""


class StoredRecord(NamedTuple):
    """Record of a topic, and its events if it is a record of a Kafka channel, else None."""

    topic: str
    partition: int
    record: Record
    events: Sequence[Event] | None

    def json(self) -> str:
        """Return the record as one line of JSON. Bytes that are no UTF-8 are in `key_base64`, `value_base64` …."""
        offset, timestamp, key, value, headers = self.record
        fields: dict[str, Any] = {"topic": self.topic, "partition": self.partition, "offset": offset}
        fields |= {"timestamp": utc(timestamp) if timestamp >= 0 else None, **_field("key", key)}
        fields["headers"] = [{"name": name, **_field("value", text)} for name, text in headers]
        if self.events is None:
            fields |= _field("value", value)
        else:
            fields["events"] = [{"headers": event.headers, **_field("body", event.body)} for event in self.events]
        return json.dumps(fields, ensure_ascii=False)

    def lines(self, *, offsets: bool, keys: bool, headers: bool, escape: bool) -> Iterator[str]:
        """Yield a line for the record, or one for each event, with these columns before the value.

        With `escape`, control characters are escaped for a terminal. Bytes that are no UTF-8 begin with `base64:`.
        """
        offset, timestamp, key, value, record_headers = self.record
        before = [str(self.partition), str(offset), utc(timestamp) if timestamp >= 0 else "-"] if offsets else []
        rows: list[tuple[Headers, bytes | None]] = [(record_headers, value)]
        if self.events is not None:
            rows = [([(n, v.encode()) for n, v in event.headers.items()], event.body) for event in self.events]
        for its_headers, body in rows:
            columns = [*before]
            if headers:
                columns.append(",".join(f"{name}={_text(text)}" for name, text in its_headers) or "-")
            if keys:
                columns.append(_text(key))
            line = "\t".join([*columns, _text(body)])
            yield printable(line) if escape else line


class RecordDecoder:
    """Decoder of the messages of one topic."""

    def __init__(self, topic: str, *, events: bool) -> None:
        """With `events`, records of a Kafka channel are decoded."""
        self._topic, self._events = topic, events
        self._decode: Callable[..., PolledBatch | None] | None = None

    def record(self, message: Any) -> StoredRecord:
        """Return the record of a message of confluent-kafka."""
        headers: Headers = message.headers() or ()
        timestamp = message.timestamp()[1]
        record = Record(message.offset(), timestamp, message.key(), message.value(), headers)
        partition = message.partition()
        format = next((value for name, value in headers if name == FORMAT), None)
        is_encoded = self._events and format is not None and not format.startswith(b"raw")
        return StoredRecord(self._topic, partition, record, self._decoded(partition, record) if is_encoded else None)

    def _decoded(self, partition: int, record: Record) -> list[Event] | None:
        """Return the events of a record in a format of the channel; None if it is undecodable."""
        if self._decode is None:
            channel: Any = Components().get("channel", "kafka")
            config, _ = channel.config_class.parse({})
            self._decode = channel(config).decode
        group = next((value or b"" for name, value in record.headers if name == GROUP), b"")
        of_topic = partitions.TopicPartition("", self._topic, "", partition)
        polled = self._decode(iter([record]), Assignment(of_topic, group.decode(errors="replace"), Generation()))
        return None if polled is None or polled.undecodable else list(polled.batch)


def parse_json(line: bytes) -> NewRecord:
    """Return the record in a line of `agent topic consume --json`. Raises ValueError with the reason."""
    try:
        fields = json.loads(line)
    except ValueError as e:  # JSONDecodeError or UnicodeDecodeError
        raise ValueError(f"is no JSON ({e})") from None
    if not isinstance(fields, dict):
        raise ValueError("is no JSON object")
    if "events" in fields:
        raise ValueError("has events of a channel: consume with --raw, which keeps the record")
    if unknown := sorted(fields.keys() - _PRODUCED - _IGNORED):
        raise ValueError(f"has the field {unknown[0]!r}, which is none of {', '.join(sorted(_PRODUCED))}")
    if not fields.keys() & {"value", f"value_{BASE64}"}:
        raise ValueError(f"has neither value nor value_{BASE64}; a tombstone has the value null")
    headers = fields.get("headers") or []
    if isinstance(headers, dict):
        headers = [{"name": name, "value": value} for name, value in headers.items()]
    if not isinstance(headers, list) or not all(
        isinstance(header, dict) and isinstance(header.get("name"), str) for header in headers
    ):
        raise ValueError('has headers that are neither {"name": "value"} nor [{"name": …, "value": …}]')
    partition, timestamp = fields.get("partition"), fields.get("timestamp")
    if not (partition is None or (type(partition) is int and partition >= 0)):
        raise ValueError(f"has the partition {partition!r}, which is no number")
    return NewRecord(
        _bytes("value", fields),
        _bytes("key", fields),
        [(header["name"], _bytes("value", header)) for header in headers],
        partition,
        None if timestamp is None else _milliseconds(timestamp),
    )


def _milliseconds(timestamp: object) -> int:
    """Return an ISO time in milliseconds since the epoch. Raises ValueError."""
    try:
        time = datetime.fromisoformat(str(timestamp)).astimezone()
    except ValueError:
        raise ValueError(f"has the timestamp {timestamp!r}, which is no ISO time") from None
    since = time - datetime.fromtimestamp(0, UTC)
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000


def _bytes(name: str, fields: dict[str, Any]) -> bytes | None:
    """Return the bytes of a field, or of its variant in base64; None for null. Raises ValueError."""
    encoded, text = fields.get(f"{name}_{BASE64}"), fields.get(name)
    if encoded is not None:
        try:
            return base64.b64decode(str(encoded), validate=True)
        except binascii.Error:
            raise ValueError(f"has a {name}_{BASE64} that is no base64") from None
    if not (text is None or isinstance(text, str)):
        raise ValueError(f"has a {name} that is neither text nor null: {json.dumps(text)}")
    return None if text is None else text.encode()


def _field(name: str, data: bytes | None) -> dict[str, str | None]:
    """Return a field for bytes: a text, or base64 under another name; null for None."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_{BASE64}": base64.b64encode(data).decode()}


def _text(data: bytes | None) -> str:
    """Return bytes as text: `null` for None, and `base64:…` if they are no UTF-8."""
    ((name, text),) = _field("", data).items()
    return "null" if text is None else f"{BASE64}:{text}" if name else text
