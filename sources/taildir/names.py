"""Inotify for names: events of a directory's names, with descriptors from the opener process."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from watchdog.observers.inotify_c import (
    InotifyConstants,
    Mask,
    WatchDescriptor,
    inotify_add_watch,
    inotify_init,
    inotify_rm_watch,
)

from flafka.plugins.errors import ANY_FAILURE
from flafka.sources.taildir import opener
from flafka.sources.taildir.tail import Key

_MASK = Mask(
    InotifyConstants.IN_CREATE | InotifyConstants.IN_MOVE | InotifyConstants.IN_DELETE | InotifyConstants.IN_ONLYDIR
)
_RESTART_SECONDS = 1.0
"""Minimum time between two starts of the opener process. It doubles while the process keeps ending."""
_MOST_RESTART_SECONDS = 60.0
"""Maximum time between two starts of the opener process."""
_START_SECONDS = 5.0
"""Time limit for the start of the opener process, even on a busy machine."""
_TEXT_BYTES = 1 << 15
"""Size from which a message is full, in bytes of JSON."""


class Named(NamedTuple):
    """Event of one name."""

    kind: str
    path: str
    cookie: int
    key: Key | None
    """Device and inode of the file found under the path; None where there was none.

    The lookup follows the event, so the file may be a later one.
    """
    fd: int | None
    """Open descriptor of the file, or None. The callback owns and closes it."""


class Names:
    """Inotify instance for names, and the opener process that reads it and opens the files.

    The instance belongs to the agent's process: events wait in the kernel's queue while the opener starts or
    restarts.
    """

    def __init__(
        self,
        *,
        tell: Callable[[Named], None],
        overflow: Callable[[], None],
        ended: Callable[[str], None],
        synced: Callable[[int], None],
    ) -> None:
        """Start the opener process, without watches. Raises OSError where inotify is unavailable.

        `tell` is called in the order of the kernel's events, and `overflow` where the kernel dropped some. `ended` is
        called with the reason when the opener process ended or could not start. Events may be lost then, and the
        process is restarted. `synced` answers `sync`. All callbacks run on the thread of this object.
        """
        self._tell, self._overflow, self._ended, self._synced = tell, overflow, ended, synced
        self._lock = threading.Lock()
        self._watched: dict[str, tuple[WatchDescriptor, list[str] | None]] = {}
        """Watches by directory, with the patterns of new files' names."""
        self._untold: set[WatchDescriptor] = set()
        """Watches that were not sent to the opener process yet."""
        self._channel: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._closing = threading.Event()
        self._ready = threading.Event()
        self._inotify = inotify_init()
        if self._inotify == -1:
            raise _error()
        os.set_inheritable(self._inotify, False)
        os.set_blocking(self._inotify, False)
        self._thread = threading.Thread(target=self._run, name="taildir-names", daemon=True)
        self._thread.start()

    def add(self, directory: str, patterns: Sequence[str] | None) -> bool:
        """Watch a directory; return True if it was not watched before. Idempotent.

        The opener process opens new files whose names match one of `patterns`, or all where it is None. Raises
        OSError.
        """
        with self._lock:
            watch = inotify_add_watch(self._inotify, os.fsencode(directory), _MASK)
            if watch == -1:
                raise _error()
            known = self._watched.get(directory)
            new = known is None or known[0] != watch
            if new:
                self._watched[directory] = watch, None if patterns is None else list(patterns)
                self._untold.add(watch)
                if known is not None:  # the directory was replaced by another one
                    self._untold.add(known[0])
                    if all(other != known[0] for other, _ in self._watched.values()):
                        inotify_rm_watch(self._inotify, known[0])
            self._tell_watches()
        return new

    def sync(self, number: int) -> bool:
        """Request a call of `synced` with `number` after all events that the kernel has queued by now.

        Return False where the opener process cannot be reached at present.
        """
        with self._lock:
            try:
                if self._channel is not None:
                    self._channel.send(json.dumps([[opener.SYNC, number]]).encode(), socket.MSG_DONTWAIT)
                    return True
            except OSError:
                pass
        return False

    def wait(self) -> None:
        """Block until the opener process is ready, at most `_START_SECONDS`."""
        self._ready.wait(_START_SECONDS)

    def close(self) -> None:
        """Stop the opener process and the thread. Blocks until both have ended."""
        self._closing.set()
        with self._lock:
            if self._channel is not None:
                self._channel.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        os.close(self._inotify)

    def _tell_watches(self) -> None:
        """Send new watches to the opener process; `_receive` sends the rest once its socket has room."""
        by_watch: dict[WatchDescriptor, dict[str, list[str] | None]] = {watch: {} for watch in self._untold}
        for directory, (watch, patterns) in self._watched.items() if self._untold else ():
            if watch in by_watch:
                by_watch[watch][directory] = patterns
        while by_watch and self._channel is not None:
            some, size = [], 0
            while by_watch and size < _TEXT_BYTES:
                some.append(by_watch.popitem())
                size += len(json.dumps(some[-1]))
            try:
                self._channel.send(json.dumps(some).encode(), socket.MSG_DONTWAIT)
            except OSError:
                return
            self._untold.difference_update(watch for watch, _ in some)

    # --- on the thread

    def _run(self) -> None:
        pause = _RESTART_SECONDS
        while not self._closing.is_set():
            began = time.monotonic()
            try:
                self._start()
                ended = self._receive()
            except ANY_FAILURE as e:
                ended = f"{type(e).__name__}: {e}"
            if not self._closing.is_set():
                self._ready.set()
                self._ended(ended)
            lived = time.monotonic() - began
            self._closing.wait(pause - lived)
            pause = _RESTART_SECONDS if lived > _MOST_RESTART_SECONDS else min(2 * pause, _MOST_RESTART_SECONDS)

    def _start(self) -> None:
        with self._lock:
            if self._closing.is_set():
                return
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                try:
                    self._process = subprocess.Popen(
                        # Isolated and without site packages, so that the process starts fast.
                        [sys.executable, "-I", "-S", opener.__file__, str(self._inotify), str(theirs.fileno())],
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.PIPE,
                        cwd="/",
                        start_new_session=True,  # with autogroup scheduling, sched(7), it runs sooner
                        pass_fds=(self._inotify, theirs.fileno()),
                    )
                except BaseException:
                    ours.close()
                    raise
            self._channel = ours
            self._untold = {watch for watch, _ in self._watched.values()}
            self._tell_watches()

    def _receive(self) -> str:
        """Pass on the messages of the opener process until it ends; return the reason."""
        channel, process = self._channel, self._process
        if channel is None or process is None:
            return ""
        try:
            while True:
                data, files, _, _ = socket.recv_fds(
                    channel, opener.MESSAGE_BYTES, opener.MOST_FILES, socket.MSG_CMSG_CLOEXEC
                )
                if not data:
                    break
                if self._untold:
                    with self._lock:
                        self._tell_watches()
                else:
                    self._ready.set()
                for named in _decoded(data, iter(files)):
                    if named.kind == opener.OVERFLOW:
                        self._overflow()
                    elif named.kind == opener.SYNC:
                        self._synced(named.cookie)
                    else:
                        self._tell(named)
        except ConnectionError:
            pass
        finally:
            with self._lock:
                self._channel = self._process = None
            channel.close()
            with suppress(OSError):
                process.kill()
            _, complaint = process.communicate()
        reason = complaint.decode(errors="replace").strip().rpartition("\n")[2]
        return reason or f"exit code {process.returncode}"


def _decoded(data: bytes, files: Iterator[int]) -> Iterator[Named]:
    for kind, path, cookie, device, inode, opened in json.loads(data):
        # The kernel passes fewer descriptors where this process is out of them (unix(7), SCM_RIGHTS).
        yield Named(kind, path, cookie, (device, inode) if inode else None, next(files, None) if opened else None)


def _error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
