"""Source `syslogudp` with real sockets: every read datagram is an event, every dropped one is counted."""

import shutil
import socket
import subprocess
import threading

import pytest

from flafka.agent.services.running import until
from flafka.plugins import Retry
from flafka.sources.syslog import SyslogUdp
from tests.sources.syslog_running import Running

needs_logger = pytest.mark.skipif(shutil.which("logger") is None, reason="logger of util-linux is not installed")


def make(**options):
    properties = {"host": "127.0.0.1", "port": "0"} | {name: str(value) for name, value in options.items()}
    config, problems = SyslogUdp.config_class.parse(properties)
    assert not problems, problems
    return SyslogUdp(config, "s1")


def test_without_a_host_it_listens_on_all_addresses():
    config, problems = SyslogUdp.config_class.parse({"port": "0", "bind": "0.0.0.0"})
    # Flume does not know it either
    assert [(problem.option, problem.is_unknown_option) for problem in problems] == [("bind", True)]
    with Running(SyslogUdp(config, "s1")) as running:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as to:
            to.sendto(b"<13>hello", ("127.0.0.2", running.source.port))
        assert [event.body for event in running.wait_for(1)] == [b"<13>hello"]


def sender(source):
    to = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    to.connect(("127.0.0.1", source.port))
    return to


@needs_logger
@pytest.mark.parametrize(("form", "version"), [("--rfc3164", None), ("--rfc5424", "1")])
def test_logger(form, version):
    with Running(make()) as running:
        to = ["--server", "127.0.0.1", "--port", str(running.source.port), "--udp"]
        message = ["--priority", "local0.err", "--tag", "t", "hello wörld"]
        subprocess.run(["logger", *to, form, *message], check=True, timeout=60)
        (event,) = running.wait_for(1)
    assert event.body.endswith("hello wörld".encode())
    assert event.headers["priority"] == "131"
    assert event.headers.get("version") == version


def test_the_largest_datagram_is_an_event():
    text = b"x" * (65_507 - 22)
    with Running(make()) as running, sender(running.source) as to:
        to.send(b"<13>Oct 11 22:14:15 h " + text)
        (event,) = running.wait_for(1)
    assert event.body == text


def test_datagrams_dropped_by_the_kernel_are_counted(caplog):
    """The kernel's small buffer overflows while no batch is taken: each datagram is an event, or counted."""
    hold = threading.Event()
    with Running(make(receiveBufferSize=4096), hold) as running, sender(running.source) as to:
        to.send(b"<13>first")
        until(lambda: running.count == 1)
        for i in range(2000):
            to.send(b"<13>%d" % i)
        hold.set()
        metrics = running.source.metrics
        until(lambda: running.count + metrics.get("KernelDropCount") == 2001)
        assert 1 < running.count < 2001
        assert "dropped" in caplog.text


def test_arrived_messages_are_delivered_at_a_stop():
    hold = threading.Event()
    with Running(make(), hold) as running, sender(running.source) as to:
        to.send(b"<13>0")
        until(lambda: running.count == 1)
        for i in range(1, 500):
            to.send(b"<13>%d" % i)
        running.source.stopping.set()
        hold.set()
        running.stop()
        assert [event.body for event in running.events] == [b"<13>%d" % i for i in range(500)]


def test_it_stops_soon_when_idle():
    with Running(make()) as running:
        running.stop()


def test_a_sender_that_never_stops_does_not_keep_it_from_stopping():
    with Running(make()) as running, sender(running.source) as to:
        over = threading.Event()

        def send():
            while not over.is_set():
                to.send(b"<13>again")

        thread = threading.Thread(target=send)
        thread.start()
        until(lambda: running.count > 100)
        running.stop()
        over.set()
        thread.join()


def test_a_busy_port_is_a_clear_error():
    first = make()
    first.open()
    second = make(port=first.port)
    with pytest.raises(Retry, match=f"cannot listen on 127.0.0.1:{first.port} .UDP.: another program"):
        second.open()
    assert len(list(second.check_connectivity())) == 1
    second.close()
    first.close()
    assert list(second.check_connectivity()) == []


def test_a_buffer_that_the_kernel_refuses_is_reported(caplog):
    source = make(receiveBufferSize=2**30)
    source.open()
    source.close()
    assert "net.core.rmem_max" in caplog.text
