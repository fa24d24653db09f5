"""Sink `hdfs` of a running agent under permanent refusals of HDFS, and after its files were removed."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from flafka.agent.services.running import RunningAgent
from tests.sinks.served_webhdfs import ServedWebHdfs, served_webhdfs

pytestmark = pytest.mark.usefixtures("servers")
QUOTA = "The NameSpace quota (directories and files) of directory /out/a is exceeded"


@pytest.fixture
def hdfs() -> Iterator[ServedWebHdfs]:
    with served_webhdfs() as served:
        yield served


def configuration(directory: Path, hdfs: ServedWebHdfs | None, path: str, events: int = 3, **options: str) -> str:
    """Return source `seq`, a channel `file`, which keeps undelivered events, and the sink."""
    lines = {
        "sources": "s1",
        "channels": "c1",
        "sinks": "k1",
        "sources.s1.type": "seq",
        "sources.s1.channels": "c1",
        "sources.s1.totalEvents": str(events),
        "sources.s1.interceptors": "i",
        "sources.s1.interceptors.i.type": "static",
        "sources.s1.interceptors.i.key": "app",
        "sources.s1.interceptors.i.value": "a",
        "channels.c1.type": "file",
        "channels.c1.checkpointDir": f"{directory}/checkpoint",
        "channels.c1.dataDirs": f"{directory}/data",
        "channels.c1.minimumRequiredSpace": "1048576",
        "sinks.k1.type": "hdfs",
        "sinks.k1.channel": "c1",
        "sinks.k1.hdfs.path": path,
        "sinks.k1.hdfs.fileType": "DataStream",
        "sinks.k1.hdfs.rollInterval": "1",
        "sinks.k1.hdfs.stagingDir": f"{directory}/staging",
        **({"sinks.k1.hdfs.webhdfs": hdfs.address} if hdfs is not None else {}),
        **{name.replace("__", "."): value for name, value in options.items()},
    }
    return "".join(f"a1.{name} = {value}\n" for name, value in lines.items())


def refuse_renames(hdfs: ServedWebHdfs, target: str) -> None:
    """Refuse renames to names below `target`, as a quota does, or the border of an encryption zone."""

    def refuse(op: str, path: str, options: dict[str, str]) -> str:
        return QUOTA if op == "RENAME" and options["destination"].startswith(target) else ""

    hdfs.refuse = refuse


def allow_all(hdfs: ServedWebHdfs) -> None:
    hdfs.refuse = lambda op, path, options: ""


@pytest.mark.parametrize("restart", [False, True])
def test_files_that_vanish_before_they_are_renamed_are_redelivered(
    tmp_path: Path, hdfs: ServedWebHdfs, restart: bool
) -> None:
    """Renames are refused after the commit, and somebody empties `.flafka/tmp` to make room."""
    text = configuration(tmp_path, hdfs, "/out/%{app}")
    refused = False

    def refuse(op: str, path: str, options: dict[str, str]) -> str:
        nonlocal refused
        refused |= (is_rename := op == "RENAME" and options["destination"].startswith("/out/a/FlumeData"))
        return QUOTA if is_rename else ""

    hdfs.refuse = refuse
    with RunningAgent(tmp_path, text) as agent:
        agent.until(lambda: refused and agent.failing(), "a rename to be refused")
        assert hdfs.remove("/out/.flafka/tmp")
        if not restart:
            allow_all(hdfs)
            agent.until(lambda: hdfs.lines() == ["0", "1", "2"], "all events to be delivered")
            agent.wait_until_healthy()
            assert agent.stop() == 0
            assert "another owner" not in agent.log
            return
    allow_all(hdfs)
    with RunningAgent(tmp_path, text.replace("totalEvents = 3", "totalEvents = 1")) as agent:
        agent.until(lambda: len(hdfs.lines()) > 3, "all events to be delivered")
        agent.wait_until_healthy()
        assert agent.stop() == 0
    assert hdfs.lines() == ["0", "0", "1", "2"]


def test_files_that_are_moved_after_delivery_are_not_redelivered(tmp_path: Path, hdfs: ServedWebHdfs) -> None:
    """A job moves files as soon as they appear, and the agent is killed before the channel has the commit."""
    text = configuration(tmp_path, hdfs, "/out/%{app}")
    with RunningAgent(tmp_path, text) as agent:
        pattern = re.compile("/out/.flafka/tmp/.*/done")
        agent.until(lambda: any(map(pattern.fullmatch, list(hdfs.tree.directories))), "the commit to be complete")
        agent.process.kill()
        agent.process.wait()
    (tmp_path / "checkpoint" / "flafka.positions").unlink(missing_ok=True)
    assert hdfs.remove("/out/a")
    with RunningAgent(tmp_path, text.replace("totalEvents = 3", "totalEvents = 1")) as agent:
        agent.until(lambda: hdfs.lines(), "the new event")
        assert agent.stop() == 0
    assert hdfs.lines() == ["0"]


@pytest.mark.drawn(1, of="paths")
def test_a_path_that_was_wrong_for_one_start_is_forgotten(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    right, wrong = f"file://{tmp_path}/right", f"file://{tmp_path}/file/wrong"
    for path in (right, wrong, right):
        with RunningAgent(tmp_path, configuration(tmp_path, None, path)) as agent:
            if path == wrong:
                agent.until(lambda: "Not a directory" in agent.failing().get("SINK.k1", ""), "the sink to fail")
                continue
            agent.until(lambda: agent.count("SINK.k1", "EventDrainSuccessCount"), "a commit")
            agent.wait_until_healthy()
            assert agent.stop() == 0
    lines = sorted(line for path in tmp_path.glob("right/FlumeData*") for line in path.read_text().splitlines())
    assert lines == sorted(["0", "1", "2"] * 3)


@pytest.mark.drawn(1, of="paths")
def test_a_commit_log_does_not_move_to_a_path_that_refuses_renames(tmp_path: Path, hdfs: ServedWebHdfs) -> None:
    """Directories and files can be created below the new path, which is repaired then."""
    refuse_renames(hdfs, "/wrong")
    for path in ("/right", "/wrong", "/right"):
        with RunningAgent(tmp_path, configuration(tmp_path, hdfs, path)) as agent:
            if path == "/wrong":
                agent.until(lambda: QUOTA in agent.failing().get("SINK.k1", ""), "the sink to fail")
                continue
            agent.until(lambda: agent.count("SINK.k1", "EventDrainSuccessCount"), "a commit")
            agent.wait_until_healthy()
            assert agent.stop() == 0
    assert hdfs.lines() == sorted(["0", "1", "2"] * 3)


def test_a_target_that_refuses_renames_is_detected_before_the_commit(tmp_path: Path, hdfs: ServedWebHdfs) -> None:
    """An encryption zone begins below the fixed part of the path; another path is the remedy."""
    refuse_renames(hdfs, "/out/a/")
    with RunningAgent(tmp_path, configuration(tmp_path, hdfs, "/out/%{app}")) as agent:
        agent.until(lambda: QUOTA in agent.failing().get("SINK.k1", ""), "the sink to fail")
        agent.process.kill()
        agent.process.wait()
    with RunningAgent(tmp_path, configuration(tmp_path, hdfs, "/out/other", 1)) as agent:
        agent.until(lambda: len(hdfs.lines()) == 4, "all events to be delivered")
        agent.wait_until_healthy()
        assert agent.stop() == 0
    assert hdfs.lines() == ["0", "0", "1", "2"]
    assert not [path for path in hdfs.tree.files if path.startswith("/out/a/")], "the try has left something"


@pytest.mark.drawn(1)
@pytest.mark.parametrize("what", ["the directory", "its parent", "a file"])
def test_staged_files_that_are_removed_are_staged_again(tmp_path: Path, what: str) -> None:
    """systemd-tmpfiles or an operator removes them while the agent runs."""
    text = configuration(tmp_path, None, f"file://{tmp_path}/out", sinks__k1__hdfs__rollInterval="3")
    with RunningAgent(tmp_path, text) as agent:
        agent.until(lambda: any(tmp_path.glob("staging/flafka-hdfs-*/0-*")), "a staged file")
        [directory] = tmp_path.glob("staging/flafka-hdfs-*")
        if what == "a file":
            for file in directory.glob("0-*"):
                file.unlink()
        else:
            shutil.rmtree(directory if what == "the directory" else directory.parent)
        agent.until(lambda: "were removed" in agent.log, "the sink to see it")
        agent.until(lambda: len(list(tmp_path.glob("out/FlumeData*"))), "a file")
        agent.wait_until_healthy()
        assert agent.stop() == 0
    lines = sorted(line for path in tmp_path.glob("out/FlumeData*") for line in path.read_text().splitlines())
    assert lines == ["0", "1", "2"]


@pytest.mark.parametrize("where", ["hdfs", "file"])
def test_events_whose_directory_is_a_file_become_dead_letters(
    tmp_path: Path, hdfs: ServedWebHdfs, where: str
) -> None:
    """A header value names a plain file, or a path below one; all other events are delivered."""
    names = ["ok/a", "taken", "taken/below/it", "ok/b"]
    if where == "hdfs":
        hdfs.tree.write("/out/taken", b"")
        text = configuration(tmp_path, hdfs, "/out/%{dir}")
    else:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "taken").touch()
        text = configuration(tmp_path, None, f"file://{tmp_path}/out/%{{dir}}")
    source = {"type": "http", "bind": "127.0.0.1", "port": "0"}
    text = "".join(line + "\n" for line in text.splitlines() if ".s1." not in line or line.endswith("channels = c1"))
    text += "".join(f"a1.sources.s1.{name} = {value}\n" for name, value in source.items())
    text += f"a1.sinks.k1.errors.tolerance = all\na1.deadletters.directory = {tmp_path}/dead\n"
    letters = tmp_path / "dead" / "a1.c1.deadletters.jsonl"
    with RunningAgent(tmp_path, text) as agent:
        address = f"http://127.0.0.1:{agent.port('s1')}/"
        events = [{"headers": {"dir": name}, "body": name} for name in names]
        assert requests.post(address, json=events, timeout=30).status_code == 200
        agent.until(letters.exists, "dead letters", 60)
        agent.wait_until_healthy()
        assert agent.stop() == 0
    entries = [json.loads(line) for line in letters.read_text().splitlines()]
    assert sorted(letter["headers"]["dir"] for letter in entries) == ["taken", "taken/below/it"]
    assert all("its file has no directory" in letter["reason"] for letter in entries)
    if where == "hdfs":
        assert hdfs.lines() == ["ok/a", "ok/b"]
    else:
        files = [path.read_text() for path in tmp_path.glob("out/ok/*/FlumeData*")]
        assert sorted(files) == ["ok/a\n", "ok/b\n"]


def test_a_stop_does_not_wait_for_a_namenode_that_never_answers(tmp_path: Path, hdfs: ServedWebHdfs) -> None:
    with RunningAgent(
        tmp_path, configuration(tmp_path, hdfs, "/out/%{app}", sinks__k1__hdfs__rollInterval="2")
    ) as agent:
        agent.until(lambda: any(tmp_path.glob("staging/flafka-hdfs-*/0-*")), "a staged file")
        hdfs.silent.set()
        before = len(hdfs.waiting)
        agent.until(lambda: len(hdfs.waiting) > before, "a call that is not answered", 60)
        begin = time.monotonic()
        agent.stop()
        assert time.monotonic() - begin < 15
    with (
        served_webhdfs() as recovered,
        RunningAgent(tmp_path, configuration(tmp_path, recovered, "/out/%{app}", 1)) as agent,
    ):
        agent.until(lambda: len(recovered.lines()) == 4, "all events to be delivered", 60)
        agent.wait_until_healthy()
        assert agent.stop() == 0
