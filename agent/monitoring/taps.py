"""Taps: copies of passing events for `agent tap`, over a Unix socket that only the user of the agent can open.

A component without subscribers reads one attribute per batch. A subscriber queues a few batches at most. Further
batches are dropped and counted, so that a slow reader never blocks the agent.
"""

from __future__ import annotations

import contextlib
import errno
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

from flafka.agent.state import state_file
from flafka.agent.topology import AgentSpec, SinkSpec, SourceSpec
from flafka.plugins import Batch
from flafka.plugins.problems import suggest
from flafka.plugins.threads import start_thread

log = logging.getLogger(__name__)

MAX_QUEUED_BATCHES = 4
"""Maximum number of batches in the queue of a subscriber."""
MAX_EVENTS_PER_MESSAGE = 1000
MAX_READERS = 16
TAP_CHECK_SECONDS = 0.5
"""Interval of the checks for a closed connection and for dropped events."""
ACCEPT_RETRY_SECONDS = 0.5
"""Delay of the next accept if the process has no free file descriptor."""
TAP_REQUEST_TIMEOUT_SECONDS = 5.0
"""Timeout for the request of a new reader."""
_HEADER = struct.Struct("!II")
"""Header of a message: the sizes of its JSON metadata and of its events, an Arrow IPC stream, in bytes."""
_CREDENTIALS = struct.Struct("3i")


class TappedBatch(NamedTuple):
    """Batch at a tap point."""

    stage: str
    """`before` or `after` an interceptor; else empty."""
    batch: Batch


class TapSubscriber:
    """Queue of batches at the end of a component, or before and after one of its interceptors.

    Any thread may call the methods. The component's threads call `on_intercepted` and `on_batch`, which never block.
    """

    def __init__(self, interceptor: int | None = None) -> None:
        """`interceptor` is the index of the interceptor to watch, from 0; None is the end of the component."""
        self.interceptor = interceptor
        self._queue: queue.Queue[tuple[TappedBatch, ...]] = queue.Queue(MAX_QUEUED_BATCHES)
        self._lock = threading.Lock()
        self._dropped = 0

    def on_intercepted(self, number: int, before: Batch, after: Batch) -> None:
        """Enqueue the batches before and after the interceptor with index `number`, from 0; others are ignored."""
        if number == self.interceptor:
            self._enqueue((TappedBatch("before", before), TappedBatch("after", after)))

    def on_batch(self, batch: Batch) -> None:
        """Enqueue a batch at the end of the component: it leaves the source, or goes into the channel or the sink.

        Ignored if the subscriber watches an interceptor, and for an empty batch.
        """
        if self.interceptor is None and len(batch):
            self._enqueue((TappedBatch("", batch),))

    def _enqueue(self, seen: tuple[TappedBatch, ...]) -> None:
        """Add batches to the queue. If the queue is full, drop them, and count the events of the first one."""
        try:
            self._queue.put_nowait(seen)
        except queue.Full:
            with self._lock:
                self._dropped += len(seen[0].batch)

    def next_batches(self, timeout: float) -> tuple[TappedBatch, ...]:
        """Remove and return the next batch, or two for an interceptor; an empty tuple after `timeout` seconds."""
        try:
            return self._queue.get(timeout=timeout)
        except queue.Empty:
            return ()

    def take_dropped_count(self) -> int:
        """Return the number of events dropped since the previous call, and reset it."""
        with self._lock:
            count, self._dropped = self._dropped, 0
        return count


class Taps:
    """Tap subscribers of one component."""

    def __init__(self) -> None:
        self.subscribers: tuple[TapSubscriber, ...] = ()
        """Current subscribers. The component's threads read this attribute once per batch, without the lock."""
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def subscription(self, subscriber: TapSubscriber) -> Iterator[None]:
        """Have `subscriber` get the component's batches for the duration of the block."""
        with self._lock:
            self.subscribers = (*self.subscribers, subscriber)
        try:
            yield
        finally:
            with self._lock:
                self.subscribers = tuple(s for s in self.subscribers if s is not subscriber)


class TapPoint(NamedTuple):
    """Component or interceptor with a tap, or with the reason why it has none."""

    path: str
    """Path such as `a1.sources.s1` or `a1.sources.s1.interceptors.i1`."""
    taps: Taps | None
    interceptor: int | None = None
    reason: str = ""


def tap_points(spec: AgentSpec, taps: Mapping[str, Taps]) -> list[TapPoint]:
    """Return the tap points of an agent: channels, then sources and sinks, each before its interceptors.

    `taps` are by path of the source, channel or sink. A point of a sink on Spark has a reason, and no taps.
    """
    result = [TapPoint(channel.path, taps.get(channel.path)) for channel in spec.channels]
    ends: tuple[SourceSpec | SinkSpec, ...] = (*spec.sources, *spec.sinks)
    for end in ends:
        reason = ""
        if isinstance(end, SinkSpec) and end.runner == "spark":
            reason = (
                f"{end.name} runs on Spark, where its events cannot be tapped: tap its channel {end.channel}, or a "
                "source of that channel"
            )
        result.append(TapPoint(end.path, taps.get(end.path), None, reason))
        result += (TapPoint(i.path, taps.get(end.path), number, reason) for number, i in enumerate(end.interceptors))
    return result


def names_of(path: str) -> tuple[str, ...]:
    """Return the names that users may write for a component, shortest first: `s1.i1`, `sources.s1.i1`, … , path."""
    words = path.split(".")
    short = ".".join(words[2::2])
    return short, f"{words[1]}.{short}", path.partition(".")[2], path


def find_point(points: list[TapPoint], name: str) -> TapPoint | str:
    """Return the tap point of that name, or the error message if it is unknown, ambiguous, or cannot be tapped."""
    matches = [point for point in points if name in names_of(point.path)]
    if len(matches) == 1:
        return matches[0].reason or matches[0]
    if matches:
        return f"{name} is ambiguous: write {' or '.join(point.path for point in matches)}"
    names = [*dict.fromkeys(names_of(point.path)[0] for point in points)]
    return f"no component is named {name!r}" + (suggest(name, names) or f"; components: {', '.join(names)}")


def filter_by_body(batch: Batch, pattern: str) -> Batch:
    """Return the events whose body contains a match of the pattern (RE2); all events for an empty pattern."""
    return batch.where(pc.match_substring_regex(batch.bodies, pattern)) if pattern else batch


def pattern_error(pattern: str) -> str:
    """Return the error in a pattern (RE2); empty if it is valid."""
    try:
        pc.match_substring_regex(pa.array([b""], pa.binary()), pattern)
    except pa.ArrowInvalid as e:
        return f"{pattern!r} is not a regular expression (RE2): {str(e).partition(': ')[2]}"
    return ""


# --- the socket


def socket_file(agent: str, file: str) -> Path:
    """Return the path of the tap socket of the agent with this name and configuration file.

    It is below the state directory, and need not exist.
    """
    return state_file(agent, file, "taps", "sock")


@contextlib.contextmanager
def socket_address(file: Path) -> Iterator[str]:
    """Yield a short address of a socket file for the block: the kernel limits a path to 107 bytes (unix(7)).

    Raises OSError if the directory does not exist.
    """
    directory = os.open(file.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{file.name}"
    finally:
        os.close(directory)


class TapServer:
    """Server of `agent tap`, on its own threads. Best-effort: if the server fails, the agent runs without it."""

    def __init__(self, spec: AgentSpec) -> None:
        self._points: list[TapPoint] = []
        self._file = socket_file(spec.name, spec.file)
        self._stopping = threading.Event()
        self._readers: set[threading.Thread] = set()
        self._socket: socket.socket | None = None
        self._identity: tuple[int, int] | None = None

    def set_agent(self, spec: AgentSpec, taps: Mapping[str, Taps]) -> None:
        """Serve the components of this agent from now on.

        Readers of a replaced component continue with the new one.
        """
        self._points = tap_points(spec, taps)

    def start(self) -> None:
        """Listen on the tap socket, on a thread. An OSError is only logged, and so is another agent on the socket."""
        try:
            self._socket = self._listen()
        except OSError as e:
            log.warning("agent tap does not work: %s cannot be created: %s", self._file, e.strerror or e)
            return
        if self._socket is not None:
            start_thread(threading.Thread(target=self._accept, args=(self._socket,), name="taps", daemon=True))

    def stop(self) -> None:
        """Close the socket and all connections, and remove the socket file. Waits up to 1 s for each connection."""
        self._stopping.set()
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept()
            self._socket.close()
            with contextlib.suppress(OSError):
                if _file_identity(self._file) == self._identity:
                    self._file.unlink()
        for reader in list(self._readers):
            reader.join(1)

    def _listen(self) -> socket.socket | None:
        """Return a socket that listens, for this user only; None if another agent answers there. Raises OSError."""
        directory = self._file.parent
        directory.mkdir(parents=True, exist_ok=True)
        status = directory.stat()
        if status.st_uid != os.geteuid():
            raise OSError(0, f"{directory} belongs to another user")
        if stat.S_IMODE(status.st_mode) != 0o700:
            directory.chmod(0o700)  # before bind(): otherwise another user could connect in between
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with socket_address(self._file) as address:
                if self._answers(address):
                    log.info(
                        "another agent with this configuration is running: agent tap shows the events of that agent"
                    )
                    listener.close()
                    return None
                self._file.unlink(missing_ok=True)  # left over by a killed agent
                listener.bind(address)
                self._file.chmod(0o600)
                listener.listen()
        except OSError:
            listener.close()
            raise
        self._identity = _file_identity(self._file)
        return listener

    def _answers(self, address: str) -> bool:
        """Return True if a process listens at the address."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(address)
            except OSError:
                return False
            return True

    def _accept(self, listener: socket.socket) -> None:
        """Start a thread for each connection, at most `MAX_READERS`, until the socket is closed."""
        while not self._stopping.is_set():
            try:
                reader, _ = listener.accept()
            except OSError as e:
                if e.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED):
                    self._stopping.wait(ACCEPT_RETRY_SECONDS)
                    continue
                return  # the agent stops and has closed the socket
            self._readers = {thread for thread in self._readers if thread.is_alive()}
            if len(self._readers) >= MAX_READERS:
                reader.close()
                continue
            thread = threading.Thread(target=self._serve, args=(reader,), name="tap", daemon=True)
            try:
                thread.start()  # before add(): `stop` must not join a thread that is not started
            except RuntimeError as e:
                log.warning("a connection of agent tap is closed: no thread can be started: %s", e)
                reader.close()
            else:
                self._readers.add(thread)

    def _serve(self, reader: socket.socket) -> None:
        """Read the request of a client, and send it events until it disconnects or the agent stops.

        A client of another user, except root, is disconnected.
        """
        with reader, contextlib.suppress(OSError, ValueError):  # disconnected, or not a tap client
            if _peer_user_id(reader) not in (os.geteuid(), 0):
                return
            reader.settimeout(TAP_REQUEST_TIMEOUT_SECONDS)
            with reader.makefile("rb") as lines:
                request = json.loads(lines.readline(1 << 16))
            pattern = str(request.get("grep") or "")
            point = find_point(self._points, str(request["component"]))
            error = point if isinstance(point, str) else pattern_error(pattern)
            if isinstance(point, str) or error or point.taps is None:
                send(reader, {"error": error or "the component does not run"})
                return
            path, is_confirmed = point.path, False
            while not self._stopping.is_set() and _is_connected(reader):
                if isinstance(point, str) or point.taps is None:
                    send(reader, {"error": f"{path} is no longer in the configuration"}, stopping=self._stopping)
                    return
                subscriber = TapSubscriber(point.interceptor)
                with point.taps.subscription(subscriber):
                    # A client that has the confirmation must get every event from then on.
                    if not is_confirmed:
                        send(reader, {"component": path})
                        reader.settimeout(TAP_CHECK_SECONDS)
                        is_confirmed = True
                    self._relay(reader, point, subscriber, pattern)
                point = find_point(self._points, path)

    def _relay(self, reader: socket.socket, point: TapPoint, subscriber: TapSubscriber, pattern: str) -> None:
        """Send the subscriber's events, and numbers of dropped ones, to a client.

        Returns when the point is replaced, the client disconnects, or the agent stops.
        """
        while not self._stopping.is_set() and point in self._points and _is_connected(reader):
            for stage, batch in subscriber.next_batches(TAP_CHECK_SECONDS):
                selected = filter_by_body(batch, pattern)
                for start in range(0, len(selected), MAX_EVENTS_PER_MESSAGE):
                    if self._stopping.is_set():
                        return
                    send(reader, {"stage": stage}, selected.slice(start, MAX_EVENTS_PER_MESSAGE), self._stopping)
            if count := subscriber.take_dropped_count():
                send(reader, {"left_out": count}, stopping=self._stopping)


def send(
    reader: socket.socket,
    metadata: dict[str, Any],
    batch: Batch | None = None,
    stopping: threading.Event | None = None,
) -> None:
    """Send one message: JSON metadata with the present time, and the events of `batch` with their IDs.

    Blocks until it is sent. After each timeout of the socket it is tried further while `stopping` is not set. Raises
    TimeoutError once `stopping` is set, or without it. Raises OSError if the connection is closed.
    """
    if batch is not None and batch.origin is not None:
        metadata = {**metadata, "ids": [str(id) for id in batch.ids()]}
    head = json.dumps({"time": time.time(), **metadata}).encode()
    payload = memoryview(batch.to_ipc()) if batch is not None else memoryview(b"")
    for part in (memoryview(_HEADER.pack(len(head), len(payload)) + head), payload):
        while part:
            try:
                part = part[reader.send(part) :]
            except TimeoutError:
                if stopping is None or stopping.is_set():
                    raise


def receive(agent: socket.socket) -> tuple[dict[str, Any], Batch | None]:
    """Return one message: its metadata, and its events or None. Blocks. Raises EOFError if the agent has ended."""
    metadata_size, events_size = _HEADER.unpack(_receive_exactly(agent, _HEADER.size))
    metadata: dict[str, Any] = json.loads(_receive_exactly(agent, metadata_size))
    return metadata, Batch.from_ipc(_receive_exactly(agent, events_size)) if events_size else None


def _receive_exactly(agent: socket.socket, size: int) -> bytes:
    """Return the next `size` bytes. Raises EOFError if the connection ends before."""
    parts = []
    while size:
        part = agent.recv(min(size, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _is_connected(reader: socket.socket) -> bool:
    """Return True unless the client has closed the connection. Does not block."""
    poll = select.poll()  # select() fails for descriptors above 1023
    poll.register(reader, select.POLLIN)
    return not poll.poll(0) or bool(reader.recv(1, socket.MSG_PEEK))  # a client sends nothing after its request


def _peer_user_id(reader: socket.socket) -> int:
    """Return the user ID of the process at the other end of the connection."""
    credentials = reader.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1])


def _file_identity(file: Path) -> tuple[int, int]:
    """Return device and inode of a file. Raises OSError."""
    status = file.stat()
    return status.st_dev, status.st_ino
