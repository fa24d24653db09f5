"""Sender of the lines of a file over TCP to a port of this machine: a process of its own.

Arguments: `port file connections at_once`, or `port file rate=N`. All lines are read, and all connections are open,
before the process prints `connected`. A line on standard input starts it; once all is sent it prints `sent`, and the
end of standard input closes the connections.

Several connections take turns of up to `at_once` lines. At a rate, in lines per second, the lines of each millisecond
are sent together. The digits of the filling `STAMP` become the time at which a line is sent, in nanoseconds.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

STAMP_BYTES = 19
STAMP_OFFSET = STAMP_BYTES + len(" id=123456789\n")
"""Distance of these digits from the end of their line, in bytes."""
STAMP = b"at=" + b"0" * STAMP_BYTES + b" "
"""Filling of lines that carry the time at which they were sent."""
SEND_INTERVAL_SECONDS = 0.001


def main() -> None:
    """Connect, wait for the start, and send."""
    port, path, *arguments = sys.argv[1:]
    rate = int(arguments[0].removeprefix("rate=")) if arguments[0].startswith("rate=") else 0
    connections, at_once = (1, 0) if rate else map(int, arguments)
    data = np.frombuffer(bytearray(Path(path).read_bytes()), np.uint8)
    ends = np.flatnonzero(data == ord("\n")) + 1
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(socket.create_connection(("127.0.0.1", int(port)))) for _ in range(connections)
        ]
        print("connected", flush=True)
        sys.stdin.readline()
        if rate:
            send_steadily(clients[0], data, ends, rate)
        else:
            send_in_turns(clients, data, ends, at_once)
        print("sent", flush=True)
        sys.stdin.read()


def send_in_turns(clients: Sequence[socket.socket], data: Any, ends: Any, at_once: int) -> None:
    """Send all lines as fast as they are read."""
    piece = len(ends) if len(clients) == 1 else max(1, min(at_once, len(ends) // len(clients)))
    start = 0
    for turn, end in enumerate([*ends[piece - 1 : -1 : piece].tolist(), len(data)]):
        clients[turn % len(clients)].sendall(data[start:end])
        start = end


def send_steadily(client: socket.socket, data: Any, ends: Any, rate: int) -> None:
    """Send all lines at a rate per second, each with the time at which it is sent."""
    column = np.arange(STAMP_BYTES) - STAMP_OFFSET
    started, sent, start = time.monotonic(), 0, 0
    while sent < len(ends):
        due = min(len(ends), int((time.monotonic() - started) * rate) + 1)
        if due > sent:
            digits = np.frombuffer(b"%019d" % time.time_ns(), np.uint8)
            data[ends[sent:due, None] + column] = digits
            client.sendall(data[start : ends[due - 1]])
            sent, start = due, int(ends[due - 1])
        time.sleep(SEND_INTERVAL_SECONDS)


if __name__ == "__main__":
    main()
