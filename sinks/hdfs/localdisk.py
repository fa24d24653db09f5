"""Local disk instead of HDFS, for `file:///…` in hdfs.path."""

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
from flafka.plugins.storage import is_writable, make_directory, nearest_existing, sync_directory
from flafka.sinks.hdfs.filesystem import PRIVATE, FileSystem, NoDirectory, Refused, Status, is_too_open

TRANSIENT = (
    errno.EIO,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EINTR,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.EBUSY,
)
"""Errors that may pass without a change, or that are not about one path."""
ACL_USER, ACL_GROUP, ACL_MASK, ACL_OTHER = 0x01, 0x04, 0x10, 0x20
"""Tags of POSIX ACLs in extended attributes (Linux, include/uapi/linux/posix_acl.h)."""
NO_DIRECTORY = ("EEXIST", "ENOTDIR", "ENAMETOOLONG", "ELOOP", "EILSEQ")
"""Errors of paths at which no user could create a directory."""


class LocalDisk(FileSystem):
    """Local disk. What a call has done is durable once it returns, also after a loss of power."""

    def __init__(self, threads: int, *, is_trial: bool = False) -> None:
        """With `is_trial`, the rights of an existing directory `.flafka` are not changed."""
        self._is_trial = is_trial
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="files")
        self._private: set[Path] = set()

    def upload(self, path: str, data: bytes | Path) -> str:
        """Write a new file, durably, and return `path`. Creates missing parent directories.

        A local file `data` that does not exist counts as empty. Raises Refused if `path` exists, and Retry for a
        failure that may pass.
        """
        with _converted_errors(f"write {path}"):
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
        """Return the status of a file or directory; None if it does not exist."""
        with _converted_errors(f"read the status of {path}"):
            try:
                return _status(Path(path).name, Path(path).stat())
            except (FileNotFoundError, NotADirectoryError):
                return None

    def list(self, path: str) -> list[Status]:
        """Return the entries of a directory, sorted by name; an empty list if it does not exist or is a file."""
        with _converted_errors(f"list {path}"):
            try:
                entries = list(os.scandir(path))
            except (FileNotFoundError, NotADirectoryError):
                return []
            statuses = []
            for entry in sorted(entries, key=lambda entry: entry.name):
                with contextlib.suppress(FileNotFoundError):  # removed since `scandir`
                    statuses.append(_status(entry.name, entry.stat()))
            return statuses

    def read(self, path: str) -> bytes | None:
        """Return the content of a small file; None if it does not exist or is a directory."""
        with _converted_errors(f"read {path}"):
            try:
                return Path(path).read_bytes()
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return None

    def rename(self, source: str, target: str) -> bool:
        """Move a file without overwriting; if the target is a directory, into that.

        Return False if another file has the target's name, or the source or the target's directory does not exist.
        """
        with _converted_errors(f"rename {source} to {target}"):
            if Path(target).is_dir():
                target = f"{target}/{Path(source).name}"
            try:
                os.link(source, target)  # a rename would overwrite
            except FileExistsError:
                if not _is_same_file(source, target):  # as after a kill between `link` and `unlink`
                    return False
            except (FileNotFoundError, NotADirectoryError):
                return False
            sync_directory(Path(target).parent)
            if not _is_same_name(source, target):
                Path(source).unlink(missing_ok=True)
        return True

    def mkdirs(self, path: str) -> None:
        """Create a directory and its parents. Idempotent. Raises NoDirectory if there can be no directory at that
        path."""
        try:
            with _converted_errors(f"create the directory {path}"):
                self._make_directory(Path(path))
        except Refused as e:
            if e.kind in NO_DIRECTORY:
                raise NoDirectory(str(e), path) from e
            raise

    def _make_directory(self, path: Path) -> None:
        """Create a directory and its parents, and restrict the private directory in its path to this user. Raises
        OSError."""
        private = next((parent for parent in (path, *path.parents) if parent.name == PRIVATE), None)
        if private is not None and private not in self._private:
            make_directory(private.parent)
            with contextlib.suppress(FileExistsError):
                private.mkdir(mode=0o700)
            if not self._is_trial and is_too_open(private.stat().st_mode):  # created by an earlier version
                with contextlib.suppress(PermissionError):  # another user's directory
                    private.chmod(0o700)
            self._private.add(private)
        make_directory(path)

    def adopt(self, file: str, directory: str) -> None:
        """Give a file the group of a set-group-id directory, and the directory's default ACL.

        A group that this user may not give is left out silently. Raises Retry or Refused for any other failure.
        """
        with _converted_errors(f"give {file} the group of {directory}"):
            status = Path(directory).stat()
            if status.st_mode & stat.S_ISGID and Path(file).stat().st_gid != status.st_gid:
                with contextlib.suppress(PermissionError):
                    os.chown(file, -1, status.st_gid)
            if (acl := _default_acl(Path(directory))) is not None:
                os.setxattr(file, "system.posix_acl_access", acl)

    def delete(self, path: str) -> None:
        """Delete a file, or a directory and its content. Idempotent: a path that does not exist is no error."""
        deleted = Path(path)
        with _converted_errors(f"delete {path}"):
            try:
                if not deleted.is_dir():
                    deleted.unlink()
                else:
                    shutil.rmtree(deleted)
                sync_directory(deleted.parent)
            except FileNotFoundError:
                return

    def check_writable(self, path: str) -> None:
        """Raise Retry if the user may not create files in that directory."""
        if not is_writable(Path(path)):
            raise Retry(f"cannot write into {nearest_existing(Path(path))}")


@contextlib.contextmanager
def _converted_errors(action: str) -> Iterator[None]:
    """Raise Refused instead of OSError, and Retry for the errors in `TRANSIENT`. The text begins with "cannot" and
    `action`."""
    try:
        yield
    except OSError as e:
        full = "the disk is full" if e.errno in (errno.ENOSPC, errno.EDQUOT) else e.strerror
        text = f"cannot {action}: {full}"
        raise (Retry(text) if e.errno in TRANSIENT else Refused(text, errno.errorcode.get(e.errno or 0, ""))) from e


def _default_acl(directory: Path) -> bytes | None:
    """Return the ACL of a file created in this directory with mode 666, as bytes of the extended attribute.

    Return None without a default ACL, and on systems other than Linux.
    """
    if not hasattr(os, "getxattr"):  # not Linux
        return None
    try:
        acl = os.getxattr(directory, "system.posix_acl_default")
    except OSError:  # the directory has no default ACL, or the file system no ACLs
        return None
    head, entries = acl[:4], [*struct.iter_unpack("<HHI", acl[4:])]
    masked = {ACL_USER, ACL_OTHER, ACL_MASK if any(tag == ACL_MASK for tag, _, _ in entries) else ACL_GROUP}
    return head + b"".join(
        struct.pack("<HHI", tag, bits & 6 if tag in masked else bits, id) for tag, bits, id in entries
    )


def _status(name: str, result: os.stat_result) -> Status:
    return Status(name, stat.S_ISREG(result.st_mode), result.st_size, result.st_mtime_ns // 1_000_000)


def _is_same_file(first: str, second: str) -> bool:
    """Return True if both paths lead to one inode; False if one of them does not exist."""
    try:
        return Path(first).samefile(second)
    except FileNotFoundError:
        return False


def _is_same_name(first: str, second: str) -> bool:
    """Return True if two paths name one directory entry, perhaps written differently."""
    one, other = Path(first), Path(second)
    return one.name == other.name and one.parent.samefile(other.parent)
