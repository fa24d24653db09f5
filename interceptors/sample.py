"""Interceptor `sample`: keeps a share of the events."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable, Collection

import pyarrow as pa

from flafka.plugins import Batch, Config, Interceptor, Metric, cross_field_validator, option


class SampleConfig(Config):
    """Options of the interceptor `sample`. Exactly one of `rate` and `every` must be set."""

    rate: float | None = option(
        None, name="rate", gt=0, le=1, description="Share of the events to keep, chosen at random, such as 0.01."
    )
    every: int | None = option(
        None, name="every", gt=0, description="Keep the first of this many events: with 100, 1 of 100."
    )
    by: str | None = option(
        None,
        name="by",
        min_length=1,
        description="Header to sample by: the share `rate`, or 1 of `every`, of its values is kept, each with all "
        "its events, such as all events of a session. Every agent keeps the same values, also after a restart. An "
        "event without the header is kept.",
    )
    seed: str = option(
        "",
        name="seed",
        description="With `by`: interceptors with the same seed keep the same values, with another seed others.",
    )

    @cross_field_validator("rate", "every")
    def _check_rate(self) -> None:
        if (self.rate is None) == (self.every is None):
            raise ValueError("exactly one of rate (a share of 1) and every (1 of so many) must be set")

    @property
    def share(self) -> float:
        """Share of events, or of values with `by`, to keep: above 0, at most 1."""
        return self.rate if self.rate is not None else 1 / (self.every or 1)


class SampleInterceptor(Interceptor[SampleConfig]):
    """Keeps a share of the events unchanged and drops the others. Pure with `by`; without, only for sources."""

    type_name = "sample"
    pure = False
    pure_with = "by"
    declared_metrics = (
        Metric("EventUnkeyedCount", "counter", "events", "Events without the header that `by` names."),
    )

    def __init__(self, config: SampleConfig, name: str = "") -> None:
        super().__init__(config, name)
        self.pure = config.by is not None
        self.random: Callable[[], float] = random.random
        """Function that returns a random number from 0, inclusive, to 1, exclusive."""
        self._lock, self._passed = threading.Lock(), 0
        self._limit = int(config.share * 2**64)

    def sets_headers(self) -> Collection[str]:
        """Return no names: no headers are set."""
        return ()

    def intercept(self, batch: Batch) -> Batch:
        """Return the events to keep, unchanged and in order.

        With `by`, the hash of the header decides; an event without the header is kept and counted as
        `EventUnkeyedCount`. With `every`, the first of so many events is kept, across batches. Otherwise a random
        number decides. Thread-safe.
        """
        if self.config.by is not None:
            return batch.where(self._is_sampled(batch, self.config.by))
        if self.config.every is not None:
            every = self.config.every
            with self._lock:
                first = self._passed
                self._passed = (first + len(batch)) % every
            return batch.where(pa.array([not (first + row) % every for row in range(len(batch))], pa.bool_()))
        rate = self.config.share
        return batch.where(pa.array([self.random() < rate for _ in range(len(batch))], pa.bool_()))

    def _is_sampled(self, batch: Batch, by: str) -> pa.Array:
        """Return the mask of the events to keep by the header `by`; events without it are kept and counted."""
        column = batch.header(by)
        if column.null_count:
            self.metrics.add("EventUnkeyedCount", column.null_count)
        sampled = pa.array([self._is_sampled_value(value) for value in column.dictionary.to_pylist()], pa.bool_())
        return sampled.take(column.indices).fill_null(True)

    def _is_sampled_value(self, value: str) -> bool:
        """Return True if the 64-bit hash of the value, keyed by `seed`, is below `share` of all hashes."""
        seed = hashlib.blake2b(self.config.seed.encode(), digest_size=16).digest()
        hashed = hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=8, key=seed).digest()
        return int.from_bytes(hashed, "big") < self._limit
