"""Apache Flume 1.11, from its own jars, and our agent tailing the same files with one position file, in turns."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from flafka.agent.services.running import RunningAgent, until
from tests.interop.test_flume import delivered, flume

CONFIGURATION = """
a1.sources = files
a1.channels = memory
a1.sinks = out
a1.sources.files.type = TAILDIR
a1.sources.files.channels = memory
a1.sources.files.filegroups = logs
a1.sources.files.filegroups.logs = {logs}/[a-z]+[.]log.*
a1.sources.files.positionFile = {positions}
a1.channels.memory.type = memory
a1.channels.memory.capacity = 10000
a1.channels.memory.transactionCapacity = 1000
a1.sinks.out.type = file_roll
a1.sinks.out.channel = memory
a1.sinks.out.sink.directory = {out}
a1.sinks.out.sink.rollInterval = 0
"""


def test_a_team_moves_to_us_and_back_and_to_us_again(tmp_path: Path) -> None:
    """Each continues at the other's offset; lines written meanwhile are read once, whether or not files rotate."""
    logs, out, home = tmp_path / "logs", tmp_path / "out", tmp_path / "home"
    for directory in (logs, out, home):
        directory.mkdir()
    configuration = home / "flume.conf"
    configuration.write_text(CONFIGURATION.format(logs=logs, positions=tmp_path / "positions.json", out=out))
    ours = home / "ours.conf"
    ours.write_text(configuration.read_text() + "a1.monitoring.port = 0\n")
    written = Counter[bytes]()

    def write(turn: str) -> None:
        for name in ("app.log", "db.log"):
            lines = [f"{name} {turn} {number} grüße".encode() for number in range(300)]
            written.update(lines)
            with (logs / name).open("ab") as file:
                file.write(b"".join(line + b"\n" for line in lines))

    def all_delivered() -> bool:
        return delivered(out).total() >= written.total()

    write("before Flume")
    with flume(home, configuration):
        until(all_delivered, "Flume to deliver", seconds=100)
        write("in Flume")
        until(all_delivered, "Flume to go on")
    assert delivered(out) == written

    write("between Flume and ours")
    with RunningAgent(home, ours) as agent:
        agent.until(all_delivered, "ours to go on")
        (logs / "app.log").rename(logs / "app.log.1")
        write("in ours")
        agent.until(all_delivered, "ours to read on")
        assert agent.stop() == 0
    assert delivered(out) == written, "ours did not go on where Flume stopped"

    write("between ours and Flume")
    with flume(home, configuration):
        until(all_delivered, "Flume to go on where ours stopped", seconds=100)
    assert delivered(out) == written, "Flume did not go on where ours stopped"

    write("at last")
    with RunningAgent(home, ours) as agent:
        agent.until(all_delivered, "ours to go on again")
        assert agent.stop() == 0
    assert delivered(out) == written
