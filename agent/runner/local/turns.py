"""The order in which batches that are on their way together come into a channel."""

from __future__ import annotations

import threading


class Turns:
    """One channel's: batches have the numbers 0, 1, 2… and come into it in this order.

    A batch waits until all earlier ones have passed: they are in their places there, do not go there, or have failed.
    What has failed and is put again goes out of turn, so that it holds nobody up meanwhile.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._next = 0
        self._passed: set[int] = set()
        """Later ones than the next that have passed already."""

    def wait(self, number: int) -> None:
        """Return when it is this batch's turn, or that has passed."""
        with self._changed:
            self._changed.wait_for(lambda: number <= self._next or number in self._passed)

    def passed(self, number: int) -> None:
        """Nothing has to wait for this batch any more; may be said more than once."""
        with self._changed:
            if number < self._next:
                return
            self._passed.add(number)
            while self._next in self._passed:
                self._passed.remove(self._next)
                self._next += 1
            self._changed.notify_all()
