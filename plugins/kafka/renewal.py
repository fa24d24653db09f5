"""Renewal of clients whose certificates have changed, as librdkafka reads them once, when a client is made."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from confluent_kafka import KafkaException

from flafka.plugins.errors import Retry
from flafka.plugins.kafka.errors import explain_error
from flafka.plugins.kafka.properties import certificate_files

CERTIFICATE_CHECK_SECONDS = 4.0
"""Least interval between two looks at the files with certificates, which idle clients take up to a second late."""
T = TypeVar("T")


class ClientRenewal:
    """Replacement of a client once the files with its certificates, keys or authorities have changed. Thread-safe.

    A client whose new files cannot be used yet, such as a certificate without its new key, is kept.
    """

    def __init__(
        self, configured: Mapping[str, str], properties: Callable[[], dict[str, Any]], log: logging.Logger
    ) -> None:
        """`configured` are the properties that name the files. `properties` returns the properties of a new client.

        Call this before the client is made, so that no change is missed.
        """
        self._files, self._properties, self._log = certificate_files(configured), properties, log
        self._known = self._state()
        self._refused: object = None
        """State of the files that could not be used."""
        self._next_check = time.monotonic() + CERTIFICATE_CHECK_SECONDS
        self._lock = threading.Lock()

    def renew(self, make: Callable[[dict[str, Any]], T]) -> T | None:
        """Return the result of `make` with new properties if the files have changed since it last succeeded.

        The result is None if they have not, or if `make` raises KafkaException or Retry, which is logged once and
        tried again. Looks at the files every `CERTIFICATE_CHECK_SECONDS`; never waits for another thread.
        """
        if not self._files or time.monotonic() < self._next_check or not self._lock.acquire(blocking=False):
            return None
        try:
            self._next_check = time.monotonic() + CERTIFICATE_CHECK_SECONDS
            if (state := self._state()) == self._known:
                return None
            try:
                made = make(self._properties())
            except (KafkaException, Retry) as e:
                if state != self._refused:
                    self._refused = state
                    self._log.warning(
                        "changed certificates cannot be used, and Kafka's client keeps those it has: %s",
                        explain_error(e),
                    )
                return None
            changed = sorted(path for path, value in state.items() if value != self._known[path])
            self._log.info("Kafka's client is made anew, with changed certificates: %s", ", ".join(changed))
            self._known, self._refused = state, None
            return made
        finally:
            self._lock.release()

    def _state(self) -> dict[str, object]:
        """Return inode, size and modification time of each file; None for one that cannot be read."""
        return {path: _stamp(path) for path in self._files}


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
