"""Interface of interceptors."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Collection, Mapping
from typing import ClassVar

import pyarrow as pa

from flafka.plugins.batch import Batch
from flafka.plugins.component import C, Component


class _Rejected(threading.local):
    """Rejected events of the current thread. Several threads may intercept at once."""

    def __init__(self) -> None:
        self.batches: list[tuple[Batch, list[str]]] = []


class Interceptor(Component[C]):
    """A component that changes or drops events, on a source or on a sink."""

    pure: bool = True
    """True if the same event always gives the same result. An impure interceptor is allowed on sources only: the
    interceptors of a sink run once more for each redelivery."""

    pure_with: ClassVar[str] = ""
    """Name of the option with which an instance of an impure class is pure; that instance sets `pure`."""

    redacts: ClassVar[bool] = False
    """True if the interceptor removes confidential data, as `mask` does. The agent's page shows events only after the
    last such interceptor."""

    def __init__(self, config: C, name: str = "") -> None:
        super().__init__(config, name)
        self._rejected = _Rejected()

    @abstractmethod
    def intercept(self, batch: Batch) -> Batch:
        """Return the changed batch; drop events with `where`. Must not raise for any content.

        Several threads may call at once if `in_flight` of the source is more than 1.
        """

    def reject(self, batch: Batch, reasons: Mapping[int, str]) -> Batch:
        """Turn these rows into dead letters, within `intercept`; return the batch without them.

        `reasons` has a sentence about each of these events, by its row. On a source, the dead letter holds the event
        as in `batch`; on a sink, as in the channel. Dead letters are durable before the source's `stored` or the
        channel's commit.
        """
        chosen = [row in reasons for row in range(len(batch))]
        rejected = batch.where(pa.array(chosen, pa.bool_()))
        self._rejected.batches.append(
            (rejected, [reasons[row] for row, is_rejected in enumerate(chosen) if is_rejected])
        )
        return batch.where(pa.array([not is_rejected for is_rejected in chosen], pa.bool_()))

    def take_rejected(self) -> list[tuple[Batch, list[str]]]:
        """Return, and forget, the batches rejected on this thread, each with the reason of each row.

        For the runner.
        """
        rejected, self._rejected.batches = self._rejected.batches, []
        return rejected

    def sets_headers(self) -> Collection[str] | None:
        """Return the names of the headers that the interceptor may set; None for any.

        `agent check` warns of a header that a sink needs and nothing sets.
        """
        return None
