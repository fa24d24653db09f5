"""The file system that the sink needs: HDFS is one, and so is a local disk."""

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
    """Time of the last change on the file system's clock, ms since the epoch."""


class Refused(Retry):
    """A refusal that stays until somebody changes something: a quota, a permission, an encryption zone."""

    def __init__(self, text: str, kind: str = "") -> None:
        """`kind` is the file system's own name of the error."""
        super().__init__(text)
        self.kind = kind


class NoDirectory(Refused):
    """No directory can be made at `path`: a file is in the way, or a name is one that the file system never takes."""

    def __init__(self, text: str, path: str) -> None:
        super().__init__(text)
        self.path = path


class FileSystem(Protocol):
    """Files and directories, safe for threads. Raises Retry, or Refused, with a sentence for whatever goes wrong.

    A call that raises may or may not have been executed. What has returned is durable.
    """

    _threads: ThreadPoolExecutor

    def close(self) -> None:
        """Release its threads, and whatever else it holds."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def each(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Return the results for all items, worked on side by side. After a failure no more are begun."""
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
        """Write a new file, `path` or `path` with something behind it, and return its name."""

    def status(self, path: str) -> Status | None:
        """Return the status of that path; None where nothing is."""

    def list(self, path: str) -> list[Status]:
        """Return the entries of that directory, by name; none where there is no directory."""

    def read(self, path: str) -> bytes | None:
        """A small file's content; None where there is no file."""

    def rename(self, source: str, target: str) -> bool:
        """Move a file, atomically; False where the target exists, the source does not, or its directory does not.

        Where the target is a directory the file is moved into it.
        """

    def mkdirs(self, path: str) -> None:
        """Make a directory, with all above it. Raises NoDirectory where something else is in its place."""

    def adopt(self, file: str, directory: str) -> None:
        """Give a file below `.flafka` the group and the ACL that a file gets which is made in that directory.

        Best-effort: it is logged where this user may not.
        """

    def delete(self, path: str) -> None:
        """Delete a file, or a directory with all in it; nothing happens where there is none."""

    def may_write(self, path: str) -> None:
        """Raise Retry where the user may not create files in that directory."""


PRIVATE = ".flafka"
"""The directory for what readers are not to see; the user of the sink alone may look into it."""


def private(path: str) -> str:
    """Return the directory of that name in a path; empty where there is none."""
    before, found, _ = f"{path}/".partition(f"/{PRIVATE}/")
    return f"{before}/{PRIVATE}" if found else ""


def loosely(mode: int) -> bool:
    """Return True for the mode of a private directory that others may read, and nobody has opened for another writer.

    Several users write below one path where an operator has let their group write into it.
    """
    return bool(mode & 0o77) and not mode & 0o22
