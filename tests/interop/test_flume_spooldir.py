"""Apache Flume 1.11, from its own jars, and our agent on one spooling directory, in turns."""

from __future__ import annotations

import io
import os
from collections import Counter
from pathlib import Path

import fastavro
import pytest

from agent.services.running import RunningAgent, until
from tests.interop.test_flume import delivered, flume

CONFIGURATION = """
a1.sources = files
a1.channels = memory
a1.sinks = out
a1.sources.files.type = spooldir
a1.sources.files.channels = memory
a1.sources.files.spoolDir = {spool}
a1.sources.files.trackingPolicy = {policy}
a1.sources.files.batchSize = 10
a1.sources.files.recursiveDirectorySearch = true
a1.channels.memory.type = memory
a1.channels.memory.capacity = {capacity}
a1.channels.memory.transactionCapacity = 100
a1.channels.memory.keep-alive = 1
a1.sinks.out.type = file_roll
a1.sinks.out.channel = memory
a1.sinks.out.sink.directory = {out}
a1.sinks.out.sink.rollInterval = 0
"""


def put(spool: Path, name: str, lines: list[bytes], age: float) -> Counter[bytes]:
    """As a program puts a file there: whole."""
    path = spool / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name(".written").write_bytes(b"".join(line + b"\n" for line in lines))
    os.utime(path.with_name(".written"), (1_700_000_000 - age, 1_700_000_000 - age))
    path.with_name(".written").rename(path)
    return Counter(lines)


def offset(spool: Path) -> int:
    """What the tracker says; 0 before it says anything."""
    try:
        data = (spool / ".flumespool" / ".flumespool-main.meta").read_bytes()
        return [0, *(int(record["offset"]) for record in fastavro.reader(io.BytesIO(data)))][-1]
    except (FileNotFoundError, ValueError, EOFError):
        return 0


@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize("policy", ["rename", "tracker_dir"])
def test_a_team_moves_to_us_and_back_and_to_us_again(tmp_path: Path, policy: str) -> None:
    """Each goes on where the other stopped, within a file, and knows which files the other has read."""
    spool, out, home = tmp_path / "spool", tmp_path / "out", tmp_path / "home"
    for directory in (spool, out, home):
        directory.mkdir()
    full = home / "full.conf"
    drained = home / "drained.conf"
    # Without a sink the channel fills up, so that whoever reads stops within a file.
    text = CONFIGURATION.format(spool=spool, policy=policy, out=out, capacity=10_000)
    drained.write_text(text)
    full.write_text(
        CONFIGURATION.format(spool=spool, policy=policy, out=out, capacity=100).replace(
            "a1.sinks = out", "a1.sinks ="
        )
    )
    ours, ours_full = home / "ours.conf", home / "ours-full.conf"
    ours.write_text(drained.read_text() + "a1.monitoring.port = 0\n")
    ours_full.write_text(full.read_text() + "a1.monitoring.port = 0\n")

    def lines(name: str, count: int) -> list[bytes]:
        return [f"{name} {number} grüße".encode() for number in range(count)]

    everything = put(spool, "a", lines("a", 300), age=900)
    size = (spool / "a").stat().st_size
    with flume(home, full):
        until(lambda: offset(spool) >= size // 4, "Flume's channel to fill")
    lost_in_memory = offset(spool)
    assert 0 < lost_in_memory < size
    everything = Counter(line for line in everything if line not in lines("a", 100))
    with RunningAgent(home, ours) as agent:
        agent.until(lambda: delivered(out).total() >= everything.total(), "ours to go on")
        everything += put(spool, "sub/b", lines("b", 50), age=800)
        agent.until(lambda: delivered(out).total() >= everything.total(), "ours to read a sub-directory")
        assert agent.stop() == 0
    assert delivered(out) == everything, "ours did not go on where Flume stopped"

    everything += put(spool, "c", lines("c", 20), age=700)
    with flume(home, drained):
        until(lambda: delivered(out).total() >= everything.total(), "Flume to go on where ours stopped", seconds=100)
        marks = spool if policy == "rename" else spool / ".flumespool"
        until(lambda: (marks / "c.COMPLETED").exists(), "Flume to mark the file")
    assert delivered(out) == everything, "Flume does not know what ours has read"
    everything += put(spool, "d", lines("d", 20), age=600)
    with RunningAgent(home, ours) as agent:
        agent.until(lambda: delivered(out).total() >= everything.total(), "ours to go on again")
        assert agent.stop() == 0
    assert delivered(out) == everything
