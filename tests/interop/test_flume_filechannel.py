"""File channel of Apache Flume 1.11, from its own jars, and the import of its files into ours."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from flafka.agent.flumechannel.importing import import_events
from flafka.agent.services.running import RunningAgent, until
from flafka.channels.file import FileChannel, FileChannelConfig
from flafka.plugins import Retry
from tests.fixtures.ports import free_port
from tests.interop.filechannels import FileChannels, Story
from tests.interop.test_flume import delivered, flume, frames, listening, messages
from tests.system.running import send

CONFIGURATION = """
a1.sources = syslog
a1.channels = files
a1.sinks = out
a1.sources.syslog.type = syslogtcp
a1.sources.syslog.host = 127.0.0.1
a1.sources.syslog.port = {port}
a1.sources.syslog.channels = files
a1.channels.files.type = file
a1.channels.files.checkpointDir = {home}/checkpoint
a1.channels.files.dataDirs = {home}/data
a1.channels.files.capacity = 10000
a1.channels.files.minimumRequiredSpace = 1048576
a1.sinks.out.type = file_roll
a1.sinks.out.channel = files
a1.sinks.out.sink.directory = {home}/out
a1.sinks.out.sink.rollInterval = 0
"""
STORIES = 5


@pytest.fixture(scope="module")
def flumes(tmp_path_factory: pytest.TempPathFactory, servers: None) -> Iterator[FileChannels]:
    """Java program with Flume's channel."""
    with FileChannels(tmp_path_factory.mktemp("flumes")) as program:
        yield program


def test_our_import_agrees_with_flume(flumes: FileChannels, tmp_path: Path) -> None:
    """After kills at any moment each event that was put and not taken is imported once."""
    for seed in range(STORIES):
        Story(flumes, tmp_path / str(seed), seed).run()


def test_a_channel_that_flume_uses_is_left_alone(flumes: FileChannels, tmp_path: Path) -> None:
    story = Story(flumes, tmp_path, 1)
    story.start()
    config, _ = FileChannelConfig.parse({"checkpointDir": f"{story.home}/checkpoint", "dataDirs": f"{story.home}/a"})
    assert config is not None
    ours = FileChannel(config, "files")
    with pytest.raises(Retry, match="log-1 is open for writing in another process"):
        import_events(ours)
    assert flumes.request("close") == "closed"
    import_events(ours)
    ours.open()
    assert flumes.request(f"open checkpointDir={story.home}/checkpoint dataDirs={story.home}/a") == "failed"
    ours.close()


def test_a_team_moves_to_us_and_back(tmp_path: Path) -> None:
    """Our agent delivers the events of Flume's channel, and its own before Flume starts again."""
    (tmp_path / "out").mkdir()
    port = free_port()
    text = CONFIGURATION.format(port=port, home=tmp_path)
    theirs, without_sinks, ours = (tmp_path / name for name in ("theirs.conf", "full.conf", "ours.conf"))
    theirs.write_text(text)
    without_sinks.write_text(text.replace("a1.sinks = out", "a1.sinks ="))
    ours.write_text(text + "a1.monitoring.port = 0\n")
    all_of_them = Counter[bytes]()

    def sent(turn: str) -> int:
        send(port, frames(messages(turn)))
        all_of_them.update(messages(turn))
        return all_of_them.total()

    with flume(tmp_path, theirs):
        until(lambda: listening(port), "Flume to listen", seconds=100)
        count = sent("first")
        until(lambda: delivered(tmp_path / "out").total() >= count, "Flume to deliver")
    with flume(tmp_path, without_sinks):
        until(lambda: listening(port), "Flume to listen", seconds=100)
        sent("second")
        until(lambda: b"second 299" in logs(tmp_path / "data"), "Flume's channel to hold it")
    with RunningAgent(tmp_path, ours) as agent:
        agent.until(lambda: "agent migrate --import-channel files FILE" in str(agent.failing()), "a refusal")
        agent.stop()
    import_it = [sys.executable, "-m", "flafka", "migrate", "--import-channel", "files", str(ours)]
    imported = subprocess.run(import_it, capture_output=True, text=True, check=True).stdout
    assert "imported 300 undelivered events in this run" in imported
    with RunningAgent(tmp_path, ours) as agent:
        agent.port("syslog")
        count = sent("third")
        agent.until(lambda: delivered(tmp_path / "out").total() >= count, "ours to deliver")
        assert agent.stop() == 0
    assert delivered(tmp_path / "out") == all_of_them, "ours did not go on where Flume stopped"

    ours.write_text(ours.read_text().replace("a1.sinks = out", "a1.sinks ="))
    with RunningAgent(tmp_path, ours) as agent:
        agent.port("syslog")
        sent("fourth")
        agent.until(lambda: agent.count("SOURCE.syslog", "EventAcceptedCount") == 300, "the channel to hold it")
        assert agent.stop() == 0
    ours.write_text(text + "a1.monitoring.port = 0\n")
    with RunningAgent(tmp_path, ours, "-c", str(ours), "--drain") as agent:
        assert agent.wait_for_exit() == 0, agent.log
    with flume(tmp_path, theirs):
        until(lambda: listening(port), "Flume to listen", seconds=100)
        count = sent("fifth")
        until(lambda: delivered(tmp_path / "out").total() >= count, "Flume to deliver")
    assert delivered(tmp_path / "out") == all_of_them


def logs(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in directory.glob("log-?"))
