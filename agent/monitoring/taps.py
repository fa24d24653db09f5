"""Listening to events as they pass: for `agent tap`, over a local socket that the agent's own user can open.

Components that nobody listens to pay one look at an attribute a batch. A listener holds a few batches at most, and
what comes faster than its reader takes is counted and left out: nothing waits for it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import queue
import select
import socket
import stat
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from flafka.agent.state import state_directory
from flafka.agent.topology import AgentSpec, SinkSpec, SourceSpec
from flafka.plugins import Batch
from flafka.plugins.problems import suggestion
from flafka.plugins.threads import start_thread

log = logging.getLogger(__name__)

MOST_BATCHES = 4
"""So many wait for one reader."""
MOST_EVENTS = 1000
"""So many are sent at once."""
MOST_READERS = 16
TAP_CHECK_SECONDS = 0.5
"""A reader that went away, and events that were left out, are noticed so soon."""
ACCEPT_SECONDS = 0.5
"""Wait before the next attempt to accept, while the process has no file descriptor for it."""
TAP_REQUEST_SECONDS = 5.0
"""So long a reader may take to say what it wants."""
HEAD = struct.Struct("!II")
"""Before each message: the size of what is said of it, in JSON, and of its events, an Arrow IPC stream."""
_CREDENTIALS = struct.Struct("3i")


class Seen(NamedTuple):
    """Events that passed a point together."""

    stage: str
    """`before` or `after` an interceptor, else empty."""
    batch: Batch


class TapSubscriber:
    """What one reader gets: events at the end of a component, or before and after one of its interceptors."""

    def __init__(self, interceptor: int | None = None) -> None:
        self._interceptor = interceptor
        self._queue: queue.Queue[tuple[Seen, ...]] = queue.Queue(MOST_BATCHES)
        self._lock = threading.Lock()
        self._left_out = 0

    def intercepted(self, number: int, before: Batch, after: Batch) -> None:
        """The interceptor of that number made one of the other."""
        if number == self._interceptor:
            self._offer((Seen("before", before), Seen("after", after)))

    def passed(self, batch: Batch) -> None:
        """These come out of the source, or go into the channel or the sink."""
        if self._interceptor is None and len(batch):
            self._offer((Seen("", batch),))

    def _offer(self, seen: tuple[Seen, ...]) -> None:
        try:
            self._queue.put_nowait(seen)
        except queue.Full:
            with self._lock:
                self._left_out += len(seen[0].batch)

    def next(self, seconds: float) -> tuple[Seen, ...]:
        """What passed next; nothing where nothing does within that time."""
        try:
            return self._queue.get(timeout=seconds)
        except queue.Empty:
            return ()

    def left_out(self) -> int:
        """How many events passed unseen since this was last asked."""
        with self._lock:
            count, self._left_out = self._left_out, 0
        return count


class Taps:
    """Who listens to one component."""

    def __init__(self) -> None:
        self.listeners: tuple[TapSubscriber, ...] = ()
        """Read by the component's threads once a batch."""
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def heard(self, listener: TapSubscriber) -> Iterator[None]:
        """Within the block it listens."""
        with self._lock:
            self.listeners = (*self.listeners, listener)
        try:
            yield
        finally:
            with self._lock:
                self.listeners = tuple(one for one in self.listeners if one is not listener)


class Point(NamedTuple):
    """Where one can listen, or why not."""

    path: str
    """`a1.sources.s1`, or that of an interceptor."""
    taps: Taps | None
    interceptor: int | None = None
    reason: str = ""


def points(spec: AgentSpec, taps: Mapping[str, Taps]) -> list[Point]:
    """All of an agent; `taps` are by path of source, channel or sink."""
    found = [Point(channel.path, taps.get(channel.path)) for channel in spec.channels]
    ends: tuple[SourceSpec | SinkSpec, ...] = (*spec.sources, *spec.sinks)
    for end in ends:
        reason = ""
        if isinstance(end, SinkSpec) and end.runner == "spark":
            reason = (
                f"{end.name} runs on Spark, whose executors have its events: tap its channel {end.channel}, or a "
                "source before it"
            )
        found.append(Point(end.path, taps.get(end.path), None, reason))
        found += (Point(one.path, taps.get(end.path), n, reason) for n, one in enumerate(end.interceptors))
    return found


def called(path: str) -> tuple[str, ...]:
    """The names of a component, the shortest first: of `a1.sources.s1.interceptors.i1`, `s1.i1`, `sources.s1.i1`…"""
    words = path.split(".")
    short = ".".join(words[2::2])
    return short, f"{words[1]}.{short}", path.partition(".")[2], path


def find(known: list[Point], name: str) -> Point | str:
    """The point of that name, or a sentence."""
    found = [point for point in known if name in called(point.path)]
    if len(found) == 1:
        return found[0].reason or found[0]
    if found:
        return f"{name} is the name of {' and '.join(point.path for point in found)}: write one of these"
    names = [*dict.fromkeys(called(point.path)[0] for point in known)]
    return f"no component is named {name!r}" + (suggestion(name, names) or f"; there are {', '.join(names)}")


def matching(batch: Batch, pattern: str) -> Batch:
    """The events in whose body the pattern, RE2's, is found."""
    return batch.where(pc.match_substring_regex(batch.bodies, pattern)) if pattern else batch


def wrong_pattern(pattern: str) -> str:
    """What is wrong with it; empty where nothing is."""
    try:
        pc.match_substring_regex(pa.array([b""], pa.binary()), pattern)
    except pa.ArrowInvalid as e:
        return f"{pattern!r} is no regular expression of RE2: {str(e).partition(': ')[2]}"
    return ""


# --- the socket


def socket_file(agent: str, file: str) -> Path:
    """Where the agent of that name and configuration is asked, by whoever runs as the same user."""
    known = hashlib.sha256(str(Path(file).resolve()).encode()).hexdigest()[:16]
    return state_directory() / "taps" / f"{agent}-{known}.sock"


@contextlib.contextmanager
def reachable(file: Path) -> Iterator[str]:
    """The address of a socket in that directory, however long its path is: the kernel takes 107 bytes."""
    directory = os.open(file.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{file.name}"
    finally:
        os.close(directory)


class TapServer:
    """Answers `agent tap`, on threads of its own. Where it cannot, the agent runs without it."""

    def __init__(self, spec: AgentSpec) -> None:
        self._points: list[Point] = []
        self._file = socket_file(spec.name, spec.file)
        self._stopping = threading.Event()
        self._readers: set[threading.Thread] = set()
        self._socket: socket.socket | None = None
        self._identity: tuple[int, int] | None = None

    def show(self, spec: AgentSpec, taps: Mapping[str, Taps]) -> None:
        """These are the parts that there are now; who listens to one that was replaced goes over to the new one."""
        self._points = points(spec, taps)

    def start(self) -> None:
        """Listen; returns at once."""
        try:
            self._socket = self._listen()
        except OSError as e:
            log.warning("agent tap cannot be used, as %s cannot be made: %s", self._file, e.strerror or e)
            return
        if self._socket is not None:
            start_thread(threading.Thread(target=self._accept, args=(self._socket,), name="taps", daemon=True))

    def stop(self) -> None:
        """End all of it."""
        self._stopping.set()
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes who waits in accept
            self._socket.close()
            with contextlib.suppress(OSError):
                if _identity(self._file) == self._identity:
                    self._file.unlink()
        for reader in list(self._readers):
            reader.join(1)

    def _listen(self) -> socket.socket | None:
        directory = self._file.parent
        directory.mkdir(parents=True, exist_ok=True)
        about = directory.stat()
        if about.st_uid != os.geteuid():
            raise OSError(0, f"{directory} belongs to another user")
        if stat.S_IMODE(about.st_mode) != 0o700:
            directory.chmod(0o700)  # before the socket is there: nobody else can ever open it
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with reachable(self._file) as address:
                if self._answers(address):
                    log.info("another agent of the same configuration runs: agent tap shows that one's events")
                    listener.close()
                    return None
                self._file.unlink(missing_ok=True)  # of one that was killed
                listener.bind(address)
                self._file.chmod(0o600)
                listener.listen()
        except OSError:
            listener.close()
            raise
        self._identity = _identity(self._file)
        return listener

    def _answers(self, address: str) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(address)
            except OSError:
                return False
            return True

    def _accept(self, listener: socket.socket) -> None:
        while not self._stopping.is_set():
            try:
                reader, _ = listener.accept()
            except OSError as e:
                if e.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED):
                    self._stopping.wait(ACCEPT_SECONDS)
                    continue
                return  # closed, as the agent stops
            self._readers = {one for one in self._readers if one.is_alive()}
            if len(self._readers) >= MOST_READERS:
                reader.close()
                continue
            thread = threading.Thread(target=self._serve, args=(reader,), name="tap", daemon=True)
            try:
                thread.start()  # before `stop` can find it, which waits for its end
            except RuntimeError as e:
                log.warning("agent tap cannot be answered: %s", e)
                reader.close()
            else:
                self._readers.add(thread)

    def _serve(self, reader: socket.socket) -> None:
        with reader, contextlib.suppress(OSError, ValueError):  # it went away, or is no reader
            if _user(reader) not in (os.geteuid(), 0):
                return
            reader.settimeout(TAP_REQUEST_SECONDS)
            with reader.makefile("rb") as lines:
                asked = json.loads(lines.readline(1 << 16))
            pattern = str(asked.get("grep") or "")
            point = find(self._points, str(asked["component"]))
            wrong = point if isinstance(point, str) else wrong_pattern(pattern)
            if isinstance(point, str) or wrong or point.taps is None:
                send(reader, {"error": wrong or "it does not run"})
                return
            path, answered = point.path, False
            while not self._stopping.is_set() and _is_there(reader):
                if isinstance(point, str) or point.taps is None:
                    send(reader, {"error": f"{path} is in the configuration no more"}, stopping=self._stopping)
                    return
                listener = TapSubscriber(point.interceptor)
                with point.taps.heard(listener):
                    if not answered:  # only now: who has the answer may count on every event from then on
                        send(reader, {"component": path})
                        reader.settimeout(TAP_CHECK_SECONDS)
                        answered = True
                    self._relay(reader, point, listener, pattern)
                point = find(self._points, path)

    def _relay(self, reader: socket.socket, point: Point, listener: TapSubscriber, pattern: str) -> None:
        while not self._stopping.is_set() and point in self._points and _is_there(reader):
            for stage, batch in listener.next(TAP_CHECK_SECONDS):
                wanted = matching(batch, pattern)
                for start in range(0, len(wanted), MOST_EVENTS):
                    if self._stopping.is_set():
                        return
                    send(reader, {"stage": stage}, wanted.slice(start, MOST_EVENTS), self._stopping)
            if count := listener.left_out():
                send(reader, {"left_out": count}, stopping=self._stopping)


def send(
    reader: socket.socket,
    about: dict[str, Any],
    batch: Batch | None = None,
    stopping: threading.Event | None = None,
) -> None:
    """One message. However slow the reader is, it is waited for, until `stopping`."""
    if batch is not None and batch.origin is not None:
        about = {**about, "ids": [str(one) for one in batch.ids()]}
    head = json.dumps({"time": time.time(), **about}).encode()
    payload = memoryview(batch.to_ipc()) if batch is not None else memoryview(b"")
    for part in (memoryview(HEAD.pack(len(head), len(payload)) + head), payload):
        while part:
            try:
                part = part[reader.send(part) :]
            except TimeoutError:
                if stopping is None or stopping.is_set():
                    raise


def receive(agent: socket.socket) -> tuple[dict[str, Any], Batch | None]:
    """One message. Raises EOFError where the agent has ended."""
    about, events = HEAD.unpack(_exactly(agent, HEAD.size))
    head: dict[str, Any] = json.loads(_exactly(agent, about))
    return head, Batch.from_ipc(_exactly(agent, events)) if events else None


def _exactly(agent: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = agent.recv(min(size, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _is_there(reader: socket.socket) -> bool:
    poll = select.poll()  # unlike select(), for any number of open files
    poll.register(reader, select.POLLIN)
    return not poll.poll(0) or bool(reader.recv(1, socket.MSG_PEEK))  # it has nothing more to say, but that it goes


def _user(reader: socket.socket) -> int:
    got = reader.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(got)[1])


def _identity(file: Path) -> tuple[int, int]:
    about = file.stat()
    return about.st_dev, about.st_ino
