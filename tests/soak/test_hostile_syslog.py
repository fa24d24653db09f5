"""Real agent among hostile syslog senders: it survives, its memory is bounded, and healthy senders lose nothing."""

from __future__ import annotations

import contextlib
import random
import re
import socket
import ssl
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from flafka.agent.services.running import RunningAgent, free_ports
from tests.plugins.certificates import certificate
from tests.soak.hostile import SHARED, Frames, Healthy, Watch, broken_handshakes, mutated, slow
from tests.sources.test_syslog_cut import same_events_wherever_cut

pytestmark = pytest.mark.skipif(not SHARED.exists(), reason="without the corpora frames are mutated from")
CONFIGURATION = """
a1.sources = multi tls
a1.channels = memory
a1.sinks = out
a1.sources.multi.type = multiport_syslogtcp
a1.sources.multi.host = 127.0.0.1
a1.sources.multi.ports = {one} {two}
a1.sources.multi.maxConnections = 5000
a1.sources.multi.channels = memory
a1.sources.tls.type = syslogtcp
a1.sources.tls.host = 127.0.0.1
a1.sources.tls.port = {tls}
a1.sources.tls.ssl = true
a1.sources.tls.keystore = {home}/server.pem
a1.sources.tls.handshakeTimeout = 2
a1.sources.tls.rfc5424Headers = false
a1.sources.tls.channels = memory
a1.channels.memory.type = memory
a1.channels.memory.capacity = 100000
a1.sinks.out.type = file_roll
a1.sinks.out.channel = memory
a1.sinks.out.sink.directory = {home}/out
a1.sinks.out.sink.rollInterval = 0
"""


@dataclass(frozen=True)
class Plan:
    frames: int
    connections: int
    slow: int
    handshakes: int
    rate: int
    """Messages a second of each healthy sender."""


SHORT = Plan(frames=150_000, connections=300, slow=100, handshakes=60, rate=100)
LONG = Plan(frames=1_000_000, connections=2000, slow=500, handshakes=200, rate=200)
MAX_MEMORY_MIB = 600
"""Limit of the agent's memory in MiB."""


def campaign(plan: Plan, home: Path, seed: int) -> tuple[str, float]:
    """Run the campaign and check all but the latency; return a line of figures, and the healthy senders' p99 in
    seconds."""
    certificate(home)
    plain_port, counted_port, tls = free_ports(3)
    context = ssl.create_default_context(cafile=str(home / "server.crt"))

    def plain(port: int) -> socket.socket:
        return socket.create_connection(("127.0.0.1", port), timeout=60)

    healthy = [
        Healthy("lines", lambda: plain(plain_port), False, plan.rate),
        Healthy("counted", lambda: plain(counted_port), True, plan.rate),
        Healthy("tls", lambda: context.wrap_socket(plain(tls), server_hostname="localhost"), False, plan.rate),
    ]
    watch, over, seen = Watch(home / "out"), threading.Event(), threading.Event()
    choose = random.Random(seed)
    memory = []
    with RunningAgent(
        home / "a", CONFIGURATION.format(one=plain_port, two=counted_port, tls=tls, home=home)
    ) as agent:
        agent.port("multi")
        agent.port("tls")

        def measure() -> None:
            status = Path(f"/proc/{agent.process.pid}/status")
            while not over.wait(0.2):
                memory.append(int(re.search(r"VmRSS:\s+(\d+)", status.read_text())[1]) // 1024)

        failures: list[BaseException] = []

        def guarded(work, *arguments):
            def run() -> None:
                try:
                    work(*arguments)
                except BaseException as e:
                    failures.append(e)

            thread = threading.Thread(target=run, daemon=True)
            thread.start()
            return thread

        watching = guarded(watch.run, seen)
        threads = [
            *(guarded(sender.run, over) for sender in healthy),
            guarded(slow, [plain_port, counted_port], plan.slow, over),
            guarded(measure),
        ]
        attack = guarded(broken_handshakes, tls, plan.handshakes, random.Random(seed + 1))
        began = time.monotonic()
        per_connection = plan.frames // plan.connections
        sent = mutated([plain_port, counted_port], Frames(seed), plan.connections, per_connection, choose)
        seconds = time.monotonic() - began
        attack.join(120)
        over.set()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert not failures, failures
        expected = {identity for sender in healthy for identity in sender.sent}
        agent.until(lambda: expected <= watch.seen.keys(), "what the healthy sent")
        agent.until(lambda: agent.count("SOURCE.multi", "OpenConnectionCount") == 0, "the connections to end")
        agent.until(lambda: agent.count("SOURCE.tls", "OpenConnectionCount") == 0, "broken handshakes to end")
        events = agent.count("SOURCE.multi", "EventAcceptedCount")
        refused = agent.count("SOURCE.tls", "TlsHandshakeFail")
        assert agent.stop() == 0
        assert "Traceback" not in agent.log
        assert "ERROR" not in agent.log
    seen.set()
    watching.join(60)
    watch.read_new()
    assert not failures, failures
    assert not watch.repeated
    assert watch.seen.keys() == expected
    assert refused >= plan.handshakes * 9 // 10  # the count of cut or changed hellos varies
    assert max(memory) < MAX_MEMORY_MIB
    delays = sorted(watch.seen[identity] - begin for sender in healthy for identity, begin in sender.sent.items())
    p99 = delays[len(delays) * 99 // 100]
    line = (
        f"hostile syslog: {sent:,} mutated frames over {plan.connections:,} connections in {seconds:.0f} s, "
        f"{events:,} events, beside "
        f"{plan.slow} slow ones and {plan.handshakes} broken handshakes ({refused} refused); {len(delays):,} healthy "
        f"messages: median {delays[len(delays) // 2] * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms, slowest "
        f"{delays[-1] * 1000:.0f} ms; memory {memory[0]} to {max(memory)} MiB"
    )
    return line, p99


@pytest.mark.usefixtures("lengthy")
def test_healthy_senders_among_hostile_ones(tmp_path: Path, seed: int, figures: list[str]) -> None:
    line, _ = campaign(SHORT, tmp_path, seed)
    figures.append(line)


@pytest.mark.usefixtures("servers")
def test_few_file_descriptors_only_limit_connections(tmp_path: Path) -> None:
    certificate(tmp_path)
    plain_port, counted_port, tls = free_ports(3)
    command = ("sh", "-c", 'ulimit -n 64; exec "$@"', "sh", sys.executable, "-m", "flafka", "start")
    configuration = CONFIGURATION.format(one=plain_port, two=counted_port, tls=tls, home=tmp_path).replace(
        "multi tls", "multi"
    )
    configuration = "\n".join(line for line in configuration.splitlines() if ".tls." not in line)
    with RunningAgent(tmp_path / "a", configuration, command=command) as agent:
        agent.port("multi")
        assert "32 connections at a time, not maxConnections = 5000" in agent.log
        with contextlib.ExitStack() as stack:
            sent = 0
            for number in range(100):
                with contextlib.suppress(ConnectionError):  # the connection may be reset immediately
                    connection = stack.enter_context(socket.create_connection(("127.0.0.1", plain_port), timeout=60))
                    connection.sendall(b"<13>- h %d\n" % number)
                    sent += 1
            agent.until(
                lambda: (
                    agent.count("SOURCE.multi", "ConnectionRefusedCount")
                    + agent.count("SOURCE.multi", "OpenConnectionCount")
                    == 100
                ),
                "each to be taken or refused",
            )
            accepted = agent.count("SOURCE.multi", "OpenConnectionCount")
            assert 10 < accepted <= min(32, sent)
            assert "this process's limit of 64 files" in agent.degraded()["SOURCE.multi"]
            agent.until(lambda: agent.count("SINK.out", "EventDrainSuccessCount") == accepted, "those that fit")
        agent.until(lambda: not agent.count("SOURCE.multi", "OpenConnectionCount"), "all ends to be seen")
        agent.wait_until_healthy()
        with socket.create_connection(("127.0.0.1", plain_port), timeout=60) as client:
            client.sendall(b"<13>- h 100\n")
            agent.until(lambda: agent.count("SINK.out", "EventDrainSuccessCount") == accepted + 1, "another")
        assert agent.stop() == 0
        assert "ERROR" not in agent.log
        assert "Traceback" not in agent.log
    lines = [line for file in (tmp_path / "out").iterdir() for line in file.read_bytes().split()]
    assert len(set(lines)) == len(lines) == accepted + 1


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_million_mutated_frames(tmp_path: Path, seed: int, figures: list[str]) -> None:
    same_events_wherever_cut(100, 100, seed)
    line, p99 = campaign(LONG, tmp_path, seed)
    figures.append(line)
    assert p99 < 1
