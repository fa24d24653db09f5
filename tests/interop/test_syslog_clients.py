"""rsyslog, syslog-ng and its `loggen` send to real agents: TCP in both framings, UDP, and TLS with certificates.

Over TCP each message must arrive once, also when the agent and the sender were stopped in between.
"""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from flafka.agent.services import ServiceError
from flafka.agent.services.running import RunningAgent, free_ports, until
from tests.interop.debian import program
from tests.plugins.certificates import certificate
from tests.system.running import ROOT, agent_command, connected

RSYSLOG = ("rsyslog", "rsyslog-openssl", "libestr0", "libfastjson4", "liblognorm5")
SYSLOG_NG = ("syslog-ng-core", "libivykis0", "libnet1", "libpcre3", "libwrap0")
RSYSLOG_CONF = """
global(workDirectory="{home}")
# On a busy machine it has not handed on all it has read when it is stopped, and drops the rest after 1.5 s.
main_queue(queue.type="LinkedList" queue.timeoutShutdown="60000")
module(load="imtcp")
input(type="imtcp" address="127.0.0.1" port="{port}")
include(file="{snippet}")
template(name="old" type="string" string="<%PRI%>%TIMESTAMP% %HOSTNAME% %programname% - - - %msg%")
{forward}
if $programname == "first" then
    action(type="omfwd" protocol="udp" target="127.0.0.1" port="{udp}" template="RSYSLOG_SyslogProtocol23Format")
"""
RSYSLOG_FORWARD = """
action(type="omfwd" protocol="tcp" target="127.0.0.1" port="{port}" TCP_Framing="{framing}" template="{template}"
       action.resumeRetryCount="-1" action.resumeInterval="2" queue.type="LinkedList" queue.size="50000"
       queue.filename="{framing}" queue.saveOnShutdown="on")
"""
SYSLOG_NG_CONF = """
@version: 3.35
options {{ stats-freq(0); }};
source s_src {{ network(ip("127.0.0.1") port({port}) transport("tcp") flags(syslog-protocol)); }};
@include "{snippet}"
"""


def pipelines(directory: Path, **sources: str) -> str:
    """Return lines of agent `a1`: each source with its options, a memory channel, and a directory of the source's
    name."""
    lines = [f"a1.{kind} = {' '.join(sources)}" for kind in ("sources", "channels", "sinks")]
    for name, options in sources.items():
        lines += [f"a1.sources.{name}.{option.strip()}" for option in options.split(";")]
        lines += [
            f"a1.sources.{name}.host = 127.0.0.1",
            f"a1.sources.{name}.channels = {name}",
            f"a1.channels.{name}.type = memory",
            f"a1.channels.{name}.capacity = 100000",
            f"a1.sinks.{name}.type = file_roll",
            f"a1.sinks.{name}.channel = {name}",
            f"a1.sinks.{name}.sink.directory = {directory / name}",
            f"a1.sinks.{name}.sink.rollInterval = 0",
        ]
    return "\n".join(lines)


def bodies(directory: Path) -> Counter[bytes]:
    return Counter(line for file in directory.glob("*") for line in file.read_bytes().splitlines())


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with the certificates that the shipped files name."""
    agent, host = (certificate(tmp_path_factory.mktemp(name), whose=name) for name in ("agent", "host"))
    directory = tmp_path_factory.mktemp("certificates")
    for name, source in {
        "agent.pem": agent / "server.pem",
        "authority.pem": agent / "server.crt",
        "hosts.pem": host / "server.crt",
        "host.crt": host / "server.crt",
        "host.key": host / "server.key",
    }.items():
        (directory / name).write_bytes(source.read_bytes())
    return directory


def snippet(name: str, directory: Path, certificates: Path, port: int) -> Path:
    """Return a file of conf/ with a user's own names."""
    text = (ROOT / "conf" / name).read_text()
    for old, new in {
        "flafka.example.com": "localhost",
        "6514": str(port),
        "/etc/flafka": str(certificates),
        "/var/lib/syslog-ng": str(directory),
    }.items():
        text = text.replace(old, new)
    assert str(port) in text
    (directory / name).write_text(text)
    return directory / name


def shipped(directory: Path, certificates: Path, port: int) -> RunningAgent:
    """Agent of conf/syslog-tls.conf, which writes into `directory`."""
    environment = {
        "SYSLOG_HOST": "127.0.0.1",
        "SYSLOG_PORT": str(port),
        "SYSLOG_CERTIFICATES": str(certificates),
        "SYSLOG_DIR": str(directory),
        "SYSLOG_METRICS_PORT": "0",
    }
    checked = agent_command("check", "-c", "conf/syslog-tls.conf", environment=environment)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    return RunningAgent(directory.with_name("shipped"), ROOT / "conf/syslog-tls.conf", environment=environment)


@contextlib.contextmanager
def daemon(command: Sequence[str | Path], environment: dict[str, str], port: int, log: Path) -> Iterator[None]:
    """Run a syslog daemon in the foreground from the moment it listens; stop it as an operator does."""
    with log.open("ab") as output:
        process = subprocess.Popen([str(word) for word in command], env=environment, stdout=output, stderr=output)

    def listens_or_ended() -> bool:
        with contextlib.suppress(OSError), connected(port):
            return True
        return process.poll() is not None

    try:
        until(listens_or_ended, f"{command[0]} to listen")
        assert process.poll() is None, log.read_text(errors="replace")
        yield
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def hand_over(port: int, tag: str, count: int) -> list[bytes]:
    """Give a daemon this many messages and wait until it has read them; return the expected bodies."""
    texts = [f"{tag} - - - {number:06} grüße".encode() for number in range(count)]
    with connected(port) as connection:
        connection.sendall(b"".join(b"<13>1 2026-01-02T03:04:05.678Z web %s\n" % text for text in texts))
        connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            assert connection.recv(1) == b""
    return texts


def check_round_trip(
    start: Callable[[], contextlib.AbstractContextManager[object]],
    agents: Callable[[], Sequence[RunningAgent]],
    port: int,
    outputs: Sequence[Path],
    notices: Callable[[object], bool],
    *,
    repeats: int = 0,
) -> None:
    """Send, stop the agents, send, restart the daemon, start the agents and send: each output has each message once.

    Plain syslog has no acknowledgements, so messages with which a daemon detects the stopped agent may be lost;
    `notices` returns True after that. Up to `repeats` messages in flight at that time may be there twice.
    """

    away: list[bytes] = []

    def all_there(*sent: list[bytes]) -> None:
        expected = Counter(text for texts in sent for text in texts)
        with contextlib.suppress(ServiceError):
            until(lambda: all(not expected - bodies(output) for output in outputs), "all")
        for output in outputs:
            received = bodies(output)
            assert not expected - received, output.name
            repeated = Counter(
                {text: number for text, number in (received - expected).items() if not text.startswith(b"noticed")}
            )
            assert repeated.keys() <= set(away), output.name
            assert repeated.total() <= repeats, output.name

    with contextlib.ExitStack() as running:
        running_agents = [running.enter_context(agent) for agent in agents()]
        for agent in running_agents:
            agent.port("syslog")
        with start():
            first = hand_over(port, "first", 2000)
            all_there(first)
            for agent in running_agents:
                assert agent.stop() == 0
            until(lambda: notices(hand_over(port, "noticed", 1)), "the daemon to notice")
            away = hand_over(port, "away", 1000)
    with contextlib.ExitStack() as running:
        running.enter_context(start())
        for agent in agents():
            running.enter_context(agent).port("syslog")
        all_there(first, away)
        later = hand_over(port, "again", 1000)
        all_there(first, away, later)


def test_rsyslog(tmp_path: Path, certificates: Path) -> None:
    rsyslogd, environment = program("rsyslogd", *RSYSLOG)
    if not (drivers := list(rsyslogd.parents[1].glob("lib/**/lmnsd_ossl.so"))):
        pytest.skip("rsyslog has no driver for TLS here: apt-get install rsyslog-openssl")
    environment["RSYSLOG_MODDIR"] = str(drivers[0].parent)
    home, out = tmp_path / "rsyslog", tmp_path / "out"
    home.mkdir()
    port, tls, traditional, counted, udp = free_ports(5)
    forward = "".join(
        RSYSLOG_FORWARD.format(framing=framing, port=to, template=template)
        for framing, to, template in (
            ("traditional", traditional, "old"),
            ("octet-counted", counted, "RSYSLOG_SyslogProtocol23Format"),
        )
    )
    ours = snippet("rsyslog-flafka.conf", home, certificates, tls)
    configuration = home / "rsyslog.conf"
    configuration.write_text(RSYSLOG_CONF.format(home=home, port=port, snippet=ours, forward=forward, udp=udp))
    text = pipelines(
        out,
        syslog=f"type = multiport_syslogtcp; ports = {traditional}",
        counted=f"type = multiport_syslogtcp; ports = {counted}",
        udp=f"type = syslogudp; port = {udp}",
    )
    command = [rsyslogd, "-n", "-f", configuration, "-i", home / "pid"]
    check_round_trip(
        lambda: daemon(command, environment, port, home / "log"),
        lambda: [RunningAgent(tmp_path / "a", text), shipped(out / "tls", certificates, tls)],
        port,
        [out / "tls", out / "syslog", out / "counted"],
        lambda _: all(
            f":{to}: Connection refused" in (home / "log").read_text() for to in (tls, traditional, counted)
        ),
        repeats=4,  # one message of each worker's connection, before it ended and after, as with any receiver
    )
    assert set(bodies(out / "udp")) <= {b"first - - - %06d gr\xc3\xbc\xc3\x9fe" % number for number in range(2000)}


def test_syslog_ng(tmp_path: Path, certificates: Path) -> None:
    syslog_ng, environment = program("syslog-ng", *SYSLOG_NG)
    environment["SYSLOGNG_PREFIX"] = str(syslog_ng.parents[1])
    home, out = tmp_path / "syslog-ng", tmp_path / "out"
    home.mkdir()
    port, tls = free_ports(2)
    ours = snippet("syslog-ng-flafka.conf", home, certificates, tls)
    configuration = home / "syslog-ng.conf"
    configuration.write_text(SYSLOG_NG_CONF.format(port=port, snippet=ours))
    own = [f"--{option}={home / option}" for option in ("persist-file", "control", "pidfile")]
    command = [syslog_ng, "--foreground", "--stderr", "--no-caps", f"--cfgfile={configuration}", *own]
    check_round_trip(
        lambda: daemon(command, environment, port, home / "log"),
        lambda: [shipped(out, certificates, tls)],
        port,
        [out],
        lambda _: "Connection refused" in (home / "log").read_text(),
    )


def test_loggen(tmp_path: Path, certificates: Path) -> None:
    loggen, environment = program("loggen", *SYSLOG_NG)
    environment["SYSLOGNG_PREFIX"] = str(loggen.parents[1])
    out = tmp_path / "out"
    plain_port, counted_port = free_ports(2)
    count, connections = 3000, 3
    text = pipelines(
        out,
        multi=f"type = multiport_syslogtcp; ports = {plain_port} {counted_port}",
        tls=f"type = syslogtcp; port = 0; ssl = true; keystore = {certificates}/agent.pem",
        udp="type = syslogudp; port = 0",
    )
    with RunningAgent(tmp_path / "a", text) as agent:
        agent.port("multi")
        ways = {
            "lines": ["--inet", "--stream", "127.0.0.1", str(plain_port)],
            "counted": ["--inet", "--stream", "--syslog-proto", "127.0.0.1", str(counted_port)],
            "tls": ["--use-ssl", "127.0.0.1", str(agent.port("tls"))],
            "tls, counted": ["--use-ssl", "--syslog-proto", "127.0.0.1", str(agent.port("tls"))],
            "udp": ["--inet", "--dgram", "127.0.0.1", str(agent.port("udp"))],
        }
        load = ["--rate=5000", f"--number={count}", f"--active-connections={connections}", "--quiet"]
        senders = [
            subprocess.Popen([str(loggen), *load, *options], env=environment, stderr=subprocess.PIPE, text=True)
            for options in ways.values()
        ]
        for name, sender in zip(ways, senders, strict=True):
            _, errors = sender.communicate(timeout=60)
            assert sender.returncode == 0, f"{name}: {errors}"
        sent = count * connections
        agent.until(lambda: agent.count("SINK.multi", "EventDrainSuccessCount") >= 2 * sent, "all by plain TCP")
        agent.until(lambda: agent.count("SINK.tls", "EventDrainSuccessCount") >= 2 * sent, "all by TLS")
        agent.until(
            lambda: (
                agent.count("SOURCE.udp", "KernelDropCount") + agent.count("SINK.udp", "EventDrainSuccessCount")
                >= sent
            ),
            "received and dropped to be what was sent",
        )
        dropped = agent.count("SOURCE.udp", "KernelDropCount")
        # Its timestamps have no zone and are in that of this machine.
        assert [agent.count(f"SOURCE.{name}", "EventReadFail") for name in ("multi", "tls", "udp")] == [0, 0, 0]
        assert agent.stop() == 0
    identities = {(thread, number) for thread in range(connections) for number in range(count)}
    assert ids(out / "multi") == ids(out / "tls") == Counter(dict.fromkeys(identities, 2))
    received = ids(out / "udp")
    assert received.keys() <= identities
    assert max(received.values()) == 1
    assert received.total() == sent - dropped


def test_loggen_sends_lines_that_begin_with_a_number(tmp_path: Path) -> None:
    loggen, environment = program("loggen", *SYSLOG_NG)
    environment["SYSLOGNG_PREFIX"] = str(loggen.parents[1])
    lines = [b"22 Nov 2026 10:00:00 line %d" % number for number in range(100)]
    (tmp_path / "lines").write_bytes(b"".join(line + b"\n" for line in lines))
    with RunningAgent(tmp_path / "a", pipelines(tmp_path / "out", plain="type = syslogtcp; port = 0")) as agent:
        options = [
            "--inet",
            "--stream",
            "--dont-parse",
            f"--read-file={tmp_path / 'lines'}",
            "--rate=5000",
            "--quiet",
        ]
        command = [str(loggen), *options, "127.0.0.1", str(agent.port("plain"))]
        subprocess.run(command, env=environment, check=True, timeout=60, stderr=subprocess.PIPE)
        agent.until(lambda: agent.count("SINK.plain", "EventDrainSuccessCount") == len(lines), "all lines")
        assert agent.stop() == 0
        assert "is closed" not in agent.log
    assert bodies(tmp_path / "out" / "plain") == Counter(lines)


def ids(directory: Path) -> Counter[tuple[int, int]]:
    """Return the messages of loggen as the thread that sent each, and its number there."""
    matches = (re.search(rb"seq: (\d+), thread: (\d+),", body) for body in bodies(directory).elements())
    return Counter((int(match[2]), int(match[1])) for match in matches if match)
