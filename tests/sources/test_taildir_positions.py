"""Positions of the source `taildir`: of other versions, damaged, and of files of which only a copy is left."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import itertools
import json
import logging
import lzma
import shutil
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flafka.plugins import FlafkaError
from tests.fixtures.examples import examples, some
from tests.sources.taildir_running import append, bodies, kill, make, positions, start

# --- versions of the journal

INDEX = '[{"inode":%d,"pos":4,"file":"%s"}]'
JOURNAL = (
    '{"is":"wrote","old":"","new":"%s"}',
    '{"is":"file","id":1,"inode":%d,"pos":%d,"file":"%s","device":%d,"name":"%s","real":"%s","mark":{"offset":4,'
    '"length":4,"head":"0337c82fa5ed25802d407dcdcf69fa32","tail":"0337c82fa5ed25802d407dcdcf69fa32"}}',
)


def write_killed_source(directory: Path, version: int) -> tuple[Path, Path]:
    """Write positions of a killed source: two lines of its file are read, of which the position file has one."""
    log, home = directory / "logs" / "log", directory / "positions"
    log.parent.mkdir()
    home.mkdir()
    log.write_bytes(b"1\n2\n3\n")
    status = log.stat()
    index = (INDEX % (status.st_ino, log)).replace('"pos":4', '"pos":2')
    names = (status.st_ino, 4, log, status.st_dev, log, log)
    lines = [JOURNAL[0] % hashlib.blake2b(index.encode(), digest_size=16).hexdigest(), JOURNAL[1] % names]
    numbered = [f"{number} {line}" for number, line in enumerate(lines, 1)]
    sealed = [f"{line[0]} {zlib.crc32(line.encode()):08x} {line[2:]}\n" for line in numbered]
    (home / "taildir.json").write_text(index)
    (home / "taildir.json.journal").write_text("".join([f'{{"journal":{version}}}\n', *sealed]))
    return home / "taildir.json", home / "taildir.json.journal"


def test_a_journal_of_version_2_can_be_read(tmp_path: Path) -> None:
    write_killed_source(tmp_path, 2)
    source = start(tmp_path)
    assert bodies(source) == [b"3"]
    source.close()


@pytest.mark.parametrize("version", [1, 3])
def test_a_journal_of_another_version_is_refused_with_advice(version: int, tmp_path: Path) -> None:
    index, journal = write_killed_source(tmp_path, version)
    source = make(tmp_path)
    with pytest.raises(FlafkaError) as refused:
        source.open()
    source.close()
    assert str(refused.value) == (
        f"{journal} is a journal of version {version}, and this source reads version 2: stop the agent that wrote it "
        f"by SIGTERM, so that {index} has all positions, then remove the journal"
    )
    journal.unlink()
    source = start(tmp_path)
    assert bodies(source) == [b"2", b"3"], "the position file counts"
    source.close()


# --- damage


class Written:
    """Three files, each read in part by a source that was killed, and their remaining lines."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        logs = directory / "logs"
        logs.mkdir()
        source = start(directory, batchSize="4", writePosInterval="0")
        for turn in range(3):
            for name in ("log.a", "log.b", "log.c"):
                append(logs / name, b"".join(b"%s %d %d\n" % (name.encode(), turn, i) for i in range(10)))
            if turn < 2:
                bodies(source)
        kill(source)
        self.read = {b"%s %d %d" % (n, turn, i) for n in NAMES for turn in range(2) for i in range(10)}
        self.unread = {b"%s %d %d" % (n, 2, i) for n in NAMES for i in range(10)}
        self.home = directory / "positions"
        self.state = {path.name: path.read_bytes() for path in self.home.iterdir()}

    def resume(self, name: str, content: bytes) -> tuple[Counter[bytes], str]:
        """Resume with that file changed; return the lines, and the log about it."""
        for path, data in {**self.state, name: content}.items():
            (self.home / path).write_bytes(data)
        messages: list[str] = []
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: messages.append(record.getMessage())
        logging.getLogger("flafka.sources.taildir").addHandler(handler)
        source = make(self.directory, inotify="false")
        try:
            source.open()
            return Counter(bodies(source)), "\n".join(messages)
        finally:
            source.close()
            logging.getLogger("flafka.sources.taildir").removeHandler(handler)


NAMES = (b"log.a", b"log.b", b"log.c")


@pytest.fixture(scope="module")
def written() -> Written:
    return Written(Path(tempfile.mkdtemp()))


def check(written: Written, name: str, content: bytes, *, cut: bool = False) -> None:
    """No line is skipped silently, and none is repeated silently, except after a cut end."""
    try:
        lines, messages = written.resume(name, content)
    except FlafkaError:
        return  # it names the fault and does not start
    passed_over = written.unread - set(lines)
    assert (
        not passed_over or "were not read here" in messages or "nothing else proves that it is the same" in messages
    ), passed_over
    if set(lines) & written.read and not cut:
        assert messages
    assert set(lines) <= written.unread | written.read
    assert max(lines.values(), default=1) == 1


DAMAGE = settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("name", ["taildir.json", "taildir.json.journal"])
class TestDamage:
    @DAMAGE
    @given(data=st.data())
    def test_a_flipped_bit(self, name: str, written: Written, data: st.DataObject) -> None:
        content = bytearray(written.state[name])
        bit = data.draw(st.integers(0, len(content) * 8 - 1))
        content[bit // 8] ^= 1 << bit % 8
        check(written, name, bytes(content))

    @DAMAGE
    @given(data=st.data())
    def test_cut_short(self, name: str, written: Written, data: st.DataObject) -> None:
        content = written.state[name]
        check(written, name, content[: data.draw(st.integers(0, len(content) - 1))], cut=True)

    def test_each_line_missing(self, name: str, written: Written) -> None:
        lines = written.state[name].splitlines(keepends=True)
        for missing in range(len(lines)):
            content = lines[:missing] + lines[missing + 1 :]
            check(written, name, b"".join(content), cut=missing == len(lines) - 1)

    @pytest.mark.soak
    @pytest.mark.timeout(3600)
    def test_each_bit_flipped(self, name: str, written: Written) -> None:
        content = written.state[name]
        for bit in range(len(content) * 8):
            flipped = bytearray(content)
            flipped[bit // 8] ^= 1 << bit % 8
            check(written, name, bytes(flipped))


def test_lines_after_a_damaged_one_count(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "log").write_bytes(b"1\n2\n3\n")
    source = start(tmp_path, batchSize="1")
    assert bodies(source) == [b"1", b"2", b"3"]
    kill(source)
    journal = tmp_path / "positions" / "taildir.json.journal"
    lines = journal.read_bytes().splitlines(keepends=True)
    second = next(i for i, line in enumerate(lines) if b'"pos":2' in line)
    lines[second] = lines[second].replace(b'"pos":2', b'"pos":3')
    journal.write_bytes(b"".join(lines))
    source = start(tmp_path)
    assert bodies(source) == []
    assert "lines are damaged or missing" in caplog.text
    source.close()


# --- rotated copies


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda data: pa.compress(data, "zstd", asbytes=True),
    "old": bytes,
}


def rotate(log: Path, copy: str, suffix: str = "gz") -> Path:
    """Put a copy in its place, as a compressing rotation does."""
    path = log.with_name(copy)
    path.write_bytes(PACKERS[suffix](log.read_bytes()))
    log.unlink()
    return path


LONG = [b"%07d a line of some length, so that the head of the file is not all of it" % i for i in range(3000)]


COPIES = [*itertools.product(["app[.]log", "app.*"], ["app.log.1.{}", "app-20261122.log.{}"], PACKERS)]


@pytest.mark.parametrize(("pattern", "name", "suffix"), some(COPIES, 3))  # with each suffix, and both names with both
def test_a_copy_made_while_the_source_was_stopped_is_resumed(
    pattern: str, name: str, suffix: str, tmp_path: Path
) -> None:
    log = tmp_path / "logs" / "app.log"
    log.parent.mkdir()
    append(log, b"".join(line + b"\n" for line in LONG[:1000]))
    source = start(tmp_path, pattern)
    assert bodies(source) == LONG[:1000]
    source.close()
    append(log, b"".join(line + b"\n" for line in LONG[1000:2000]))
    rotate(log, "app.log.0.gz")
    (tmp_path / "logs" / "app.log.0.gz").write_bytes(gzip.compress(b"another log\n" * 9999))
    log.write_bytes(b"".join(line + b"\n" for line in LONG[:2000]))  # as it was, perhaps under the same inode
    rotate(log, name.format(suffix), suffix)
    append(log, b"".join(line + b"\n" for line in LONG[2000:]))

    # Killed in the middle of it, it resumes at its offset.
    source = start(tmp_path, pattern, batchSize="300")
    lines: list[bytes] = []
    for batch in source.poll():
        lines += batch.bodies.to_pylist()
        source.stored(batch)
        if len(lines) > 400:
            break
    kill(source)
    source = start(tmp_path, pattern, idleTimeout="0")
    lines += bodies(source)
    assert sorted(lines) == LONG[1000:]
    source.close()
    source = start(tmp_path, pattern)
    assert bodies(source) == []
    source.close()


def test_a_copy_that_is_not_complete_is_waited_for(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "log"
    log.parent.mkdir()
    log.write_bytes(b"1\n2\n")
    source = start(tmp_path, "log")
    assert bodies(source) == [b"1", b"2"]
    source.close()
    append(log, b"3\n")
    packed = gzip.compress(log.read_bytes())
    log.unlink()
    (log.parent / "log.1.gz").write_bytes(packed[:-8])
    source = start(tmp_path, "log")
    assert bodies(source) == []
    (log.parent / "log.1.gz").write_bytes(packed)
    assert bodies(source) == [b"3"]
    source.close()


def test_a_file_that_only_begins_the_same_is_not_its_copy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = tmp_path / "logs" / "log"
    log.parent.mkdir()
    head = b"# " + b"the same head in all " * 100 + b"\n"
    log.write_bytes(head + b"1\n")
    source = start(tmp_path, "log", idleTimeout="0")
    assert bodies(source) == [head[:-1], b"1"]
    source.close()
    log.unlink()
    (log.parent / "log.1.gz").write_bytes(gzip.compress(head + b"2\n3\n"))
    source = start(tmp_path, "log", idleTimeout="0")
    assert bodies(source) == []
    assert "was not found again" in caplog.text
    assert positions(tmp_path) == {}
    source.close()


@pytest.mark.parametrize("down", [True, False])
@pytest.mark.parametrize("read", [b"1\n2\n", b"half a li"])
def test_a_copy_of_copytruncate_between_scans_is_resumed(read: bytes, down: bool, tmp_path: Path) -> None:
    """While the source was down, or while the file was closed as idle: then another may have taken its inode, too."""
    log = tmp_path / "logs" / "log"
    log.parent.mkdir()
    log.write_bytes(read)
    options = {"idleTimeout": "0", "inotify": "false"}
    source = start(tmp_path, "log", **options)
    assert bodies(source) == read.split(b"\n")[:-1]
    assert all(tail.fd is None for tail in source._table)
    if down:
        source.close()
    append(log, b"ne\n3\n")
    shutil.copy(log, log.parent / "log.1")
    log.write_bytes(b"")
    append(log, b"4\n")
    if down:
        source = start(tmp_path, "log", **options)
    ends = b"ne" if read.endswith(b"\n") else read + b"ne"
    assert sorted(bodies(source)) == sorted([ends, b"3", b"4"])
    assert bodies(source) == []
    source.close()


def test_a_deleted_file_is_removed_from_flumes_file_at_once_and_from_the_journal_later(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "log"
    log.parent.mkdir()
    log.write_bytes(b"1\n2\n")
    (log.parent / "log.other").write_bytes(b"0\n")
    source = start(tmp_path)
    assert len(bodies(source)) == 3
    log.unlink()
    assert bodies(source) == []
    assert positions(tmp_path) == {"log.other": 2}
    kill(source)
    (log.parent / "log.1.gz").write_bytes(gzip.compress(b"1\n2\n3\n"))
    source = start(tmp_path)
    assert bodies(source) == [b"3"]
    source.close()


def test_flumes_position_of_an_empty_file_identifies_no_copy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log, index = tmp_path / "logs" / "log", tmp_path / "positions" / "taildir.json"
    log.parent.mkdir()
    log.touch()
    source = start(tmp_path, "log", idleTimeout="0")
    assert bodies(source) == []
    source.close()
    index.write_text(json.dumps([{"inode": log.stat().st_ino, "pos": 2, "file": str(log)}]))
    log.unlink()
    (log.parent / "log.1.gz").write_bytes(gzip.compress(b"of another log\n"))
    source = start(tmp_path, "log", idleTimeout="0")
    assert bodies(source) == []
    assert "was not found again" in caplog.text
    source.close()


def test_a_removed_directory_of_positions_is_recreated(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "log"
    log.parent.mkdir()
    append(log, b"1\n")
    source = start(tmp_path, "log")
    assert bodies(source) == [b"1"]
    shutil.rmtree(tmp_path / "positions")
    append(log, b"2\n")
    assert bodies(source) == [b"2"]
    kill(source)
    append(log, b"3\n")
    source = start(tmp_path, "log")
    assert bodies(source) == [b"3"]
    source.close()
