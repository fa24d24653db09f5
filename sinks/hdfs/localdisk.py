"""The disk of this host in HDFS's place, for `file:///…` in hdfs.path."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from flafka.plugins import Retry
from flafka.plugins.shared.disk import existing, make_directory, sync_directory, writable
from flafka.sinks.hdfs.filesystem import PRIVATE, FileSystem, NoDirectory, Refused, Status, loosely

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
ACL_USER, ACL_GROUP, ACL_MASK, ACL_OTHER = 0x01, 0x04, 0x10, 0x20
"""Tags of POSIX ACLs in extended attributes (Linux, include/uapi/linux/posix_acl.h)."""
NO_DIRECTORY = ("EEXIST", "ENOTDIR", "ENAMETOOLONG", "ELOOP", "EILSEQ")
"""Errors that are about a path, whoever asks for it to be a directory."""


class LocalDisk(FileSystem):
    """Disk of this host. What has returned is on the disk, also after a loss of power."""

    def __init__(self, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="files")
        self._private: set[Path] = set()

    def upload(self, path: str, data: bytes | Path) -> str:
        """Write a new file durably, and return its name, as `FileSystem.upload` says."""
        with _doing(f"write {path}"):
            self._make_directory(Path(path).parent)
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
        """Return the status of that path, as `FileSystem.status` says."""
        with _doing(f"look at {path}"):
            try:
                return _status(Path(path).name, Path(path).stat())
            except (FileNotFoundError, NotADirectoryError):
                return None

    def list(self, path: str) -> list[Status]:
        """Return the entries of that directory, as `FileSystem.list` says."""
        with _doing(f"list {path}"):
            try:
                entries = list(os.scandir(path))
            except (FileNotFoundError, NotADirectoryError):
                return []
            found = []
            for entry in sorted(entries, key=lambda entry: entry.name):
                with contextlib.suppress(FileNotFoundError):  # gone by now
                    found.append(_status(entry.name, entry.stat()))
            return found

    def read(self, path: str) -> bytes | None:
        """Return a small file's content, as `FileSystem.read` says."""
        with _doing(f"read {path}"):
            try:
                return Path(path).read_bytes()
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return None

    def rename(self, source: str, target: str) -> bool:
        """Move a file, overwriting nothing, as `FileSystem.rename` says."""
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
        """Make a directory, with all above it, as `FileSystem.mkdirs` says."""
        try:
            with _doing(f"create the directory {path}"):
                self._make_directory(Path(path))
        except Refused as e:
            if e.kind in NO_DIRECTORY:
                raise NoDirectory(str(e), path) from e
            raise

    def _make_directory(self, path: Path) -> None:
        """Make it; the private one in it, and one that an earlier version has made, is this user's alone."""
        own = next((one for one in (path, *path.parents) if one.name == PRIVATE), None)
        if own is not None and own not in self._private:
            make_directory(own.parent)
            with contextlib.suppress(FileExistsError):
                own.mkdir(mode=0o700)
            if loosely(own.stat().st_mode):
                with contextlib.suppress(PermissionError):  # another user's
                    own.chmod(0o700)
            self._private.add(own)
        make_directory(path)

    def adopt(self, file: str, directory: str) -> None:
        """Give a file the group and ACL of a directory, as `FileSystem.adopt` says."""
        place = Path(directory)
        with _doing(f"give {file} the group of {directory}"):
            found = place.stat()
            if found.st_mode & stat.S_ISGID and Path(file).stat().st_gid != found.st_gid:
                with contextlib.suppress(PermissionError):
                    os.chown(file, -1, found.st_gid)
            if (acl := _default_acl(place)) is not None:
                os.setxattr(file, "system.posix_acl_access", acl)

    def delete(self, path: str) -> None:
        """Delete a file or directory, as `FileSystem.delete` says."""
        found = Path(path)
        with _doing(f"delete {path}"):
            try:
                if not found.is_dir():
                    found.unlink()
                else:
                    shutil.rmtree(found)
                sync_directory(found.parent)
            except FileNotFoundError:
                return

    def may_write(self, path: str) -> None:
        """Raise Retry where no file can be created in that directory, as `FileSystem.may_write` says."""
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


def _default_acl(directory: Path) -> bytes | None:
    """The ACL of a file that is made in this directory with mode 666; None where it has no default ACL."""
    if not hasattr(os, "getxattr"):  # another system than Linux
        return None
    try:
        acl = os.getxattr(directory, "system.posix_acl_default")
    except OSError:  # it has none, or the file system knows none
        return None
    head, entries = acl[:4], [*struct.iter_unpack("<HHI", acl[4:])]
    masked = {ACL_USER, ACL_OTHER, ACL_MASK if any(tag == ACL_MASK for tag, _, _ in entries) else ACL_GROUP}
    return head + b"".join(
        struct.pack("<HHI", tag, bits & 6 if tag in masked else bits, id) for tag, bits, id in entries
    )


def _status(name: str, found: os.stat_result) -> Status:
    return Status(name, stat.S_ISREG(found.st_mode), found.st_size, found.st_mtime_ns // 1_000_000)


def _same(one: str, other: str) -> bool:
    try:
        return Path(one).samefile(other)
    except FileNotFoundError:
        return False


def _one_name(one: str, other: str) -> bool:
    """Return True if both are the same name of a file, though perhaps written otherwise."""
    first, second = Path(one), Path(other)
    return first.name == second.name and first.parent.samefile(second.parent)
