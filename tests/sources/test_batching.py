"""Batching of intake: single events leave at once, and those that follow soon leave together."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

import numpy as np
import pytest

from flafka.agent.services.running import until
from flafka.sources import batching
from flafka.sources.batching import (
    LINGER_SECONDS,
    MANY_EVENTS,
    MAX_FILL_SECONDS,
    NO_LINGER_BYTES,
    ROUND_TRIP_SECONDS,
    BatchingPolicy,
)
from flafka.sources.exec import ExecConfig, ExecSource
from flafka.sources.syslog.framing import FrameAccumulator
from flafka.sources.syslog.tcp import SyslogTcp, SyslogTcpConfig
from tests.sources.syslog_running import Running


class Clock:
    """Clock that a test sets."""

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
    monkeypatch.setattr(batching, "time", clock)
    return clock


def test_an_event_after_an_idle_time_leaves_at_once(clock: Clock) -> None:
    policy = BatchingPolicy()
    policy.start_batch()
    assert policy.timeout() == 0
    assert policy.is_due(idle=True)


def test_events_that_follow_soon_leave_together(clock: Clock) -> None:
    policy = BatchingPolicy()
    policy.start_batch()
    policy.end_batch(MANY_EVENTS)
    clock.now += LINGER_SECONDS / 4
    policy.start_batch()
    assert policy.timeout() == pytest.approx(LINGER_SECONDS * 3 / 4)
    assert not policy.is_due(idle=True)
    clock.now += policy.timeout()
    assert policy.timeout() == 0
    assert policy.is_due(idle=True)


def test_the_end_of_the_linger_sends_all_present_events(clock: Clock) -> None:
    policy = BatchingPolicy()
    policy.start_batch()
    policy.linger()
    assert clock.now == Clock.now, "nothing went before it"
    policy.end_batch(MANY_EVENTS, NO_LINGER_BYTES - 1)
    policy.start_batch()
    policy.linger()
    assert clock.now == pytest.approx(Clock.now + LINGER_SECONDS)
    assert not policy.is_due(idle=False)
    assert policy.timeout() == ROUND_TRIP_SECONDS, "over a network it comes some time after the read"
    assert policy.linger() is False, "what was released is read at once"
    assert clock.now == pytest.approx(Clock.now + LINGER_SECONDS)
    assert policy.is_due(idle=False)
    policy.end_batch(MANY_EVENTS, NO_LINGER_BYTES)
    policy.start_batch()
    policy.linger()
    assert clock.now == pytest.approx(Clock.now + LINGER_SECONDS), "fast senders are read on"
    assert not policy.is_due(idle=False)


def test_the_linger_is_short_after_few_events(clock: Clock) -> None:
    policy = BatchingPolicy()
    policy.start_batch()
    assert policy.is_due(idle=False), "it is the first one"
    policy.end_batch(MANY_EVENTS // 2)
    policy.start_batch()
    assert not policy.is_due(idle=False)
    assert policy.timeout() == pytest.approx(LINGER_SECONDS / 2)
    assert policy.linger()
    assert clock.now == pytest.approx(Clock.now + LINGER_SECONDS / 2)
    assert policy.is_due(idle=False), "what the read has released joins the next batch"


def test_a_batch_fills_while_there_is_more_to_read(clock: Clock) -> None:
    policy = BatchingPolicy()
    policy.start_batch()
    policy.end_batch(MANY_EVENTS)
    clock.now += LINGER_SECONDS
    policy.start_batch()
    clock.now += MAX_FILL_SECONDS * 0.9
    assert not policy.is_due(idle=False)
    clock.now += MAX_FILL_SECONDS * 0.2
    assert policy.is_due(idle=False)


def test_an_intake_sends_at_once_and_then_lingers(clock: Clock) -> None:
    accumulator = FrameAccumulator(1 << 20)
    lines = np.arange(1, MANY_EVENTS + 1) * 5, np.zeros(MANY_EVENTS, np.uint8)
    assert not accumulator.is_due(idle=True), "nothing is in it"
    accumulator.add(*lines)
    assert accumulator.timeout() == 0
    assert accumulator.is_due(idle=False)
    accumulator.take()
    accumulator.add(*lines)
    assert accumulator.timeout() == pytest.approx(LINGER_SECONDS)
    assert not accumulator.is_due(idle=False)
    assert not accumulator.is_due(idle=True)
    clock.now += 2 * LINGER_SECONDS
    assert accumulator.is_due(idle=True)


def test_connections_are_read_once_with_all_data_of_the_meantime(
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
        first, second = (stack.enter_context(socket.create_connection(("127.0.0.1", source.port))) for _ in range(2))
        first.sendall(b"<13>Oct 11 22:14:15 web-1 first\n")
        running.wait_for(1)
        late = {first: b"<13>Oct 11 22:14:15 web-1 third\n", second: b"<13>Oct 11 22:14:15 web-1 fourth\n"}

        def sleep(seconds: float) -> None:
            clock.tick(seconds)
            while late:
                sender, line = late.popitem()
                sender.sendall(line)

        monkeypatch.setattr(clock, "sleep", sleep)
        first.sendall(b"<13>Oct 11 22:14:15 web-1 second\n")
        running.wait_for(4)
        read_so_far = len(reads)
    assert sorted(event.body for event in running.batches[1]) == [b"fourth", b"second", b"third"]
    assert read_so_far == 3


def test_delayed_data_of_a_sender_joins_the_batch_before_it(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel of a sender without TCP_NODELAY waits until earlier data is acknowledged."""
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
        many = MANY_EVENTS
        sender.sendall(b"<13>Oct 11 22:14:15 web-1 zeroth\n" * many)
        running.wait_for(many)
        for number in range(40):  # at first a kernel acknowledges before anything is read
            late += b"third", b"second"
            sender.sendall(b"<13>Oct 11 22:14:15 web-1 first\n" * many)
            running.wait_for(many + (many + 2) * (number + 1))
        batches = [[event.body for event in batch] for batch in running.batches[1:]]
    assert batches == [[*[b"first"] * many, b"second", b"third"]] * 40


def test_a_command_s_first_line_leaves_at_once_and_the_next_ones_together(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    received = bytearray()
    read = os.read

    def watched(fd: int, size: int) -> bytes:
        data = read(fd, size)
        received.extend(data)
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
            until(lambda text=text: text in received, "it to be read")
        assert running.count == 1, "the clock stands"
        clock.now += 2 * LINGER_SECONDS
        assert [event.body for event in running.wait_for(3)] == [b"one", b"two", b"three"]
