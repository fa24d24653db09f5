"""Opens files as soon as the kernel names them: a program of its own, which `names.py` starts and talks to.

Files may live for milliseconds. A thread of the agent would have to wait for Python's lock, which others hold for
longer than that on a busy machine; this process waits for nobody. It needs the standard library only, and imports
little of it, so that it is small and starts at once. It ends when the other end of its socket is closed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import select
import signal
import socket
import stat
import struct
import sys
from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

CREATED, LEFT, ARRIVED, DELETED, OVERFLOW = "created", "left", "arrived", "deleted", "overflow"
"""Kinds of reports about a name. `left` and `arrived` are the two halves of a rename, with one cookie."""
SYNC = "sync"
"""Kind of the report that all events are handled which the kernel had queued when it was requested."""
MOST_FILES = 64
"""Open files in one message."""
MESSAGE_BYTES = 1 << 17
"""No message is longer."""
_TEXT_BYTES = 1 << 15
"""A message is full with so much; one more event, whose name may have 4096 bytes, fits in any case."""
_READ_BYTES = 1 << 14
_MOST_WAITING = 1 << 16
"""So many events may wait to be sent; with more the kernel's queue is left to fill, and to overflow."""
_RETRY_MS = 10
_IN_MOVED_FROM, _IN_MOVED_TO, _IN_CREATE, _IN_DELETE = 0x40, 0x80, 0x100, 0x200
_IN_OVERFLOW, _IN_IGNORED, _IN_ISDIR = 0x4000, 0x8000, 0x40000000

Told = tuple[str, str, int, int, int, bool]
"""Kind, path, cookie, device and inode of the file found there (0: none), and whether it comes along, open."""


class Event(NamedTuple):
    """What the kernel says of a name in a directory."""

    watch: int
    mask: int
    cookie: int
    name: bytes


class Opener:
    """Turns the kernel's events into what is told, and opens files meanwhile."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Told, int | None]] = deque()
        """What is to be told, with open files."""
        self._watched: dict[int, dict[str, list[re.Pattern[str]] | None]] = {}
        """By watch, the directories that it is about: one, unless links lead to it; None where every name counts."""
        self._early: dict[int, list[Event]] = {}
        """Events of watches of which nothing was heard yet."""

    def watch(self, watch: int, directories: Mapping[str, Sequence[str] | None]) -> None:
        """That watch is about these directories; of each, the patterns of new files' names."""
        self._watched[watch] = {
            # Not joined into one pattern: flags such as (?i) are legal only where a pattern begins.
            directory: None if patterns is None else [re.compile(pattern, re.ASCII) for pattern in patterns]
            for directory, patterns in directories.items()
        }
        for event in self._early.pop(watch, ()):
            self.handle(event)

    def handle(self, event: Event) -> None:
        """Open the file, if one came, and have it told."""
        if event.mask & _IN_OVERFLOW:
            self.waiting.append(((OVERFLOW, "", 0, 0, 0, False), None))
        elif event.watch not in self._watched:
            self._early.setdefault(event.watch, []).append(event)
        elif event.mask & _IN_IGNORED:
            self._watched.pop(event.watch)
        elif event.name and not event.mask & _IN_ISDIR:
            name = os.fsdecode(event.name)
            for directory, patterns in self._watched[event.watch].items():
                path = os.path.join(directory, name)
                if event.mask & _IN_MOVED_FROM:
                    self.waiting.append(((LEFT, path, event.cookie, 0, 0, False), None))
                elif event.mask & _IN_MOVED_TO:
                    self._came(ARRIVED, path, event.cookie)
                elif event.mask & _IN_DELETE:
                    self.waiting.append(((DELETED, path, 0, 0, 0, False), None))
                elif event.mask & _IN_CREATE and (patterns is None or any(p.fullmatch(name) for p in patterns)):
                    self._came(CREATED, path, 0)

    def sync(self, number: int) -> None:
        """Report, behind everything that is queued already, that the request of that number is answered."""
        self.waiting.append(((SYNC, "", number, 0, 0, False), None))

    def _came(self, kind: str, path: str, cookie: int) -> None:
        key, fd = (0, 0), None
        try:
            # To open what is no regular file may have an effect on others.
            status = os.stat(path)
            if not stat.S_ISREG(status.st_mode):
                return
            key = status.st_dev, status.st_ino
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            status = os.fstat(fd)  # another may have come in its place
            key = status.st_dev, status.st_ino
        except FileNotFoundError:
            if os.path.lexists(path):
                return  # a link that leads nowhere yet
        except OSError:
            pass  # it may be read later; its reader says why it cannot
        self.waiting.append(((kind, path, cookie, *key, fd is not None), fd))

    def send(self, channel: socket.socket) -> None:
        """Send what waits. Raises OSError where it cannot be sent, or not now: then it waits still."""
        while self.waiting:
            told: list[Told] = []
            files: list[int] = []
            size = 0
            for event, fd in self.waiting:
                if len(files) == MOST_FILES or size > _TEXT_BYTES:
                    break
                told.append(event)
                size += 6 * len(event[1]) + 100
                if fd is not None:
                    files.append(fd)
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", files))] if files else []
            channel.sendmsg([json.dumps(told).encode()], rights)
            for _ in told:
                self.waiting.popleft()
            for fd in files:
                os.close(fd)


def events(data: bytes) -> list[Event]:
    """What was read of an inotify instance."""
    found, at = [], 0
    while at + 16 <= len(data):
        watch, mask, cookie, length = struct.unpack_from("iIII", data, at)
        found.append(Event(watch, mask, cookie, data[at + 16 : at + 16 + length].rstrip(b"\0")))
        at += 16 + length
    return found


def main(inotify: int, channel: socket.socket) -> None:
    """Open files, and send them, until the other end is closed."""
    # The signals of a terminal or a service manager are for the agent, which may read for a while yet.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    channel.setblocking(False)
    opener, poll = Opener(), select.poll()
    poll.register(inotify, select.POLLIN)
    poll.register(channel, select.POLLIN)
    channel.send(b"[]")  # it has started
    while True:
        poll.modify(inotify, select.POLLIN if len(opener.waiting) < _MOST_WAITING else 0)
        retry = None
        if opener.waiting:
            try:
                opener.send(channel)
            except BlockingIOError:
                poll.modify(channel, select.POLLIN | select.POLLOUT)
            except OSError as e:
                if e.errno != errno.ETOOMANYREFS:
                    return
                retry = _RETRY_MS  # the kernel bounds how many open files are under way
            else:
                poll.modify(channel, select.POLLIN)
        for fd, _ in poll.poll(retry):
            if fd == inotify:
                for event in events(os.read(inotify, _READ_BYTES)):
                    opener.handle(event)
            else:
                try:
                    commands = channel.recv(MESSAGE_BYTES)
                except BlockingIOError:
                    continue
                except OSError:
                    return
                if not commands:
                    return
                for watch, directories in json.loads(commands):
                    if watch != SYNC:
                        opener.watch(watch, directories)
                        continue
                    with contextlib.suppress(BlockingIOError):
                        while True:
                            for event in events(os.read(inotify, _READ_BYTES)):
                                opener.handle(event)
                    opener.sync(directories)
                with contextlib.suppress(BlockingIOError):
                    channel.send(b"[]")  # there is room for more commands


if __name__ == "__main__":
    main(int(sys.argv[1]), socket.socket(fileno=int(sys.argv[2])))
