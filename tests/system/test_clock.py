"""A clock of day that jumps, as NTP or an administrator has it do, under a real agent: nothing is lost or twice."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from agent.services.hdfs import HdfsCluster
from agent.services.kafka import KafkaCluster
from agent.services.running import RunningAgent, until
from tests.interop.debian import unpacked
from tests.system.running import hdfs_sink, in_hdfs, kafka_channel, unique

JUMPS = ("+5h", "-7h", "-1y", "+0")
"""Of the clock, each from where it really is."""
EACH = 40


@pytest.fixture
def clock(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A file that says how wrong the clock goes, and the environment in which programs have that clock."""
    program, libraries = unpacked("faketime", "faketime", "libfaketime")
    places = [Path(place) for place in libraries.get("LD_LIBRARY_PATH", "").split(":") if place]
    places += program.parent.parent.glob("lib/**/faketime")
    library = next(found for place in places if (found := place / "libfaketimeMT.so.1").exists())
    file = tmp_path / "clock"
    return file, {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",  # the clock of the file system stays right, as one on another host does
    }


def test_a_clock_that_jumps(
    clock: tuple[Path, dict[str, str]], tmp_path: Path, kafka_cluster: KafkaCluster, hdfs_cluster: HdfsCluster
) -> None:
    file, environment = clock
    topic, root, log = unique("clock"), unique("/clock"), tmp_path / "app.log"
    configuration = f"""
a1.sources = app
a1.channels = c1
a1.sinks = k1
a1.sources.app.type = taildir
a1.sources.app.channels = c1
a1.sources.app.filegroups = app
a1.sources.app.filegroups.app = {tmp_path}/app[.]log
a1.sources.app.positionFile = {tmp_path}/positions.json
{kafka_channel(kafka_cluster.bootstrap_servers, topic)}
{hdfs_sink(hdfs_cluster.webhdfs, f"{root}/%Y-%m-%d-%H")}
a1.sinks.k1.hdfs.useLocalTimeStamp = true
"""
    file.write_text("+0")
    wanted = Counter[bytes]()
    log.touch()
    with RunningAgent(tmp_path / "a", configuration, environment=environment) as agent:
        for number, jump in enumerate(("+0", *JUMPS)):
            _say(file, jump)
            if number == 2:
                log.rename(tmp_path / "app.log.1")
            lines = [b"%d %d" % (number, line) for line in range(EACH)]
            with log.open("ab") as writing:
                writing.writelines(line + b"\n" for line in lines)
            wanted.update(lines)
            until(lambda: not wanted - Counter(in_hdfs(hdfs_cluster, root)), f"what came at {jump} to be delivered")
        assert agent.process.poll() is None
        agent.stop()
    assert Counter(in_hdfs(hdfs_cluster, root)) == wanted
    assert "Traceback" not in agent.log


def _say(file: Path, offset: str) -> None:
    """At once: who reads it half written has the right time."""
    new = file.with_name("new")
    new.write_text(offset)
    new.replace(file)
    time.sleep(0.2)  # those who have just asked for the time
