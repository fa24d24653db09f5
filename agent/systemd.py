"""What systemd is told of the agent: that it takes events, what it waits for, that it is alive, that it ends.

The protocol of `sd_notify(3)`: lines of text in one datagram to the socket that `NOTIFY_SOCKET` names.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Mapping

EXTEND_SECONDS = 30
"""While the agent waits for its channels and sources, systemd is asked for so much more time, again and again."""
WATCHDOG_SECONDS = 5.0
"""The agent tells so often that it is alive."""


class Systemd:
    """Tells systemd, where it has started this process as a service of `Type=notify`; nobody otherwise."""

    def __init__(self) -> None:
        address = os.environ.pop("NOTIFY_SOCKET", "")  # not for what the agent starts
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._ready = False
        self._status = ""
        self._alive_due = 0.0

    def look(self, waiting: Mapping[str, str], state: str) -> None:
        """To be called every second or so. `waiting` are the components that do not take events yet, and why."""
        if not self._address:
            return
        lines = []
        if time.monotonic() >= self._alive_due:
            self._alive_due = time.monotonic() + WATCHDOG_SECONDS
            lines.append("WATCHDOG=1")
            if not self._ready and waiting:
                lines.append(f"EXTEND_TIMEOUT_USEC={EXTEND_SECONDS * 1_000_000}")
        if not self._ready and not waiting:
            self._ready = True
            lines.append("READY=1")
        what = "; ".join(f"{path}: {why}" for path, why in waiting.items())
        status = f"waiting for {what}" if what and not self._ready else f"takes events, {state}"
        if status != self._status:
            self._status = status
            lines.append(f"STATUS={' '.join(status.split())}")
        self._tell(lines)

    def stopping(self) -> None:
        """The agent drains and ends."""
        self._tell(["STOPPING=1", "STATUS=draining"])

    def _tell(self, lines: list[str]) -> None:
        if not self._address or not lines:
            return
        # Where systemd takes nothing, a later look tells it.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.setblocking(False)
            out.sendto("\n".join(lines).encode(), self._address)
