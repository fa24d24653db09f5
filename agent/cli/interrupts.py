"""Ctrl-C that ends a loop between two steps, rather than in the middle of one."""

from __future__ import annotations

import signal
from types import FrameType
from typing import BinaryIO, Self


class DeferredInterrupt:
    """Ctrl-C in a block: the first one only sets `is_set`, a second one raises KeyboardInterrupt.

    An exception between two lines could lose a delivery report, or the offset of a record that was printed. For the
    main thread only.
    """

    def __init__(self) -> None:
        self.is_set = self._is_reading = False

    def __enter__(self) -> Self:
        self._previous = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._previous)

    def read_line(self, lines: BinaryIO) -> bytes:
        """Return the next line, with its end; empty at the end of the input, and after Ctrl-C."""
        self._is_reading = True
        try:
            return b"" if self.is_set else lines.readline()
        except KeyboardInterrupt:
            return b""
        finally:
            self._is_reading = False

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self.is_set = True
        signal.signal(signal.SIGINT, self._previous)
        if self._is_reading:
            raise KeyboardInterrupt
