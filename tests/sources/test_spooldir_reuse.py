"""The source `spooldir` where a file gets the name, and the inode, of one that was left alone."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from flafka.sources.spooldir import tracker as tracker_module
from flafka.sources.spooldir.birth import birth
from flafka.sources.spooldir.tracker import LEFT_NAME
from tests.sources.spooldir_running import names, put, read, read_anew, start

COARSE = 5
"""Linux's clock that has the times of files."""


def later() -> None:
    """Return when files that are created get another time, which comes in steps of some milliseconds."""
    begin = time.clock_gettime_ns(COARSE)
    while time.clock_gettime_ns(COARSE) == begin:
        pass


def leave(spool: Path) -> None:
    """Have a source leave `a` alone."""
    (spool / "a").write_bytes(b"1\n\xff\n")
    assert read_anew(spool) == [b"1"]


def in_place(spool: Path) -> None:
    """Another file under that name, with the inode of the one before, as many file systems give it at once."""
    later()
    (spool / "a").unlink()
    (spool / "a").write_bytes(b"2\n")
    path = spool / ".flumespool" / LEFT_NAME
    left = json.loads(path.read_text())
    left[str(spool / "a")]["state"]["inode"] = (spool / "a").stat().st_ino
    path.write_text(json.dumps(left))


def test_when_a_file_was_born(tmp_path: Path) -> None:
    before = time.clock_gettime_ns(COARSE)
    path = tmp_path / "ä"
    path.write_bytes(b"1")
    inode = path.stat().st_ino
    born = birth(str(path), inode)
    if not born:
        pytest.skip("this file system does not tell when a file was created")
    assert before <= born <= time.time_ns()
    later()
    path.write_bytes(b"2")
    os.utime(path, (1, 1))
    with path.open() as file:
        assert birth(file.fileno(), inode) == birth(str(path), inode) == born
    assert birth(str(path), inode + 1) == birth(str(tmp_path / "none"), inode) == 0


def test_another_file_with_the_name_and_the_inode_of_one_that_was_left_is_read(spool: Path) -> None:
    leave(spool)
    if not birth(str(spool / "a"), (spool / "a").stat().st_ino):
        pytest.skip("this file system does not tell when a file was created")
    in_place(spool)
    assert read_anew(spool) == [b"2"]
    assert names(spool) == ["a.COMPLETED"]


def test_the_file_itself_stays_left_whatever_becomes_of_it(spool: Path) -> None:
    leave(spool)
    later()
    with (spool / "a").open("ab") as file:
        file.write(b"3\n")
    assert read_anew(spool) == []
    os.utime(spool / "a", (1, 1))
    assert read_anew(spool) == []


def test_without_a_time_of_birth_the_inode_alone_counts(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker_module, "birth", lambda *_: 0)
    leave(spool)
    in_place(spool)
    assert read_anew(spool) == []
    monkeypatch.undo()
    assert read_anew(spool) == [], "nor where the list is of such a time"


def test_what_was_read_and_is_not_marked_is_marked_once_that_is_possible(spool: Path) -> None:
    put(spool / "a.COMPLETED", b"before\n")
    put(spool / "a", b"1\n")
    assert read_anew(spool) == [b"1"]
    (spool / "a.COMPLETED").rename(spool / ".moved")
    source = start(spool)
    assert read(source) == []
    source.close()
    assert names(spool) == [".moved", "a.COMPLETED"]
