"""Interface of sources."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from flafka.plugins.batch import Batch
from flafka.plugins.component import C, Component


class TailedFile(NamedTuple):
    """A file that a source reads, for the agent's page."""

    path: str
    position: int
    """Number of bytes that are stored in the channels; an estimate for a compressed file."""


class Source(Component[C]):
    """A component that produces events.

    The runner iterates `batches()` on one thread. If `in_flight` is 1, the generator is resumed once every required
    channel has stored the batch. If it is more, that many batches may be in flight; only `stored` reports their
    completion. Batches enter each channel in the order of the yields, but a retried batch may follow later ones.
    """

    in_flight: int = 1
    """Maximum number of yielded batches that are not stored yet."""

    @abstractmethod
    def batches(self) -> Iterator[Batch]:
        """Yield batches until `stopping` is set, then return. Raises Retry for a transient failure.

        After a failure the runner closes and opens the source, and calls this again: yield unstored events again.
        """

    def wake(self) -> None:
        """End a wait for input early, once `stopping` is set. Any thread may call, also while the source is closed.

        The default does nothing: a source without this method checks `stopping` about five times a second.
        """

    def sets_headers(self) -> Collection[str] | None:
        """Return the names of the headers that the source's events may have; None for any.

        `agent check` warns of a header that a sink needs and nothing sets.
        """
        return None

    def tailed_files(self) -> Iterable[TailedFile]:
        """Return the files that the source reads at present. Any thread may call, also while it is not open."""
        return ()

    def stored(self, batch: Batch) -> None:
        """Acknowledge the events of a batch, or save their offsets: every required channel has stored the batch.

        The runner calls it once for each batch, in the order of the yields, with the yielded object. It may use
        another thread than the one that iterates `batches`.
        """
