"""What comes alone goes at once, and what comes soon after goes together."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

import numpy as np
import pytest

from flafka.agent.services.running import until
from flafka.sources import pace
from flafka.sources.exec import ExecConfig, ExecSource
from flafka.sources.pace import HELD_BACK, MAX_WAIT, MUCH, PAUSE, Pace
from flafka.sources.syslog.framing import Intake
from flafka.sources.syslog.tcp import SyslogTcp, SyslogTcpConfig
from tests.sources.syslog_running import Running


class Clock:
    """Stands until it is told otherwise."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.tick(seconds)

    def tick(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(pace, "time", clock)
    return clock


def test_what_comes_after_a_quiet_moment_goes_at_once(clock: Clock) -> None:
    ours = Pace()
    ours.begin()
    assert ours.patience() == 0
    assert ours.due(quiet=True)


def test_what_follows_soon_goes_together(clock: Clock) -> None:
    ours = Pace()
    ours.begin()
    ours.end()
    clock.now += PAUSE / 4
    ours.begin()
    assert ours.patience() == pytest.approx(PAUSE * 3 / 4)
    assert not ours.due(quiet=True)
    clock.now += ours.patience()
    assert ours.patience() == 0
    assert ours.due(quiet=True)


def test_who_rests_sends_what_is_there_then(clock: Clock) -> None:
    ours = Pace()
    ours.begin()
    ours.rest()
    assert clock.now == Clock.now, "nothing went before it"
    ours.end(MUCH - 1)
    ours.begin()
    ours.rest()
    assert clock.now == pytest.approx(Clock.now + PAUSE)
    assert not ours.due(quiet=False)
    assert ours.patience() == HELD_BACK, "over a network it comes some time after the read"
    assert ours.rest() is False, "what was released is read at once"
    assert clock.now == pytest.approx(Clock.now + PAUSE)
    assert ours.due(quiet=False)
    ours.end(MUCH)
    ours.begin()
    ours.rest()
    assert clock.now == pytest.approx(Clock.now + PAUSE), "fast senders are read on"
    assert not ours.due(quiet=False)


def test_a_batch_fills_while_there_is_more_to_read(clock: Clock) -> None:
    ours = Pace()
    ours.begin()
    clock.now += MAX_WAIT * 0.9
    assert not ours.due(quiet=False)
    clock.now += MAX_WAIT * 0.2
    assert ours.due(quiet=False)


def test_an_intake_goes_at_once_and_then_waits(clock: Clock) -> None:
    intake = Intake(1 << 20)
    line = np.array([5]), np.zeros(1, np.uint8)
    assert not intake.due(quiet=True), "nothing is in it"
    intake.add(*line)
    assert intake.patience() == 0
    assert intake.due(quiet=True)
    assert not intake.due(quiet=False)
    intake.take()
    intake.add(*line)
    assert intake.patience() == pytest.approx(PAUSE)
    assert not intake.due(quiet=True)
    clock.now += 2 * PAUSE
    assert intake.due(quiet=True)


def test_connections_are_read_once_what_came_meanwhile_included(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, problems = SyslogTcpConfig.parse({"host": "127.0.0.1", "port": "0"})
    assert config is not None, problems
    source = SyslogTcp(config)
    reads = []
    read = source._listener.read_into
    monkeypatch.setattr(source._listener, "read_into", lambda *args: reads.append(None) or read(*args))
    with contextlib.ExitStack() as stack:
        running = stack.enter_context(Running(source))
        one, other = (stack.enter_context(socket.create_connection(("127.0.0.1", source.port))) for _ in range(2))
        one.sendall(b"<13>Oct 11 22:14:15 web-1 first\n")
        running.wait_for(1)
        late = {one: b"<13>Oct 11 22:14:15 web-1 third\n", other: b"<13>Oct 11 22:14:15 web-1 fourth\n"}

        def sleep(seconds: float) -> None:
            clock.tick(seconds)
            while late:
                sender, line = late.popitem()
                sender.sendall(line)

        monkeypatch.setattr(clock, "sleep", sleep)
        one.sendall(b"<13>Oct 11 22:14:15 web-1 second\n")
        running.wait_for(4)
        read_so_far = len(reads)
    assert sorted(event.body for event in running.batches[1]) == [b"fourth", b"second", b"third"]
    assert read_so_far == 3


def test_what_a_sender_holds_back_until_it_is_read_goes_with_what_it_was_behind(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kernel does so until what it sent before is acknowledged, unless it sets TCP_NODELAY."""
    config, problems = SyslogTcpConfig.parse({"host": "127.0.0.1", "port": "0"})
    assert config is not None, problems
    source = SyslogTcp(config)
    with Running(source) as running, socket.create_connection(("127.0.0.1", source.port)) as sender:
        late: list[bytes] = []

        def sleep(seconds: float) -> None:
            clock.tick(seconds)
            while late:
                sender.sendall(b"<13>Oct 11 22:14:15 web-1 %s\n" % late.pop())

        monkeypatch.setattr(clock, "sleep", sleep)
        sender.sendall(b"<13>Oct 11 22:14:15 web-1 zeroth\n")
        running.wait_for(1)
        for number in range(40):  # at first a kernel acknowledges before anything is read
            late += b"third", b"second"
            sender.sendall(b"<13>Oct 11 22:14:15 web-1 first\n")
            running.wait_for(1 + 3 * (number + 1))
        batches = [[event.body for event in batch] for batch in running.batches[1:]]
    assert batches == [[b"first", b"second", b"third"]] * 40


def test_a_command_s_first_line_goes_at_once_and_those_behind_it_together(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = bytearray()
    read = os.read

    def watched(fd: int, size: int) -> bytes:
        data = read(fd, size)
        seen.extend(data)
        return data

    monkeypatch.setattr("flafka.sources.exec.os.read", watched)
    os.mkfifo(tmp_path / "fifo")
    config, problems = ExecConfig.parse({"command": f"cat {tmp_path}/fifo"})
    assert config is not None, problems
    with Running(ExecSource(config)) as running, (tmp_path / "fifo").open("wb", 0) as fifo:
        fifo.write(b"one\n")
        assert [event.body for event in running.wait_for(1)] == [b"one"]
        for text in b"two\n", b"three\n":
            fifo.write(text)
            until(lambda text=text: text in seen, "it to be read")
        assert running.count == 1, "the clock stands"
        clock.now += 2 * PAUSE
        assert [event.body for event in running.wait_for(3)] == [b"one", b"two", b"three"]
