"""`logrotate` itself, which rotates files that writers write and a real agent tails: no line is lost."""

from __future__ import annotations

import gzip
import re
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from flafka.agent.services.running import RunningAgent
from tests.interop.debian import program

ROTATIONS = 6
RULES = {
    "create": "create\n delaycompress\n compress",
    "create, compressed at once": "create\n compress",
    "copytruncate": "copytruncate",
    "copytruncate, compressed at once": "copytruncate\n compress",
}
CONFIGURATION = """
a1.sources = files
a1.channels = memory
a1.sinks = out
a1.channels.memory.type = memory
a1.channels.memory.capacity = 1000000
a1.sources.files.type = TAILDIR
a1.sources.files.channels = memory
a1.sources.files.filegroups = logs
a1.sources.files.filegroups.logs = {logs}/{pattern}
a1.sources.files.positionFile = {home}/positions.json
a1.sources.files.backoffSleepIncrement = 100
a1.sources.files.maxBackoffSleep = 200
a1.sinks.out.type = file_roll
a1.sinks.out.channel = memory
a1.sinks.out.sink.directory = {out}
a1.sinks.out.sink.rollInterval = 0
"""


class Writer(threading.Thread):
    """Daemon that writes numbered lines into one open file until its `reopen` is set."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self.path = path
        self.written = 0
        self.reopen, self.end = threading.Event(), threading.Event()
        self.pause, self.paused = threading.Event(), threading.Event()

    def run(self) -> None:
        file = self.path.open("ab", buffering=0)
        while not self.end.is_set():
            if self.reopen.is_set():
                file.close()
                file = self.path.open("ab", buffering=0)
                self.reopen.clear()
            if self.pause.is_set():
                self.paused.set()
                time.sleep(0.001)
                continue
            self.paused.clear()
            lines = [
                b"%s %08d %s\n" % (self.path.name.encode(), self.written + i, b"." * (i % 90)) for i in range(20)
            ]
            file.write(b"".join(lines))
            self.written += len(lines)
            time.sleep(0.002)
        file.close()


def written_by(writer: Writer) -> set[bytes]:
    return {b"%s %08d" % (writer.path.name.encode(), number) for number in range(writer.written)}


@pytest.mark.drawn(2)
@pytest.mark.parametrize("rule", RULES)
def test_under_load(rule: str, tmp_path: Path) -> None:
    logrotate, environment = program("logrotate", "logrotate", "libpopt0")
    logs, out = tmp_path / "logs", tmp_path / "out"
    logs.mkdir()
    out.mkdir()
    writers = [Writer(logs / "app.log"), Writer(logs / "db.log")]
    script = tmp_path / "rotate.conf"
    script.write_text(f'"{logs}/*.log" {{\n rotate 20\n size 1\n {RULES[rule]}\n}}\n')
    truncates = "copytruncate" in rule
    # A copy that matches is a file of its own, in Flume as here; a renamed file is still the same one.
    pattern = "[a-z]+[.]log" if truncates else "[a-z]+[.]log([.][0-9]+)?([.]gz)?"
    configuration = CONFIGURATION.format(logs=logs, pattern=pattern, home=tmp_path, out=out)

    def delivered() -> Iterator[bytes]:
        for file in out.iterdir():
            yield from file.read_bytes().splitlines()

    def lines() -> int:
        return sum(writer.written for writer in writers)

    for writer in writers:
        writer.start()
    with RunningAgent(tmp_path / "a", configuration) as agent:
        for _ in range(ROTATIONS):
            target = lines() + 1000
            # A compressed file cannot be read any more, so the agent must have found it before; as on any host.
            agent.until(
                lambda target=target: agent.count("SOURCE.files", "EventAcceptedCount") >= target, "it keeps up"
            )
            if truncates:
                # Lines between the copy and the truncation of logrotate are lost: no reader could have them.
                for writer in writers:
                    writer.pause.set()
                assert all(writer.paused.wait(10) for writer in writers)
                agent.until(lambda: agent.count("SOURCE.files", "EventAcceptedCount") >= lines(), "all is read")
            command = [str(logrotate), "--force", "--state", str(tmp_path / "state"), str(script)]
            result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
            assert result.returncode == 0, result.stderr
            for writer in writers:
                writer.reopen.set()
                writer.pause.clear()
        for writer in writers:
            writer.end.set()
            writer.join()
        agent.until(lambda: agent.count("SINK.out", "EventDrainSuccessCount") >= lines(), "every line is delivered")
        assert agent.stop() == 0

    rotated = [path for path in logs.iterdir() if re.search(r"\.log\.\d+", path.name)]
    assert len(rotated) == 2 * ROTATIONS
    # With immediate compression the last lines of a writer are only in the file before its removal.
    seen = Counter(line.rpartition(b" ")[0] for line in delivered())
    assert set(seen) == written_by(writers[0]) | written_by(writers[1])
    assert max(seen.values()) == 1


def test_copytruncate_under_a_writer_that_does_not_append(tmp_path: Path) -> None:
    logrotate, environment = program("logrotate", "logrotate", "libpopt0")
    logs, out = tmp_path / "logs", tmp_path / "out"
    logs.mkdir()
    out.mkdir()
    script = tmp_path / "rotate.conf"
    script.write_text(f'"{logs}/app.log" {{\n rotate 9\n size 1\n copytruncate\n}}\n')
    configuration = CONFIGURATION.format(logs=logs, pattern="app[.]log", home=tmp_path, out=out)
    lines = [b"line %06d %s" % (number, b"." * 200) for number in range(9000)]
    with RunningAgent(tmp_path / "a", configuration) as agent, (logs / "app.log").open("wb", buffering=0) as writer:
        for start in range(0, len(lines), 3000):
            writer.write(b"".join(line + b"\n" for line in lines[start : start + 3000]))
            count = start + 3000
            agent.until(lambda count=count: agent.count("SINK.out", "EventDrainSuccessCount") >= count, "all is read")
            command = [str(logrotate), "--force", "--state", str(tmp_path / "state"), str(script)]
            subprocess.run(command, env=environment, capture_output=True, timeout=60, check=True)
        assert agent.count("SOURCE.files", "NulByteCount") == (3000 + 6000) * (len(lines[0]) + 1)
        assert agent.stop() == 0
        assert agent.log.count("NUL bytes") == 1
    assert [line for file in sorted(out.iterdir()) for line in file.read_bytes().splitlines()] == lines


def test_shipped_rules_rotate_tailed_files_and_the_agents_own_log(tmp_path: Path) -> None:
    logrotate, environment = program("logrotate", "logrotate", "libpopt0")
    logs, out = tmp_path / "app", tmp_path / "out"
    logs.mkdir()
    out.mkdir()
    shipped = (Path(__file__).parents[2] / "conf" / "logrotate-flafka.conf").read_text()
    script = tmp_path / "rotate.conf"
    script.write_text(shipped.replace("/var/log/", f"{tmp_path}/"))
    configuration = CONFIGURATION.format(logs=logs, pattern="app[.]log", home=tmp_path, out=out)
    own = tmp_path / "flafka" / "agent.log"
    with RunningAgent(own.parent, configuration) as agent:
        agent.wait_until_healthy()
        for number in range(3):
            (logs / "app.log").write_text(f"line {number}\n")
            lines = number + 1
            agent.until(lambda lines=lines: agent.count("SINK.out", "EventDrainSuccessCount") >= lines, "it arrives")
            command = [str(logrotate), "--force", "--state", str(tmp_path / "state"), str(script)]
            result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
            assert result.returncode == 0, result.stderr
            assert own.stat().st_size == 0, "copied, and cut"
        assert agent.stop() == 0
    assert own.read_text().startswith("20"), "the agent appends to what is left: no hole of NULs before its lines"
    assert "a1 runs" in gzip.decompress((own.parent / "agent.log.1.gz").read_bytes()).decode()
    assert sorted(path.name for path in logs.iterdir()) == ["app.log", "app.log.1", "app.log.2.gz", "app.log.3.gz"]
    assert sorted(line for file in out.iterdir() for line in file.read_bytes().splitlines()) == [
        b"line 0",
        b"line 1",
        b"line 2",
    ]
