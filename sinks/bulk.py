"""Requests of many documents or rows: several at once, none larger than a server takes, and what it refuses found by
halves."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import ClassVar, Generic, Protocol, TypeVar

from pydantic import SecretStr

from flafka.plugins import Batch, Config, EventId, Rejected, Sink, cross_field_validator, option

AHEAD = 100_000
"""Events after which a sink with requests under way is flushed: it sends none while it waits for the last of them."""


class Item(Protocol):
    """What stands for an event in a request."""

    @property
    def id(self) -> EventId:
        """The event's."""

    @property
    def size(self) -> int:
        """Bytes or characters that it takes there, about."""


T = TypeVar("T", bound=Item)


class RequestRefused(Exception):
    """The server will never take this request; it does not say which of its items it is about."""


class Requests:
    """Requests under way on threads: at most so many at once, and twice as many begun and not over.

    Those with a key in common are made one after the other, in the order in which they were begun.
    """

    def __init__(self, at_once: int, name: str) -> None:
        """`name` is that of the threads."""
        self._at_once, self._name = at_once, name
        self._threads: ThreadPoolExecutor | None = None
        self._under_way: deque[tuple[Set[Hashable], Future[dict[EventId, str]]]] = deque()
        self._refused: dict[EventId, str] = {}

    def begin(self, keys: Set[Hashable], request: Callable[[], dict[EventId, str]]) -> None:
        """Have a thread make a request, which answers what of it is refused, and why; wait for a place before.

        Raises what an earlier one raised.
        """
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._at_once, thread_name_prefix=self._name)
        while len(self._under_way) >= 2 * self._at_once or any(
            not keys.isdisjoint(others) for others, _ in self._under_way
        ):
            self._end_oldest()
        self._under_way.append((keys, self._threads.submit(request)))

    @property
    def idle(self) -> bool:
        """Whether none is under way."""
        return all(future.done() for _, future in self._under_way)

    def refused(self) -> dict[EventId, str]:
        """What was found to be refused since this was asked last, and why."""
        refused, self._refused = self._refused, {}
        return refused

    def finish(self) -> None:
        """Return when all are over. Raises what one of them raised; others may be under way then: `drop` them."""
        while self._under_way:
            self._end_oldest()

    def drop(self) -> None:
        """Return when none is under way, as one could come after what is sent next; what has not begun never does."""
        futures = [future for _, future in self._under_way]
        self._under_way.clear()
        self._refused = {}
        for future in futures:
            future.cancel()
        wait(futures)

    def close(self) -> None:
        """Drop them, and end the threads."""
        self.drop()
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None

    def _end_oldest(self) -> None:
        _, future = self._under_way[0]
        self._refused |= future.result()
        self._under_way.popleft()


def pieces(items: Sequence[T], most: int, most_size: int) -> Iterator[Sequence[T]]:
    """Runs of at most so many items and `most_size`; one that is larger is a run of its own."""
    start = size = 0
    for number, item in enumerate(items):
        more = item.size
        if start < number and (number - start == most or size + more > most_size):
            yield items[start:number]
            start, size = number, 0
        size += more
    if items:
        yield items[start:]


def by_halves(
    items: Sequence[T], send: Callable[[Sequence[T]], dict[EventId, str]], refusal: str
) -> dict[EventId, str]:
    """Send them. What of them is refused, and why.

    `send` makes one request and tells what of it the server refuses by name. Where it raises Refused for a single
    item, that is refused with the sentence `refusal`: the error.
    """
    try:
        return send(items)
    except RequestRefused as e:
        if len(items) == 1:
            return {items[0].id: f"{refusal}: {e}"}
        middle = len(items) // 2
        return by_halves(items[:middle], send, refusal) | by_halves(items[middle:], send, refusal)


class BulkConfig(Config):
    """Options of a sink that makes requests of many items."""

    batch_size: int = option(
        1000,
        name="batchSize",
        unit="events",
        gt=0,
        description="Number of events after which they are sent while other requests are under way. While none is, "
        "they are sent at once.",
    )


class DocumentsConfig(BulkConfig):
    """Options of a sink that makes documents over HTTP."""

    batch_duration: int = option(
        1000,
        name="batchDurationMillis",
        unit="ms",
        gt=0,
        description="Time after which the delivery of events is committed to the channel, even if they are few.",
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

    @cross_field_validator("username", "password")
    def _both(self) -> None:
        if (self.username is None) != (self.password is None):
            raise ValueError("must be set together with password")


C = TypeVar("C", bound=BulkConfig)
D = TypeVar("D", bound=DocumentsConfig)


class BulkSink(Sink[C], Generic[C, T]):
    """A sink that makes items of events and has requests with them under way while it gets more."""

    most: ClassVar[int] = 1000
    """Items of one request."""
    most_size: ClassVar[int]
    """Of their sizes."""
    refusal: ClassVar[str]
    """What begins the reason of an item that is refused."""

    def __init__(self, config: C, name: str = "") -> None:
        super().__init__(config, name)
        self.batch_size = max(AHEAD, config.batch_size)
        self._made: list[T] = []
        """Items that are in no request yet."""
        self._requests = Requests(self._at_once(), self.type_name)

    def _at_once(self) -> int:
        """How many requests may be under way at the same time."""
        return 1

    @abstractmethod
    def _make(self, batch: Batch) -> dict[EventId, str]:
        """Add the items of these events to `_made`. Which events make none, and why."""

    @abstractmethod
    def _put(self, items: Sequence[T]) -> dict[EventId, str]:
        """Send these in one request; what of them is refused by name, and why. Raises RequestRefused, and Retry.

        Runs on several threads at once.
        """

    def _key(self, item: T) -> Hashable:
        """Of items with the same one, the last stays."""
        return item.id

    def _parts(self, items: Sequence[T]) -> Iterator[Sequence[T]]:
        """What of them goes into one request each. Those of one key keep their order."""
        return pieces(items, self.most, self.most_size)

    def write(self, batch: Batch) -> None:
        """Make items of these events. They are sent once there are `batchSize`, or if no request is under way.

        So an event of a quiet channel is there after one request, and those of a busy one are sent many together.
        """
        rejected = self._make(batch)
        if len(self._made) >= self.config.batch_size or self._requests.idle:
            self._send()
        rejected |= self._requests.refused()
        if rejected:
            raise Rejected(rejected)

    def _send(self) -> None:
        made, self._made = self._made, []
        for some in self._parts(made):
            self._requests.begin(set(map(self._key, some)), partial(by_halves, some, self._put, self.refusal))

    def flush(self) -> None:
        """Return when the servers have all items."""
        self._send()
        self._requests.finish()
        if rejected := self._requests.refused():
            raise Rejected(rejected)

    def reset(self) -> None:
        """Drop what was not flushed; what is under way is waited for."""
        self._made = []
        self._requests.drop()

    def close(self) -> None:
        """Drop what was not flushed, and end the threads."""
        self.reset()
        self._requests.close()


class DocumentsSink(BulkSink[D, T], Generic[D, T]):
    """One whose items are documents, sent over HTTP once they are old enough or many enough."""

    def __init__(self, config: D, name: str = "") -> None:
        super().__init__(config, name)
        self.flush_interval = config.batch_duration / 1000
