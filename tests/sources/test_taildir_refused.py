"""Source `taildir`: its refusals, and Flume's positions before and after it."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flafka.plugins import FlafkaError, Retry
from flafka.sources.taildir import TaildirConfig
from flafka.sources.taildir.groups import FileGroup
from tests.sources.taildir_running import (
    append,
    bodies,
    make,
    positions,
    process,
    start,
)

# --- unusable files


@pytest.fixture
def as_nobody() -> Iterator[Path]:
    """Directory, and a user whom permissions bind."""
    directory = Path(tempfile.mkdtemp())
    user = os.geteuid()
    directory.chmod(0o777)
    if user == 0:
        os.seteuid(65534)
    yield directory
    os.seteuid(user)
    for path in directory.rglob("*"):
        path.chmod(0o777)
    shutil.rmtree(directory)


def test_an_unreadable_file_is_reported_once_and_retried(as_nobody: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = as_nobody / "logs" / "log"
    path.parent.mkdir()
    path.write_bytes(b"1\n")
    path.chmod(0)
    source = start(as_nobody)
    (as_nobody / "logs" / "log.good").write_bytes(b"good\n")
    assert list(source.check_connectivity()) == [f"{path} cannot be read: Permission denied"]
    assert bodies(source) == [b"good"]
    assert bodies(source) == []
    assert caplog.text.count(f"{path} cannot be read, it is tried again: Permission denied") == 1
    assert source.metrics.get("EventReadFail") == source.metrics.get("UnreadableCount") == 1
    path.chmod(0o644)
    assert bodies(source) == [b"1"]
    assert source.metrics.get("UnreadableCount") == 0
    source.close()


@pytest.mark.parametrize("obstacle", ["file", "directory"])
def test_a_read_only_position_file_is_named(obstacle: str, as_nobody: Path) -> None:
    source = start(as_nobody)
    source.close()
    path = as_nobody / "positions" / "taildir.json"
    (path if obstacle == "file" else path.parent).chmod(0o444 if obstacle == "file" else 0o555)
    with pytest.raises(Retry, match=rf"positionFile {path} cannot be written, so nothing is read: "):
        source.open()
    source.close()
    assert [str(path) in problem for problem in source.check_connectivity()] == [True]
    path.parent.chmod(0o755)
    path.chmod(0o644)
    assert list(source.check_connectivity()) == []
    source.open()
    source.close()


@pytest.mark.parametrize("content", ["{", '{"inode":1}', '[{"inode":"x"}]', '[{"inode":1,"pos":2}]', "[" * 100_000])
@pytest.mark.parametrize("suffix", ["", ".journal"])
def test_an_invalid_position_file_is_named(content: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / "positions" / f"taildir.json{suffix}"
    path.parent.mkdir()
    path.write_text(content)
    source = make(tmp_path)
    with pytest.raises(FlafkaError, match=rf"{path} does not hold positions of files: .*Repair it, or remove it"):
        source.open()
    source.close()
    assert [str(path) in problem for problem in source.check_connectivity()] == [True]
    assert path.read_text() == content


@pytest.mark.parametrize(
    ("path", "warning"),
    [
        (
            "/var/log/app-*.log",
            "has the regular expression 'app-*.log', in which * repeats the character before it: for any text there"
            " write /var/log/app-.*[.]log",
        ),
        (
            "/var/log/*/app.log",
            "names one directory, '/var/log/*', and a directory takes no pattern:"
            " write a file group for each directory",
        ),
        (r"/var/log/app-.*[.]log\d*", ""),
        (r"/var/log/(app|web)*\*", ""),
    ],
)
def test_a_shells_pattern_is_warned_of(path: str, warning: str) -> None:
    config, problems = TaildirConfig.parse({"filegroups": "g", "filegroups.g": path})
    assert config is not None, problems
    assert [(problem.option, problem.message) for problem in config.warnings()] == [("filegroups.g", warning)] * bool(
        warning
    )


@pytest.mark.parametrize(
    ("number", "limit"),
    [(errno.ENOSPC, "fs.inotify.max_user_watches"), (errno.EMFILE, "fs.inotify.max_user_instances")],
)
def test_a_limit_of_the_kernels_reports_is_named(
    number: int, limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(
        "flafka.sources.taildir.watcher.NameWatcher"
        if number == errno.EMFILE
        else "flafka.sources.taildir.watcher.NameWatcher.add",
        refuse,
    )
    source = start(tmp_path)
    append(tmp_path / "logs" / "log.a", b"1\n")
    assert bodies(source) == [b"1"]
    source.close()
    assert limit in caplog.text


def test_a_probe_leaves_no_files(tmp_path: Path) -> None:
    source = make(tmp_path, positionFile=f"{tmp_path}/a/b/c.json")
    assert list(source.check_connectivity()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs"]
    (tmp_path / "a").write_text("a file")
    assert [
        problem.startswith(f"positionFile {tmp_path}/a/b/c.json cannot") for problem in source.check_connectivity()
    ] == [True]
    with pytest.raises(Retry, match=r"positionFile .*/c\.json cannot be written"):
        source.open()
    source.close()


def test_a_position_file_has_one_source(tmp_path: Path) -> None:
    first, second = start(tmp_path), make(tmp_path)
    with pytest.raises(Retry, match="is in use by another taildir source: give each its own"):
        second.open()
    second.close()
    first.close()
    second.open()
    second.close()


def test_nothing_more_is_read_while_positions_cannot_be_saved(
    logs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (logs / "log").write_bytes(b"1\n2\n")
    source = start(tmp_path, batchSize="1")
    away = tmp_path / "away"
    offered: list[bytes] = []
    stored = threading.Event()

    def run() -> None:
        for batch in source.batches():
            offered.extend(batch.bodies.to_pylist())
            if len(offered) == 1:
                (tmp_path / "positions").rename(away)
                (tmp_path / "positions").touch()  # a disk that fails, as far as a write can detect
            source.stored(batch)
            stored.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert stored.wait(60)
    assert "cannot be written, so nothing is read: " in source.metrics.last_error
    assert offered == [b"1"]
    stored.clear()
    (tmp_path / "positions").unlink()
    away.rename(tmp_path / "positions")
    assert stored.wait(60)
    assert offered == [b"1", b"2"]
    source.stopping.set()
    thread.join(60)
    source.close()
    assert positions(tmp_path) == {"log": 4}


@pytest.mark.parametrize(
    ("properties", "problem"),
    [
        ({}, "is required"),
        ({"filegroups": ""}, "at least 1"),
        ({"filegroups": "g"}, "filegroups.g is missing"),
        ({"filegroups": "g", "filegroups.g": "a.log"}, "write ./a.log for the files of the working directory"),
        ({"filegroups": "g", "filegroups.g": "/directory/"}, "must be a directory, a slash and a regex"),
        ({"filegroups": "g", "filegroups.g": "~/a.log"}, "write ~ in full"),
        ({"filegroups": "g", "filegroups.g": "/d/*.log"}, "write /d/.*[.]log"),
        ({"filegroups": "g", "filegroups.g": "/d/+.log"}, "'+.log' cannot be read: nothing to repeat"),
        ({"filegroups": "g", "filegroups.g": "/d/[a-z&&[^b]]"}, "intersection of classes"),
        ({"filegroups": "g", "filegroups.g": "/d/x", "headers.g": "v"}, "headers.g must be headers.<group>.<name>"),
        ({"filegroups": "g", "filegroups.g": "/d/x", "batchSize": "0"}, "at least 1"),
        ({"filegroups": "g", "filegroups.g": "/d/x", "bathcSize": "1"}, "did you mean 'batchSize'?"),
        (
            {"filegroups": "g", "filegroups.g": "/d/x", **{f"headers.g.{i}": "v" for i in range(63)}},
            "at most 62 different headers",
        ),
    ],
)
def test_mistakes_in_options_are_named(properties: dict[str, str], problem: str) -> None:
    _, problems = TaildirConfig.parse(properties)
    assert problem in "\n".join(mistake.message for mistake in problems)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("[ab].log", "a.log", "a.log.1"),
        (r"\Qa+b\E.*", "a+b.log", "aab.log"),
        (r"(?<name>x+)\.log", "xx.log", ".log"),
        (r"app\.(?!gz$).*", "app.log", "app.gz"),
        (r"\p{Alpha}+", "abc", "ab1"),
    ],
)
def test_patterns_have_javas_meaning_and_match_the_whole_name(pattern: str, yes: str, no: str) -> None:
    group = FileGroup.of(f"/var//log/{pattern}", {})
    assert group.directory == "/var/log"
    assert group.pattern.fullmatch(yes)
    assert not group.pattern.fullmatch(no)


@pytest.mark.parametrize(("path", "directory"), [("./x.log", "/w/."), ("logs//a/x.log", "/w/logs/a")])
def test_a_relative_path_begins_at_the_working_directory_and_is_spelled_as_flume_spells_it(
    path: str, directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.getcwd", lambda: "/w")
    assert FileGroup.of(path, {}).directory == directory


# --- Flume before and after


def test_flumes_positions_are_adopted(logs: Path, tmp_path: Path) -> None:
    for name in ("log.same", "log.renamed", "log.shrunk", "log.middle"):
        (logs / name).write_bytes(b"1\n22\n333\n")
    entries = [
        {"inode": (logs / name).stat().st_ino, "pos": position, "file": f"{logs}/{former_name}"}
        for name, position, former_name in (
            ("log.same", 2, "log.same"),
            ("log.renamed", 5, "log.was"),
            ("log.shrunk", 100, "log.shrunk"),
            ("log.middle", 3, "log.was too"),
        )
    ]
    (tmp_path / "positions").mkdir()
    (tmp_path / "positions" / "taildir.json").write_text(json.dumps(entries))
    source = start(tmp_path, fileHeader="true")
    lines: dict[str, list[bytes]] = {}
    for body, headers in process(source):
        lines.setdefault(Path(headers["file"]).name, []).append(body)
    assert lines == {
        "log.same": [b"22", b"333"],
        "log.was": [b"333"],
        "log.shrunk": [b"1", b"22", b"333"],
        "log.middle": [b"1", b"22", b"333"],  # under another name, in the middle of a line: it is another file
    }
    source.close()


def test_the_position_file_is_flumes(logs: Path, tmp_path: Path) -> None:
    (logs / "log").write_bytes(b"1\n22\n")
    (logs / "log.empty").touch()
    source = start(tmp_path)
    process(source)
    source.close()
    path = tmp_path / "positions" / "taildir.json"
    assert sorted(json.loads(path.read_text()), key=lambda entry: entry["file"]) == [
        {"inode": (logs / "log").stat().st_ino, "pos": 5, "file": f"{logs}/log"},
        {"inode": (logs / "log.empty").stat().st_ino, "pos": 0, "file": f"{logs}/log.empty"},
    ]
    path.write_text(path.read_text().replace('"pos":5', '"pos":2'))
    source = start(tmp_path)
    assert bodies(source) == [b"22"], "an operator's change counts"
    source.close()
    path.write_text("")  # Flume leaves this where nothing matches
    source = start(tmp_path)
    assert bodies(source) == [b"1", b"22"]
    source.close()
