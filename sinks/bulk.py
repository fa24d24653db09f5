"""Requests of many documents or rows: none larger than a server takes, and what it refuses found by halves."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Generic, Protocol, TypeVar

from pydantic import SecretStr

from plugins import Config, EventId, Rejected, Sink, agreement, option


class Item(Protocol):
    """What stands for an event in a request."""

    @property
    def id(self) -> EventId:
        """The event's."""

    @property
    def size(self) -> int:
        """Bytes or characters that it takes there, about."""


T = TypeVar("T", bound=Item)


class Refused(Exception):
    """The server will never take this request; it does not say which of its items it is about."""


def put(
    items: Sequence[T],
    send: Callable[[Sequence[T]], dict[EventId, str]],
    *,
    most: int,
    most_size: int,
    refusal: str,
) -> dict[EventId, str]:
    """Send all, in requests of at most `most` items and `most_size`. What of them is refused, and why.

    `send` makes one request and tells what of it the server refuses by name. Where it raises Refused for a single
    item, that is refused with the sentence `refusal`: the error.
    """
    rejected: dict[EventId, str] = {}
    for piece in _pieces(items, most, most_size):
        rejected |= _by_halves(piece, send, refusal)
    return rejected


def _pieces(items: Sequence[T], most: int, most_size: int) -> Iterator[Sequence[T]]:
    """Runs of items; one that is larger than `most_size` is a run of its own."""
    start = size = 0
    for number, item in enumerate(items):
        more = item.size
        if start < number and (number - start == most or size + more > most_size):
            yield items[start:number]
            start, size = number, 0
        size += more
    if items:
        yield items[start:]


def _by_halves(
    items: Sequence[T], send: Callable[[Sequence[T]], dict[EventId, str]], refusal: str
) -> dict[EventId, str]:
    try:
        return send(items)
    except Refused as e:
        if len(items) == 1:
            return {items[0].id: f"{refusal}: {e}"}
        middle = len(items) // 2
        return _by_halves(items[:middle], send, refusal) | _by_halves(items[middle:], send, refusal)


class DocumentsConfig(Config):
    """Options of a sink that makes documents over HTTP."""

    batch_size: int = option(
        1000, name="batchSize", unit="events", gt=0, description="Number of events after which they are sent."
    )
    batch_duration: int = option(
        1000,
        name="batchDurationMillis",
        unit="ms",
        gt=0,
        description="Time after which events are sent, even if there are fewer.",
    )
    timeout: int = option(
        30_000, name="timeout", unit="ms", ge=100, description="Maximum time that an answer may take."
    )
    username: str | None = option(None, name="username", description="Name of the user, if the servers require one.")
    password: SecretStr | None = option(None, name="password", description="Password of the user.")

    @property
    def login(self) -> tuple[str, str] | None:
        """User and password; None where there is no user."""
        if self.username is None or self.password is None:
            return None
        return self.username, self.password.get_secret_value()

    @agreement("username", "password")
    def _both(self) -> None:
        if (self.username is None) != (self.password is None):
            raise ValueError("must be set together with password")


D = TypeVar("D", bound=DocumentsConfig)


class DocumentsSink(Sink[D], Generic[D, T]):
    """A sink whose `write` adds to `_documents`, which the flush sends."""

    most: ClassVar[int] = 1000
    """Documents of one request."""
    most_size: ClassVar[int]
    """Of their sizes."""
    refusal: ClassVar[str]
    """What begins the reason of a document that is refused."""

    def __init__(self, config: D, name: str = "") -> None:
        super().__init__(config, name)
        self.batch_size = config.batch_size
        self.flush_interval = config.batch_duration / 1000
        self._documents: list[T] = []

    @abstractmethod
    def _put(self, documents: Sequence[T]) -> dict[EventId, str]:
        """Send these in one request; what of them is refused by name, and why. Raises Refused, and Retry."""

    def flush(self) -> None:
        """Return when the servers have all documents."""
        most, most_size = self.most, self.most_size
        rejected = put(self._documents, self._put, most=most, most_size=most_size, refusal=self.refusal)
        self._documents.clear()
        if rejected:
            raise Rejected(rejected)

    def reset(self) -> None:
        """Drop what was not flushed."""
        self._documents.clear()
