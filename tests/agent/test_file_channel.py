"""File channel in a running agent: killed, restarted, drained."""

import shlex
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from flafka.agent.cli import main
from flafka.agent.config import load, storage
from flafka.agent.services.running import RunningAgent
from flafka.agent.topology import ComponentSpec, ConfigLocation
from flafka.plugins import Batch, Components, Config, Source
from tests.fixtures.ports import free_port

CONFIGURATION = """
a1.sources = s
a1.channels = c
a1.sinks = {sinks}
a1.sources.s.type = netcat
a1.sources.s.bind = 127.0.0.1
a1.sources.s.port = 0
a1.sources.s.channels = c
a1.channels.c.type = org.apache.flume.channel.file.FileChannel
a1.channels.c.checkpointDir = {directory}/checkpoint
a1.channels.c.dataDirs = {directory}/data
a1.sinks.away.type = avro
a1.sinks.away.channel = c
a1.sinks.away.hostname = 127.0.0.1
a1.sinks.away.port = {port}
a1.sinks.out.type = file_roll
a1.sinks.out.channel = c
a1.sinks.out.sink.directory = {directory}/out
a1.sinks.out.sink.rollInterval = 0
a1.channels.c.minimumRequiredSpace = 1048576
a1.sinks.hdfs.type = hdfs
a1.sinks.hdfs.channel = c
a1.sinks.hdfs.hdfs.path = file://{directory}/out
a1.sinks.hdfs.hdfs.fileType = DataStream
a1.sinks.hdfs.hdfs.rollInterval = {roll}
a1.sinks.hdfs.hdfs.rollSize = 0
a1.sinks.hdfs.hdfs.rollCount = 0
"""


@pytest.mark.parametrize(
    "words", [["--new-ids"], ["--topic", "t"], ["--bootstrap-server", "host:9092"]], ids=lambda words: words[0]
)
def test_an_option_of_groups_in_kafka_is_refused_by_its_name(tmp_path: Path, words: list[str]) -> None:
    done = CliRunner().invoke(main, ["group", "reset", "c", "--checkpoint-dir", str(tmp_path), *words])
    assert done.exit_code == 2
    assert f"{words[0]} is for groups in Kafka" in done.output


def test_two_components_that_would_write_the_same_files_are_named(tmp_path: Path) -> None:
    file = tmp_path / "agent.conf"
    sources = "".join(
        f"a1.sources.{name}.type = taildir\na1.sources.{name}.channels = c d\n"
        f"a1.sources.{name}.filegroups = g\na1.sources.{name}.filegroups.g = /x/{name}\n"
        for name in ("s", "t")
    )
    file.write_text(
        f"a1.sources = s t\na1.channels = c d\na1.sinks = k l\n{sources}"
        "a1.channels.c.type = file\na1.channels.d.type = file\na1.channels.d.checkpointDir = /y\n"
        "a1.sinks.k.type = null\na1.sinks.k.channel = c\na1.sinks.l.type = null\na1.sinks.l.channel = d\n"
    )
    spec, diagnostics = load(file, components=Components())
    assert spec is None
    state = Path.home() / ".flume"
    assert [str(diagnostic).partition(": ")[2] for diagnostic in diagnostics] == [
        f"a1.sources.t: positionFile {state}/taildir_position.json is in use by a1.sources.s: each "
        "component needs its own; set a1.sources.t.positionFile = … to another path",
        f"a1.channels.d: dataDirs {state}/file-channel/data is in use by a1.channels.c: each component "
        "needs its own; set a1.channels.d.dataDirs = … to another path",
    ]


@pytest.mark.parametrize("kept", [[Path("/y/here")], (Path("/y/here"),), {Path("/y/here"): ""}])
def test_files_of_a_plugin_that_names_no_options_are_reported(kept: Any) -> None:
    class Kept(Source[Config]):
        def batches(self) -> Iterator[Batch]:
            raise NotImplementedError

        def exclusive_resources(self) -> Any:
            """Return resources as plugins do that name no options."""
            return kept

    first, other = (
        ComponentSpec(n, f"a1.sources.{n}", Kept, Config(), {}, ConfigLocation("a", 1)) for n in ("s", "t")
    )
    message = "/y/here is in use by a1.sources.s: each component needs its own"
    assert [*storage.shared_resources([first, other, first])] == [(other, message)]


@pytest.mark.usefixtures("servers")
def test_events_of_a_killed_agent_are_drained_by_the_next_one(tmp_path: Path) -> None:
    away = CONFIGURATION.format(directory=tmp_path, port=free_port(), sinks="away", roll=0)
    lines = [f"line {n}" for n in range(500)]
    with RunningAgent(tmp_path / "killed", away) as agent:
        with socket.create_connection(("127.0.0.1", agent.port("s"))) as client, client.makefile("rb") as answers:
            client.sendall("".join(line + "\n" for line in lines).encode())
            assert [answers.readline() for _ in lines] == [b"OK\n"] * len(lines)
        assert agent.count("CHANNEL.c", "ChannelSize") == len(lines)
        agent.process.kill()
        agent.wait_for_exit()

    (tmp_path / "out").mkdir()
    out = CONFIGURATION.format(directory=tmp_path, port=free_port(), sinks="out", roll=0)
    directory = tmp_path / "drained"
    with RunningAgent(directory, out, "-c", str(directory / "agent.conf"), "--drain") as agent:
        assert agent.wait_for_exit() == 0, agent.log
    delivered = [line for file in (tmp_path / "out").iterdir() for line in file.read_text().splitlines()]
    assert delivered == lines


def put(agent: RunningAgent, name: str, count: int) -> list[str]:
    """Send this many lines, and return them once all are acknowledged."""
    lines = [f"{name} {n}" for n in range(count)]
    with socket.create_connection(("127.0.0.1", agent.port("s"))) as client, client.makefile("rb") as answers:
        client.sendall("".join(line + "\n" for line in lines).encode())
        assert [answers.readline() for _ in lines] == [b"OK\n"] * count
    return lines


def delivered(directory: Path) -> list[str]:
    files = (directory / "out").rglob("FlumeData*")
    return sorted(line for file in files for line in file.read_text().splitlines())


@pytest.mark.usefixtures("servers")
def test_a_channel_that_is_restored_from_a_backup_delivers_each_event_once(tmp_path: Path) -> None:
    """The commit log on HDFS is ahead of the restored files, and has the numbers that new events get."""
    never, soon = (CONFIGURATION.format(directory=tmp_path, port=1, sinks="hdfs", roll=roll) for roll in (0, 1))
    with RunningAgent(tmp_path / "agent", never) as agent:
        sent = put(agent, "before the backup", 5)
        agent.process.kill()
        agent.wait_for_exit()
    for name in ("checkpoint", "data"):
        shutil.copytree(tmp_path / name, tmp_path / f"{name}-backup")
    with RunningAgent(tmp_path / "agent", soon) as agent:
        sent += put(agent, "after the backup", 20)
        agent.until(lambda: delivered(tmp_path) == sorted(sent), "all events")
        assert agent.stop() == 0
    for name in ("checkpoint", "data"):
        shutil.rmtree(tmp_path / name)
        (tmp_path / f"{name}-backup").rename(tmp_path / name)
    with RunningAgent(tmp_path / "agent", soon) as agent:
        sent += put(agent, "after the restore", 5)
        agent.until(lambda: len(delivered(tmp_path)) >= len(sent), "all events")
        assert agent.stop() == 0
        assert "was copied or restored" in agent.log
    assert delivered(tmp_path) == sorted(sent)


@pytest.mark.usefixtures("servers")
def test_a_missing_file_is_named_in_the_health_until_its_loss_is_accepted_and_does_not_delay_a_stop(
    tmp_path: Path,
) -> None:
    text = CONFIGURATION.format(directory=tmp_path, port=free_port(), sinks="away", roll=0)
    with RunningAgent(tmp_path / "agent", text) as agent:
        put(agent, "lost", 7)
        agent.stop()
    (path,) = (tmp_path / "data").glob("flafka-*.log")
    path.unlink()
    with RunningAgent(tmp_path / "agent", text) as agent:
        agent.until(lambda: "CHANNEL.c" in agent.failing(), "the channel to fail")
        reason = agent.failing()["CHANNEL.c"]
        assert reason.startswith(f"{path} is missing, with 7 undelivered events")
        checked = CliRunner().invoke(main, ["check", "--connect", "-c", str(agent.file)])
        assert reason in checked.output
        command = shlex.split(reason[reason.index("agent group reset") :])
        agent.until(lambda: CliRunner().invoke(main, [*command[1:], "--yes"]).exit_code == 0, "the reset")
        agent.port("s")
        assert agent.count("CHANNEL.c", "EventLostCount") == 7
        assert f"{path} is lost with 7 events, as accepted by an operator" in agent.degraded()["CHANNEL.c"]

        shutil.rmtree(tmp_path / "data")
        with socket.create_connection(("127.0.0.1", agent.port("s"))) as client:
            client.sendall(b"in hand\n")
            agent.until(lambda: agent.count("SOURCE.s", "ChannelWriteFail"), "the put to fail")
            began = time.monotonic()
            agent.stop()
            assert time.monotonic() - began < 20, "it waited for a disk that a person has to mend"
        assert "stopped before 1 events could be stored" in agent.log
