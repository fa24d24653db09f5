"""How a batch lies in a Kafka record: one Arrow IPC stream, its format named in a record header."""

from __future__ import annotations

from collections.abc import Mapping

from plugins import Batch, EventId, Origin, Taken, Undecodable

FORMAT = "flafka.format"
ARROW = b"arrow/1"
FORMAT_HEADER: list[tuple[str, str | bytes | None]] = [(FORMAT, ARROW)]

IPC_COMPRESSION_BYTES = 64 << 10
"""From here on the buffers are compressed within the stream, so that brokers need not unpack it to check it; below,
Kafka compresses several records together, which one small stream would not gain from."""


def encode(batch: Batch) -> bytes:
    """The value of one record."""
    data: bytes = batch.to_ipc("lz4" if batch.nbytes >= IPC_COMPRESSION_BYTES else None).to_pybytes()
    return data


def decode(
    value: bytes | None, headers: Mapping[str, bytes], topic: str, partition: int, offset: int, timestamp: int
) -> Taken:
    """The events of one record. One that is not in a known format comes back as undecodable, never as an error."""
    reason = None
    batch = Batch.of([])
    written = headers.get(FORMAT)
    if written != ARROW:
        name = written.decode(errors="replace") if written else "none"
        reason = f"the record's format ({FORMAT} header) is {name}, not {ARROW.decode()}"
    else:
        try:
            batch = Batch.from_ipc(value or b"")
        except ValueError as e:
            reason = str(e)
    batch = Batch(batch.records, Origin.of_record(topic, partition, offset, timestamp, len(batch)))
    undecodable = (Undecodable(EventId(topic, partition, offset, 0), value or b"", reason),) if reason else ()
    return Taken(partition, offset, offset + 1, batch, undecodable)
