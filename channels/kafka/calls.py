"""Calls that one thread of a reader has another one make."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class Calls:
    """Made in order, on the thread that asks for them; guarded by `changed`, which is notified of each."""

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self._due: deque[tuple[Callable[[], Any], Future[Any]]] = deque()

    def __bool__(self) -> bool:
        """Whether one is due."""
        return bool(self._due)

    def add(self, call: Callable[[], Any]) -> Future[Any]:
        """Have it made. What it answers, or raises, is in the future."""
        answer: Future[Any] = Future()
        with self._changed:
            self._due.append((call, answer))
            self._changed.notify_all()
        return answer

    def make(self, *, raises: bool = False) -> None:
        """Make those that are due. `raises` says whether what one raises is raised here, too, without the ones after
        it."""
        while True:
            with self._changed:
                if not self._due:
                    return
                call, answer = self._due.popleft()
            try:
                answer.set_result(call())
            except Exception as e:
                answer.set_exception(e)
                if raises:
                    raise
