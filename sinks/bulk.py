"""Sinks that send documents or rows in parallel requests of limited size, and find refused ones by bisection."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import ClassVar, Generic, Protocol, TypeVar

from pydantic import SecretStr

from flafka.plugins import Batch, Config, EventId, Rejected, Sink, cross_field_validator, option

MAX_UNFLUSHED_EVENTS = 100_000
"""Number of events after which a sink is flushed. A flush waits for pending requests, and so limits throughput."""


class Item(Protocol):
    """Document or row of an event in a request."""

    @property
    def id(self) -> EventId:
        """Id of the event."""

    @property
    def size(self) -> int:
        """Approximate size in the request, in bytes or characters."""


T = TypeVar("T", bound=Item)


class RequestRefused(Exception):
    """Permanent refusal of a request by a server that does not name the item at fault."""


class RequestPool:
    """Requests on a pool of threads: at most `concurrency` at once, and twice as many pending.

    Requests with a key in common run one after the other, in the order of submission.
    """

    def __init__(self, concurrency: int, name: str) -> None:
        """Create a pool whose threads have this name."""
        self._concurrency, self._name = concurrency, name
        self._threads: ThreadPoolExecutor | None = None
        self._pending: deque[tuple[Set[Hashable], Future[dict[EventId, str]]]] = deque()
        self._refused: dict[EventId, str] = {}

    def submit(self, keys: Set[Hashable], request: Callable[[], dict[EventId, str]]) -> None:
        """Run a request on a thread. Block while too many requests, or one with a key in common, are pending.

        The request returns the reason for each refused item. Raises the error of an earlier request that failed; then
        this request was not submitted.
        """
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._concurrency, thread_name_prefix=self._name)
        while len(self._pending) >= 2 * self._concurrency or any(
            not keys.isdisjoint(pending) for pending, _ in self._pending
        ):
            self._wait_for_oldest()
        self._pending.append((keys, self._threads.submit(request)))

    @property
    def is_idle(self) -> bool:
        """True if no request is running or waits for a thread."""
        return all(future.done() for _, future in self._pending)

    def take_refused(self) -> dict[EventId, str]:
        """Return the reasons for items that were refused in finished requests since the last call, by event id."""
        refused, self._refused = self._refused, {}
        return refused

    def drain(self) -> None:
        """Wait for all requests. Raises the error of the oldest that fails; later ones stay pending."""
        while self._pending:
            self._wait_for_oldest()

    def cancel(self) -> None:
        """Cancel requests that have not begun, and wait for the running ones, which could else overwrite later ones.

        Their errors, and the refused items so far, are dropped.
        """
        futures = [future for _, future in self._pending]
        self._pending.clear()
        self._refused = {}
        for future in futures:
            future.cancel()
        wait(futures)

    def close(self) -> None:
        """Cancel pending requests, and end the threads."""
        self.cancel()
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None

    def _wait_for_oldest(self) -> None:
        """Wait for the oldest request and collect its refused items. Raises its error, and leaves it pending then."""
        _, future = self._pending[0]
        self._refused |= future.result()
        self._pending.popleft()


def split_items(items: Sequence[T], max_items: int, max_size: int) -> Iterator[Sequence[T]]:
    """Yield runs of at most `max_items` items whose sizes add up to at most `max_size`, in order.

    An item larger than `max_size` is a run of its own. Without items there is no run.
    """
    start = size = 0
    for number, item in enumerate(items):
        item_size = item.size
        if start < number and (number - start == max_items or size + item_size > max_size):
            yield items[start:number]
            start, size = number, 0
        size += item_size
    if items:
        yield items[start:]


def send_bisecting(
    items: Sequence[T], send: Callable[[Sequence[T]], dict[EventId, str]], refusal: str
) -> dict[EventId, str]:
    """Send items, and halves of them where a request is refused. Return the reason for each refused item.

    `send` makes one request and returns the reasons for items that the server refuses by name. If it raises
    RequestRefused for a single item, the reason is the text `refusal`, followed by the error. Any other error of
    `send` is raised.
    """
    try:
        return send(items)
    except RequestRefused as e:
        if len(items) == 1:
            return {items[0].id: f"{refusal}: {e}"}
        middle = len(items) // 2
        return send_bisecting(items[:middle], send, refusal) | send_bisecting(items[middle:], send, refusal)


class BulkConfig(Config):
    """Options of a sink whose requests have many items."""

    batch_size: int = option(
        1000,
        name="batchSize",
        unit="events",
        gt=0,
        description="Number of events in a request while other requests are pending. Otherwise, events are sent at "
        "once.",
    )


class DocumentsConfig(BulkConfig):
    """Options of a sink that sends documents over HTTP."""

    batch_duration: int = option(
        1000,
        name="batchDurationMillis",
        unit="ms",
        gt=0,
        description="Time after which the delivery of events is committed to the channel, even if they are few.",
    )
    timeout: int = option(
        30_000, name="timeout", unit="ms", ge=100, description="Maximum time to wait for an answer."
    )
    username: str | None = option(None, name="username", description="Name of the user, if the servers require one.")
    password: SecretStr | None = option(None, name="password", description="Password of the user.")

    @property
    def login(self) -> tuple[str, str] | None:
        """User and password; None without a user."""
        if self.username is None or self.password is None:
            return None
        return self.username, self.password.get_secret_value()

    @cross_field_validator("username", "password")
    def _check_login(self) -> None:
        if (self.username is None) != (self.password is None):
            raise ValueError("must be set together with password")


C = TypeVar("C", bound=BulkConfig)
D = TypeVar("D", bound=DocumentsConfig)


class BulkSink(Sink[C], Generic[C, T]):
    """Sink that converts events to items, and sends them in pipelined requests."""

    max_items: ClassVar[int] = 1000
    """Limit of a request's items."""
    max_size: ClassVar[int]
    """Limit of the sum of their sizes."""
    refusal: ClassVar[str]
    """Text before the reason for a refused item."""

    def __init__(self, config: C, name: str = "") -> None:
        super().__init__(config, name)
        self.batch_size = max(MAX_UNFLUSHED_EVENTS, config.batch_size)
        self._items: list[T] = []
        """Items that are in no request yet."""
        self._requests = RequestPool(self._concurrency(), self.type_name)

    def _concurrency(self) -> int:
        """Return the number of requests that may run at the same time: 1 unless the sink overrides it."""
        return 1

    @abstractmethod
    def _make_items(self, batch: Batch) -> dict[EventId, str]:
        """Append the items of these events to `_items`. Return the reason for each event without one, by its id."""

    @abstractmethod
    def _send_items(self, items: Sequence[T]) -> dict[EventId, str]:
        """Send items in one request, and return the reasons for those that are refused by name, by event id.

        Raises RequestRefused if the server refuses the request without naming an item, and Retry if the failure may
        pass. Called by several threads.
        """

    def _key(self, item: T) -> Hashable:
        """Return the item's key, by default the event's id. Of items with the same key, the store keeps the last."""
        return item.id

    def _split(self, items: Sequence[T]) -> Iterator[Sequence[T]]:
        """Yield the items of each request, within `max_items` and `max_size`.

        Items with the same key keep their order.
        """
        return split_items(items, self.max_items, self.max_size)

    def write(self, batch: Batch) -> None:
        """Convert events to items. They are sent once there are `batchSize`, or if no request is pending.

        So events of an idle channel are sent at once, and events of a busy one many together. Raises Retry, and
        Rejected for events without an item or refused by the server, among them events of earlier calls.
        """
        rejected = self._make_items(batch)
        if len(self._items) >= self.config.batch_size or self._requests.is_idle:
            self._submit()
        rejected |= self._requests.take_refused()
        if rejected:
            raise Rejected(rejected)

    def _submit(self) -> None:
        """Submit all items to the pool, in requests within the limits. Raises the error of an earlier request."""
        items, self._items = self._items, []
        for part in self._split(items):
            self._requests.submit(
                set(map(self._key, part)), partial(send_bisecting, part, self._send_items, self.refusal)
            )

    def flush(self) -> None:
        """Send all items, and return when the servers have them. Raises Retry, and Rejected for refused items."""
        self._submit()
        self._requests.drain()
        if rejected := self._requests.take_refused():
            raise Rejected(rejected)

    def reset(self) -> None:
        """Drop items that were not flushed, cancel pending requests, and wait for running ones."""
        self._items = []
        self._requests.cancel()

    def close(self) -> None:
        """Drop items that were not flushed, and end the threads."""
        self.reset()
        self._requests.close()


class DocumentsSink(BulkSink[D, T], Generic[D, T]):
    """Sink whose items are documents, sent over HTTP."""

    def __init__(self, config: D, name: str = "") -> None:
        super().__init__(config, name)
        self.flush_interval = config.batch_duration / 1000
