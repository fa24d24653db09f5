"""Thrift RPC with Apache Flume 1.11: its SDK's client before our source, and our sink and source around its own."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from flafka.agent.services.running import RunningAgent, free_ports, until
from flafka.sinks.thrift import ThriftSink
from tests.interop.jvm import Application, java_keystore
from tests.interop.test_avro_clients import COUNT, configuration
from tests.interop.test_avro_flume import EVENTS, hop, key, sent
from tests.interop.test_flume import flume
from tests.sources.calling import Running as Collector
from tests.sources.test_thrift import Running


def test_the_sdks_client(tmp_path: Path) -> None:
    """`ThriftRpcClient`, over both protocols and TLS; it gets errors for a failing channel and a wrong protocol."""
    keystore = java_keystore(tmp_path / "server.jks")
    sources = {
        "compact": "port = 0",
        "binary": "port = 0; protocol = binary; threads = 4",
        "tls": f"port = 0; ssl = true; keystore = {keystore}; keystore-password = changeit; keystore-type = JKS",
    }
    silent = tmp_path / "log4j2.xml"
    silent.write_text('<Configuration status="OFF"><Loggers><Root level="OFF"/></Loggers></Configuration>')
    trust = f"ssl=true truststore={keystore} truststore-password=changeit truststore-type=JKS"
    with (
        Application(tmp_path, log4j2_configurationFile=silent) as application,
        Collector() as collector,
        RunningAgent(tmp_path, configuration(collector, sources, "thrift")) as agent,
    ):

        def send(tag: str, port: int, properties: str = "", count: int = COUNT) -> str:
            """Return the answer of a new client to this many events."""
            return application.request(
                f"rpc {count} {tag} client.type=thrift hosts=h1 hosts.h1=127.0.0.1:{port} {properties}"
            )

        assert send("compact", agent.port("compact"), "batch-size=50") == f"stored {COUNT}", application.log[-3000:]
        assert send("binary", agent.port("binary"), "protocol=binary") == f"stored {COUNT}", application.log[-3000:]
        assert send("tls", agent.port("tls"), trust) == f"stored {COUNT}", application.log[-3000:]
        assert agent.count("SOURCE.compact", "AppendAcceptedCount") == COUNT // 2
        assert send("wrong", agent.port("compact"), "protocol=binary", 1) == "stored 0"
        assert "it speaks the protocol binary: set protocol = binary" in agent.log
        with Running(store=False, **{"request-timeout": "500"}) as away:
            assert send("away", away.source.port, count=10) == "stored 0"
        assert "Server returned status : FAILED" in application.log
        agent.until(lambda: len(collector.events) >= 3 * COUNT, "all events at the collector")
        assert agent.stop() == 0
    wanted = {f"{tag}-rpc-{n}": {"number": str(n), "grüße": "世界"} for tag in sources for n in range(COUNT)}
    assert Counter(event.body.decode() for event in collector.events) == Counter(wanted.keys())
    for event in collector.events:
        assert event.headers == wanted[event.body.decode()]


def test_a_round_trip_through_flume(tmp_path: Path) -> None:
    """Our sink → Flume's source → its sink → our source, and no event is sent twice."""
    keystore = java_keystore(tmp_path / "server.jks")
    server = {"ssl": "true", "keystore": str(keystore), "keystore-password": "changeit"}
    client = {"ssl": "true", "truststore": str(keystore), "truststore-password": "changeit"}
    binary = {"protocol": "binary"}
    ports = free_ports(3)
    file = tmp_path / "flume.conf"
    with Running() as compact, Running(**binary) as plain, Running(**server) as secret:
        collectors = (compact, plain, secret)
        ways: list[tuple[dict[str, str], dict[str, str]]] = [({}, {}), (binary, binary), (server, client)]
        file.write_text(
            "".join(
                hop(str(n), port, listener, running.source.port, sender, "thrift")
                for n, (port, running, (listener, sender)) in enumerate(zip(ports, collectors, ways, strict=True))
            )
            + "a1.sources = r0 r1 r2\na1.channels = c0 c1 c2\na1.sinks = k0 k1 k2\n"
        )
        with flume(tmp_path, file):
            for port, (_, sender) in zip(ports, ways, strict=True):
                sent(port, ThriftSink, **sender).close()
            for running in collectors:
                until(lambda running=running: len(running.events) >= len(EVENTS), "all events back from Flume")
        for running in collectors:
            assert Counter(map(key, running.events)) == Counter(map(key, EVENTS))
