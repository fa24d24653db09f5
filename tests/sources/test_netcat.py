"""The source `netcat`: what is answered is stored, whoever sends whatever."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from flafka.sources.netcat import NetcatConfig, NetcatSource
from tests.sources.syslog_running import Running


def made(**properties: str) -> NetcatSource:
    config, problems = NetcatConfig.parse({"bind": "127.0.0.1", "port": "0"} | properties)
    assert config is not None, problems
    return NetcatSource(config)


@contextmanager
def connected(source: NetcatSource) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", source.port), timeout=20) as sender:
        yield sender


def everything(sender: socket.socket) -> bytes:
    return b"".join(iter(lambda: sender.recv(65536), b""))


def test_lines_are_events_whatever_bytes_they_hold() -> None:
    with Running(made()) as running, connected(running.source) as sender:
        sender.sendall(b"one\n\n\xff\xfe\r\ntw")
        running.wait_for(3)
        sender.sendall(b"o\nnot ended")
        sender.shutdown(socket.SHUT_WR)
        assert everything(sender) == b"OK\n" * 4
        assert [event.body for event in running.events] == [b"one", b"", b"\xff\xfe\r", b"two"]


def test_nothing_is_answered_before_it_is_stored() -> None:
    hold = threading.Event()
    with Running(made(), hold=hold) as running, connected(running.source) as sender:
        sender.sendall(b"a\n")
        running.wait_for(1)
        sender.settimeout(0.2)
        with pytest.raises(TimeoutError):
            sender.recv(10)
        hold.set()
        sender.settimeout(20)
        assert sender.recv(10) == b"OK\n"


def test_without_answers() -> None:
    with Running(made(**{"ack-every-event": "false"})) as running, connected(running.source) as sender:
        sender.sendall(b"a\nb\n")
        running.wait_for(2)
        sender.shutdown(socket.SHUT_WR)
        assert everything(sender) == b""


@pytest.mark.parametrize("sent", ["äöü6\n", "äöü6"])
def test_a_line_that_is_too_long_ends_the_connection(sent: str) -> None:
    with Running(made(**{"max-line-length": "4"})) as running, connected(running.source) as sender:
        sender.sendall(f"äöü\n{sent}".encode())
        assert everything(sender) == b"OK\nFAILED: Event exceeds the maximum length (4 chars, including newline)\n"
        assert [event.body.decode() for event in running.events] == ["äöü"]


def test_other_encodings_become_utf_8() -> None:
    with Running(made(encoding="UTF-16LE")) as running, connected(running.source) as sender:
        data = "é\nü\n".encode("utf-16le")
        for byte in data:
            sender.sendall(bytes([byte]))
        assert [event.body.decode() for event in running.wait_for(2)] == ["é", "ü"]


def test_who_reads_no_answers_holds_up_nobody() -> None:
    with Running(made()) as running, connected(running.source) as deaf, connected(running.source) as sender:
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
        shouting.join()  # until the source reads no more of it
        sender.sendall(b"heard\n")
        assert sender.recv(10) == b"OK\n"


def test_an_encoding_nobody_knows() -> None:
    _, problems = NetcatConfig.parse({"bind": "::", "port": "0", "encoding": "base64"})
    assert [(problem.option, problem.message) for problem in problems] == [
        ("encoding", "unknown character set 'base64'; UTF-8 and ISO-8859-1 are known")
    ]
