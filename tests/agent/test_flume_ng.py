"""`agent flume-ng`, and a link named flume-ng: the command line of Flume's launcher."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from flafka.agent.cli import main
from flafka.agent.config import load
from flafka.agent.runner.agent import Agent
from flafka.agent.services.running import until
from flafka.plugins import Components
from tests.fixtures.ports import free_port

CONF = """
a1.sources = s1
a1.channels = c1
a1.sinks = k1
a1.sources.s1.type = seq
a1.sources.s1.totalEvents = 3
a1.sources.s1.channels = c1
a1.channels.c1.type = memory
a1.sinks.k1.type = file_roll
a1.sinks.k1.sink.directory = ${sys:out}
a1.sinks.k1.channel = c1
a1.monitoring.port = 0
other.sources = s1
"""
OPTIONS = ["-n", "a1", "-f", "flume.conf"]


def run(*words: str, text: str = "") -> Result:
    return CliRunner().invoke(main, ["flume-ng", *words], input=text)


@pytest.fixture
def launcher(tmp_path: Path) -> Path:
    """A link named flume-ng to the command `agent` of this Python."""
    command = Path(sys.executable).with_name("agent")
    if not command.exists():
        pytest.skip(f"{command} is not installed")
    (tmp_path / "bin").mkdir()
    link = tmp_path / "bin/flume-ng"
    link.symlink_to(command)
    return link


def test_a_link_starts_the_agent_and_sigterm_ends_it(launcher: Path, tmp_path: Path) -> None:
    (tmp_path / "flume.conf").write_text(CONF)
    (tmp_path / "conf").mkdir()
    (tmp_path / "out").mkdir()
    words = ["agent", "--conf", "conf", "-conf-file", "flume.conf", "--name", "a1", "-Xmx1g", f"-Dout={tmp_path}/out"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen([launcher, *words], cwd=tmp_path, stdout=log, stderr=log)
    try:
        until(lambda: delivered(tmp_path / "out") == "0\n1\n2\n", "three events in a file")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, (tmp_path / "log").read_text()
    finally:
        process.kill()
        process.wait()
    assert "flume-ng: -X has no effect: there is no JVM" in (tmp_path / "log").read_text()


def delivered(directory: Path) -> str:
    return "".join(file.read_text() for file in sorted(directory.iterdir()))


def test_the_link_shows_its_own_name(launcher: Path) -> None:
    def output(*words: str) -> str:
        return subprocess.run([launcher, *words], capture_output=True, text=True, check=True, timeout=60).stdout

    assert "Usage: flume-ng agent [OPTIONS]" in output("agent", "--help")
    assert output("version").startswith("Flafka ")
    assert "avro-client" in output("help")


def test_a_launcher_is_not_installed_beside_the_agent() -> None:
    """A launcher on the PATH of an activated environment would hide the one of Flume."""
    assert not Path(sys.executable).with_name("flume-ng").exists()


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (OPTIONS, "agent start -n a1 -f flume.conf"),
        (["-name", "a1", "-conf-file", "flume.conf"], "agent start -n a1 -f flume.conf"),
        (["--name=a1", "-u", "file:///etc/flume.conf"], "agent start -n a1 -f /etc/flume.conf"),
        ([*OPTIONS, "-f", "more.conf", "-c", "conf"], "agent start -n a1 -f flume.conf -f more.conf -c conf"),
        ([*OPTIONS, "--no-reload-conf"], "agent start -n a1 -f flume.conf --no-reload-conf"),
        ([*OPTIONS, "-Da.b=c d"], "agent start -n a1 -f flume.conf '-Da.b=c d'"),
        (
            [*OPTIONS, "-Dflume.root.logger=DEBUG,console"],
            "agent start -n a1 -f flume.conf -Dflume.root.logger=DEBUG,console --log-level DEBUG",
        ),
    ],
)
def test_a_dry_run_prints_the_command(words: list[str], command: str) -> None:
    for name in ("agent", "node"):
        result = run(name, *words, "--dryrun")
        assert (result.exit_code, result.output) == (0, f"{command}\n")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["agent", "-n", "a1"], "which configuration? Name it with -f FILE"),
        (["agent", "-f", "flume.conf"], "Missing option '-n' / '--name'."),
        (["agent", "-n", "a1", "-z", "zk:2181", "-p", "/flume"], "configurations in ZooKeeper are not read"),
        (["agent", "-n", "a1", "-u", "https://host/flume.conf"], "only files are read"),
        (["agent", "-n", "a1", "-prov", "com.example.Mine"], "classes that provide configurations are not loaded"),
        (["agent", *OPTIONS, "--nonsense"], "No such option"),
        (["avro-client", "-H", "host"], "Name it with --host and --port, or with --rpcProps FILE"),
        (["avro-client", "--dirname", "in"], "with a source of type = spooldir"),
        (["avro-client", "-P", "absent.properties"], "absent.properties cannot be read: No such file"),
        (
            ["avro-client", "-H", "127.0.0.1", "-p", "1", "-F", __file__],
            "127.0.0.1:1: Connection refused; 0 events were stored",
        ),
        (["password", "-f", "x"], "obscured passwords are not read"),
        (["tool", "fcintegrity", "-l", "dir"], "agent migrate --import-channel"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(words: list[str], sentence: str) -> None:
    result = run(*words, text="line\n")
    assert result.exit_code != 0
    assert sentence in result.output
    assert result.output.splitlines()[-1].startswith("Error: ")


def test_what_has_no_effect_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "flume-env.sh").touch()
    started: list[list[str]] = []
    monkeypatch.setattr("flafka.agent.cli.start.start.main", lambda words, **_: started.append(words))
    words = ["-C", "lib", "--plugins-path", "plugins.d", "-Xms1g", "-Xmx2g", "-i", "5", "-b", "dir", "-a", "A"]
    result = run("agent", *OPTIONS, "-c", str(tmp_path), *words)
    assert started == [["-n", "a1", "-f", "flume.conf", "-c", str(tmp_path)]]
    assert [line.split(" ", 3)[1] for line in result.stderr.splitlines()] == [
        *("--classpath", "--plugins-path", "-X", "--poll-interval", f"{tmp_path}/flume-env.sh")
    ]


@pytest.fixture
def source(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """Port of an avro source, and the directory that gets its events as JSON."""
    port, out = free_port(), tmp_path / "out"
    out.mkdir()
    file = tmp_path / "collector.conf"
    file.write_text(
        CONF.replace("type = seq", f"type = avro\na1.sources.s1.bind = 127.0.0.1\na1.sources.s1.port = {port}")
        .replace("a1.sources.s1.totalEvents = 3\n", "")
        .replace("${sys:out}", f"{out}\na1.sinks.k1.sink.serializer = HEADER_AND_TEXT")
    )
    spec, problems = load(file, "a1", components=Components())
    assert spec is not None, problems
    agent = Agent(spec)
    agent.start()
    try:
        until(lambda: not agent.registry.waiting(), "the source to be open")
        yield port, out
    finally:
        assert agent.stop()


def test_lines_of_a_file_with_headers_reach_an_avro_source(source: tuple[int, Path], tmp_path: Path) -> None:
    port, out = source
    (tmp_path / "lines").write_bytes(b"first\r\n\nlast \xff")
    (tmp_path / "headers").write_text("# of each event\nhost = web-1\n")
    words = ["-H", "127.0.0.1", "-p", str(port), "-F", str(tmp_path / "lines"), "-R", str(tmp_path / "headers")]
    result = run("avro-client", *words)
    assert (result.exit_code, result.output) == (0, "3 events sent\n")
    until(lambda: read(out).count(b"web-1") == 3, "three events")
    assert [line.rpartition(b"} ")[2] for line in read(out).splitlines()] == [b"first", b"", b"last \xff"]


def read(directory: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(directory.iterdir()))


def test_a_pipe_that_stays_open_is_sent_at_once(source: tuple[int, Path], tmp_path: Path) -> None:
    port, out = source
    (tmp_path / "rpc").write_text(f"client.type = default\nhosts = h1\nhosts.h1 = 127.0.0.1:{port}\nbatch-size = 2\n")
    command = [sys.executable, "-m", "flafka", "flume-ng", "avro-client", "--rpcProps", str(tmp_path / "rpc")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ) as process:
        assert process.stdin is not None
        process.stdin.write(b"1\n2\n3\n")
        process.stdin.flush()
        until(lambda: read(out).splitlines() == [b"{} 1", b"{} 2", b"{} 3"], "three events")
        _, log = process.communicate(timeout=60)
    assert (process.returncode, log) == (0, b"3 events sent\n")


def test_options_of_a_client_are_checked(tmp_path: Path) -> None:
    for text, message in (
        ("hosts = h1\nhosts.h1 = host:70000\n", "port: "),
        ("hosts = h1 h2\n", "hosts must name one host"),
        ("client.type = thrift\n", "client.type = thrift is not built"),
    ):
        (tmp_path / "rpc").write_text(text)
        result = run("avro-client", "-P", str(tmp_path / "rpc"))
        assert result.exit_code == 1
        assert message in result.output
