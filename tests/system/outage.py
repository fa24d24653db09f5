"""Outage of Kafka under a real JVM that sends and logs: no call hangs, and no acknowledged event is lost.

The short version is in test_proofs_brokers.py, ten minutes in tests/soak.
"""

from __future__ import annotations

import contextlib
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.running import RunningAgent, free_ports
from tests.interop.jvm import Application, interceptors
from tests.system.running import ROOT, in_topic, kafka_channel, unique

SETTINGS = ROOT / "conf" / "log4j"
APIS = ("log4j1", "log4j2", "logback")
COUNT = 100


@contextlib.contextmanager
def all_brokers_silent(kafka: KafkaCluster) -> Iterator[None]:
    """Stop all brokers with SIGSTOP: connections stay open silently, the failure that clients detect last."""
    try:
        for name in kafka.names():
            kafka.server(name).signal(signal.SIGSTOP)
        yield
    finally:
        for name in kafka.names():
            kafka.server(name).signal(signal.SIGCONT)


def outage(directory: Path, kafka: KafkaCluster, seconds: float) -> str:
    """Cause an outage of at least this many seconds and check every event; return its figures."""
    topic = unique("applications")
    avro, lines = free_ports(2)
    # The other snippets send to the avro source, from the same JVM with the same properties.
    logback = directory / "logback.xml"
    logback.write_text((SETTINGS / "logback.xml").read_text().replace("${flafka.port}", str(lines)))
    configuration = f"""
a1.sources = avro lines
a1.channels = c1
a1.sources.avro.type = avro
a1.sources.avro.bind = 127.0.0.1
a1.sources.avro.port = {avro}
a1.sources.avro.channels = c1
{interceptors(SETTINGS / "log4j2.xml", "avro")}
a1.sources.lines.type = log4j
a1.sources.lines.bind = 127.0.0.1
a1.sources.lines.port = {lines}
a1.sources.lines.channels = c1
{kafka_channel(kafka.bootstrap_servers, topic)}
"""
    settings = {
        "flafka_host": "127.0.0.1",
        "flafka_port": avro,
        "log4j_configuration": (SETTINGS / "log4j.xml").as_uri(),
        "log4j2_configurationFile": SETTINGS / "log4j2.xml",
        "flafka_shutdownTimeout": 5000,
        "logback_configurationFile": logback,
    }
    application, second = (Application(directory / name, **settings) for name in ("one", "another"))
    acknowledged: list[str] = []
    refused: list[str] = []

    def send() -> bool:
        """Send through flume-ng-sdk with its defaults until it fails, and keep its error. Return True without
        failures."""
        tag = unique("rpc")
        answer = application.request(f"rpc {COUNT} {tag} hosts=h1 hosts.h1=127.0.0.1:{avro}")
        stored = int(answer.removeprefix("stored "))
        acknowledged.extend(f"{tag}-rpc-{number}" for number in range(stored))
        if stored < COUNT:
            refused.append(tag)
        return stored == COUNT

    def log(tag: str, application: Application = application) -> None:
        assert application.request(f"log {COUNT} {tag}") == "logged"

    def logged(tag: str) -> set[str]:
        return {f"{tag}-{api}-{number}" for api in APIS for number in range(COUNT)}

    def stored() -> set[str]:
        return {event.body.decode() for event in in_topic(kafka, topic)}

    with RunningAgent(directory, configuration) as agent:
        agent.wait_until_healthy()
        with ThreadPoolExecutor(1) as pool, application, second:
            log("before")
            assert send()
            agent.until(lambda: logged("before") <= stored(), "what was logged before")
            with all_brokers_silent(kafka):
                began = time.monotonic()
                log("ending", second)
                ending = pool.submit(second.end)
                while time.monotonic() < began + seconds:
                    log("meanwhile")  # the application keeps running: this returns while no broker answers
                    assert not send()
                ending.result()  # an application can end as well
                away = time.monotonic() - began
            agent.wait_until_healthy()
            agent.until(send, "clients to be served again")
            log("after")
            agent.until(lambda: logged("after") <= stored(), "what was logged afterwards", seconds=600)
            application.end()
        assert agent.stop() == 0
        assert "Traceback" not in agent.log
    for tag in refused:  # refused by the agent, not abandoned by the clients
        assert re.search(rf"^{tag}: .*FAILED", application.log, re.MULTILINE), application.log[-3000:]
    lost = set(acknowledged) - stored()
    assert not lost, f"{len(lost)} acknowledged events are not stored, such as {sorted(lost)[:3]}"
    return (
        f"Kafka away for {away:.0f} s: clients were told FAILED {len(refused)} times, "
        f"all {len(acknowledged)} acknowledged events are stored"
    )
