"""Source `avro` with the clients of Flume's users: flume-ng-sdk, log4j 1, log4j 2."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from flafka.agent.services.running import RunningAgent
from flafka.plugins import Event
from tests.fixtures.ports import free_port
from tests.interop.jvm import Application, interceptors, java_keystore
from tests.sources.calling import Running

LOG4J = Path(__file__).parents[2] / "conf" / "log4j"
COUNT = 300


@pytest.fixture(scope="module")
def keystore(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return java_keystore(tmp_path_factory.mktemp("keystore") / "server.jks")


@pytest.fixture(scope="module")
def port() -> int:
    """Port to which the appenders of the application connect."""
    return free_port()


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[Application]:
    with Application(
        tmp_path_factory.mktemp("application"),
        flafka_host="127.0.0.1",
        flafka_port=port,
        log4j_configuration=(LOG4J / "log4j.xml").as_uri(),
        log4j2_configurationFile=LOG4J / "log4j2.xml",
    ) as application:
        yield application


@pytest.fixture
def collector() -> Iterator[Running]:
    """Avro source at the end of the agent's avro sink: the received events, headers included."""
    with Running() as running:
        yield running


def configuration(collector: Running, sources: dict[str, str], kind: str = "avro") -> str:
    text = f"""
a1.sources = {" ".join(sources)}
a1.channels = c1
a1.channels.c1.type = memory
a1.sinks = k1
a1.sinks.k1.type = avro
a1.sinks.k1.channel = c1
a1.sinks.k1.hostname = 127.0.0.1
a1.sinks.k1.port = {collector.source.port}
"""
    for name, options in sources.items():
        text += (
            f"a1.sources.{name}.type = {kind}\na1.sources.{name}.channels = c1\na1.sources.{name}.bind = 127.0.0.1\n"
        )
        text += "".join(f"a1.sources.{name}.{line}\n" for line in options.split("; "))
    return text


def test_every_client_of_the_sdk(
    tmp_path: Path, application: Application, collector: Running, keystore: Path
) -> None:
    sources = {
        "plain": "port = 0",
        "second": "port = 0",
        "deflate": "port = 0; compression-type = deflate",
        "tls": f"port = 0; ssl = true; keystore = {keystore}; keystore-password = changeit",
    }
    nobody = free_port()
    with RunningAgent(tmp_path, configuration(collector, sources)) as agent:
        addresses = {name: f"127.0.0.1:{agent.port(name)}" for name in sources}
        trust = f"ssl=true truststore={keystore} truststore-password=changeit truststore-type=JKS"
        clients = {
            "default": f"hosts=h1 hosts.h1={addresses['plain']} batch-size=50",
            "deflate": f"hosts=h1 hosts.h1={addresses['deflate']} compression-type=deflate compression-level=9",
            "tls": f"hosts=h1 hosts.h1={addresses['tls']} {trust}",
            "failover": "client.type=default_failover hosts=h1+h2 "
            f"hosts.h1=127.0.0.1:{nobody} hosts.h2={addresses['plain']} max-attempts=2",
            "balance": f"client.type=default_loadbalance hosts=h1+h2 hosts.h1={addresses['plain']} "
            f"hosts.h2={addresses['second']} host-selector=round_robin backoff=true",
        }
        for tag, properties in clients.items():
            assert application.request(f"rpc {COUNT} {tag} {properties}") == f"stored {COUNT}", application.log[
                -3000:
            ]
        agent.until(lambda: len(collector.events) >= len(clients) * COUNT, "all events at the collector")
        assert agent.count("SOURCE.second", "EventAcceptedCount") > COUNT // 4  # its part of the balance
        assert agent.count("SOURCE.plain", "AppendAcceptedCount") > COUNT
        assert agent.stop() == 0
    headers = [{"number": str(number), "grüße": "世界"} for number in range(COUNT)]
    wanted = {f"{tag}-rpc-{number}": headers[number] for tag in clients for number in range(COUNT)}
    assert Counter(event.body.decode() for event in collector.events) == Counter(wanted.keys())
    for event in collector.events:
        assert event.headers == wanted[event.body.decode()]


def test_a_client_gets_an_error_while_the_channel_is_unavailable(tmp_path: Path, application: Application) -> None:
    with Running(store=False, **{"request-timeout": "500"}) as source:
        properties = f"hosts=h1 hosts.h1=127.0.0.1:{source.source.port}"
        assert application.request(f"rpc 10 away {properties}") == "stored 0"
        assert "FAILED" in application.log


def test_the_stock_log4j_appender(tmp_path: Path, application: Application, collector: Running) -> None:
    """Flume's own Log4jAppender, synchronous, as in Flume's guide."""
    port = free_port()
    settings = tmp_path / "log4j.properties"
    settings.write_text(f"""
log4j.logger.app.stock = INFO, stock
log4j.additivity.app.stock = false
log4j.appender.stock = org.apache.flume.clients.log4jappender.Log4jAppender
log4j.appender.stock.Hostname = 127.0.0.1
log4j.appender.stock.Port = {port}
log4j.appender.stock.UnsafeMode = true
""")

    def log(tag: str, count: int = COUNT) -> None:
        assert application.request(f"stock {count} {tag} {settings}") == "logged"

    def arrived(tag: str, count: int = COUNT) -> bool:
        return [f"{tag}-stock-{n}" for n in range(count)] == [
            event.body.decode() for event in list(collector.events) if event.body.startswith(tag.encode())
        ]

    text = configuration(collector, {"logs": f"port = {port}"})
    with RunningAgent(tmp_path, text) as agent:
        agent.wait_until_healthy()
        log("up")
        assert agent.count("SOURCE.logs", "AppendAcceptedCount") == COUNT  # it waits for each answer
        agent.until(lambda: arrived("up"), "all events, in their order")
        agent.stop(signal.SIGKILL)
    log("killed", 1)
    with RunningAgent(tmp_path, text) as agent:
        agent.wait_until_healthy()
        log("again")
        agent.until(lambda: arrived("again"), "all events, in their order")
        assert agent.stop() == 0
    headers = next(event.headers for event in collector.events if event.body == b"up-stock-7")
    assert int(headers.pop("flume.client.log4j.timestamp")) > 1_600_000_000_000
    assert headers == {
        "flume.client.log4j.address": "127.0.0.1",
        "flume.client.log4j.logger.name": "app.stock",
        "flume.client.log4j.log.level": "30000",
        "flume.client.log4j.message.encoding": "UTF8",
    }


def test_log4j_never_blocks_its_application(
    tmp_path: Path, application: Application, collector: Running, port: int
) -> None:
    text = configuration(collector, {"logs": f"port = {port}"}) + interceptors(LOG4J / "log4j2.xml")

    def arrived(tag: str, count: int = COUNT) -> bool:
        wanted = {f"{tag}-{api}-{number}" for api in ("log4j1", "log4j2") for number in range(count)}
        return wanted <= {event.body.decode() for event in list(collector.events)}

    def log(tag: str, count: int = COUNT) -> None:
        """Have the application log; it never blocks."""
        assert application.request(f"log {count} {tag}") == "logged"

    def await_reconnection(agent: RunningAgent, tag: str) -> None:
        """Log until events arrive: the appenders detect broken connections only by losing the first events."""
        agent.until(lambda: log(tag, 1) or arrived(tag, 1), f"the appenders to come back\n{application.log[-2000:]}")

    log("down")
    with RunningAgent(tmp_path, text) as agent:
        agent.wait_until_healthy()
        await_reconnection(agent, "hello")
        log("up")
        agent.until(lambda: arrived("up"), "all events at the collector")
        check([event for event in collector.events if event.body.startswith(b"up")])
        agent.process.send_signal(signal.SIGSTOP)  # a connection that does not answer for a while
        log("stopped")
        agent.process.send_signal(signal.SIGCONT)
        agent.until(lambda: arrived("stopped"), "what was logged meanwhile at the collector")
        agent.stop(signal.SIGKILL)
    log("killed")
    with silent(port):
        log("silent")
    with RunningAgent(tmp_path, text) as agent:
        agent.wait_until_healthy()
        await_reconnection(agent, "again")
        log("end")
        application.end()
        agent.until(lambda: arrived("end"), "what was logged last at the collector")
        assert agent.stop() == 0


def check(events: list[Event]) -> None:
    """Check the headers of either appender, and that the body is the bare message."""
    by_api = {event.body.split(b"-")[1]: event.headers for event in events}
    log4j1, log4j2 = by_api[b"log4j1"], by_api[b"log4j2"]
    assert log4j1["flume.client.log4j.logger.name"] == "app.one"
    assert log4j1["flume.client.log4j.log.level"] == "30000"
    assert int(log4j1["flume.client.log4j.timestamp"]) > 1_600_000_000_000
    assert log4j2["mdc.user"] == "jane"
    assert "guId" in log4j2
    assert [(headers["level"], headers["thread"]) for headers in (log4j1, log4j2)] == [("WARN", "main")] * 2
    assert (log4j1["logger"], log4j2["logger"]) == ("app.one", "app.two")


@contextlib.contextmanager
def silent(port: int) -> Iterator[None]:
    """Server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", port)):
        yield
