"""Opener process: opens files as soon as inotify reports them. Started by `watcher.py`.

Files may live for milliseconds. A thread of the agent would have to wait for the GIL, which a busy machine delays for
longer than that. So this is a process of its own. It imports little, and only of the standard library, to start fast.
The process ends when the other end of its socket is closed.
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

CREATED, MOVED_FROM, MOVED_TO, DELETED, OVERFLOW = "created", "moved_from", "moved_to", "deleted", "overflow"
"""Kinds of events of a name.

`moved_from` and `moved_to` are the two halves of a rename, with one cookie.
"""
SYNC = "sync"
"""Kind of the reply to a sync request: all events that the kernel had queued before it are handled."""
MAX_FILES = 64
"""Maximum number of descriptors in one message."""
MESSAGE_BYTES = 1 << 17
"""Maximum size of a message, in bytes."""
_TEXT_BYTES = 1 << 15
"""Size from which a message is full, in bytes of JSON.

One more event, whose path may have 4096 bytes, fits in any case.
"""
_READ_BYTES = 1 << 14
_MAX_UNSENT = 1 << 16
"""Maximum number of unsent events.

Beyond that the kernel's queue is not read, and may overflow.
"""
_RETRY_MS = 10
_IN_MOVED_FROM, _IN_MOVED_TO, _IN_CREATE, _IN_DELETE = 0x40, 0x80, 0x100, 0x200
_IN_OVERFLOW, _IN_IGNORED, _IN_ISDIR = 0x4000, 0x8000, 0x40000000

Message = tuple[str, str, int, int, int, bool]
"""Message about a name: kind, path, cookie, device and inode, and if a descriptor is attached.

Device and inode are 0 where no file was found.
"""


class InotifyEvent(NamedTuple):
    """Inotify event of a name in a watched directory."""

    watch: int
    mask: int
    cookie: int
    name: bytes


class Opener:
    """Translation of inotify events to messages, with descriptors of the files that were created or moved in."""

    def __init__(self) -> None:
        self.unsent: deque[tuple[Message, int | None]] = deque()
        """Unsent messages, with their descriptors."""
        self._watched: dict[int, dict[str, list[re.Pattern[str]] | None]] = {}
        """Directories by watch, with the name patterns of each; None where every name counts.

        A watch has several directories where links lead to the same one.
        """
        self._early_events: dict[int, list[InotifyEvent]] = {}
        """Events of watches that the agent has not announced yet."""

    def watch(self, watch: int, directories: Mapping[str, Sequence[str] | None]) -> None:
        """Set the directories of a watch, with the patterns of new files' names; handle its early events."""
        self._watched[watch] = {
            # Patterns stay separate: flags such as (?i) are legal only where a pattern begins.
            directory: None if patterns is None else [re.compile(pattern, re.ASCII) for pattern in patterns]
            for directory, patterns in directories.items()
        }
        for event in self._early_events.pop(watch, ()):
            self.handle(event)

    def handle(self, event: InotifyEvent) -> None:
        """Queue the message for an inotify event, and open the file if one was created or moved in.

        An event of a watch that the agent has not announced waits for `watch`. Directories are ignored, and created
        files whose name matches no pattern.
        """
        if event.mask & _IN_OVERFLOW:
            self.unsent.append(((OVERFLOW, "", 0, 0, 0, False), None))
        elif event.watch not in self._watched:
            self._early_events.setdefault(event.watch, []).append(event)
        elif event.mask & _IN_IGNORED:
            self._watched.pop(event.watch)
        elif event.name and not event.mask & _IN_ISDIR:
            name = os.fsdecode(event.name)
            for directory, patterns in self._watched[event.watch].items():
                path = os.path.join(directory, name)
                if event.mask & _IN_MOVED_FROM:
                    self.unsent.append(((MOVED_FROM, path, event.cookie, 0, 0, False), None))
                elif event.mask & _IN_MOVED_TO:
                    self._add_file(MOVED_TO, path, event.cookie)
                elif event.mask & _IN_DELETE:
                    self.unsent.append(((DELETED, path, 0, 0, 0, False), None))
                elif event.mask & _IN_CREATE and (patterns is None or any(p.fullmatch(name) for p in patterns)):
                    self._add_file(CREATED, path, 0)

    def sync(self, number: int) -> None:
        """Queue the reply to sync request `number`, behind all messages queued so far."""
        self.unsent.append(((SYNC, "", number, 0, 0, False), None))

    def _add_file(self, kind: str, path: str, cookie: int) -> None:
        """Queue a message about the file at `path`, with a descriptor if the file can be opened.

        Only regular files count; a dangling symbolic link is ignored.
        """
        key, fd = (0, 0), None
        try:
            # Opening a FIFO or a device may have side effects.
            status = os.stat(path)
            if not stat.S_ISREG(status.st_mode):
                return
            key = status.st_dev, status.st_ino
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            status = os.fstat(fd)  # the file may have been replaced between stat and open
            key = status.st_dev, status.st_ino
        except FileNotFoundError:
            if os.path.lexists(path):
                return  # a dangling link
        except OSError:
            pass  # the reader tries again, and reports the error
        self.unsent.append(((kind, path, cookie, *key, fd is not None), fd))

    def read(self, inotify: int) -> None:
        """Handle the events that the kernel has queued. Raises BlockingIOError where there are none."""
        for event in parse_events(os.read(inotify, _READ_BYTES)):
            self.handle(event)

    def handle_commands(self, channel: socket.socket, inotify: int) -> bool:
        """Set the watches and answer the sync requests in the next message of the agent, and acknowledge it.

        Return False where the agent has closed its end, True also where no message waits.
        """
        try:
            commands = channel.recv(MESSAGE_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not commands:
            return False
        for watch, directories in json.loads(commands):
            if watch != SYNC:
                self.watch(watch, directories)
                continue
            with contextlib.suppress(BlockingIOError):
                while True:
                    self.read(inotify)
            self.sync(directories)
        with contextlib.suppress(BlockingIOError):
            channel.send(b"[]")  # acknowledge, so that the agent sends more watches
        return True

    def send(self, channel: socket.socket) -> None:
        """Send the queued messages. Raises OSError, BlockingIOError included: unsent messages stay queued."""
        while self.unsent:
            messages: list[Message] = []
            files: list[int] = []
            size = 0
            for event, fd in self.unsent:
                if len(files) == MAX_FILES or size > _TEXT_BYTES:
                    break
                messages.append(event)
                size += 6 * len(event[1]) + 100
                if fd is not None:
                    files.append(fd)
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", files))] if files else []
            channel.sendmsg([json.dumps(messages).encode()], rights)
            for _ in messages:
                self.unsent.popleft()
            for fd in files:
                os.close(fd)


def parse_events(data: bytes) -> list[InotifyEvent]:
    """Parse the bytes read from an inotify descriptor (inotify(7))."""
    parsed, offset = [], 0
    while offset + 16 <= len(data):
        watch, mask, cookie, length = struct.unpack_from("iIII", data, offset)
        parsed.append(InotifyEvent(watch, mask, cookie, data[offset + 16 : offset + 16 + length].rstrip(b"\0")))
        offset += 16 + length
    return parsed


def main(inotify: int, channel: socket.socket) -> None:
    """Open files and send their descriptors until the other end of the socket is closed.

    `inotify` is the descriptor of the agent's inotify instance, `channel` a socket of type SOCK_SEQPACKET.
    """
    # Signals of a terminal or a service manager are for the agent, which still needs this process while it stops.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    channel.setblocking(False)
    opener, poll = Opener(), select.poll()
    poll.register(inotify, select.POLLIN)
    channel.send(b"[]")  # readiness message
    while True:
        poll.modify(inotify, select.POLLIN if len(opener.unsent) < _MAX_UNSENT else 0)
        awaited_events, retry_ms = select.POLLIN, None
        try:
            opener.send(channel)
        except BlockingIOError:
            awaited_events |= select.POLLOUT
        except OSError as e:
            if e.errno != errno.ETOOMANYREFS:
                return
            retry_ms = _RETRY_MS  # the kernel limits the descriptors in flight
        poll.register(channel, awaited_events)
        for fd, _ in poll.poll(retry_ms):
            if fd == inotify:
                opener.read(inotify)
            elif not opener.handle_commands(channel, inotify):
                return


if __name__ == "__main__":
    main(int(sys.argv[1]), socket.socket(fileno=int(sys.argv[2])))
