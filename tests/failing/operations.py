"""Failing operations: a library for LD_PRELOAD that makes one call of a process fail, and how it is controlled."""

from __future__ import annotations

import errno
import mmap
import shutil
import struct
import subprocess
from pathlib import Path

KINDS = ("open", "write", "fork", "map")
"""Kinds of calls: file descriptors, writes to files, processes and threads, memory."""
ERRORS = {"open": errno.EMFILE, "write": errno.ENOSPC, "fork": errno.EAGAIN, "map": errno.ENOMEM}
_NUMBERS = struct.Struct("9q")
"""`struct page` of operations.c: counting, kind, countdown, error, fired, and the calls of each kind."""
_WHERE, _TRIGGER = 256, 1024
_SIZE = _NUMBERS.size + _WHERE + _TRIGGER


def compiler() -> str | None:
    """Return the path of a C compiler, or None where this machine has none."""
    return shutil.which("gcc") or shutil.which("cc")


def library(directory: Path) -> Path:
    """Compile the library into a directory. Raises CalledProcessError."""
    target = directory / "operations.so"
    source = Path(__file__).with_name("operations.c")
    command = [compiler() or "cc", "-shared", "-fPIC", "-O1", "-o", target, source, "-ldl", "-lpthread"]
    subprocess.run(command, check=True, capture_output=True)
    return target


class Page:
    """Memory that the test shares with the processes that load the library."""

    def __init__(self, file: Path, library: Path) -> None:
        file.write_bytes(bytes(_SIZE))
        with file.open("r+b") as opened:
            self._map = mmap.mmap(opened.fileno(), _SIZE)
        self.environment = {"LD_PRELOAD": str(library), "FLAFKA_FAILING": str(file)}
        self.reset()

    def reset(self, trigger: str = "") -> None:
        """Let no call fail, and count from 0 on; where there is a `trigger`, once a file of that path is opened."""
        self._map[_NUMBERS.size :] = bytes(_WHERE) + trigger.encode().ljust(_TRIGGER, b"\0")
        self._map[: _NUMBERS.size] = _NUMBERS.pack(not trigger, -1, 0, 0, 0, 0, 0, 0, 0)

    def arm(self, kind: str, nth: int) -> None:
        """Let the `nth` call of a kind, from now on or from the trigger on, fail."""
        self._map[8:40] = struct.pack("4q", -1, nth, ERRORS[kind], 0)
        self._map[8:16] = struct.pack("q", KINDS.index(kind))

    def disarm(self) -> None:
        """Let no call fail."""
        self._map[8:16] = struct.pack("q", -1)

    @property
    def fired(self) -> str:
        """Call that has failed, with its thread; empty while none has."""
        if not self._numbers()[4]:
            return ""
        return self._map[_NUMBERS.size : _NUMBERS.size + _WHERE].split(b"\0")[0].decode(errors="replace") or "?"

    def calls(self) -> dict[str, int]:
        """Return the number of calls of each kind so far."""
        return dict(zip(KINDS, self._numbers()[5:], strict=True))

    def _numbers(self) -> tuple[int, ...]:
        return _NUMBERS.unpack(self._map[: _NUMBERS.size])
