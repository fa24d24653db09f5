"""Source `netcat`: acknowledged lines are stored, whatever clients send."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from flafka.sources.netcat import NetcatConfig, NetcatSource
from tests.sources.syslog_running import Running


def make(**properties: str) -> NetcatSource:
    config, problems = NetcatConfig.parse({"bind": "127.0.0.1", "port": "0"} | properties)
    assert config is not None, problems
    return NetcatSource(config)


@contextmanager
def connected(source: NetcatSource) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", source.port), timeout=20) as sender:
        yield sender


def test_nothing_is_answered_before_it_is_stored() -> None:
    hold = threading.Event()
    with Running(make(), hold=hold) as running, connected(running.source) as sender:
        sender.sendall(b"a\n")
        running.wait_for(1)
        sender.settimeout(0.2)
        with pytest.raises(TimeoutError):
            sender.recv(10)
        hold.set()
        sender.settimeout(20)
        assert sender.recv(10) == b"OK\n"


def test_other_encodings_become_utf_8() -> None:
    with Running(make(encoding="UTF-16LE")) as running, connected(running.source) as sender:
        data = "é\nü\n".encode("utf-16le")
        for byte in data:
            sender.sendall(bytes([byte]))
        assert [event.body.decode() for event in running.wait_for(2)] == ["é", "ü"]


def test_a_client_that_reads_no_answers_blocks_no_other() -> None:
    with Running(make()) as running, connected(running.source) as deaf, connected(running.source) as sender:
        stop = threading.Event()

        def shout() -> None:
            deaf.settimeout(0.2)
            while not stop.is_set():
                try:
                    deaf.sendall(b"\n" * 65536)
                except OSError:
                    return

        shouting = threading.Thread(target=shout)
        shouting.start()
        shouting.join()  # until the source stops reading from it
        sender.sendall(b"heard\n")
        assert sender.recv(10) == b"OK\n"


def test_an_unknown_encoding() -> None:
    _, problems = NetcatConfig.parse({"bind": "::", "port": "0", "encoding": "base64"})
    assert [(problem.option, problem.message) for problem in problems] == [
        ("encoding", "unknown character set 'base64'; UTF-8 and ISO-8859-1 are known")
    ]
