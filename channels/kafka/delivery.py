"""One put on its way into the channel's topic."""

from __future__ import annotations

import threading

from confluent_kafka import KafkaError, Message, Producer


class Delivery:
    """Waits for the delivery reports of one put, by one producer.

    A record is reported in a few hundred nanoseconds, on any thread and without a lock: what `report` does to a list
    is atomic.
    """

    def __init__(self, producer: Producer, events: int) -> None:
        self.producer, self.events = producer, events
        self._expected = 0
        self._reported: list[None] = []
        self._all = threading.Event()
        self.error: KafkaError | None = None

    def expect(self, records: int) -> None:
        """So many more reports are to come. Only the thread that puts calls it, before it waits."""
        self._expected += records

    def report(self, error: KafkaError | None, message: Message) -> None:
        """One of the records is stored, or has failed."""
        if error is not None and self.error is None:
            self.error = error
        self._reported.append(None)
        if len(self._reported) == self._expected:
            self._all.set()

    @property
    def reported(self) -> int:
        """Records that are stored, or have failed."""
        return len(self._reported)

    def wait(self, timeout: float) -> bool:
        """Whether all have been reported by then. Nothing more may be expected after the first call."""
        self._all.clear()  # what had been expected while putting may have been reported: that is not all
        if len(self._reported) < self._expected:
            self._all.wait(timeout)
        return len(self._reported) >= self._expected
