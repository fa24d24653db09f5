"""What a source is."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from flafka.plugins.batch import Batch
from flafka.plugins.component import C, Component


class TailedFile(NamedTuple):
    """A file that a source reads."""

    path: str
    position: int
    """Bytes of it that the channels have; of a compressed file about so many."""


class Source(Component[C]):
    """Brings events in.

    The runner iterates `batches()` on one thread. With `in_flight` 1, being resumed after a yield means that the
    batch is stored in every required channel; with more, up to that many yielded batches are on their way at once
    and `stored` alone tells. They come into each channel in the order of the yields; one that has to be put again
    may come behind later ones.
    """

    in_flight: int = 1
    """At most so many yielded batches unresolved at a time."""

    @abstractmethod
    def batches(self) -> Iterator[Batch]:
        """Yield batches until `stopping` is set, then return. May raise Retry."""

    def sets_headers(self) -> Collection[str] | None:
        """Names of the headers that its events may have; None: any. `check` warns of a sink that needs others."""
        return None

    def tailed_files(self) -> Iterable[TailedFile]:
        """The files that it reads at present, for whoever looks. Any thread may ask, also while it is not open."""
        return ()

    def stored(self, batch: Batch) -> None:
        """Called once a batch, in yield order, when every required channel holds it: acknowledge, save positions.

        Gets the very object that was yielded. May be called on another thread than `batches` runs on.
        """
