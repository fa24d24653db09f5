"""Notifications to systemd: ready, status, watchdog and stopping.

Protocol of `sd_notify(3)`: lines of text in one datagram to the socket in `NOTIFY_SOCKET`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Mapping

EXTEND_SECONDS = 30
"""Extension of systemd's start timeout in each notification while channels or sources are not open yet."""
SYSTEMD_WATCHDOG_SECONDS = 5.0
"""Interval of watchdog notifications."""


class Systemd:
    """Notifier of systemd, without effect unless systemd has set `NOTIFY_SOCKET` for a service of `Type=notify`."""

    def __init__(self) -> None:
        address = os.environ.pop("NOTIFY_SOCKET", "")  # child processes must not notify systemd for the agent
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._ready = False
        self._status = ""
        self._watchdog_deadline = 0.0

    @property
    def is_active(self) -> bool:
        """True if systemd waits for notifications."""
        return bool(self._address)

    @property
    def awaits_start(self) -> bool:
        """True if systemd waits for the notification that the agent is ready."""
        return self.is_active and not self._ready

    def update(self, waiting: Mapping[str, str], state: str) -> None:
        """Notify systemd of changes: ready once nothing waits, status, and the watchdog. Call it every few seconds.

        `waiting` has path → reason of each component that does not take events yet. `state` is the health of the
        agent. Best-effort: a failed notification is not repeated.
        """
        if not self._address:
            return
        lines = []
        if time.monotonic() >= self._watchdog_deadline:
            self._watchdog_deadline = time.monotonic() + SYSTEMD_WATCHDOG_SECONDS
            lines.append("WATCHDOG=1")
            if not self._ready and waiting:
                lines.append(f"EXTEND_TIMEOUT_USEC={EXTEND_SECONDS * 1_000_000}")
        if not self._ready and not waiting:
            self._ready = True
            lines.append("READY=1")
        reasons = "; ".join(f"{path}: {reason}" for path, reason in waiting.items())
        status = f"waiting for {reasons}" if reasons and not self._ready else f"takes events, {state}"
        if status != self._status:
            self._status = status
            lines.append(f"STATUS={' '.join(status.split())}")
        self._notify(lines)

    def stopping(self) -> None:
        """Notify systemd that the agent drains and ends. Best-effort."""
        self._notify(["STOPPING=1", "STATUS=draining"])

    def _notify(self, lines: list[str]) -> None:
        """Send these lines to systemd in one datagram; errors are ignored."""
        if not self._address or not lines:
            return
        # Non-blocking: a full socket of systemd must not stop the agent.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.setblocking(False)
            out.sendto("\n".join(lines).encode(), self._address)
