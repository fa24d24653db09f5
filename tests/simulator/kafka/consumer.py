"""`confluent_kafka.Consumer` over the simulated brokers: what applications call, but for positions and offsets.

Rebalance callbacks run within `poll`, `consume` and `close`, on the thread that calls them. What librdkafka does on
threads of its own is in `member.py` (heartbeats, joining) and `fetch.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from confluent_kafka import OFFSET_INVALID, OFFSET_STORED, TopicPartition

from tests.simulator.kafka.admin import metadata_of
from tests.simulator.kafka.member import Place
from tests.simulator.kafka.messages import ByTheClient, Message, Uncatchable, answer
from tests.simulator.kafka.positions import Positions

FIND_COORDINATOR_SECONDS = 0.05
Callback = Callable[[Any, list[TopicPartition]], Any]


class Consumer(Positions):
    """`confluent_kafka.Consumer`."""

    def __init__(self, config: dict[str, Any] | None = None, **more: Any) -> None:
        super().__init__({**(config or {}), **more})
        self._idle = 0.0
        self._on: dict[str, Callback | None] = {}
        self._called_back = False

    # --- subscribe

    def subscribe(
        self,
        topics: Iterable[str],
        on_assign: Callback | None = None,
        on_revoke: Callback | None = None,
        on_lost: Callback | None = None,
        **_: Any,
    ) -> None:
        self._check_open()
        self._on = {"assign": on_assign, "revoke": on_revoke, "lost": on_lost or on_revoke}
        first = not self.topics
        self.topics = tuple(topics)
        if self not in self.cluster.clients:
            self.cluster.clients.append(self)
        self._polled = self.world.now
        if first:
            self._join(FIND_COORDINATOR_SECONDS * (1 + self.world.random.random()))
        elif self._state in ("steady", "out"):
            self._join()

    def unsubscribe(self) -> None:
        self._check_open()
        self._leave()
        self.topics = ()
        self.unassign()

    # --- poll

    def poll(self, timeout: float | None = None) -> Message | None:
        self._check_open()
        messages = self._serve(1, timeout)
        return messages[0] if messages else None

    def consume(self, num_messages: int = 1, timeout: float | None = None) -> list[Message]:
        self._check_open()
        return self._serve(num_messages, timeout)

    def _serve(self, most: int, timeout: float | None) -> list[Message]:
        here = self.world
        self._polling = True
        try:
            begun = here.now
            patience = math.inf if timeout is None or timeout < 0 else timeout
            messages: list[Message] = []
            while True:
                while self._operations:
                    self._idle = 0.0
                    self._run_operation()
                while len(messages) < most and (message := self._next()) is not None:
                    messages.append(message)
                if messages:
                    self._idle = 0.0
                    if patience:
                        here.answered(here.call("kafka.poll"))
                    return messages
                if not patience:
                    return messages
                remaining = begun + patience - here.now
                if remaining <= 0:
                    self._idle = min(self.cluster.most_idle, 2 * max(self._idle, patience))
                    return messages
                if remaining == math.inf:
                    self.signal.wait()
                else:
                    self.signal.idle(remaining, begun + self._idle - here.now)
                if self._closed:
                    return messages
        finally:
            self._polling = False
            self._polled = here.now

    def _next(self) -> Message | None:
        if self._errors:
            return self._errors.popleft()
        ready = self.ready
        while ready:
            fetch = ready[0]
            message = fetch.next()
            if message is not None:
                return message
            ready.popleft()
            fetch.queued = False
        return None

    def _run_operation(self) -> None:
        what, tps, then = self._operations.popleft()
        partitions = [answer(*tp, OFFSET_INVALID) for tp in tps]
        callback = self._on.get(what)
        self._acted = False
        self._called_back = True
        try:
            if callback is not None:
                callback(self, partitions)
        except ByTheClient as e:
            raise Uncatchable(e.args[0]) from e
        finally:
            self._called_back = False
            if not self._closed:
                self._settle(what, tps, partitions, then)

    def _settle(
        self, what: str, tps: list[Place], partitions: list[TopicPartition], then: Callable[[], None]
    ) -> None:
        """After the callback; the client does itself what that has left out."""
        if what == "assign":
            self._owned.update(dict.fromkeys(tps))
            if not self._acted and partitions:
                self._add([answer(*tp, OFFSET_STORED) for tp in tps])
        else:
            for tp in tps:
                self._owned.pop(tp, None)
            if not self._acted:
                self._drop(tps)
        if self._fatal is not None or self._closing:
            return
        if self._lost:
            self._state = "steady"
            self._lose()
        else:
            then()

    # --- the rest

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        self._check_open()
        if self._called_back:
            # Unlike other calls it has the binding forget that the thread polls: the next callback ends the process.
            raise Uncatchable("list_topics within a rebalance callback of the same consumer")
        metadata = metadata_of(self.cluster, topic, timeout)
        if topic is None and self._state == "steady":
            self._look()
        return metadata

    def memberid(self) -> str | None:
        self._check_open()
        return self.member_id or None

    def consumer_group_metadata(self) -> Any:
        self._check_open()
        return SimpleNamespace(
            group=self.group_name, generation=self.generation, member=self.member_id, instance=self.instance
        )

    def close(self) -> None:
        """Callbacks that are due are made first, then that for all partitions that are left. What one raises comes
        when all is closed."""
        if self._closed or self._closing:
            return
        self._closing = self._polling = True
        self._turn += 1
        failures: list[BaseException] = []
        while self._operations or (self._owned and self._fatal is None):
            if not self._operations:
                self._operations.append(("lost" if self._lost else "revoke", list(self._owned), _nothing))
            try:
                self._run_operation()
            except (Exception, Uncatchable) as e:  # carried to the end
                failures.append(e)
        self._leave()
        self._drop(list(self._fetches))
        self._closed = True
        if self in self.cluster.clients:
            self.cluster.clients.remove(self)
        self.signal.fire()
        if failures:
            raise failures[0]

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _nothing() -> None:
    """Continue after a callback in a consumer that is being closed."""
