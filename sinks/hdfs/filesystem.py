"""Interface of the file systems to which the HDFS sink writes: HDFS and the local disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from flafka.plugins import Retry

T = TypeVar("T")
R = TypeVar("R")


class Status(NamedTuple):
    """Status of a file or directory."""

    name: str
    is_file: bool
    length: int
    changed: int
    """Time of the last change, on the file system's clock, in milliseconds since the epoch."""


class Refused(Retry):
    """A refusal that lasts until someone changes something: a quota, a permission, an encryption zone."""

    def __init__(self, text: str, kind: str = "") -> None:
        """Create an error; `kind` is the file system's own name of it."""
        super().__init__(text)
        self.kind = kind


class NoDirectory(Refused):
    """No directory can be created at `path`, as a file is in the way, or the file system does not allow a name."""

    def __init__(self, text: str, path: str) -> None:
        super().__init__(text)
        self.path = path


class FileSystem(Protocol):
    """File system of the HDFS sink. Any thread may call it.

    Calls raise Retry for a failure that may pass, and Refused for one that lasts. The text is a sentence. A call that
    raises may have been executed. A call that returns is durable.
    """

    _threads: ThreadPoolExecutor

    def close(self) -> None:
        """Cancel calls that have not begun, wait for the running ones, and release threads and connections."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def each(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Call the function in parallel for each item, and return the results in the order of the items.

        After a failure no more calls begin. Once the running ones have ended, the error of the first failed item is
        raised.
        """
        items = list(items)
        if len(items) == 1:
            return [function(items[0])]
        futures = [self._threads.submit(function, item) for item in items]
        wait(futures, return_when=FIRST_EXCEPTION)
        for future in futures:
            future.cancel()
        wait(futures)
        for future in futures:
            if not future.cancelled() and (error := future.exception()):
                raise error
        return [future.result() for future in futures]

    def upload(self, path: str, data: bytes | Path) -> str:
        """Write a new file and return its path: `path`, perhaps with a suffix. Creates missing parent directories.

        `data` is the content, or a local file that has it; a local file that is missing counts as empty. Raises
        Retry.
        """

    def status(self, path: str) -> Status | None:
        """Return the status of a file or directory; None if it does not exist."""

    def list(self, path: str) -> list[Status]:
        """Return the entries of a directory, sorted by name; an empty list if it does not exist."""

    def read(self, path: str) -> bytes | None:
        """Return the content of a small file; None if it does not exist."""

    def rename(self, source: str, target: str) -> bool:
        """Move a file, atomically and without overwriting; if the target is a directory, into that.

        Return False if the target exists, or the source or the target's directory does not exist. Raises Retry, and
        Refused as for a quota.
        """

    def mkdirs(self, path: str) -> None:
        """Create a directory and its parents. Idempotent. Raises NoDirectory if there can be no directory at that
        path."""

    def adopt(self, file: str, directory: str) -> None:
        """Give a file below `.flafka` the group and ACL of files that are created in that directory.

        Best-effort: if this user is not allowed to, a warning is logged.
        """

    def delete(self, path: str) -> None:
        """Delete a file, or a directory and its content. Idempotent: a path that does not exist is no error."""

    def check_writable(self, path: str) -> None:
        """Raise Retry if this user may not create files in the directory."""


PRIVATE = ".flafka"
"""Directory of the sink's own files, which only the user of the sink may read."""


def private_directory(path: str) -> str:
    """Return the directory `PRIVATE` in a path; empty if the path has none."""
    before, separator, _ = f"{path}/".partition(f"/{PRIVATE}/")
    return f"{before}/{PRIVATE}" if separator else ""


def is_too_open(mode: int) -> bool:
    """Return True if a mode lets the group or others read a private directory, and neither of them write to it.

    If they may write, an operator has opened the directory to several users that write below one path.
    """
    return bool(mode & 0o77) and not mode & 0o22
