"""Data of the benchmarks: events as real hosts send them, and the process that sends their lines."""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from bench.frame import Bench
from bench.frame.kafka import assert_equal_bodies
from bench.frame.sender import STAMP
from bench.frame.syslog import Lines
from bench.frame.varied import HOSTS, PRIORITIES, REPEATED, RFC3164, RFC5424, TEXTS, Events, varied
from flafka.interceptors.mask import MaskInterceptor
from flafka.plugins import conformance
from flafka.sources.syslog.dialects import ParserOptions
from flafka.sources.syslog.parser import parse

COUNT = 5_000


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Bench("sample", smoke=True) as bench:
        yield bench


class Receiver:
    """Listener that keeps what each of so many connections has sent."""

    def __init__(self, connections: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=connections)
        self.port = self._listener.getsockname()[1]
        self.received: list[bytes] = []
        self._thread = threading.Thread(target=self._run, args=(connections,))
        self._thread.start()

    def _run(self, connections: int) -> None:
        with self._listener:
            clients = [self._listener.accept()[0] for _ in range(connections)]
        for client in clients:
            with client, client.makefile("rb") as file:
                self.received.append(file.read())

    def all(self) -> list[bytes]:
        """Return what was sent, by connection, once all are closed."""
        self._thread.join(60)
        return self.received


def test_lines_vary_as_those_of_many_hosts_do() -> None:
    events = Events(100_000)
    lines = events.lines()
    assert len(set(varied().texts)) == TEXTS
    assert len(events.hosts.unique()) == HOSTS
    assert set(events.priorities.tolist()) == set(range(PRIORITIES))
    assert 190 < pc.mean(pc.binary_length(lines)).as_py() < 220
    times = events.headers()["timestamp"].cast(pa.int64()).to_numpy()
    assert 9_000 < times[-1] - times[0] < 13_000
    assert (times[1:] != times[:-1]).mean() > 0.3  # clocks of hosts differ


def test_each_run_has_the_same_events_but_for_times() -> None:
    events = Events(COUNT)
    contents = b"".join(events.bodies().to_pylist() + events.hosts.to_pylist())
    assert hashlib.sha256(contents).hexdigest()[:16] == "b9c3011686e38d0c", "figures of other data are not comparable"
    assert Events(10).bodies().equals(events.bodies()[:10])


@pytest.mark.parametrize("form", [RFC3164, RFC5424])
def test_a_parser_reads_the_expected_events(form: str) -> None:
    events = Events(COUNT)
    batch = parse(events.lines(form), time.time(), ParserOptions())
    assert batch.bodies.equals(events.bodies(form))
    for name, expected in events.headers(form).items():
        assert batch.header(name).dictionary_decode().equals(expected), name
    mask = conformance.make(MaskInterceptor, {"patterns": "ipv4"})
    assert mask.apply(batch).bodies.equals(events.bodies(form, masked=True))


def test_the_equal_lines_differ_in_their_number_only() -> None:
    bodies = Events(3, population=REPEATED).bodies().to_pylist()
    assert {body[:-9] for body in bodies} == {REPEATED.texts[0] + b" id="}
    assert [int(body[-9:]) for body in bodies] == [0, 1, 2]


def test_a_file_of_events_has_all_their_fields(tmp_path: Path) -> None:
    events = Events(100)
    events.write(tmp_path / "events")
    rows = [line.split(b"\t") for line in (tmp_path / "events").read_bytes().splitlines()]
    hosts, times, bodies = (list(column) for column in zip(*rows, strict=True))
    assert hosts == events.hosts.to_pylist()
    assert times == events.headers(RFC5424)["timestamp"].cast(pa.binary()).to_pylist()
    assert bodies == events.bodies().to_pylist()


def test_blocks_and_fewer_lines_are_those_of_the_file(bench: Bench) -> None:
    lines = Lines(bench, 100, (b"", b"longer "))
    texts = lines.path.read_bytes().splitlines(keepends=True)
    assert [text[:-1] for text in texts] == lines.lines.to_pylist()
    assert bytes(lines.block(10, 20)) == b"".join(texts[10:20])
    assert bytes(lines.block(90, 200)) == b"".join(texts[90:])
    assert lines.fewer(10).bodies.equals(lines.bodies[:10])


def test_connections_take_turns_and_each_line_is_sent_once(bench: Bench) -> None:
    lines = Lines(bench, 1_000)
    receiver = Receiver(3)
    with lines.sender(receiver.port, 3, 10) as send:
        send()
    received = [sent.splitlines() for sent in receiver.all()]
    assert received[0][:10] == lines.lines[:10].to_pylist()
    assert received[1][:10] == lines.lines[10:20].to_pylist()
    assert_equal_bodies(pa.array([line for sent in received for line in sent]), lines.lines, "sent")


def test_lines_at_a_rate_carry_the_time_at_which_they_are_sent(bench: Bench) -> None:
    lines = Lines(bench, 200, (STAMP,))
    receiver = Receiver(1)
    with lines.sender(receiver.port, "rate=2000") as send:
        before = time.time_ns()
        send()
        after = time.time_ns()
    (sent,) = receiver.all()
    stamps = []
    for line, expected in zip(sent.splitlines(), lines.lines.to_pylist(), strict=True):
        start = expected.index(STAMP) + 3
        stamps.append(int(line[start : start + 19]))
        assert line[:start] + expected[start : start + 19] + line[start + 19 :] == expected
    assert before <= stamps[0] <= stamps[-1] <= after
    assert stamps == sorted(stamps)
    assert stamps[-1] > stamps[0]


def test_a_lost_repeated_or_changed_event_is_noticed() -> None:
    bodies = Events(10).bodies()
    assert_equal_bodies(bodies.take(pa.array([9, *range(9)])), bodies, "same")
    for rows in ([*range(9)], [*range(9), 8], [*range(10), 9]):
        with pytest.raises(AssertionError, match=r"events of|differ"):
            assert_equal_bodies(bodies.take(pa.array(rows)), bodies, "other")
    changed = pa.array([b"x" + body for body in bodies.to_pylist()])
    with pytest.raises(AssertionError, match="differ"):
        assert_equal_bodies(changed, bodies, "other")
