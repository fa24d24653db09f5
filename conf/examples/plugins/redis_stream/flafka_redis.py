"""The source `redis_stream`: entries of a Redis stream."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pydantic
import redis

from flafka import Batch, Component, Config, Event, Retry, Source, hookimpl, option

Entry = tuple[bytes, dict[bytes, bytes] | None]
"""Id and fields of an entry; fields are None if an unacknowledged entry was deleted."""

WAIT_MS = 200
"""Longest wait of Redis for an entry, after which the source checks `stopping`."""


class RedisStreamConfig(Config):
    """Options of the source `redis_stream`."""

    url: pydantic.SecretStr = option(name="url", description="URL of Redis, such as redis://:password@host:6379/0.")
    stream: str = option(name="stream", description="Key of the stream.")
    group: str = option(
        "flafka",
        name="group",
        description="Consumer group. If it does not exist, it is created and starts with the first entry.",
    )
    consumer: str | None = option(
        None,
        name="consumer",
        description="Name of the consumer. If unset, a name from this host and the source.",
    )
    body: str = option("body", name="body", description="Field that becomes the body; all others become headers.")
    batch_size: int = option(1000, name="batchSize", unit="events", gt=0, description="Maximum size of a batch.")
    claim_after: int = option(
        600_000,
        name="claimAfter",
        unit="ms",
        gt=0,
        description="Age at which unacknowledged entries of another consumer are claimed.",
    )


class RedisStreamSource(Source[RedisStreamConfig]):
    """Turns each entry into an event; at least once: an entry is acknowledged once the channels have it.

    After a restart, unacknowledged entries come first, in order.
    """

    type_name = "redis_stream"

    def open(self) -> None:
        """Connect, and create the group if it does not exist. Raises Retry for an error of Redis."""
        config = self.config
        self._name = config.consumer or f"{socket.gethostname()}-{self.member}"
        # Any, as the library declares a union of types for each answer.
        self._redis: Any = redis.Redis.from_url(config.url.get_secret_value(), protocol=2, socket_timeout=10)
        try:
            self._redis.xgroup_create(config.stream, config.group, id="0", mkstream=True)
        except redis.ResponseError as e:
            if not str(e).startswith("BUSYGROUP"):  # the group exists
                raise Retry(f"Redis: {e}") from e
        except redis.RedisError as e:
            raise Retry(f"Redis: {e}") from e

    def close(self) -> None:
        """Disconnect."""
        if hasattr(self, "_redis"):
            self._redis.close()

    def check_connectivity(self) -> Iterator[str]:
        """Yield the error if Redis does not answer. Creates no group."""
        client = redis.Redis.from_url(self.config.url.get_secret_value(), socket_timeout=10)
        try:
            client.ping()
        except redis.RedisError as e:
            yield f"Redis: {e}"
        finally:
            client.close()

    def batches(self) -> Iterator[Batch]:
        """Yield unacknowledged entries of this consumer, then new ones, and those claimed from other consumers."""
        position = b"0"
        while not self.stopping.is_set():
            try:
                entries = self._read(position)
            except redis.RedisError as e:
                raise Retry(f"Redis: {e}") from e
            if position != b">":
                position = entries[-1][0] if entries else b">"
            if entries:
                self._ids = [id for id, _ in entries]
                yield Batch.of(self._event(fields or {}) for _, fields in entries)

    def stored(self, batch: Batch) -> None:
        """Acknowledge the entries, as the channels have the batch."""
        try:
            self._redis.xack(self.config.stream, self.config.group, *self._ids)
        except redis.RedisError as e:  # Redis redelivers the entries
            raise Retry(f"Redis: {e}") from e

    def _read(self, position: bytes) -> list[Entry]:
        config = self.config
        streams = {config.stream: position}
        answer = self._redis.xreadgroup(config.group, self._name, streams, count=config.batch_size, block=WAIT_MS)
        entries: list[Entry] = answer[0][1] if answer else []
        if not entries and position == b">":
            _, entries, *_ = self._redis.xautoclaim(
                config.stream, config.group, self._name, config.claim_after, count=config.batch_size
            )
        return entries

    def _event(self, fields: dict[bytes, bytes]) -> Event:
        texts = {name.decode(errors="replace"): value for name, value in fields.items()}
        body = texts.pop(self.config.body, b"")
        return Event(body, {name: value.decode(errors="replace") for name, value in texts.items()})


@hookimpl
def components() -> list[type[Component]]:
    """Return the components of this module."""
    return [RedisStreamSource]
