"""Host names of senders, by reverse lookups that delay a batch for a limited time."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import NamedTuple


class Sender(NamedTuple):
    """Sender of a frame: its address, and the port that it sent to."""

    address: str
    port: int


class HostNames:
    """Resolver of addresses, with a cache of the `_CACHE_SIZE` last used names.

    An address whose lookup takes too long, or finds no name, is its own name.
    """

    _CACHE_SIZE = 4096
    _THREADS = 8
    _TIMEOUT_SECONDS = 1.0
    """Time that one batch waits for all its lookups."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._cache: dict[str, Future[str]] = {}

    def resolve(self, addresses: Iterable[str]) -> dict[str, str]:
        """Return the host name of each address, or the address itself, after at most `_TIMEOUT_SECONDS`.

        A lookup that takes longer continues for later calls.
        """
        futures = {address: self._lookup(address) for address in dict.fromkeys(addresses)}
        wait([future for future in futures.values() if future is not None], self._TIMEOUT_SECONDS)
        return {
            address: future.result() if future is not None and future.done() else address
            for address, future in futures.items()
        }

    def close(self) -> None:
        """Clear the cache and cancel lookups that have not started."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
        self._cache.clear()

    def _lookup(self, address: str) -> Future[str] | None:
        """Return the future of a name; None while too many lookups are pending."""
        future = self._cache.pop(address, None)
        if future is None:
            if sum(not future.done() for future in self._cache.values()) >= self._CACHE_SIZE // 16:
                return None
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._THREADS, "syslog-names")
            future = self._pool.submit(_resolve, address)
        self._cache[address] = future
        if len(self._cache) > self._CACHE_SIZE:
            self._cache.pop(next(iter(self._cache))).cancel()
        return future


def _resolve(address: str) -> str:
    """Return the host name of an address by a reverse lookup; the address itself where there is none."""
    try:
        return socket.getnameinfo((address, 0), socket.NI_NAMEREQD)[0]
    except OSError:
        return address
