"""Trials of directories on HDFS: creating a file, and renaming it into a directory."""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Iterator

from flafka.plugins import ConnectivityWarning, FlafkaError, Retry
from flafka.sinks.hdfs.filesystem import FileSystem, Refused

CHECK = ".flafka-check-"
"""Begin of the name of a directory that exists during a trial."""
DENIED = ("AccessControlException", "EACCES", "EPERM")
"""Refusals of a user without permission, who has written nothing."""


def try_rename(
    hdfs: FileSystem, directory: str, staged: str, data: bytes = b"", remains: list[str] | None = None
) -> None:
    """Rename a file with this content from `staged` to a hidden name in `directory`, and delete it.

    Raises Refused if HDFS refuses the rename, and Retry for any other failure. If the file cannot be deleted, its
    path with the reason is appended to `remains`.
    """
    name = f".flafka-{uuid.uuid4().hex}"
    source, target = hdfs.upload(posixpath.join(staged, name), data), posixpath.join(directory, name)
    try:
        if not hdfs.rename(source, target) and hdfs.status(target) is None:
            raise Retry(f"HDFS does not rename {source} to {target}")
    except Refused as e:
        why = str(e).partition(f"{name}: ")[2] or str(e)
        # The reason comes last, as it may end with a command.
        text = f"no file can be renamed into {directory} (allow that, or change hdfs.path): {why}"
        raise Refused(text, e.kind) from e
    finally:
        _remove(hdfs, target, remains)


def _remove(hdfs: FileSystem, path: str, remains: list[str] | None) -> None:
    """Delete a path; append it, with the reason, to `remains` if that fails."""
    try:
        hdfs.delete(path)
    except Retry as e:
        if remains is not None:
            remains.append(f"{path} could not be removed: {e}")


def try_directory(hdfs: FileSystem, directory: str, private: str) -> Iterator[str]:
    """Write a file of one byte, and rename it into an existing directory, as the sink does.

    The file is written below `tmp` in `private`, the sink's own directory, if `private` exists; then `tmp` remains.
    Otherwise it is written into a new directory, as the sink's user has to be the owner of `private`. Yield the
    reason for a failure, such as a quota, the border of an encryption zone or a missing permission. Also yield a
    ConnectivityWarning for each path that could not be removed.
    """
    remains: list[str] = []
    unique = uuid.uuid4().hex
    staged = posixpath.join(directory, f"{CHECK}{unique}")
    if hdfs.status(private) is not None:
        staged = posixpath.join(private, "tmp", unique)
    try:
        try_rename(hdfs, directory, staged, b"\n", remains)  # an empty file reaches no DataNode
        is_denied = False
    except FlafkaError as e:
        yield str(e)
        is_denied = isinstance(e, Refused) and e.kind in DENIED
    _remove(hdfs, staged, None if is_denied else remains)
    yield from map(ConnectivityWarning, remains)
