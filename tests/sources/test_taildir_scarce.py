"""Source `taildir` where files cannot be opened or directories cannot be read, all at once or for a while."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.sources.descriptors import open_files
from tests.sources.taildir_running import append, bodies, kill, make, positions, start

FILES = 400


@contextmanager
def limit(additional: int) -> Iterator[int]:
    """Limit the open files of this process to this many more than now, other tests included."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = additional + len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        yield most
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_many_more_files_than_may_be_open(logs: Path, tmp_path: Path) -> None:
    for i in range(FILES):
        (logs / f"log.{i}").write_bytes(b"%d\n" % i)
    with limit(200) as most:
        source = start(tmp_path)
        assert len(bodies(source)) == FILES
        assert len(open_files(tmp_path)) <= most // 2 + 5
        for i in range(FILES):
            append(logs / f"log.{i}", b"more\n")
        assert bodies(source) == [b"more"] * FILES
        source.close()


@pytest.mark.timeout(60)
def test_others_have_most_of_the_file_descriptors(
    logs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for i in range(FILES):
        (logs / f"log.{i}").write_bytes(b"%d\n" % i)
    with ExitStack() as stack:
        for _ in range(3 * FILES):
            stack.enter_context(Path(os.devnull).open())
        with limit(60):
            source = start(tmp_path)
            assert sorted(bodies(source)) == sorted(b"%d" % i for i in range(FILES))
            for i in range(FILES):
                append(logs / f"log.{i}", b"more\n")
            assert bodies(source) == [b"more"] * FILES
            with open(os.devnull), open(os.devnull), open(os.devnull):  # noqa: PTH123
                pass  # it leaves some for others
            source.close()
    assert caplog.text.count("raise `ulimit -n`") == 1
    assert positions(tmp_path) == {f"log.{i}": len(b"%d\nmore\n" % i) for i in range(FILES)}


def test_a_directory_is_missing_for_longer_than_files_are_idle(logs: Path, tmp_path: Path) -> None:
    for name in ("log.closed", "log.open"):
        (logs / name).write_bytes(b"1\n")
    source = start(tmp_path, idleTimeout="0")
    assert bodies(source) == [b"1", b"1"]
    logs.rename(tmp_path / "unmounted")
    for _ in range(3):
        assert bodies(source) == []
    (tmp_path / "unmounted").rename(logs)
    append(logs / "log.closed", b"2\n")
    assert bodies(source) == [b"2"], "nothing is read again"
    source.close()
    assert positions(tmp_path) == {"log.closed": 4, "log.open": 2}


@pytest.mark.parametrize("call", ["stat", "scandir", "listdir", "open"])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_file_system_fails_for_a_while(
    call: str, restarted: bool, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS fails like this. A file that was renamed in between must be found again by then, too."""
    (logs / "log.1").write_bytes(b"1\n")
    (logs / "log").write_bytes(b"one\n")
    source = start(tmp_path, idleTimeout="0")
    assert sorted(bodies(source)) == [b"1", b"one"]
    real = getattr(os, call)

    def fail(path: str | int | Path, *arguments: object, **options: object) -> object:
        if str(path).startswith(str(logs)):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return real(path, *arguments, **options)

    if restarted:
        kill(source)
        source = make(tmp_path, idleTimeout="0")
    (logs / "log").rename(logs / "old")
    with monkeypatch.context() as patched:
        patched.setattr(os, call, fail)
        if restarted:
            source.open()
        for _ in range(3):
            assert bodies(source) == []
    append(logs / "log.1", b"2\n")
    append(logs / "old", b"two\n")
    assert sorted(bodies(source)) == [b"2", b"two"], "nothing is read again, and nothing is left"
    source.close()


def test_a_stale_handle_is_closed(logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS has such handles: the file is then read by its name."""
    (logs / "log").write_bytes(b"one\n")
    source = start(tmp_path, inotify="false")
    assert bodies(source) == [b"one"]
    (tail,) = source._table
    stale, real = tail.fd, os.fstat
    tail.changed_at -= 7200

    def fail(fd: int) -> os.stat_result:
        if fd == stale:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return real(fd)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fstat", fail)
        assert bodies(source) == []
    append(logs / "log", b"two\n")
    assert bodies(source) == [b"two"]
    source.close()
