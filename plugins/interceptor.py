"""What an interceptor is."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Collection, Mapping
from typing import ClassVar

import pyarrow as pa

from flafka.plugins.batch import Batch
from flafka.plugins.component import C, Component


class _Rejected(threading.local):
    """What was rejected, of each thread its own: others may have a batch of theirs at the same time."""

    def __init__(self) -> None:
        self.batches: list[tuple[Batch, list[str]]] = []


class Interceptor(Component[C]):
    """Changes or drops events on their way."""

    pure: bool = True
    """Whether the same event always gives the same result. Impure ones are allowed before the channel only, where a
    redelivery does not pass."""

    pure_with: ClassVar[str] = ""
    """Of a class that is not pure, the option with which one is; it sets `pure` of its own."""

    hides: ClassVar[bool] = False
    """Whether it takes something out of events that not everybody is to see, as a mask does: the agent's page shows
    events behind the last of these only."""

    def __init__(self, config: C, name: str = "") -> None:
        super().__init__(config, name)
        self._rejected = _Rejected()

    @abstractmethod
    def intercept(self, batch: Batch) -> Batch:
        """Return the batch changed; use `where` to drop events. Must not raise for any content.

        Several threads may call at once, where a source has more than one batch `in_flight`.
        """

    def reject(self, batch: Batch, reasons: Mapping[int, str]) -> Batch:
        """Within `intercept`: have these rows become dead letters, and go on with the batch that is returned.

        `reasons` has a sentence about each of these events, by its row. They are durable, as they are in `batch`, or,
        on a sink, as its channel has them, before the source or the channel hears that the batch is done.
        """
        chosen = [row in reasons for row in range(len(batch))]
        rejected = batch.where(pa.array(chosen, pa.bool_()))
        self._rejected.batches.append((rejected, [reasons[row] for row, one in enumerate(chosen) if one]))
        return batch.where(pa.array([not one for one in chosen], pa.bool_()))

    def take_rejected(self) -> list[tuple[Batch, list[str]]]:
        """For the runner: what was rejected on this thread since it last asked there, and why."""
        rejected, self._rejected.batches = self._rejected.batches, []
        return rejected

    def sets_headers(self) -> Collection[str] | None:
        """Names of the headers that it may set; None: any. `check` warns of a sink that needs others."""
        return None
