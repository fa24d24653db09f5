"""Source `spooldir` with a new file that has the name, and the inode, of a skipped one."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from flafka.sources.spooldir import tracker as tracker_module
from flafka.sources.spooldir.birth import birth_time
from flafka.sources.spooldir.tracker import SKIPPED_FILES_NAME
from tests.sources.spooldir_running import names, put, read, read_anew, start

COARSE = 5
"""Linux's clock that has the times of files."""


def later() -> None:
    """Return when new files get another time, which has steps of some milliseconds."""
    begin = time.clock_gettime_ns(COARSE)
    while time.clock_gettime_ns(COARSE) == begin:
        pass


def leave(spool: Path) -> None:
    """Have a source skip `a`."""
    (spool / "a").write_bytes(b"1\n\xff\n")
    assert read_anew(spool) == [b"1"]


def in_place(spool: Path) -> None:
    """Put another file under that name with the former inode, as many file systems reuse it at once."""
    later()
    (spool / "a").unlink()
    (spool / "a").write_bytes(b"2\n")
    path = spool / ".flumespool" / SKIPPED_FILES_NAME
    skipped = json.loads(path.read_text())
    skipped[str(spool / "a")]["state"]["inode"] = (spool / "a").stat().st_ino
    path.write_text(json.dumps(skipped))


def test_the_time_of_birth_of_a_file(tmp_path: Path) -> None:
    before = time.clock_gettime_ns(COARSE)
    path = tmp_path / "ä"
    path.write_bytes(b"1")
    inode = path.stat().st_ino
    born = birth_time(str(path), inode)
    if not born:
        pytest.skip("this file system does not tell when a file was created")
    assert before <= born <= time.time_ns()
    later()
    path.write_bytes(b"2")
    os.utime(path, (1, 1))
    with path.open() as file:
        assert birth_time(file.fileno(), inode) == birth_time(str(path), inode) == born
    assert birth_time(str(path), inode + 1) == birth_time(str(tmp_path / "none"), inode) == 0


def test_another_file_with_the_name_and_the_inode_of_a_skipped_one_is_read(spool: Path) -> None:
    leave(spool)
    if not birth_time(str(spool / "a"), (spool / "a").stat().st_ino):
        pytest.skip("this file system does not tell when a file was created")
    in_place(spool)
    assert read_anew(spool) == [b"2"]
    assert names(spool) == ["a.COMPLETED"]


def test_a_skipped_file_stays_skipped_after_any_change(spool: Path) -> None:
    leave(spool)
    later()
    with (spool / "a").open("ab") as file:
        file.write(b"3\n")
    assert read_anew(spool) == []
    os.utime(spool / "a", (1, 1))
    assert read_anew(spool) == []


def test_without_a_time_of_birth_the_inode_alone_counts(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker_module, "birth_time", lambda *_: 0)
    leave(spool)
    in_place(spool)
    assert read_anew(spool) == []
    monkeypatch.undo()
    assert read_anew(spool) == [], "nor where the list is of such a time"


def test_a_read_file_without_a_mark_is_marked_as_soon_as_possible(spool: Path) -> None:
    put(spool / "a.COMPLETED", b"before\n")
    put(spool / "a", b"1\n")
    assert read_anew(spool) == [b"1"]
    (spool / "a.COMPLETED").rename(spool / ".moved")
    source = start(spool)
    assert read(source) == []
    source.close()
    assert names(spool) == [".moved", "a.COMPLETED"]
