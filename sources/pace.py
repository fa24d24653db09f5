"""Times that sources wait: before a batch goes to the channels, and between two checks for a stop."""

from __future__ import annotations

import time

STOP_CHECK_SECONDS = 0.2
"""Interval at which a source that waits for input checks whether it has to stop."""
PAUSE = 0.008
"""Seconds between two batches where events come one by one: those that come meanwhile go together."""
MAX_WAIT = 0.02
"""Seconds that a batch waits for more after its first event, while more comes without a pause."""
HELD_BACK = 0.001
"""Seconds after a `rest` and a read within which what that has released is read as well: a round trip of a LAN."""
MUCH = 256 * 1024
"""Bytes of a batch from which on its senders may be faster than what the kernel takes for them in a `PAUSE`."""


class Pace:
    """Says how long a batch in the making waits for more.

    What comes after a quiet moment goes at once. What comes sooner than `PAUSE` after the batch before waits for so
    long, as that one is on its way. While there is always more to read, a batch is to get full, within `MAX_WAIT`.

    Who reads from sockets calls `rest` when there is something to read: to read once what came in a `PAUSE` takes a
    fraction of the time that it takes to read it piece by piece. A sender whose window is small is held up by that:
    it sends one window in a `PAUSE`, until the kernel has made it larger. And a sender that does not set TCP_NODELAY
    holds small pieces back until those before are acknowledged (RFC 896), which Linux does once they are read. What
    it sends then would wait for another `PAUSE`: so that is read before the batch goes.
    """

    def __init__(self) -> None:
        self._began = self._went = 0.0
        self._much = self._rested = self._held_back = False

    def begin(self) -> None:
        """The first event of a batch is there."""
        self._began = time.monotonic()

    def end(self, size: int = 0) -> None:
        """The batch goes now; it was read from so many bytes."""
        self._went = time.monotonic()
        self._much, self._rested, self._held_back = size >= MUCH, False, False

    def rest(self) -> bool:
        """Sleep for as long as what is there to read would wait anyway; whether that was so. What is read then goes
        at once, with what that has released.
        """
        if self._much or self._rested or not (seconds := self.patience()):
            return False
        time.sleep(seconds)
        self._rested = True
        return True

    def patience(self) -> float:
        """Seconds to wait for more; 0 where only what is there already shall be read."""
        if self._held_back:
            return HELD_BACK
        return max(0.0, self._went + PAUSE - time.monotonic())

    def due(self, *, quiet: bool) -> bool:
        """Whether the batch is to go, asked after each read. `quiet` says that nothing has come within the last
        `patience`."""
        if self._rested:  # the first read has released what the second one reads
            self._held_back = not self._held_back
            return not self._held_back
        return (quiet and not self.patience()) or time.monotonic() >= self._began + MAX_WAIT
