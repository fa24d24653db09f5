"""The interceptor `sample`: some of the events."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable, Collection

import pyarrow as pa

from flafka.plugins import Batch, Config, Interceptor, Metric, cross_field_validator, option


class SampleConfig(Config):
    """Options of the interceptor `sample`. Exactly one of `rate` and `every` says how many events it keeps."""

    rate: float | None = option(
        None, name="rate", gt=0, le=1, description="Share of the events to keep, such as 0.01. Which ones is chance."
    )
    every: int | None = option(
        None, name="every", gt=0, description="Of so many events the first is kept: with 100, 1 of 100."
    )
    by: str | None = option(
        None,
        name="by",
        min_length=1,
        description="Header to choose by: of the values of this header the share `rate`, or 1 of `every`, is kept, "
        "each with all of its events, such as those of a session. The same values are kept everywhere and after each "
        "restart. An event without the header is kept.",
    )
    seed: str = option(
        "",
        name="seed",
        description="With `by`: another text chooses other values; interceptors with the same one keep the same.",
    )

    @cross_field_validator("rate", "every")
    def _one_way(self) -> None:
        if (self.rate is None) == (self.every is None):
            raise ValueError("exactly one of rate (a share of 1) and every (1 of so many) must be set")

    @property
    def share(self) -> float:
        """Of all events, or of all values."""
        return self.rate if self.rate is not None else 1 / (self.every or 1)


class SampleInterceptor(Interceptor[SampleConfig]):
    """Keeps some of the events, unchanged, and drops the others; pure with `by`, and else only for sources."""

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
        """A number from 0 up to 1: chance."""
        self._lock, self._passed = threading.Lock(), 0
        self._limit = int(config.share * 2**64)

    def sets_headers(self) -> Collection[str]:
        """None."""
        return ()

    def intercept(self, batch: Batch) -> Batch:
        """Keep what is to be kept; counts the events without the header of `by` as `EventUnkeyedCount`."""
        if self.config.by is not None:
            return batch.where(self._chosen(batch, self.config.by))
        if self.config.every is not None:
            every = self.config.every
            with self._lock:
                first = self._passed
                self._passed = (first + len(batch)) % every
            return batch.where(pa.array([not (first + row) % every for row in range(len(batch))], pa.bool_()))
        rate = self.config.share
        return batch.where(pa.array([self.random() < rate for _ in range(len(batch))], pa.bool_()))

    def _chosen(self, batch: Batch, by: str) -> pa.Array:
        column = batch.header(by)
        if column.null_count:
            self.metrics.add("EventUnkeyedCount", column.null_count)
        kept = pa.array([self._kept(value) for value in column.dictionary.to_pylist()], pa.bool_())
        return kept.take(column.indices).fill_null(True)

    def _kept(self, value: str) -> bool:
        """Whether events with that value are kept: a hash of it is below the share of all hashes."""
        seed = hashlib.blake2b(self.config.seed.encode(), digest_size=16).digest()
        hashed = hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=8, key=seed).digest()
        return int.from_bytes(hashed, "big") < self._limit
