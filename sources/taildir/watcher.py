"""Watcher: changes in directories by inotify, with descriptors of new files from the opener process."""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
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
from flafka.sources.taildir.opener import CREATED, MOVED_FROM, MOVED_TO
from flafka.sources.taildir.tail import Key
from flafka.sources.taildir.writes import WriteWatcher, last_error

_NAMES = Mask(
    InotifyConstants.IN_CREATE | InotifyConstants.IN_MOVE | InotifyConstants.IN_DELETE | InotifyConstants.IN_ONLYDIR
)
_RESTART_SECONDS = 1.0
"""Minimum time between two starts of the opener process. It doubles while the process keeps ending."""
_MAX_RESTART_SECONDS = 60.0
"""Maximum time between two starts of the opener process."""
_START_SECONDS = 5.0
"""Time limit for the start of the opener process, even on a busy machine."""
_TEXT_BYTES = 1 << 15
"""Size from which a message is full, in bytes of JSON."""
_BUSY_EVENTS = 256
"""Number of repeated events of the same files between two calls of `take`, from which polling is cheaper."""
_BUSY_SECONDS = 1.0
_MAX_CHANGES = 1 << 16
"""Maximum number of changes of names that wait for `take`.

Further ones are dropped, and reported as an overflow, as of the kernel's own queue.
"""
_MAX_MOVES = 1024
"""Maximum number of renames without a second half that are remembered."""


@dataclass(slots=True)
class OpenDescriptor:
    """Descriptor of a file that was opened as soon as inotify reported it."""

    fd: int | None

    def take(self) -> int | None:
        """Return the descriptor to the first caller, which owns it from then on; None to later callers."""
        fd, self.fd = self.fd, None
        return fd


class Change(NamedTuple):
    """Change of one name, in the kernel's order."""

    kind: str
    """Kind of the event, as in `opener`."""
    path: str
    name: str
    """Name under which the file is tracked: `path`, or its name before a rename."""
    cookie: int = 0
    key: Key | None = None
    """Device and inode of the file found at `path`; None where there was none.

    The lookup follows the event, so the file may be a later one.
    """
    descriptor: OpenDescriptor | None = None


class Hints(NamedTuple):
    """Changes since the previous call of `take`."""

    grown: set[str]
    """Paths of files that were written to."""
    changes: list[Change]
    """Changes of names, in the kernel's order."""
    needs_full_scan: bool
    """True if a full scan is needed."""
    writes_unwatched: bool
    """True if writes are not watched now because there were too many, so any file may have grown."""
    has_overflowed: bool
    """True if changes of names were dropped."""
    synced: int
    """Number of the latest answered `Watcher.sync`; changes before that request are in `changes`."""
    restart_reason: str
    """Reason for a restart of the opener process, empty where it did not restart.

    A restart may lose events.
    """


class Watcher:
    """Two inotify instances: one for names, always active, and one for writes, paused while there are many.

    A separate process (`NameWatcher`) opens created and renamed files at once: an open file can be read after it was
    renamed and deleted. Writes stay in the kernel's queue until `take` reads them, so that a write wakes no thread
    while the source lingers.
    """

    def __init__(
        self,
        log: logging.Logger,
        *,
        inotify: bool,
        tracked_name: Callable[[str], str | None],
        is_open: Callable[[Key], bool],
        max_open: int,
    ) -> None:
        """Start without watches. Where inotify is unavailable, log a warning and report nothing.

        Raises RuntimeError if the system refuses a thread.

        `tracked_name` returns the name under which the file of a path is tracked, `is_open` True if a file is open
        already. The thread of the watcher calls both. At most `max_open` files are held open until `take`.
        """
        self._log = log
        self._tracked_name, self._is_open, self._max_open = tracked_name, is_open, max_open
        self._warned = False
        self._lock = threading.Lock()
        self._changes: list[Change] = []
        self._opened: dict[Key, OpenDescriptor] = {}
        self._overflow = False
        self._restart_reason = ""
        self._requested = self._synced = 0
        """Number of the latest request of `sync`, and of the latest that is answered."""
        self._moved_from: dict[int, str] = {}
        """Names of files by inotify cookie, for renames whose second half is not reported yet."""
        self._renamed: dict[str, str] = {}
        """Names of renamed files by their new, untracked paths."""
        self._busy_until = 0.0
        """Monotonic time until which writes are not watched; 0 while they are watched."""
        self._names: NameWatcher | None = None
        self._writes: WriteWatcher | None = None
        if not inotify:
            return
        try:
            # First, because the thread of the other one wakes it.
            self._writes = WriteWatcher()
            self._names = NameWatcher(
                on_event=self._on_name, on_overflow=self._on_overflow, on_end=self._on_end, on_sync=self._on_sync
            )
        except OSError as e:
            self.close()
            log.warning("inotify is unavailable (%s): files are checked periodically instead", _explain(e))
        except RuntimeError:
            self.close()
            raise

    def add(self, directory: str, patterns: Sequence[str] | None) -> bool:
        """Watch a directory, if it exists; return True if its names were not watched before. Idempotent.

        A repeated call costs two system calls. New files whose names match one of the patterns are opened, or all
        files where `patterns` is None. Only the first error of the watcher is logged. False where the directory is
        missing or cannot be watched.
        """
        if self._names is None or self._writes is None:
            return False
        new = False
        try:
            new = self._names.add(directory, patterns)
            if not self.writes_unwatched:
                self._writes.add(directory)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as e:
            if not self._warned:
                self._warned = True
                self._log.warning(
                    "%s cannot be watched (%s): its files are checked periodically instead", directory, _explain(e)
                )
        return new

    @property
    def is_complete(self) -> bool:
        """True if inotify is available, and no directory was found that cannot be watched."""
        return self._names is not None and not self._warned

    def wait_ready(self) -> None:
        """Block until the opener process is ready, at most 5 s."""
        if self._names is not None:
            self._names.wait_ready()

    def sync(self) -> int:
        """Request all changes that the kernel has queued by now; return the number for `Hints.synced`.

        Without inotify, the request counts as answered at once.
        """
        with self._lock:
            self._requested += 1
            number = self._requested
        if self._names is None or not self._names.sync(number):
            self._on_sync(number)
        return number

    @property
    def writes_unwatched(self) -> bool:
        """True while writes are not watched because there were too many; False without inotify."""
        return self._busy_until > 0

    def wait(self, timeout: float) -> bool:
        """Block until there are hints, or `timeout` seconds have passed; return True if there are hints.

        There are none without inotify.
        """
        if self._writes is not None:
            return self._writes.wait(timeout)
        time.sleep(timeout)
        return False

    def take(self) -> Hints:
        """Return and clear all hints. The caller owns the descriptors in them."""
        grown = self._read_writes()
        with self._lock:
            changes, self._changes = self._changes, []
            self._opened = {}
            overflow, self._overflow = self._overflow, False
            restart_reason, self._restart_reason = self._restart_reason, ""
            synced = self._synced
        needs_full_scan = overflow or bool(restart_reason)
        if self.writes_unwatched and time.monotonic() >= self._busy_until:
            self._busy_until = 0.0
            needs_full_scan = True
        return Hints(grown, changes, needs_full_scan, self.writes_unwatched, overflow, synced, restart_reason)

    def _read_writes(self) -> set[str]:
        """Return the paths of files that were written to; after too many events, stop watching writes for a while."""
        if self._writes is None:
            return set()
        written = self._writes.read()
        is_busy = written.has_overflowed or written.events - len(written.paths) > _BUSY_EVENTS
        if is_busy and not self.writes_unwatched:
            self._writes.clear()
            self._busy_until = time.monotonic() + _BUSY_SECONDS
        return written.paths

    def close(self) -> None:
        """Stop watching, and close the descriptors that were not taken. Blocks until the thread has ended."""
        if self._names is not None:
            self._names.close()
        if self._writes is not None:
            self._writes.close()
        self._names = self._writes = None
        for change in self.take().changes:
            if change.descriptor is not None and (fd := change.descriptor.take()) is not None:
                os.close(fd)

    # --- on the thread of the watcher

    def _wake(self) -> None:
        """Wake the source."""
        if self._writes is not None:
            self._writes.wake()

    def _on_overflow(self) -> None:
        """Record that the kernel dropped events of names."""
        with self._lock:
            self._overflow = True
        self._forget_moves()

    def _on_end(self, reason: str) -> None:
        """Record the reason why the opener process ended, and count all sync requests as answered."""
        with self._lock:
            self._restart_reason = reason
            self._synced = self._requested
        self._forget_moves()

    def _on_sync(self, number: int) -> None:
        """Record that the sync requests up to `number` are answered."""
        with self._lock:
            self._synced = max(self._synced, number)
        self._wake()

    def _forget_moves(self) -> None:
        """Forget all renames whose second half is pending, as events may be lost; wake the source."""
        self._moved_from.clear()
        self._renamed.clear()
        self._wake()

    def _on_name(self, event: NameEvent) -> None:
        """Record an event of a tracked name or of a file renamed from one; close the descriptor of any other file."""
        path = event.path
        name = self._tracked_name(path)
        is_tracked = name is not None
        name = name or self._renamed.pop(path, None)
        if event.kind == MOVED_FROM:
            if name is not None:
                self._moved_from[event.cookie] = name
                if len(self._moved_from) > _MAX_MOVES:  # files moved to unwatched directories have no second event
                    del self._moved_from[next(iter(self._moved_from))]
        elif event.kind == MOVED_TO:
            name = self._moved_from.pop(event.cookie, name if is_tracked else None)
            if name is not None and not is_tracked:
                self._renamed[path] = name
        elif event.kind == CREATED and not is_tracked:
            name = None
        if name is None:
            if event.fd is not None:
                os.close(event.fd)
            return
        self._add_change(Change(event.kind, path, name, event.cookie, event.key, self._keep_descriptor(event)))

    def _keep_descriptor(self, event: NameEvent) -> OpenDescriptor | None:
        """Return the descriptor of an event, kept for `take`; None where there is none.

        The descriptor is closed, and None returned, if the file is open already or too many files are.
        """
        key, fd = event.key, event.fd
        if key is None or fd is None:
            return None
        with self._lock:
            if len(self._opened) < self._max_open and key not in self._opened and not self._is_open(key):
                self._opened[key] = OpenDescriptor(fd)
                return self._opened[key]
        os.close(fd)
        return None

    def _add_change(self, change: Change) -> None:
        """Append a change for `take`; beyond `_MAX_CHANGES`, drop it and record an overflow."""
        with self._lock:
            if len(self._changes) < _MAX_CHANGES:
                self._changes.append(change)
            else:
                self._overflow = True
                if change.descriptor is not None and (fd := change.descriptor.take()) is not None:
                    os.close(fd)
        self._wake()


class NameEvent(NamedTuple):
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


class NameWatcher:
    """Inotify instance for names, and the opener process that reads it and opens the files.

    The instance belongs to the agent's process: events wait in the kernel's queue while the opener starts or
    restarts.
    """

    def __init__(
        self,
        *,
        on_event: Callable[[NameEvent], None],
        on_overflow: Callable[[], None],
        on_end: Callable[[str], None],
        on_sync: Callable[[int], None],
    ) -> None:
        """Start the opener process, without watches.

        Raises OSError where inotify is unavailable, and RuntimeError if the system refuses a thread.

        `on_event` is called in the order of the kernel's events, and `on_overflow` where the kernel dropped some.
        `on_end` is called with the reason when the opener process ended or could not start. Events may be lost then,
        and the process is restarted. `on_sync` answers `sync`. All callbacks run on the thread of this object.
        """
        self._on_event, self._on_overflow, self._on_end, self._on_sync = on_event, on_overflow, on_end, on_sync
        self._lock = threading.Lock()
        self._watched: dict[str, tuple[WatchDescriptor, list[str] | None]] = {}
        """Watches by directory, with the patterns of new files' names."""
        self._unsent: set[WatchDescriptor] = set()
        """Watches that were not sent to the opener process yet."""
        self._channel: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._closing = threading.Event()
        self._ready = threading.Event()
        self._inotify = inotify_init()
        if self._inotify == -1:
            raise last_error()
        os.set_inheritable(self._inotify, False)
        os.set_blocking(self._inotify, False)
        self._thread = threading.Thread(target=self._run, name="taildir-names", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            os.close(self._inotify)
            raise

    def add(self, directory: str, patterns: Sequence[str] | None) -> bool:
        """Watch a directory; return True if it was not watched before. Idempotent.

        The opener process opens new files whose names match one of `patterns`, or all new files where it is None.
        Raises OSError where the directory is missing or cannot be watched.
        """
        with self._lock:
            watch = inotify_add_watch(self._inotify, os.fsencode(directory), _NAMES)
            if watch == -1:
                raise last_error()
            known = self._watched.get(directory)
            new = known is None or known[0] != watch
            if new:
                self._watched[directory] = watch, None if patterns is None else list(patterns)
                self._unsent.add(watch)
                if known is not None:  # the directory was replaced by another one
                    self._unsent.add(known[0])
                    if all(other != known[0] for other, _ in self._watched.values()):
                        inotify_rm_watch(self._inotify, known[0])
            self._send_watches()
        return new

    def sync(self, number: int) -> bool:
        """Request a call of `on_sync` with `number` after all events that the kernel has queued by now.

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

    def wait_ready(self) -> None:
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

    def _send_watches(self) -> None:
        """Send new watches to the opener process; `_receive` sends the rest once the socket accepts more."""
        by_watch: dict[WatchDescriptor, dict[str, list[str] | None]] = {watch: {} for watch in self._unsent}
        for directory, (watch, patterns) in self._watched.items() if self._unsent else ():
            if watch in by_watch:
                by_watch[watch][directory] = patterns
        while by_watch and self._channel is not None:
            message, size = [], 0
            while by_watch and size < _TEXT_BYTES:
                message.append(by_watch.popitem())
                size += len(json.dumps(message[-1]))
            try:
                self._channel.send(json.dumps(message).encode(), socket.MSG_DONTWAIT)
            except OSError:
                return
            self._unsent.difference_update(watch for watch, _ in message)

    # --- on the thread

    def _run(self) -> None:
        """Start the opener process and handle its messages, again after each end, until `close`."""
        pause = _RESTART_SECONDS
        while not self._closing.is_set():
            started = time.monotonic()
            try:
                self._start()
                reason = self._receive()
            except ANY_FAILURE as e:
                reason = f"{type(e).__name__}: {e}"
            if not self._closing.is_set():
                self._ready.set()
                self._on_end(reason)
            uptime = time.monotonic() - started
            self._closing.wait(pause - uptime)
            pause = _RESTART_SECONDS if uptime > _MAX_RESTART_SECONDS else min(2 * pause, _MAX_RESTART_SECONDS)

    def _start(self) -> None:
        """Start the opener process and send it all watches, unless `close` was called."""
        with self._lock:
            if self._closing.is_set():
                return
            local, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with remote:
                try:
                    self._process = subprocess.Popen(
                        # Isolated and without site packages, so that the process starts fast.
                        [sys.executable, "-I", "-S", opener.__file__, str(self._inotify), str(remote.fileno())],
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=subprocess.PIPE,
                        cwd="/",
                        start_new_session=True,  # with autogroup scheduling, sched(7), it runs sooner
                        pass_fds=(self._inotify, remote.fileno()),
                    )
                except BaseException:
                    local.close()
                    raise
            self._channel = local
            self._unsent = {watch for watch, _ in self._watched.values()}
            self._send_watches()

    def _receive(self) -> str:
        """Call the callbacks for the messages of the opener process until it ends; return the reason of its end.

        The reason is the last line of its error output, or else its exit code.
        """
        channel, process = self._channel, self._process
        if channel is None or process is None:
            return ""
        try:
            while True:
                data, files, _, _ = socket.recv_fds(
                    channel, opener.MESSAGE_BYTES, opener.MAX_FILES, socket.MSG_CMSG_CLOEXEC
                )
                if not data:
                    break
                if self._unsent:
                    with self._lock:
                        self._send_watches()
                else:
                    self._ready.set()
                for event in _decode(data, iter(files)):
                    if event.kind == opener.OVERFLOW:
                        self._on_overflow()
                    elif event.kind == opener.SYNC:
                        self._on_sync(event.cookie)
                    else:
                        self._on_event(event)
        except ConnectionError:
            pass
        finally:
            with self._lock:
                self._channel = self._process = None
            channel.close()
            with suppress(OSError):
                process.kill()
            _, stderr = process.communicate()
        reason = stderr.decode(errors="replace").strip().rpartition("\n")[2]
        return reason or f"exit code {process.returncode}"


class FileCounters:
    """Counters of files that were created, as inotify reports, and of files that were opened.

    A file opened under a name may be a later one than inotify reported. So only the totals are compared, which agree
    once all events are handled. A scan may find files before inotify reports them: for a while, more files seem to be
    opened than were created.
    """

    def __init__(self) -> None:
        self.missed: list[str] = []
        """One name for each missed file. The caller that reports the list clears it."""
        self._created = self._opened = self._reported = 0
        self._previous_difference = 0
        """Difference of the two counters at the previous full scan."""
        self._last_name = ""
        self._moved_from: dict[int, None] = {}
        """Inotify cookies of renames whose second half is not reported yet."""
        self._excluded: set[Key] = set()
        """Files that existed before their directory was watched."""

    def count_change(self, change: Change, *, is_link: bool) -> None:
        """Count a file that was created, or moved in from a directory that is not watched.

        Other changes do not count, nor does a change with `is_link`: the name is another link to a tracked file.
        """
        if change.kind == MOVED_FROM:
            self._moved_from[change.cookie] = None
            if len(self._moved_from) > _MAX_MOVES:
                del self._moved_from[next(iter(self._moved_from))]
        elif change.kind == CREATED or (change.kind == MOVED_TO and change.cookie not in self._moved_from):
            if not is_link:
                self._created += 1
                self._last_name = change.name
        elif change.kind == MOVED_TO:
            del self._moved_from[change.cookie]

    def count_opened(self, key: Key) -> None:
        """Count the opening of a file that is tracked from now on, unless `exclude` was called for it."""
        if key in self._excluded:
            self._excluded.remove(key)
        else:
            self._opened += 1

    def exclude(self, keys: Iterable[Key]) -> None:
        """Exclude files from the counters: they existed before their directory was watched."""
        self._excluded.update(keys)

    def update_missed(self) -> None:
        """Compare the counters after a full scan, and append the files that were missed to `missed`.

        A file counts as missed if it was missing at the previous full scan, too. The name of the latest created file
        stands for each.
        """
        difference = self._created - self._opened
        missed = min(difference, self._previous_difference) - self._reported
        if missed > 0:
            self.missed += [self._last_name] * missed
            self._reported += missed
        self._previous_difference = difference

    def reset(self) -> None:
        """Reset the counters, after inotify dropped events or the opener process ended."""
        self._created = self._opened = self._reported = self._previous_difference = 0
        self._moved_from.clear()
        self._excluded.clear()


def _decode(data: bytes, files: Iterator[int]) -> Iterator[NameEvent]:
    """Yield the events of a message of the opener process; `files` are the descriptors that came with it."""
    for kind, path, cookie, device, inode, opened in json.loads(data):
        # The kernel passes fewer descriptors where this process is out of them (unix(7), SCM_RIGHTS).
        yield NameEvent(kind, path, cookie, (device, inode) if inode else None, next(files, None) if opened else None)


def _explain(error: OSError) -> str:
    """Return the text of an inotify error, with the kernel limit to raise if one is exhausted."""
    if error.errno == errno.ENOSPC:
        return "too many directories are watched on this host: raise fs.inotify.max_user_watches with sysctl"
    if error.errno == errno.EMFILE:
        return (
            "this user has too many inotify instances, or this process too many open files: raise "
            "fs.inotify.max_user_instances with sysctl, or LimitNOFILE of the service (ulimit -n)"
        )
    return error.strerror or str(error)
