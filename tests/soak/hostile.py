"""Hostile syslog: mutated frames, connections with every fault, and healthy senders beside them."""

from __future__ import annotations

import contextlib
import json
import random
import re
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

SHARED = Path(__file__).parents[2].parent / "shared"
PRIORITIES = [b"<13>", b"<34>", b"<191>", b"<192>", b"<999>", b"<013>", b"<>", b"<1", b"<-1>", b"<1e1>", b"", b"13>"]
VERSIONS = [b"1 ", b"1", b"2 ", b"", b"1  ", b"01 "]
STAMPS = [
    b"2024-05-01T10:00:00Z",
    b"2024-05-01T10:00:00.123456+23:59",
    b"2024-02-30T24:61:61Z",
    b"0000-00-00T00:00:00Z",
    b"9999-12-31T23:59:59.999999999999Z",
    b"2024-05-01T10:00:00",
    b"Oct 11 22:14:15",
    b"Feb 29 00:00:00",
    b"Foo  0 99:99:99",
    b"-",
    b"",
]
HOSTS = [b"host", b"-", b"10.0.0.1", b"fe80::1", b"h" * 255, b"h" * 300, "hôte".encode(), b"\xff\xfe", b""]
FIELDS = [
    b"app 1 id - ",
    b"- - - - ",
    b'a - - [x@1 k="v"][y@2 q="\\"\\]"] ',
    b'a - - [x k="v" ',
    b"a - - [" + b"x" * 200,
    b"app[12]: ",
    b"",
]
SPECIAL = [
    b"\n",
    b"\r\n",
    b"\0",
    b" ",
    b"<",
    b">",
    b"[",
    b"]",
    b'"',
    b"\\",
    b"\xff",
    b"\xef\xbb\xbf",
    b"%s%n",
    b"99999999 ",
]


class Frames:
    """Mutated syslog frames: grammars combined wrongly, and changed bytes of real systems' frames."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._bodies = [b"message", b"", b"x" * 5000, "grüße, 世界".encode()]
        self._seeds = [b"<13>Oct 11 22:14:15 host app: message"]
        for log in sorted(SHARED.glob("data/loghub/*.log")):
            self._bodies += log.read_bytes().splitlines()
        for suite in sorted(SHARED.glob("conformance/flume/syslog_*.json")):
            texts = re.findall(r'"data": ("(?:[^"\\]|\\.)*")', suite.read_text())
            self._seeds += [json.loads(text).encode("utf-8", "surrogatepass") for text in texts]

    def frame(self) -> bytes:
        """Return a frame without its end."""
        choose = self._random.choice
        if self._random.random() < 0.3:
            frame = choose(self._seeds)
        else:
            parts = (
                choose(part) for part in (PRIORITIES, VERSIONS, STAMPS, (b" ",), HOSTS, (b" ",), FIELDS, self._bodies)
            )
            frame = b"".join(parts)
        return self._mutated(frame) if self._random.random() < 0.5 else frame

    def stream(self, count: int) -> bytes:
        """Return the bytes of a connection with these frames: by lines, or by octet counts, some of them wrong."""
        frames = [self.frame() for _ in range(count)]
        if self._random.random() < 0.5:
            return b"\n".join(frames) + b"\n"
        lie = self._random.randrange(20 * count)
        return b"".join(b"%d %s" % (len(f) + (n == lie) or 1, f or b"x") for n, f in enumerate(frames))

    def _mutated(self, frame: bytes) -> bytes:
        data, choose, below = bytearray(frame), self._random.choice, self._random.randrange
        for _ in range(1 + below(3)):
            index = below(len(data) + 1)
            match below(5):
                case 0:
                    data[index:index] = choose(SPECIAL)
                case 1:
                    data[index : index + 1 + below(8)] = b""
                case 2:
                    data[index : index + 1] = bytes([below(256)])
                case 3:
                    data[index:index] = data[index : index + below(20)]
                case 4:
                    del data[index + below(40) :]
        return bytes(data)


@dataclass
class Healthy:
    """Sender without faults: numbered messages at a rate, with the time of each."""

    name: str
    connect: Callable[[], socket.socket]
    counted: bool
    rate: int
    sent: dict[bytes, float] = field(default_factory=dict)

    def run(self, over: threading.Event) -> None:
        with self.connect() as connection:
            began, number = time.monotonic(), 0
            while not over.is_set():
                identity = b"healthy %s %d" % (self.name.encode(), number)
                frame = b"<13>1 2026-01-02T03:04:05Z %s app - - - %s" % (self.name.encode(), identity)
                self.sent[identity] = time.monotonic()
                connection.sendall(b"%d %s" % (len(frame), frame) if self.counted else frame + b"\n")
                number += 1
                time.sleep(max(0.0, began + number / self.rate - time.monotonic()))
            if isinstance(connection, ssl.SSLSocket):
                connection.unwrap().close()


class Watch:
    """Reader of a growing output directory: the healthy messages in it, and the time of each one's first sight."""

    _IDENTITY = re.compile(rb"app - - - (healthy \S+ \d+)\n")

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[Path, tuple[int, bytes]] = {}
        self.seen: dict[bytes, float] = {}
        self.repeated: list[bytes] = []

    def run(self, over: threading.Event) -> None:
        while not over.wait(0.01):
            self.read_new()

    def read_new(self) -> None:
        for path in list(self._directory.glob("*")):
            position, held = self._read.get(path, (0, b""))
            with path.open("rb") as file:
                file.seek(position)
                new = file.read()
            if new:
                now, (text, _, tail) = time.monotonic(), (held + new).rpartition(b"\n")
                self._read[path] = position + len(new), tail if _ else held + new
                for identity in self._IDENTITY.findall(text + b"\n"):
                    if self.seen.setdefault(identity, now) != now:
                        self.repeated.append(identity)


def mutated(ports: list[int], frames: Frames, connections: int, count: int, choose: random.Random) -> int:
    """Open all these connections, send mutated frames over them in pieces, and end them in every way; return the
    frames."""
    sockets: list[socket.socket] = []
    sent = 0
    for n in range(connections):
        sockets.append(socket.create_connection(("127.0.0.1", ports[n % len(ports)]), timeout=60))
    for connection in sockets:
        stream = frames.stream(count)
        offset = 0
        with contextlib.suppress(ConnectionError):  # a wrong octet count ends it
            while offset < len(stream):
                piece = choose.choice((1, 7, 300, 5000, 70_000, 70_000))
                connection.sendall(stream[offset : offset + piece])
                offset += piece
        sent += count
    for connection in sockets:
        if choose.random() < 0.3:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
        connection.close()
    return sent


def slow(ports: list[int], connections: int, over: threading.Event) -> None:
    """Open connections that send a byte now and then, and never the end of a message."""
    with contextlib.ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_connection(("127.0.0.1", ports[n % len(ports)]), timeout=60))
            for n in range(connections)
        ]
        n = 0
        while not over.wait(0.002):
            sockets[n % connections].send(b"<13>slow"[n // connections % 8 :][:1])
            n += 1


def broken_handshakes(port: int, count: int, choose: random.Random) -> None:
    """Open connections to a TLS port without a handshake: garbage, plain text, cut and changed hellos, silence."""
    context = ssl.create_default_context()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    hello = outgoing.read()
    kept = []
    for n in range(count):
        connection = socket.create_connection(("127.0.0.1", port), timeout=60)
        changed = bytearray(hello)
        changed[choose.randrange(len(changed))] ^= 1 << choose.randrange(8)
        garbage = choose.randbytes(200)
        data = (garbage, b"<13>plain text\n", hello[: choose.randrange(len(hello))], bytes(changed), b"", hello)[
            n % 6
        ]
        with contextlib.suppress(ConnectionError):
            connection.sendall(data)
        if n % 3:
            connection.close()
        else:
            kept.append(connection)
    for connection in kept:
        connection.close()
