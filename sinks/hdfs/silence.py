"""HTTP connections that wait only for a moment for a silent server once the agent stops."""

from __future__ import annotations

import select
import time
from threading import Event
from typing import Any

SOCKET_POLL_SECONDS = 0.2
"""Interval at which a call checks whether the agent stops."""
SERVER_SILENCE_SECONDS = 5.0
"""Silence of a server that ends a call when the agent stops; no other call follows."""


class Patience:
    """Patience with silent servers: the timeout of a call, and much less once `stopping` is set."""

    def __init__(self, stopping: Event) -> None:
        self._stopping = stopping
        self.over = False
        """True once a server was silent while the agent stops."""

    def wait(self, socket: Any) -> None:
        """Return when an answer begins. Raises TimeoutError where it does not come in time."""
        began, limit, stopped = time.monotonic(), socket.gettimeout(), None
        poll = select.poll()
        poll.register(socket, select.POLLIN)
        while not (hasattr(socket, "pending") and socket.pending()) and not poll.poll(SOCKET_POLL_SECONDS * 1000):
            now = time.monotonic()
            if self._stopping.is_set():
                stopped = now if stopped is None else stopped
                if now - stopped >= SERVER_SILENCE_SECONDS:
                    self.over = True
                    raise TimeoutError("the agent stops, and the server is silent")
            if limit is not None and now - began >= limit:
                raise TimeoutError("the server is silent")


def impatient(adapter: Any, patience: Patience) -> None:
    """Have the connections of an adapter of requests wait with this patience."""
    manager = getattr(adapter, "poolmanager", None)
    if manager is None:
        return

    def waiting(pool: Any) -> Any:
        def getresponse(connection: Any) -> Any:
            if connection.sock is not None:
                patience.wait(connection.sock)
            return pool.ConnectionCls.getresponse(connection)

        made = type("Connection", (pool.ConnectionCls,), {"getresponse": getresponse})
        return type(pool.__name__, (pool,), {"ConnectionCls": made})

    manager.pool_classes_by_scheme = {
        scheme: waiting(pool) for scheme, pool in manager.pool_classes_by_scheme.items()
    }
