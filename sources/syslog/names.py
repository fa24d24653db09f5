"""Host names of senders, by reverse lookup, without ever holding up what they send for long."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import NamedTuple


class Sender(NamedTuple):
    """Who sent a frame, and to which port."""

    address: str
    port: int


class HostNames:
    """The names of addresses; an address has its own text for a name while the lookup takes too long, or finds none.

    A name is looked up once and kept while it is one of the `_KEPT` last used, until `forget`.
    """

    _KEPT = 4096
    _AT_ONCE = 8
    _PATIENCE = 1.0
    """Seconds that one batch waits for names, all in all."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._known: dict[str, Future[str]] = {}

    def of(self, addresses: Iterable[str]) -> dict[str, str]:
        """The name of each address."""
        futures = {address: self._lookup(address) for address in dict.fromkeys(addresses)}
        wait([future for future in futures.values() if future is not None], self._PATIENCE)
        return {
            address: future.result() if future is not None and future.done() else address
            for address, future in futures.items()
        }

    def forget(self) -> None:
        """Forget all names and end what is being looked up."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
        self._known.clear()

    def _lookup(self, address: str) -> Future[str] | None:
        """The name, or its promise; None while too many are being looked up already."""
        future = self._known.pop(address, None)
        if future is None:
            if sum(not future.done() for future in self._known.values()) >= self._KEPT // 16:
                return None
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._AT_ONCE, "syslog-names")
            future = self._pool.submit(_name, address)
        self._known[address] = future
        if len(self._known) > self._KEPT:
            self._known.pop(next(iter(self._known))).cancel()
        return future


def _name(address: str) -> str:
    try:
        return socket.getnameinfo((address, 0), socket.NI_NAMEREQD)[0]
    except OSError:
        return address
