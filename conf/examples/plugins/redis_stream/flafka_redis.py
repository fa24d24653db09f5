"""The source `redis_stream`: entries of a Redis stream."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pydantic
import redis

from flafka import Batch, Component, Config, Event, Retry, Source, hookimpl, option

Entry = tuple[bytes, dict[bytes, bytes] | None]
"""An id and its fields; None where it is acknowledged by nobody, and was deleted."""

WAIT_MS = 200
"""Redis answers after so long where there is nothing, so that the source sees in time that the agent stops."""


class RedisStreamConfig(Config):
    """Options of the source `redis_stream`."""

    url: pydantic.SecretStr = option(name="url", description="Where Redis is, such as redis://:password@host:6379/0.")
    stream: str = option(name="stream", description="Key of the stream.")
    group: str = option(
        "flafka", name="group", description="Consumer group. If there is none, it is made and begins at the start."
    )
    consumer: str | None = option(
        None,
        name="consumer",
        description="Name within the group. If unset, it is made of this host's and the source's.",
    )
    body: str = option("body", name="body", description="Field that becomes the body; all others become headers.")
    batch_size: int = option(1000, name="batchSize", unit="events", gt=0, description="Maximum size of a batch.")
    claim_after: int = option(
        600_000,
        name="claimAfter",
        unit="ms",
        gt=0,
        description="Age at which entries that another consumer got and did not acknowledge are taken over from it.",
    )


class RedisStreamSource(Source[RedisStreamConfig]):
    """Makes an event of each entry; at least once: an entry is acknowledged when the channels have it.

    What was not acknowledged when the agent ended comes first afterwards, in order.
    """

    type_name = "redis_stream"

    def open(self) -> None:
        """Connect, and see that there is a group."""
        config = self.config
        self._name = config.consumer or f"{socket.gethostname()}-{self.member}"
        # Any: of its answers the library says no more than that they may be of several types.
        self._redis: Any = redis.Redis.from_url(config.url.get_secret_value(), protocol=2, socket_timeout=10)
        try:
            self._redis.xgroup_create(config.stream, config.group, id="0", mkstream=True)
        except redis.ResponseError as e:
            if not str(e).startswith("BUSYGROUP"):  # there is one
                raise Retry(f"Redis: {e}") from e
        except redis.RedisError as e:
            raise Retry(f"Redis: {e}") from e

    def close(self) -> None:
        """Disconnect."""
        if hasattr(self, "_redis"):
            self._redis.close()

    def check_connectivity(self) -> Iterator[str]:
        """Whether Redis answers; makes no group."""
        client = redis.Redis.from_url(self.config.url.get_secret_value(), socket_timeout=10)
        try:
            client.ping()
        except redis.RedisError as e:
            yield f"Redis: {e}"
        finally:
            client.close()

    def batches(self) -> Iterator[Batch]:
        """What this consumer got before and did not acknowledge, then what is new, or left behind by others."""
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
        """The channels have it: Redis need not keep it for us."""
        try:
            self._redis.xack(self.config.stream, self.config.group, *self._ids)
        except redis.RedisError as e:  # they come again
            raise Retry(f"Redis: {e}") from e

    def _read(self, position: bytes) -> list[Entry]:
        config = self.config
        streams = {config.stream: position}
        found = self._redis.xreadgroup(config.group, self._name, streams, count=config.batch_size, block=WAIT_MS)
        entries: list[Entry] = found[0][1] if found else []
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
    """What this module brings."""
    return [RedisStreamSource]
