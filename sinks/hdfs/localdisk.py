"""The disk of this host in HDFS's place, for `file:///…` in hdfs.path."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from plugins import Retry
from plugins.shared.disk import existing, make_directory, sync_directory, writable
from sinks.hdfs.filesystem import NoDirectory, R, Refused, Status, T, each

PASSING = (
    errno.EIO,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EINTR,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.EBUSY,
)
"""Errors that go by themselves, or that say nothing about one path."""
NO_DIRECTORY = ("EEXIST", "ENOTDIR", "ENAMETOOLONG", "ELOOP", "EILSEQ")
"""Errors that are about a path, whoever asks for it to be a directory."""


class LocalDisk:
    """A `FileSystem`: what has returned is on the disk, also after a loss of power."""

    def __init__(self, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="files")

    def close(self) -> None:
        """End its threads."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def each(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """See `FileSystem`."""
        return each(self._threads, function, items)

    def upload(self, path: str, data: bytes | Path) -> str:
        """See `FileSystem`."""
        with _doing(f"write {path}"):
            make_directory(Path(path).parent)
            with Path(path).open("xb") as written:
                if isinstance(data, bytes):
                    written.write(data)
                elif data.exists():
                    with data.open("rb") as staged:
                        shutil.copyfileobj(staged, written, 1 << 20)
                written.flush()
                os.fsync(written.fileno())
            sync_directory(Path(path).parent)
        return path

    def status(self, path: str) -> Status | None:
        """See `FileSystem`."""
        with _doing(f"look at {path}"):
            try:
                return _status(Path(path).name, Path(path).stat())
            except (FileNotFoundError, NotADirectoryError):
                return None

    def list(self, path: str) -> list[Status]:
        """See `FileSystem`."""
        with _doing(f"list {path}"):
            try:
                entries = list(os.scandir(path))
            except FileNotFoundError:
                return []
            except NotADirectoryError:
                return [_status("", Path(path).stat())]
            found = []
            for entry in sorted(entries, key=lambda entry: entry.name):
                with contextlib.suppress(FileNotFoundError):  # gone by now
                    found.append(_status(entry.name, entry.stat()))
            return found

    def read(self, path: str) -> bytes | None:
        """See `FileSystem`."""
        with _doing(f"read {path}"):
            try:
                return Path(path).read_bytes()
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return None

    def rename(self, source: str, target: str) -> bool:
        """See `FileSystem`."""
        with _doing(f"rename {source} to {target}"):
            if Path(target).is_dir():
                target = f"{target}/{Path(source).name}"
            try:
                os.link(source, target)  # a rename would overwrite
            except FileExistsError:
                if not _same(source, target):  # a kill may have come before the other name went
                    return False
            except (FileNotFoundError, NotADirectoryError):
                return False
            sync_directory(Path(target).parent)
            if not _one_name(source, target):
                Path(source).unlink(missing_ok=True)
        return True

    def mkdirs(self, path: str) -> None:
        """See `FileSystem`."""
        try:
            with _doing(f"create the directory {path}"):
                make_directory(Path(path))
        except Refused as e:
            if e.kind in NO_DIRECTORY:
                raise NoDirectory(str(e), path) from e
            raise

    def delete(self, path: str, *, only_empty: bool = False) -> None:
        """See `FileSystem`."""
        found = Path(path)
        with _doing(f"delete {path}"):
            try:
                if not found.is_dir():
                    found.unlink()
                elif only_empty:
                    found.rmdir()
                else:
                    shutil.rmtree(found)
                sync_directory(found.parent)
            except FileNotFoundError:
                return

    def may_write(self, path: str) -> None:
        """See `FileSystem`."""
        if not writable(Path(path)):
            raise Retry(f"cannot write into {existing(Path(path))}")


@contextlib.contextmanager
def _doing(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        full = "the disk is full" if e.errno in (errno.ENOSPC, errno.EDQUOT) else e.strerror
        text = f"cannot {what}: {full}"
        raise (Retry(text) if e.errno in PASSING else Refused(text, errno.errorcode.get(e.errno or 0, ""))) from e


def _status(name: str, found: os.stat_result) -> Status:
    return Status(name, stat.S_ISREG(found.st_mode), found.st_size, found.st_mtime_ns // 1_000_000)


def _same(one: str, other: str) -> bool:
    """Whether both are names of one file."""
    try:
        return Path(one).samefile(other)
    except FileNotFoundError:
        return False


def _one_name(one: str, other: str) -> bool:
    """Whether both are the same name of a file, though perhaps written otherwise."""
    first, second = Path(one), Path(other)
    return first.name == second.name and first.parent.samefile(second.parent)
